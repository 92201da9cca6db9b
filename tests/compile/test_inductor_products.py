"""Rows behind products and convolutions in the graphs of torch.compile's default backend: what they compute, in how
many launches, and which rows stay with Inductor's own kernels.
"""

import copy
import re

import pytest
import torch
import torch.nn.functional as F
from common import DEVICE
from convolutions import Residual
from torch import nn
from torch._inductor.utils import run_and_get_code

import dlbackend
from dlbackend.compile import products


@pytest.fixture(autouse=True)
def as_where_all_products_gain(fresh_dynamo, monkeypatch):
    monkeypatch.setattr(products, "_on_cpu_class", lambda device: False)
    with torch._inductor.config.patch(force_disable_caches=True):
        yield


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(20, 48), nn.Linear(48, 20)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(x)))


def step(model, x):
    y = model(x)
    return [y, *torch.autograd.grad(y.float().square().mean(), list(model.parameters()))]


def calls(code):
    """How many products and convolutions with rows a graph's code has, and launches of Inductor's kernels."""
    return code.count("_rows.default("), code.count("    ocl_fused_")


def assert_as_close(actual, plain, exact):
    """Errors of a compiled graph are like those of eager mode; both are compared with float64."""
    for a, p, e in zip(actual, plain, exact, strict=True):
        assert (a.dtype, a.shape, a.stride()) == (p.dtype, p.shape, p.stride())
        wrong, usual = ((v.detach().cpu().double() - e).abs().max() for v in (a, p))
        assert wrong <= 4 * usual + 2 * torch.finfo(a.dtype).eps * e.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("kind", "size", "layout"),
    [
        (Layer, (3, 11, 20), torch.contiguous_format),
        (Residual, (2, 6, 9, 11), torch.contiguous_format),
        (Residual, (2, 6, 9, 11), torch.channels_last),
    ],
)
def test_training(kind, size, layout, dtype):
    torch.manual_seed(0)
    model, x = kind().to(dtype), torch.randn(size).to(dtype).contiguous(memory_format=layout)
    reference = kind().double()
    reference.load_state_dict({name: value.double() for name, value in model.state_dict().items()})
    exact = [v.detach() for v in step(reference, x.double())]
    model, x = model.to(DEVICE, memory_format=layout), x.to(DEVICE)
    compiled = torch.compile(model, fullgraph=True)
    actual, codes = run_and_get_code(lambda: step(compiled, x))
    assert calls(codes[0]) == (2, 0)
    plain = step(model, x)
    assert_as_close(actual, plain, exact)
    dlbackend.solvers.wait()
    assert_as_close(step(compiled, x), plain, exact)


def test_launches_of_a_layer(background_at_rest):
    """GELU runs behind the first product and the residual behind the second."""
    model, x = Layer().to(DEVICE), torch.randn(3, 11, 20, device=DEVICE)
    compiled = torch.compile(model, fullgraph=True)

    def launches(function):
        torch.ocl.synchronize()
        before = dlbackend._C.kernel_stats()["launches"]
        function(x)
        torch.ocl.synchronize()
        return dlbackend._C.kernel_stats()["launches"] - before

    with torch.no_grad():
        for _ in range(3):  # apart, until the products with the rows are built and checked
            compiled(x)
            model(x)
            dlbackend.solvers.wait()
        assert launches(compiled) == 2
        assert launches(model) == 4


def graph_code(function, *arguments, **options):
    expected = function(*arguments)
    actual, codes = run_and_get_code(torch.compile(function, fullgraph=True, **options), *arguments)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    return calls(codes[0])


def test_what_inductor_computes_anyway_stays_there():
    """Rows that a reduction takes alone are the reduction's; what is kept besides, the product gives."""
    a, b = torch.randn(24, 24, device=DEVICE), torch.randn(24, 24, device=DEVICE)
    assert graph_code(lambda a, b: ((a @ b) * 0.5).softmax(1), a, b) == (0, 1)
    assert graph_code(lambda a, b: (F.layer_norm(r := (a @ b).tanh(), (24,)), r), a, b) == (1, 1)
    assert graph_code(lambda a, b: ((a @ b).tanh() @ b).relu().sum(0), a, b) == (1, 1)


def test_more_than_a_product_takes():
    """Six operands: the calls run in a kernel behind the product."""
    a, *others = torch.randn(7, 16, 16, device=DEVICE)
    assert graph_code(lambda a, *o: (a @ a + o[0]) * o[1] - o[2] * o[3] + o[4] * o[5], a, *others) == (0, 1)
    assert graph_code(lambda a, *o: (a @ a + o[0]).tanh() * o[1], a, *others) == (1, 0)


def test_writes_and_numbers():
    """A graph's input is written once its former values have been read; constants are numbers of the rows."""
    a = torch.randn(16, 16, device=DEVICE)

    def function(x, a):
        x.add_((x @ a).relu())
        return torch.where(x > 0, x @ a, 0.0)

    x = torch.randn(16, 16, device=DEVICE)
    other = x.clone()
    torch.testing.assert_close(torch.compile(function, fullgraph=True)(x, a), function(other, a))
    torch.testing.assert_close(x, other)
    assert graph_code(lambda x, a: torch.where(x > 0, x @ a, 0.0).exp(), x, a) == (1, 0)


def test_new_sizes_are_the_same_graph():
    model = Layer().to(DEVICE)
    compiled = torch.compile(model, dynamic=True, fullgraph=True)
    with torch.no_grad(), torch._dynamo.config.patch(error_on_recompile=True):
        for sizes in ((3, 11), (5, 9), (2, 30)):
            x = torch.randn(*sizes, 20, device=DEVICE)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    convolutions = Residual().to(DEVICE)
    compiled = torch.compile(convolutions, dynamic=True, fullgraph=True)
    with torch.no_grad(), torch._dynamo.config.patch(error_on_recompile=True):
        for sizes in ((2, 6, 9, 11), (3, 6, 12, 8)):
            x = torch.randn(sizes, device=DEVICE)
            torch.testing.assert_close(compiled(x), convolutions(x), rtol=1e-4, atol=1e-5)


def test_freezing_folds_batch_norms():
    """Weights are constants with the norms in them: a launch for a convolution, norm and activation."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 24, 3), nn.BatchNorm2d(24), nn.Tanh()]
    model, x = nn.Sequential(*layers).eval(), torch.randn(2, 3, 9, 11)
    for norm in (model[1], model[4]):
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    exact = copy.deepcopy(model).double()(x.double()).detach()
    model, x = model.to(DEVICE), x.to(DEVICE)
    with torch.no_grad(), torch._inductor.config.patch(freezing=True):
        actual, (code,) = run_and_get_code(torch.compile(model, fullgraph=True), x)
        assert_as_close([actual], [model(x)], [exact])
    assert calls(code) == (2, 0)
    assert re.search(r"^ *arg\d+_1, = args$", code, re.MULTILINE)  # the picture alone
