"""torch.compile on the device: chains of elementwise calls in one launch, values and gradients as in eager mode."""

import copy
import functools

import pytest
import torch
import torch.nn.functional as F
from common import DEVICE
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.common_methods_invocations import op_db

import dlbackend
import dlbackend.compile
from dlbackend.compile import rows
from dlbackend.compile.fuse import fuse, run_rows

compile_by_rows = functools.partial(torch.compile, backend=dlbackend.compile.backend)


def launches(function, *args):
    function(*args)
    torch.ocl.synchronize()
    before = dlbackend._C.kernel_stats()["launches"]
    function(*args)
    torch.ocl.synchronize()
    return dlbackend._C.kernel_stats()["launches"] - before


class Block(nn.Module):
    """A transformer's layer with a GELU written out."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def forward(self, x):
        q, k, v = (t.view(*t.shape[:2], 4, -1).transpose(1, 2) for t in self.qkv(self.norms[0](x)).chunk(3, -1))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + self.out(attended)
        u = self.up(self.norms[1](x))
        u = 0.5 * u * (1 + torch.tanh(0.79788456 * (u + 0.044715 * u**3)))
        return x + self.down(u)


def training_step(model, x, parameters):
    y = model(x)
    return y, torch.autograd.grad(y.float().square().mean(), [x, *parameters])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_training_step(dtype, graphs):
    torch.manual_seed(0)
    model = Block().to(DEVICE, dtype)
    x = torch.randn(2, 16, 64, device=DEVICE, dtype=dtype, requires_grad=True)
    parameters = list(model.parameters())
    compiled = compile_by_rows(model)
    expected, gradients = training_step(model, x, parameters)
    actual, own = training_step(compiled, x, parameters)
    assert torch.equal(actual, expected)
    for a, e in zip(own, gradients, strict=True):
        assert a.dtype == e.dtype
        torch.testing.assert_close(a, e)
    assert len(graphs) == 2
    for graph in graphs:  # on GPUs all of a float32 graph's rows may be behind products
        assert {run_rows, torch.ops.dlbackend.product_rows.default} & set(graph)
        assert torch.ops.aten.tanh.default not in graph
    assert torch.ops.aten.tanh_backward.default not in graphs[1]


def test_chain_is_one_launch_whatever_the_size(background_at_rest):
    def chain(x, y):
        z = (x * 2 + y).relu()
        return torch.where(z > 1, z.exp(), z - y).clamp(max=9)

    compiled = compile_by_rows(chain, dynamic=True, fullgraph=True)
    x, y = torch.randn(40, 80, device=DEVICE), torch.randn(80, device=DEVICE)  # in whole vectors, as what follows
    assert torch.equal(compiled(x, y), chain(x, y))
    assert launches(compiled, x, y) == 1
    kernels = dlbackend._C.kernel_stats()["compiled"]
    for size in (8, 12):
        x, y = torch.randn(size, 2 * size, device=DEVICE), torch.randn(2 * size, device=DEVICE)
        assert torch.equal(compiled(x, y), chain(x, y))
    assert dlbackend._C.kernel_stats()["compiled"] == kernels


def test_layouts_and_results_used_twice():
    def function(x):
        a = x.sigmoid()
        b = a * x
        return b, a.sum(1), b + a

    for x in (
        torch.randn(2, 3, 4, 5, device=DEVICE).contiguous(memory_format=torch.channels_last),
        torch.randn(5, 4, 3, 2, device=DEVICE).permute(3, 2, 0, 1),
        torch.randn(2, 3, 4, 10, device=DEVICE)[..., ::2],
    ):
        for actual, expected in zip(compile_by_rows(function)(x), function(x), strict=True):
            assert torch.equal(actual, expected)
            assert actual.stride() == expected.stride()


def test_calls_between_that_need_a_group_do_not_join_it():
    """b needs the group's first member and gives the second of its operands: a group of both would need itself."""

    def function(x, w):
        a = x.exp()
        b = a @ w
        return (a + b).tanh() * a

    x, w = torch.randn(8, 8, device=DEVICE), torch.randn(8, 8, device=DEVICE)
    torch.testing.assert_close(compile_by_rows(function)(x, w), function(x, w))


def test_what_reads_stays_on_its_side_of_a_write():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    before = graph.call_function(torch.ops.aten.exp.default, (x,))
    graph.call_function(torch.ops.aten.add_.Tensor, (x, 1))
    doubled = graph.call_function(torch.ops.aten.mul.Tensor, (before, 2.0))
    after = graph.call_function(torch.ops.aten.neg.default, (x,))
    graph.output((graph.call_function(torch.ops.aten.add.Tensor, (doubled, after)),))
    value = torch.randn(9, device=DEVICE)
    for node in graph.nodes:
        node.meta["val"] = value
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    expected, actual = module(value.clone()), fuse(module)(value.clone())
    assert torch.equal(actual[0], expected[0])


def test_random_numbers_keep_their_order():
    def function(x):
        return F.dropout(x * 2, 0.5) + torch.rand_like(x) * F.dropout(x + 1, 0.2)

    x = torch.ones(1000, device=DEVICE)
    torch.manual_seed(3)
    expected = function(x)
    torch.manual_seed(3)
    assert torch.equal(compile_by_rows(function)(x), expected)


def test_writes_numbers_and_float64():
    def function(x, y):
        x.mul_(2).add_(y)
        return x.double().sin() / 3, (x > 0) & (y > 0), x.to(torch.int32) * 7

    x, y = torch.randn(50, device=DEVICE), torch.randn(50, device=DEVICE)
    own = x.clone()
    expected, actual = function(x, y), compile_by_rows(function)(own, y)
    assert torch.equal(own, x)
    for a, e in zip(actual, expected, strict=True):
        assert a.dtype == e.dtype
        assert torch.equal(a, e)


