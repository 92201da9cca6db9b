"""dlbackend.precompile(): the iteration after it compiles nothing, and it leaves everything as it was."""

import copy
import gc

import pytest
import torch
from common import DEVICE
from fresh_process import forked_python
from torch import nn

import dlbackend
from dlbackend import _C

NETS = {
    "hybrid": "nn.Linear(12, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 5)",
    "fast": "nn.Unflatten(1, (1, 3, 4)), nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 5)",
}
NET = """
import torch, dlbackend
from torch import nn

torch.manual_seed(0)
model = nn.Sequential({layers}).to("ocl:0")
x, y = torch.randn(4, 12), torch.tensor([0, 1, 2, 3])
def loss(output):
    return nn.functional.cross_entropy(output, y.to("ocl:0"))
"""


@pytest.mark.parametrize("mode", NETS)
def test_the_first_iteration_compiles_nothing(tmp_path, mode):
    code = (
        NET.format(layers=NETS[mode])
        + """
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
found = dlbackend.precompile(model, x, training=True, loss=loss, optimizer=optimizer)
before = dlbackend.kernel_stats()
model.train()
inputs = x.to("ocl:0")
optimizer.zero_grad()
loss(model(inputs)).backward()
optimizer.step()
dlbackend.solvers.wait()
torch.ocl.synchronize()
after = dlbackend.kernel_stats()
print(found["programs"], found["compiled"], found["loaded"])
print(*(after[what] - before[what] for what in ("compiled", "loaded")))
"""
    )
    caches = {"DLBACKEND_CACHE_DIR": str(tmp_path / "cache"), "DLBACKEND_PACKS": "", "DLBACKEND_FIND_MODE": mode}
    (tmp_path / "pocl").mkdir()
    done = forked_python(code, POCL_CACHE_DIR=str(tmp_path / "pocl"), **caches)
    assert done.returncode == 0, done.stderr
    first, then = ([int(float(n)) for n in line.split()] for line in done.stdout.splitlines())
    assert then == [0, 0]
    assert first[0] >= 6
    assert first[1] >= first[0]
    assert first[1] - first[0] <= 3  # what was built on the way was nearly all foreseen
    if mode == "hybrid":
        return
    done = forked_python(code, POCL_CACHE_DIR=str(tmp_path / "pocl"), **caches)
    (programs, compiled, loaded), then = ([int(float(n)) for n in line.split()] for line in done.stdout.splitlines())
    assert (then, compiled) == ([0, 0], 0)
    assert loaded >= programs


class Stateful(nn.Module):
    """Writes to a parameter, a buffer and random state."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout()
        self.scale = nn.Parameter(torch.ones(1))
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls += 1
        with torch.no_grad():
            self.scale.mul_(2)
        return self.drop(self.norm(self.conv(x))) * self.scale


def snapshot(model, optimizer):
    torch.ocl.synchronize()
    tensors = {name: t.detach().cpu().clone() for name, t in model.state_dict(keep_vars=True).items()}
    grads = {name: None if p.grad is None else p.grad.cpu().clone() for name, p in model.named_parameters()}
    states = {i: copy.deepcopy(s) for i, s in enumerate(optimizer.state_dict()["state"].values())}
    random = (torch.get_rng_state(), torch.ocl.get_rng_state())
    return tensors, grads, states, random


def assert_same(a, b):
    if isinstance(a, torch.Tensor):
        assert torch.equal(a.cpu(), b.cpu())
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    else:
        assert a == b


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_everything_stays_as_it_was(training, trained, background_at_rest):
    model = Stateful().to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(2, 3, 8, 8)
    if trained:
        model(x.to(DEVICE)).sum().backward()
        optimizer.step()
    model.norm.eval()
    before = snapshot(model, optimizer)
    dlbackend.precompile(model, x, training, optimizer=optimizer if training else None)  # what it keeps for good
    gc.collect()  # tensors of earlier tests in cycles would be freed at some time in between
    memory = torch.ocl.memory_allocated()
    dlbackend.precompile(model, {"x": x}, training, optimizer=optimizer if training else None)
    assert_same(snapshot(model, optimizer), before)
    assert torch.ocl.memory_allocated() == memory
    assert [m.training for m in model.modules()] == [True, True, False, True]
    assert torch.is_grad_enabled()
    assert not model._forward_hooks


def test_a_model_that_looks_at_its_data():
    """The dry run ends where data is needed; the real runs do the rest."""

    class Looks(nn.Module):
        def forward(self, x):
            return x.abs() * 3 if x.sum().item() > 0 else x.erfinv()

    found = dlbackend.precompile(Looks(), torch.full((4,), 0.5, device=DEVICE))
    before = dlbackend.kernel_stats()["compiled"]
    Looks()(torch.ones(8, device=DEVICE))  # a multiple of four too: GPUs have other kernels for those
    assert dlbackend.kernel_stats()["compiled"] == before
    assert found["seconds"] > 0


def test_a_model_that_fails_says_why():
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        dlbackend.precompile(nn.Linear(3, 3).to(DEVICE), torch.randn(2, 4))
    assert (torch.ones(3, device=DEVICE) + 1).tolist() == [2, 2, 2]  # the recording has ended
    with pytest.raises(ValueError, match='to\\("ocl"\\)'):
        dlbackend.precompile(nn.Linear(3, 3), torch.randn(2, 3))


def test_recording_computes_nothing():
    source = torch.arange(8.0)
    x = source.to(DEVICE)
    _C.begin_recording()
    try:
        x += 1
        x.zero_()
        x.copy_(source + 5)
        y = x.clone()
        with pytest.raises(RuntimeError, match="none is computed while recording"):
            x.sum().item()
    finally:
        programs = _C.end_recording()
    assert y.shape == x.shape
    assert all(isinstance(source, str) and isinstance(options, str) for source, options in programs)
    assert torch.equal(x.cpu(), source)
    assert torch.equal((x + 1).cpu(), source + 1)


def test_a_recording_is_of_its_thread_alone():
    import threading

    results = []
    _C.begin_recording()
    try:
        thread = threading.Thread(target=lambda: results.append((torch.ones(4, device=DEVICE) * 2).tolist()))
        thread.start()
        thread.join()
    finally:
        _C.end_recording()
    assert results == [[2, 2, 2, 2]]
