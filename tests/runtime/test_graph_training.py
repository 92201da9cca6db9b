"""Training steps, modules and ops of many kernels as graphs: results equal to eager mode's bit for bit."""

import pytest
import torch
from common import DEVICE
from graphs import capture
from torch import nn
from torch.nn import functional as F

import dlbackend


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Dropout(0.2), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "sgd loop": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, foreach=False),
    "adam": lambda p: torch.optim.Adam(p, 0.01, capturable=True),
    "adam loop": lambda p: torch.optim.Adam(p, 0.01, capturable=True, foreach=False),
    "adamw fused": lambda p: torch.optim.AdamW(p, 0.01, fused=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_training_step_equals_eager_bit_for_bit(name):
    batches = [(torch.randn(32, 16), torch.randint(0, 4, (32,))) for _ in range(5)]

    def trained(graphed: bool) -> list[torch.Tensor]:
        model = net().to(DEVICE)
        optimizer = OPTIMIZERS[name](model.parameters())
        x, y = torch.zeros(32, 16, device=DEVICE), torch.zeros(32, dtype=torch.long, device=DEVICE)

        def step() -> torch.Tensor:
            optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        side = torch.ocl.Stream()
        side.wait_stream(torch.ocl.current_stream())
        torch.ocl.manual_seed(1)
        with torch.ocl.stream(side):
            for _ in range(3):
                step()
        torch.ocl.synchronize()
        loss = torch.zeros(())
        if graphed:
            graph = torch.ocl.OclGraph()
            with torch.ocl.graph(graph):
                loss = step()
        losses = []
        for a, b in batches:
            x.copy_(a)
            y.copy_(b)
            if graphed:
                graph.replay()
            else:
                loss = step()
            losses.append(loss.detach().cpu())
        return losses + [p.detach().cpu() for p in model.parameters()]

    eager, graphed = trained(False), trained(True)
    assert all(torch.equal(a, b) for a, b in zip(eager, graphed, strict=True))


def test_an_optimizer_that_counts_on_the_host_is_refused():
    p = nn.Parameter(torch.ones(3, device=DEVICE))
    p.grad = torch.ones(3, device=DEVICE)
    optimizer = torch.optim.Adam([p])
    optimizer.step()
    with pytest.raises(RuntimeError, match="capturable is False"), torch.ocl.graph(torch.ocl.OclGraph()):
        optimizer.step()
    optimizer.step()


def test_convolutions_with_autocast():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 3)).to(DEVICE)
    x = torch.randn(4, 3, 12, 12, device=DEVICE).to(memory_format=torch.channels_last)

    def work():
        with torch.autocast("ocl", dtype=torch.bfloat16, cache_enabled=False):
            loss = model(x).float().square().mean()
        return loss, *torch.autograd.grad(loss, list(model.parameters()))

    graph, made = capture(work)
    x.copy_(torch.randn(4, 3, 12, 12))
    graph.replay()
    got = [t.detach().cpu() for t in made]
    assert all(torch.equal(a, b.detach().cpu()) for a, b in zip(got, work(), strict=True))


def test_constant_weights_may_change_between_replays():
    """What solvers keep of weights in eager mode is made anew in each replay."""
    conv = nn.Conv2d(32, 32, 3, padding=1).to(DEVICE).requires_grad_(False)
    x = torch.randn(2, 32, 28, 28, device=DEVICE)
    with torch.no_grad():
        graph, y = capture(lambda: conv(x), warm=4)
        graph.replay()
        assert torch.equal(y.cpu(), conv(x).cpu())
        conv.weight.mul_(-2)
        graph.replay()
        assert torch.equal(y.cpu(), conv(x).cpu())


