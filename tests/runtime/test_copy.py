"""Copies in all directions, dtypes and layouts; conjugate and negative views; files, pickles, deep copies; modules
keeping their parameters; data loaders."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from fresh_process import forked_python

import dlbackend  # noqa: F401

DEVICE = "ocl:0"
DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex64,
]  # fmt: skip


def make(dtype, *size):
    values = torch.randn(size, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 50
    if dtype == torch.bool:
        return values > 0
    return (values.abs() if dtype == torch.uint8 else values).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_round_trip(dtype):
    for size in [(3, 4), (), (0,), (2, 3, 4, 5), (1000,)]:
        x = make(dtype, *size)
        y = x.to(DEVICE)
        assert (y.dtype, y.shape, y.stride(), y.device) == (x.dtype, x.shape, x.stride(), torch.device(DEVICE))
        assert y.cpu().equal(x)
        assert y.clone().cpu().equal(x)


LAYOUTS = {
    "transposed": lambda t: t.t(),
    "sliced": lambda t: t[1:, ::2],
    "expanded": lambda t: t[:1].expand(7, -1),
    "flipped": lambda t: t.flip(0)[:, 1:],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8])
def test_strided_sources_and_destinations(layout, dtype):
    view = LAYOUTS[layout]
    x = make(dtype, 7, 10)
    there = x.to(DEVICE)
    assert view(x).to(DEVICE).cpu().equal(view(x))  # host to device
    assert view(there).cpu().equal(view(x))  # device to host
    assert view(there).clone().cpu().equal(view(x))  # on the device
    if layout != "expanded":
        values = make(dtype, *view(x).shape) + 1
        for source in (values, values.to(DEVICE)):
            target = x.to(DEVICE)
            if layout == "flipped":
                target = target.flip(0)
                target[:, 1:].copy_(source)
                assert target[:, 1:].cpu().equal(values)
                continue
            view(target).copy_(source)
            expected = x.clone()
            view(expected).copy_(values)
            assert target.cpu().equal(expected)
        here = x.clone()
        if layout != "flipped":
            view(here).copy_(values.to(DEVICE))
            assert view(here).equal(values)


@pytest.mark.parametrize("source", [torch.float32, torch.int64, torch.bool, torch.bfloat16])
@pytest.mark.parametrize("target", [torch.float32, torch.int32, torch.uint8, torch.bool, torch.float16])
def test_converting_copies(source, target):
    x = make(source, 5, 6)
    expected = x.to(target)
    assert x.to(DEVICE).to(target).cpu().equal(expected)
    out = torch.empty(5, 6, dtype=target, device=DEVICE)
    assert out.copy_(x).cpu().equal(expected)
    here = torch.empty(5, 6, dtype=target)
    assert here.copy_(x.to(DEVICE)).equal(expected)
    assert x.to(device=DEVICE, dtype=target).cpu().equal(expected)


def test_float_to_integer_edges():
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 3e9, -3e9, 300.0, -1.0, 1.9, -1.9])
    for dtype in (torch.int32, torch.int64, torch.int16, torch.uint8):
        assert x.to(DEVICE).to(dtype).cpu().equal(x.to(dtype)), dtype


def test_broadcasting_copy():
    x = torch.zeros(3, 4, device=DEVICE)
    for source in (torch.arange(4.0), torch.tensor(2.0), torch.ones(3, 1)):
        for where in ("cpu", DEVICE):
            x.copy_(source.to(where))
            assert x.cpu().equal(source.expand(3, 4).contiguous())
    with pytest.raises(RuntimeError):
        x.copy_(torch.zeros(5))


def test_conjugate_and_negative_views():
    x = torch.randn(3, 4, dtype=torch.complex64)
    y = x.to(DEVICE)
    assert y.conj().is_conj()
    assert y.conj().cpu().equal(x.conj())
    assert y.conj().clone().resolve_conj().cpu().equal(x.conj().resolve_conj())
    assert y.conj().imag.cpu().equal(x.conj().imag)  # negative bit
    assert y.imag.neg().cpu().equal(-x.imag)
    assert x.conj().to(DEVICE).cpu().equal(x.conj())
    assert torch.zeros_like(y).copy_(y.conj()).cpu().equal(x.conj().resolve_conj())
    z = torch.zeros(3, 4, dtype=torch.complex64, device=DEVICE)
    z.conj().copy_(y)
    assert z.cpu().equal(x.conj().resolve_conj())
    assert torch.view_as_real(y).cpu().equal(torch.view_as_real(x))
    assert y.real.contiguous().cpu().equal(x.real.contiguous())
    assert y.conj().t().cpu().equal(x.conj().t())


def test_pinned_and_non_blocking():
    x = torch.randn(1 << 18)
    pinned = x.pin_memory()
    assert pinned.is_pinned()
    assert not x.is_pinned()
    y = pinned.to(DEVICE, non_blocking=True)
    back = torch.empty(1 << 18, pin_memory=True)
    back.copy_(y * 2, non_blocking=True)
    torch.ocl.synchronize()
    assert back.equal(x * 2)
    pinned_view = pinned[5:1000:3]
    assert pinned_view.to(DEVICE, non_blocking=True).cpu().equal(x[5:1000:3])
    # the source may die before the copy has run
    results = []
    for i in range(20):
        source = torch.full((1 << 16,), float(i)).pin_memory()
        results.append(source.to(DEVICE, non_blocking=True))
        del source
    for i, r in enumerate(results):
        assert r.cpu().eq(i).all()


def test_pageable_source_may_change_at_once():
    for n in (10, 1 << 16, 20 << 20):
        x = torch.zeros(n)
        y = x.to(DEVICE, non_blocking=True)
        x.fill_(1)
        assert not y.any().item()
        z = torch.empty(n)
        z.copy_(y, non_blocking=True)
        assert not z.any()


NEW_MEMORY = """
import torch, dlbackend
gpu = torch.ocl.get_device_properties(0).type == "gpu"
x = torch.ones(1 << (30 if gpu else 20), device="ocl:0")
x.mul_(1.0001)
torch.ocl.synchronize()
for _ in range(400 if gpu else 1500):  # drivers of GPUs take some hundred launches before they wait
    x.mul_(1.0001)
