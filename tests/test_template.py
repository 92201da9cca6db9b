"""The template API: expressions, broadcasting, reductions, dtypes, autograd, errors."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from common import DEVICE

import dlbackend
from dlbackend.template import Reduction, pointwise, pointwise_reduce, source


def make(*shape, dtype=torch.float32):
    torch.manual_seed(len(shape))
    x = torch.randn(shape) if dtype.is_floating_point or dtype.is_complex else torch.randint(0, 9, shape)
    return x.to(dtype), x.to(dtype).to(DEVICE)


def test_pointwise_broadcasts_and_takes_scalars():
    (x, dx), (b, db) = make(4, 5, 6), make(5, 1)
    torch.testing.assert_close(pointwise("x0 * s0 + x1", dx, db, scalars=[2.5]).cpu(), x * 2.5 + b)
    total, product = pointwise("y0 = x0 + x1; y1 = x0 * x1;", dx.transpose(0, 1)[:, ::2], db[:, :, None])
    torch.testing.assert_close(total.cpu(), x.transpose(0, 1)[:, ::2] + b[:, :, None])
    torch.testing.assert_close(product.cpu(), x.transpose(0, 1)[:, ::2] * b[:, :, None])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int64, torch.uint8])
def test_dtypes(dtype):
    x, dx = make(7, 9, dtype=dtype)
    doubled, total = pointwise_reduce("y0 = x0 + x0; y1 = x0;", dx, dims=1, reduce=[None, "sum"])
    torch.testing.assert_close(doubled.cpu(), x + x)
    torch.testing.assert_close(total.cpu(), x.sum(1).to(dtype))


def test_mixed_dtypes_and_results():
    (x, dx), (k, dk) = make(6, 5), make(6, 5, dtype=torch.int32)
    y, flag = pointwise("y0 = x0 + x1; y1 = x0 > 0;", dx, dk, dtypes=[torch.float16, torch.bool])
    torch.testing.assert_close(y.cpu(), (x + k).half())
    assert torch.equal(flag.cpu(), x > 0)
    squares = pointwise("x0 * x0", dk, compute=torch.float64)
    torch.testing.assert_close(squares.cpu(), k.double() ** 2)


def test_mean_and_variance_in_one_pass(background_at_rest):
    x, dx = make(8, 6, 20, 30)
    before = dlbackend.kernel_stats()["launches"]
    mean, var = pointwise_reduce(
        "y0 = x0; y1 = x0 * x0;", dx, dims=(0, 2, 3), finish="y0 = y0 / n; y1 = y1 / n - y0 * y0;"
    )
    assert dlbackend.kernel_stats()["launches"] - before <= 2  # a second one where the reduction is split
    torch.testing.assert_close(mean.cpu(), x.mean((0, 2, 3)), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(var.cpu(), x.var((0, 2, 3), correction=0), rtol=1e-5, atol=1e-5)


def test_several_reductions_and_mapped_outputs():
    (x, dx), (w, dw) = make(4, 30, 50), make(30, 1)
    results = pointwise_reduce(
        "T v = x0 * x1; y0 = v; y1 = v; y2 = exp(v); y3 = fabs(v);",
        dx, dw, dims=(0, 2), reduce=["sum", "max", None, Reduction("0", "hypot(a, b)")], keepdim=True,
    )  # fmt: skip
    v = x * w
    torch.testing.assert_close(results[0].cpu(), v.sum((0, 2), keepdim=True), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(results[1].cpu(), v.amax((0, 2), keepdim=True))
    torch.testing.assert_close(results[2].cpu(), v.exp())
    torch.testing.assert_close(results[3].cpu(), v.norm(dim=(0, 2), keepdim=True), rtol=1e-5, atol=1e-5)


def test_outputs_over_different_dims_and_out():
    x, dx = make(4, 5, 6)
    a, b = pointwise_reduce("y0 = x0; y1 = x0 * x0;", dx, dims=[(0,), None], reduce=["max", "sum"])
    torch.testing.assert_close(a.cpu(), x.amax(0))
    torch.testing.assert_close(b.cpu(), (x * x).sum())
    out = torch.empty(6, 5, device=DEVICE).t()
    assert pointwise_reduce("x0", dx, dims=0, out=out) is out
    torch.testing.assert_close(out.cpu(), x.sum(0))
    with pytest.raises(RuntimeError, match="shape"):
        pointwise_reduce("x0", dx, dims=0, out=torch.empty(3, device=DEVICE))


def test_a_new_shape_compiles_nothing():
    run = [pointwise_reduce("x0 + 7", make(*shape)[1], dims=-1) for shape in [(50, 80)]]
    compiled = dlbackend.kernel_stats()["compiled"]
    run += [pointwise_reduce("x0 + 7", make(*shape)[1], dims=-1) for shape in [(3, 4), (2, 3, 4000), (200_000,)]]
    assert dlbackend.kernel_stats()["compiled"] == compiled


def test_as_many_operands_as_there_can_be():
    tensors = [make(4, 5)[1] + k for k in range(8)]
    text = "".join(f"y{k} = x{k} * 2;" for k in range(8))
    for result, x in zip(pointwise(text, *tensors), tensors, strict=True):
        assert torch.equal(result, x * 2)
    for result, x in zip(pointwise_reduce(text, *tensors, dims=1), tensors, strict=True):
        torch.testing.assert_close(result, (x * 2).sum(1))
    with pytest.raises(ValueError, match="at most 8 inputs and 8 outputs, not 9 and 1"):
        pointwise("x0 + x8", *tensors, tensors[0])


def test_errors():
    _, x = make(4, 5)
    with pytest.raises(RuntimeError, match=r"(?s)undeclared identifier.*numbered source"):
        pointwise("y0 = nonsense(x0) + unknown;", x)
    torch.testing.assert_close(pointwise("x0 + 1", x).cpu(), x.cpu() + 1)  # the device goes on working
    with pytest.raises(RuntimeError):
        pointwise("x0 + x1", x, x[:, :3])
    with pytest.raises(ValueError, match="reduction"):
        pointwise_reduce("x0", x, reduce="median")
    with pytest.raises(ValueError, match="y1"):
        pointwise("y0 = x0; y2 = x0;", x)
    with pytest.raises(ValueError, match="sets y999999999999 but not y0"):
        pointwise("y999999999999 = x0;", x)
    for compute in (pointwise, pointwise_reduce):
        with pytest.raises(ValueError, match="sets 1 outputs, but dtypes has 2 entries"):
            compute("x0", x, dtypes=(torch.float32, torch.float16))
        with pytest.raises(ValueError, match="sets 2 outputs, but out has 1 entries"):
            compute("y0 = x0; y1 = x0;", x, out=x)
    with pytest.raises(ValueError, match="finish"):
        pointwise_reduce("y0 = x0; y1 = x0;", x, dims=[(0,), (1,)], finish="y0 = y0 / n;")


class Softsign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return pointwise("x0 / (1 + fabs(x0))", x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return pointwise("T d = 1 + fabs(x0); y0 = x1 / (d * d);", x, grad)


@torch.library.custom_op("dlbackend_test::square_sum", mutates_args=())
def square_sum(x: torch.Tensor) -> torch.Tensor:
    result = pointwise_reduce("x0 * x0", x, dims=-1)
    assert isinstance(result, torch.Tensor)
    return result


@square_sum.register_fake
def _(x):
    return x.new_empty(x.shape[:-1])


square_sum.register_autograd(
    lambda ctx, grad: pointwise("2 * x0 * x1", ctx.saved_tensors[0], grad[..., None]),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


def test_autograd():
    x, dx = make(5, 7)
    for ours, theirs in [(Softsign.apply, torch.nn.functional.softsign), (square_sum, lambda t: (t * t).sum(-1))]:
        a, b = dx.clone().requires_grad_(), x.clone().requires_grad_()
        ours(a).sum().backward()
        theirs(b).sum().backward()
        torch.testing.assert_close(a.grad.cpu(), b.grad)


CPP = """
#include <ATen/ops/empty_like.h>
#include <dlbackend/template.h>
#include <torch/library.h>

