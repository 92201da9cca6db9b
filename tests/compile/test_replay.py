"""torch.compile(mode="reduce-overhead"): compiled graphs that are captured and replayed, with eager mode's values."""

import copy

import pytest
import torch
from common import DEVICE
from torch import nn
from torch.nn import functional as F

import dlbackend.compile
from dlbackend.compile.replay import MOST_CALLS, Captured

BACKEND = dlbackend.compile.backend  # by which graphs are compiled that are replayed


@pytest.fixture
def replays(monkeypatch):
    """Counts the calls that were replayed."""
    counts = {"captured": 0, "replayed": 0}
    init, call = Captured.__init__, Captured.__call__

    def counted_init(self, *arguments):
        init(self, *arguments)
        counts["captured"] += 1

    def counted_call(self, given):
        counts["replayed"] += 1
        return call(self, given)

    monkeypatch.setattr(Captured, "__init__", counted_init)
    monkeypatch.setattr(Captured, "__call__", counted_call)
    return counts


def test_inference_is_replayed_and_equals_the_graph_that_is_not(replays):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8)).to(DEVICE).eval()
    plain, fast = torch.compile(model, backend=BACKEND), torch.compile(model, mode="reduce-overhead")
    with torch.no_grad():
        xs = [torch.randn(4, 16, device=DEVICE) for _ in range(8)]
        results = [fast(x) for x in xs]  # all are kept, and none may change when the graph runs again
        assert all(torch.equal(y.cpu(), plain(x).cpu()) for x, y in zip(xs, results, strict=True))
    assert replays["replayed"] >= 4
    assert replays["captured"] <= 2


def trained(mode, steps=12, backend="inductor"):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Dropout(0.3), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    model = model.to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    compiled = torch.compile(model, mode=mode, backend=backend if mode else BACKEND)
    torch.ocl.manual_seed(7)
    rng = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(steps):
        x, y = torch.randn(32, 16, generator=rng).to(DEVICE), torch.randint(0, 4, (32,), generator=rng).to(DEVICE)
        optimizer.zero_grad()
        loss = F.cross_entropy(compiled(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [loss.cpu() for loss in losses] + [p.detach().cpu() for p in model.parameters()]


@pytest.mark.parametrize("backend", ["inductor", BACKEND], ids=["default", "ocl"])
def test_training_is_replayed_forward_and_backward(replays, backend):
    fast = trained("reduce-overhead", backend=backend)
    assert replays["captured"] >= 2
    assert replays["replayed"] >= 10
    torch._dynamo.reset()
    assert all(torch.equal(a, b) for a, b in zip(fast, trained(None, backend=backend), strict=True))


def test_gradients_that_add_up_and_forwards_before_backwards(replays):
    """Two forward passes before their backward passes: what the first kept is not overwritten by the second."""

    def gradients(mode):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 3)).to(DEVICE)
        compiled = torch.compile(model, mode=mode)
        rng = torch.Generator().manual_seed(1)
        found = []
        for i in range(10):
            xs = [torch.randn(5, 8, generator=rng).to(DEVICE) for _ in range(2)]
            losses = []
            if i % 2:
                losses = [compiled(x).square().mean() for x in xs]
                for loss in losses:
                    loss.backward()
            else:
                for x in xs:
                    compiled(x).square().mean().backward()
            found += [p.grad.cpu() for p in model.parameters()]
        return found

    fast = gradients("reduce-overhead")
    assert replays["replayed"] > 0
    torch._dynamo.reset()
    for a, b in zip(fast, gradients(None), strict=True):
        torch.testing.assert_close(a, b)


def test_attention_drops_the_same_in_both_passes(replays):
    def step(mode):
        torch.manual_seed(0)
        q, k, v = (torch.randn(2, 2, 24, 32, device=DEVICE, requires_grad=True) for _ in range(3))
        attention = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.3) * 2  # noqa: E731
        f = torch.compile(attention, mode=mode, backend="inductor" if mode else BACKEND)
        torch.ocl.manual_seed(3)
        found = []
        for _ in range(MOST_CALLS + 2):
            out = f(q, k, v)
            found += [out.detach().cpu(), *(g.cpu() for g in torch.autograd.grad(out.square().sum(), (q, k, v)))]
        return found

    with torch.backends.ocl.flags(deterministic=True):  # solvers that are measured meanwhile round otherwise
        fast = step("reduce-overhead")
        assert replays["replayed"] > 0
        torch._dynamo.reset()
        assert all(torch.equal(a, b) for a, b in zip(fast, step(None), strict=True))


def test_inputs_that_are_written_stay_where_they_are(replays):
    """A cache that the graph updates in place is updated where the program has it."""

    def work(x, cache, place):
        cache.index_copy_(0, place, x)
        return cache.sum(0) * 2

    fast = torch.compile(work, mode="reduce-overhead")
    cache, expected = torch.zeros(20, 8, device=DEVICE), torch.zeros(20, 8)
    with torch.no_grad():
        for i in range(15):
            x = torch.randn(1, 8)
            expected[i] = x[0]
            result = fast(x.to(DEVICE), cache, torch.tensor([i], device=DEVICE))
            torch.testing.assert_close(result.cpu(), expected.sum(0) * 2)
    assert torch.equal(cache.cpu(), expected)
    assert replays["replayed"] >= 5


def test_what_cannot_be_captured_runs_as_usual(replays):
    def work(x):
        return (x * 2).cpu() + 1

    fast = torch.compile(work, mode="reduce-overhead")
    x = torch.arange(6.0, device=DEVICE)
    with torch.no_grad(), pytest.warns(UserWarning, match="is not replayed"):
        results = [fast(x) for _ in range(MOST_CALLS + 1)]
    assert all(torch.equal(y, torch.arange(6.0) * 2 + 1) for y in results)
    assert replays["replayed"] == 0


def test_sizes_that_change(replays):
    model = nn.Linear(8, 8).to(DEVICE)
    fast, plain = torch.compile(model, mode="reduce-overhead", dynamic=True), copy.deepcopy(model)
    with torch.no_grad():
        for i in range(40):
            x = torch.randn(2 + i % 3, 8, device=DEVICE)
            torch.testing.assert_close(fast(x), plain(x))
    assert replays["replayed"] >= 20