computed = torch.ocl.current_stream().record_event()
copies = [torch.zeros(1 << 20).to("ocl:0")]
first_waited = computed.query()
copies += [torch.full((1 << 20,), float(i)).to("ocl:0") for i in range(1, 6)]
print(first_waited, computed.query(), [c.unique().tolist() for c in copies] == [[float(i)] for i in range(6)])
"""


def test_copies_that_need_new_memory_do_not_wait_for_the_device():
    """A copy from pageable memory passes through page-locked memory, which each has of its own until it is done. That
    was mapped behind all that was launched before. A new process keeps none of earlier copies.

    The first copy would have waited for all launches, which take a second on a GPU. Page-locking takes the system a
    millisecond, but was seen to take 100 where a dozen processes do it at once, so that later copies may come after the
    launches have ended."""
    done = forked_python(NEW_MEMORY)
    assert done.stdout, done.stderr
    first_waited, any_waited, right = done.stdout.split()[-3:]
    assert right == "True"
    assert first_waited == "False"
    if torch.ocl.get_device_properties(0).type != "gpu":
        assert any_waited == "False"


def test_self_copies_and_aliases():
    x = torch.arange(10.0, device=DEVICE)
    x.copy_(x)
    assert x.tolist() == list(range(10))
    y = torch.arange(9.0, device=DEVICE).view(3, 3)
    y.copy_(y.t().clone())
    assert y.tolist() == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]
    assert x.to(DEVICE) is x
    assert x.to(DEVICE, copy=True).data_ptr() != x.data_ptr()


def test_item_tolist_numpy_and_print():
    for dtype in DTYPES:
        x = make(dtype, 1)
        assert x.to(DEVICE).item() == x.item()
    x = torch.arange(6.0).view(2, 3)
    assert x.to(DEVICE).tolist() == x.tolist()
    assert np.array_equal(x.to(DEVICE).numpy(force=True), x.numpy())
    assert repr(x.to(DEVICE)).replace(", device='ocl:0'", "") == repr(x)
    with pytest.raises(TypeError):
        x.to(DEVICE).numpy()
    with pytest.raises(RuntimeError):
        torch.ones(2, device=DEVICE).item()


def test_save_and_load_in_all_directions():
    x = torch.randn(4, 5)
    data = {"a": x.to(DEVICE), "b": x.to(DEVICE)[1:, ::2], "c": torch.nn.Parameter(x.to(DEVICE)), "d": x}
    file = io.BytesIO()
    torch.save(data, file)
    targets = [None, "cpu", DEVICE, torch.device(DEVICE), "ocl", {DEVICE: "cpu"}, lambda storage, _: storage]
    for where in targets:
        file.seek(0)
        loaded = torch.load(file, map_location=where)
        on_device = where in (None, DEVICE, "ocl") or where == torch.device(DEVICE)
        assert loaded["a"].device.type == ("ocl" if on_device else "cpu")
        for key in "abd":
            assert loaded[key].cpu().equal(data[key].cpu()), (where, key)
        assert isinstance(loaded["c"], torch.nn.Parameter)
    cpu_file = io.BytesIO()
    torch.save(x, cpu_file)
    cpu_file.seek(0)
    assert torch.load(cpu_file, map_location=DEVICE).cpu().equal(x)
    both = io.BytesIO()
    y = x.to(DEVICE)
    torch.save([y, y[0]], both)  # shared storage stays shared
    both.seek(0)
    first, second = torch.load(both)
    second.fill_(3)
    assert first[0].eq(3).all().item()


def test_pickle_and_deepcopy():
    x = torch.randn(3, 4, device=DEVICE)
    assert pickle.loads(pickle.dumps(x)).cpu().equal(x.cpu())
    y = copy.deepcopy(x)
    assert y.device == x.device
    y.zero_()
    assert x.abs().sum().item() > 0
    model = torch.nn.Linear(4, 3).to(DEVICE)
    other = copy.deepcopy(model)
    assert other.weight.device.type == "ocl"
    assert other.weight.data_ptr() != model.weight.data_ptr()
    generator = torch.Generator(DEVICE).manual_seed(3)
    assert torch.equal(generator.get_state(), generator.clone_state().get_state())


def test_module_to_keeps_parameters_and_ties():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(10, 4)
            self.out = torch.nn.Linear(4, 10, bias=False)
            self.out.weight = self.embedding.weight
            self.register_buffer("steps", torch.zeros(2))

    model = Tied()
    weight = model.embedding.weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)  # made before the move
    for where in (DEVICE, "cpu", DEVICE):
        model.to(where)
        assert model.embedding.weight is weight is model.out.weight
        assert weight.device.type == model.steps.device.type == torch.device(where).type
    before = weight.detach().cpu()
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    torch.testing.assert_close(model.out.weight.detach().cpu(), before - 0.5)
    assert model.half().out.weight.dtype == torch.float16
    assert torch.nn.Linear(3, 2).ocl().weight.device.type == "ocl"
    state = {k: v.cpu() for k, v in model.state_dict().items()}
    model.load_state_dict(state)
    assert model.out.weight is model.embedding.weight
    lazy = torch.nn.LazyLinear(3).to(DEVICE)
    assert lazy(torch.ones(2, 5, device=DEVICE)).shape == (2, 3)


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, i):
        return torch.full((3,), float(i)), i


@pytest.mark.parametrize("workers", [0, 2])
def test_data_loader(workers):
    torch.ones(1, device=DEVICE)  # the device is in use when workers fork
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=5, num_workers=workers, pin_memory=True)
    seen = []
    for x, i in loader:
        assert x.is_pinned()
        y = x.to(DEVICE, non_blocking=True)
        assert (y.sum(1) / 3).cpu().long().equal(i)
        seen += i.tolist()
    assert seen == list(range(20))


def test_unsupported_targets():
    x = torch.ones(2, device=DEVICE)
    with pytest.raises((RuntimeError, NotImplementedError)):
        x.to("meta").cpu()
    with pytest.raises(RuntimeError, match="does not exist"):
        x.to("ocl:77")
    with pytest.raises((RuntimeError, AssertionError)):
        x.to("cuda")


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.complex64, torch.complex128], ids=str
)
def test_transposing(dtype):
    """Whole blocks and rests of matrices that are transposed on the way, in batches, with gaps and offsets."""
    wide = torch.arange(3 * 150 * 203).remainder(251).view(3, 150, 203).to(dtype)
    there = wide.to(DEVICE)
    assert torch.equal(there.mT.contiguous().cpu(), wide.mT.contiguous())
    assert torch.equal(there[1, 3:, 1:200].t().contiguous().cpu(), wide[1, 3:, 1:200].t())
    assert torch.equal(there.permute(2, 0, 1).contiguous().cpu(), wide.permute(2, 0, 1))
    image = there.view(3, 25, 6, 203)
    back = image.contiguous(memory_format=torch.channels_last)
    assert back.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(back.cpu(), wide.view(3, 25, 6, 203))
    into = torch.zeros(220, 300, dtype=dtype, device=DEVICE)
    into[5:208, 7:157] = there[0].t()
    expected = torch.zeros(220, 300, dtype=dtype)
    expected[5:208, 7:157] = wide[0].t()
    assert torch.equal(into.cpu(), expected)
    if dtype.is_complex:
        assert torch.equal(there[0].t().conj().contiguous().cpu(), wide[0].t().conj())