at::Tensor normalised(const at::Tensor& x, double eps) {
  const auto moments = dlb::run_template({.expression = "y0 = x0; y1 = x0 * x0;",
                                          .outputs = {dlb::Reduction::sum(), dlb::Reduction::sum()},
                                          .dims = {-1},
                                          .keepdim = true,
                                          .finish = "y0 = y0 / n; y1 = y1 / n - y0 * y0;"},
                                         {x});
  at::Tensor out = at::empty_like(x);
  const dlb::Template scaled{.expression = "y0 = (x0 - x1) * rsqrt(x2 + s0);", .outputs = {std::nullopt}};
  dlb::run_template_out(scaled, {x, moments[0], moments[1]}, {eps}, {out});
  return out;
}

TORCH_LIBRARY(dlbackend_cpp_test, m) {
  m.def("normalised(Tensor x, float eps) -> Tensor", normalised);
  m.def("source(str expression) -> str", [](std::string expression) {
    return dlb::template_source({.expression = expression, .outputs = {std::nullopt}}, {at::kHalf}, 0,
                                dlb::TemplateDevice::kGpu);
  });
}
"""


@pytest.mark.skipif(sys.platform != "linux", reason="g++'s options")
def test_from_cpp(tmp_path):
    """The installed header and library alone, as docs/template-api.md builds with them."""
    package, theirs = Path(dlbackend.__file__).parent, Path(torch.__file__).parent
    include = package / "include"
    if not include.exists():  # the source folder
        include = tmp_path / "include"
        include.mkdir()
        (include / "dlbackend").symlink_to(package.parents[1] / "csrc" / "ops")
    (tmp_path / "mine.cpp").write_text(CPP)
    library = tmp_path / "mine.so"
    includes = [include, theirs / "include", theirs / "include/torch/csrc/api/include"]
    subprocess.run(
        ["g++", "-std=c++20", "-shared", "-fPIC", tmp_path / "mine.cpp", "-o", library, package / "libdlbackend.so"]
        + [f"-I{folder}" for folder in includes],
        check=True,
    )
    torch.ops.load_library(library)
    x, dx = make(5, 70)
    actual = torch.ops.dlbackend_cpp_test.normalised(dx, 1e-5)
    torch.testing.assert_close(actual.cpu(), torch.nn.functional.layer_norm(x, (70,)), rtol=1e-4, atol=1e-5)
    assert torch.ops.dlbackend_cpp_test.source("y0 = x0;") == source("y0 = x0;", [torch.float16])