def test_batch_norm_updates_its_statistics_itself(graphs):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8))
    model, x = model.to(DEVICE), torch.randn(2, 3, 9, 9, device=DEVICE)
    other = copy.deepcopy(model)
    compiled = compile_by_rows(other)

    def step(model, forward):
        losses = [forward(x * k).square().mean() for k in (1, 2)]  # two passes before the gradients
        return torch.autograd.grad(sum(losses), list(model.parameters()))

    for actual, expected in zip(step(other, compiled), step(model, model), strict=True):
        torch.testing.assert_close(actual, expected)
    for actual, expected in zip(other.buffers(), model.buffers(), strict=True):
        assert torch.equal(actual, expected)
    calls = [target for graph in graphs for target in graph]
    assert torch.ops.aten._native_batch_norm_legit.default in calls
    assert torch.ops.aten._native_batch_norm_legit_functional.default not in calls
    assert torch.ops.aten.copy_.default not in calls
    with torch.no_grad():
        torch.testing.assert_close(compile_by_rows(other.eval())(x), model.eval()(x))


def test_many_operands():
    inputs = [torch.randn(9, device=DEVICE) for _ in range(40)]

    def function(*tensors):
        return sum(t * (i + 1) for i, t in enumerate(tensors))

    assert torch.equal(compile_by_rows(function)(*inputs), function(*inputs))


# Variants of ops with rows that have none themselves.
WITHOUT_ROWS = {
    "nn_functional_silu_complex": "complex numbers",
    "round_decimals_0": "decimals",
    "round_decimals_3": "decimals",
    "round_decimals_neg_3": "decimals",
}


def samples():
    covered = {str(overload).split(".")[1].rstrip("_") for overload in rows.calls()}
    for op in op_db:
        if op.formatted_name not in WITHOUT_ROWS and (op.name.split(".")[-1] in covered or op.aten_name in covered):
            yield pytest.param(op, id=op.formatted_name)


@pytest.mark.slow
@pytest.mark.parametrize("op", samples())
def test_rows_are_the_ops(op):
    """A few samples of each op that has a row, doubled behind it so that there is a group."""
    fused = 0
    for dtype in {torch.float32, torch.int64} & op.supported_dtypes("cpu"):
        for sample in list(op.sample_inputs("cpu", dtype))[:2]:
            tensors = [sample.input, *(a for a in sample.args if isinstance(a, torch.Tensor))]
            moved = [t.to(DEVICE) for t in tensors]
            rest = [a for a in sample.args if not isinstance(a, torch.Tensor)]

            def function(*tensors, rest=rest, sample=sample):
                y = op.op(*tensors, *rest, **sample.kwargs)
                return y + y if isinstance(y, torch.Tensor) else y

            try:
                expected = function(*moved)
            except NotImplementedError:  # such as an out-of-place form that a dtype has not
                continue
            module = fuse(make_fx(function, tracing_mode="fake")(*moved))
            fused += any(node.target is run_rows for node in module.graph.nodes)
            torch.testing.assert_close(module(*moved), expected, rtol=0, atol=0, equal_nan=True)
    assert fused


CHECKS = (
    "test_schema",
    "test_faketensor",
    "test_aot_dispatch_dynamic",
)  # the others know no ocl
KERNELS = """
kernel void scaled(global const float* x, global float* y, const float by) {
  y[get_global_id(0)] = by * x[get_global_id(0)];
}
kernel void add_to(global float* x, const float a) { x[get_global_id(0)] += a; }
"""


@pytest.fixture(scope="module")
def ops():
    """Ops of kernels of one's own: one with a gradient, and one that works in place."""
    kernels = torch.ocl.compile_library(KERNELS)

    @torch.library.custom_op("dlbackend_tests::scaled", mutates_args=(), device_types="ocl")
    def scaled(x: torch.Tensor, by: float) -> torch.Tensor:
        y = torch.empty_like(x)
        kernels.scaled(x, y, by, global_size=x.numel())
        return y

    scaled.register_fake(lambda x, by: torch.empty_like(x))
    scaled.register_autograd(
        lambda ctx, grad: (scaled(grad.contiguous(), ctx.by), None),
        setup_context=lambda ctx, inputs, output: setattr(ctx, "by", inputs[1]),
    )

    @torch.library.custom_op("dlbackend_tests::add_to", mutates_args=("x",), device_types="ocl")
    def add_to(x: torch.Tensor, a: float) -> None:
        kernels.add_to(x, a, global_size=x.numel())

    return torch.ops.dlbackend_tests


def test_an_op_of_a_users_kernel_is_one_call_of_the_graph(ops, graphs):
    def function(x):
        return ops.scaled(x.exp() + 1, 3.0).sin().sum()

    x = torch.randn(8, 9, device=DEVICE, requires_grad=True)
    torch.library.opcheck(ops.scaled.default, (x, 2.0), test_utils=CHECKS)
    compiled = compile_by_rows(function)
    (expected,) = torch.autograd.grad(function(x), x)
    (found,) = torch.autograd.grad(compiled(x), x)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(expected, 3 * ((x.exp() + 1) * 3).cos() * x.exp())
    assert [graph.count(ops.scaled.default) for graph in graphs] == [1, 1]


def test_an_op_of_a_users_kernel_that_works_in_place(ops):
    def function(x):
        y = x * 2
        ops.add_to(y, 5.0)
        return y - 1

    x = torch.randn(7, device=DEVICE)
    torch.library.opcheck(ops.add_to.default, (x.clone(), 2.0), test_utils=CHECKS)
    torch.testing.assert_close(compile_by_rows(function)(x), x * 2 + 4)
    torch.testing.assert_close(function(x), x * 2 + 4)
