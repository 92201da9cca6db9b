"""Products and convolutions of compiled graphs with the rows behind them in one call."""

import functools

import pytest
import torch
import torch.nn.functional as F
from convolutions import Residual
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import dlbackend
import dlbackend.compile
from dlbackend.compile import products
from dlbackend.compile.fuse import fuse, run_rows

product_rows, convolution_rows = torch.ops.dlbackend.product_rows.default, torch.ops.dlbackend.convolution_rows.default

compile_by_rows = functools.partial(torch.compile, backend=dlbackend.compile.backend)


@pytest.fixture(autouse=True)
def as_where_all_products_gain(monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setattr(products, "_on_cpu_class", lambda device: False)
    yield
    torch._dynamo.reset()


def fused_graph(function, *args):
    module = fuse(make_fx(function, tracing_mode="fake")(*args))
    return module, [n.target for n in module.graph.nodes if n.op == "call_function"]


def check_training(model, x, graphs) -> None:
    """Values and gradients of the model and of the model compiled."""
    parameters = list(model.parameters())

    def step(net):
        y = net(x)
        return y, *torch.autograd.grad(y.float().square().mean(), parameters)

    want = step(model)
    compiled = compile_by_rows(model)
    for _ in range(2):  # apart, and then fused where something is built
        for a, b in zip(step(compiled), want, strict=True):
            torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-5)
        dlbackend.solvers.wait()
    assert len(graphs) == 2


def test_training_of_an_mlp(graphs):
    """The forward pass keeps the value before the GELU."""
    model = nn.Sequential(nn.Linear(20, 48), nn.GELU(), nn.Linear(48, 20), nn.Sigmoid()).to("ocl")
    check_training(model, torch.randn(33, 20, device="ocl"), graphs)
    assert graphs[0].count(product_rows) == 2
    assert run_rows not in graphs[0]
    assert product_rows in graphs[1]  # the gradient that the GELU's goes into


def test_training_of_convolutions(graphs):
    for layout in (torch.contiguous_format, torch.channels_last):
        graphs.clear()
        torch._dynamo.reset()
        model = Residual().to("ocl", memory_format=layout)
        check_training(model, torch.randn(2, 6, 9, 11, device="ocl").to(memory_format=layout), graphs)
        assert graphs[0].count(convolution_rows) == 2


def test_training_of_layers_on_sequences(graphs):
    """A linear layer multiplies matrices; the calls behind it see its result in three dimensions."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down, self.scale = nn.Linear(20, 48), nn.Linear(48, 20), nn.Parameter(torch.rand(20))

        def forward(self, x):
            return x + self.down(F.gelu(self.up(x))) * self.scale

    model = Block().to("ocl")
    check_training(model, torch.randn(3, 11, 20, device="ocl"), graphs)
    assert graphs[0].count(product_rows) == 2
    assert run_rows not in graphs[0]
    torch._dynamo.reset()
    graphs.clear()
    compiled = compile_by_rows(model, dynamic=True)
    with torch.no_grad():
        for shape in ((2, 5, 20), (4, 9, 20)):
            x = torch.randn(shape, device="ocl")
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    assert len(graphs) == 1
    assert product_rows in graphs[0]


def test_scaled_scores():
    q, k = torch.randn(4, 10, 16, device="ocl"), torch.randn(4, 16, 12, device="ocl")
    mask = torch.randn(10, 12, device="ocl")
    bias = torch.randn(4, 10, 12, device="ocl")

    def scores(q, k, mask, bias):
        return torch.bmm(q, k) * 0.25 + bias

    module, targets = fused_graph(scores, q, k, mask, bias)
    assert product_rows in targets
    torch.testing.assert_close(module(q, k, mask, bias), scores(q, k, mask, bias))
    # a mask of rows and columns lies as no kernel takes it
    _, targets = fused_graph(lambda q, k, mask: torch.bmm(q, k) * 0.25 + mask, q, k, mask)
    assert product_rows not in targets
    assert run_rows in targets


@pytest.mark.parametrize(
    "function",
    [
        lambda a: (p := a @ a) + a[:, :1] * p.sum(0),
        lambda a: (a @ a).relu().to(torch.bfloat16),  # none of the product's dtype
        lambda a: (a @ a).t().relu().exp(),
        lambda a: (a.double() @ a.double()).relu().exp(),
    ],
)
def test_rows_that_do_not_run_behind(function):
    a = torch.randn(12, 12, device="ocl")
    module, targets = fused_graph(function, a)
    assert product_rows not in targets
    torch.testing.assert_close(module(a), function(a))


def test_a_value_that_the_product_leads_to_elsewhere():
    """The rows need a sum that is made of the product: the product cannot wait for them."""
    a = torch.randn(12, 12, device="ocl")

    def function(a):
        p = a @ a
        return (p + p.sum()).relu()

    module, targets = fused_graph(function, a)
    assert product_rows not in targets
    torch.testing.assert_close(module(a), function(a))


def test_transposed_convolutions_stay_alone():
    x, w = torch.randn(2, 4, 5, 5, device="ocl"), torch.randn(4, 3, 3, 3, device="ocl")
    _, targets = fused_graph(lambda x, w: F.conv_transpose2d(x, w).relu().exp(), x, w)
    assert convolution_rows not in targets


def test_other_sizes_run_the_same_graph(graphs):
    layer = nn.Linear(16, 24).to("ocl")
    compiled = compile_by_rows(lambda x: F.gelu(layer(x), approximate="tanh"), dynamic=True)
    with torch.no_grad():
        for rows in (3, 17, 90):
            x = torch.randn(rows, 16, device="ocl")
            torch.testing.assert_close(compiled(x), F.gelu(layer(x), approximate="tanh"))
    assert len(graphs) == 1
    assert product_rows in graphs[0]


def test_on_cpus_only_depthwise_convolutions_gain(monkeypatch):
    monkeypatch.setattr(products, "_on_cpu_class", lambda device: True)
    x, w = torch.randn(2, 4, 5, 5, device="ocl"), torch.randn(4, 4, 3, 3, device="ocl")
    _, targets = fused_graph(lambda x, w: F.conv2d(x, w).relu().exp(), x, w)
    assert convolution_rows not in targets
    _, targets = fused_graph(lambda x, w: F.conv2d(x, w[:, :1], groups=4).relu().exp(), x, w)
    assert convolution_rows in targets