@pytest.mark.parametrize("op", ["fft", "sort", "cumsum", "index", "interpolate", "cholesky", "cat", "topk"])
def test_ops_of_many_kernels(op):
    x = torch.randn(24, 60, device=DEVICE)
    positive = torch.eye(24, device=DEVICE) * 30
    index = torch.randint(0, 24, (50,), device=DEVICE)
    work = {
        "fft": lambda: torch.fft.rfft(x).abs(),
        "sort": lambda: torch.sort(x, -1),
        "cumsum": lambda: x.cumsum(1),
        "index": lambda: x[index] + x.index_select(0, index),
        "interpolate": lambda: F.interpolate(x[None, None], size=(37, 41), mode="bicubic"),
        "cholesky": lambda: torch.linalg.cholesky_ex(positive + 0.01 * x @ x.t())[0],
        "cat": lambda: torch.cat([x, x * 2, x.flip(0)]),
        "topk": lambda: x.topk(5),
    }[op]
    graph, made = capture(work)
    x.copy_(torch.randn(24, 60))
    index.copy_(torch.randint(0, 24, (50,)))
    graph.replay()
    got = [t.cpu() for t in made] if isinstance(made, tuple) else [made.cpu()]
    again = work()
    want = [t.cpu() for t in again] if isinstance(again, tuple) else [again.cpu()]
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_lists_of_tensors_have_tables_of_the_graphs_own():
    """Eager calls reuse the memory that their own tables were in."""
    xs = [torch.randn(i + 1, device=DEVICE) for i in range(40)]
    graph, made = capture(lambda: torch._foreach_mul(xs, [float(i) for i in range(40)]))
    others = [torch.randn(3, device=DEVICE) for _ in range(300)]
    for _ in range(40):
        torch._foreach_add_(others, [1.0] * 300)
        others = others[1:] + others[:1]
    for x in xs:
        x.add_(1)
    graph.replay()
    assert all(torch.equal(y.cpu(), (x * i).cpu()) for i, (x, y) in enumerate(zip(xs, made, strict=True)))


def test_graphed_module_trains_as_the_module_does():
    def trained(graphed: bool) -> list[torch.Tensor]:
        model = net().to(DEVICE)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        torch.ocl.manual_seed(2)
        if graphed:
            model = torch.ocl.make_graphed_callables(model, (torch.randn(32, 16, device=DEVICE),))
        torch.ocl.manual_seed(4)
        rng = torch.Generator().manual_seed(0)
        losses = []
        for _ in range(4):
            x = torch.randn(32, 16, generator=rng).to(DEVICE)
            optimizer.zero_grad(set_to_none=True)
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach().cpu())
        model.eval()
        losses.append(model(torch.ones(2, 16, device=DEVICE)).detach().cpu())  # of other sizes: not graphed
        return losses + [p.detach().cpu() for p in model.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(trained(False), trained(True), strict=True))


def test_graphed_callables_in_a_row():
    torch.manual_seed(0)
    first, second = nn.Linear(8, 8).to(DEVICE), nn.Linear(8, 3).to(DEVICE)

    def loss(y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(y, target)

    x, h = torch.randn(5, 8, device=DEVICE), torch.randn(5, 8, device=DEVICE, requires_grad=True)
    y, target = torch.randn(5, 3, device=DEVICE, requires_grad=True), torch.randn(5, 3, device=DEVICE)
    graphed = torch.ocl.make_graphed_callables((first, second, loss), ((x,), (h,), (y, target)))
    for _ in range(3):
        a, b = torch.randn(5, 8, device=DEVICE), torch.randn(5, 3, device=DEVICE)
        first.zero_grad()
        second.zero_grad()
        got = graphed[2](graphed[1](graphed[0](a)), b)
        got.backward()
        w1, w2 = (m.weight.detach().clone().requires_grad_() for m in (first, second))
        want = F.mse_loss(F.linear(F.linear(a, w1, first.bias), w2, second.bias), b)
        want.backward()
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(first.weight.grad, w1.grad)
        torch.testing.assert_close(second.weight.grad, w2.grad)


def test_graphed_callables_refuse_what_they_cannot_do():
    module = nn.Linear(4, 4).to(DEVICE)
    x = torch.randn(2, 4, device=DEVICE)
    with pytest.raises(AssertionError, match="only Tensors"):
        torch.ocl.make_graphed_callables(lambda x, n: x * n, (x, 3))
    handle = module.register_forward_hook(lambda *_: None)
    with pytest.raises(AssertionError, match="hooks"):
        torch.ocl.make_graphed_callables(module, (x,))
    handle.remove()
    with torch.autocast("ocl"), pytest.raises(RuntimeError, match="cache_enabled=False"):
        torch.ocl.make_graphed_callables(module, (x,))


def test_solvers_are_settled_by_the_capture():
    """A search does not go on in a capture, and a choice that only stands in is replaced at once."""
    a, b = torch.randn(160, 160, device=DEVICE), torch.randn(160, 160, device=DEVICE)
    with torch.ocl.graph(graph := torch.ocl.OclGraph()):
        c = a @ b
    graph.replay()
    torch.testing.assert_close(c.cpu(), a.cpu() @ b.cpu(), atol=1e-4, rtol=1e-4)
    dlbackend.solvers.wait()
