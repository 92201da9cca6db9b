"""Convolutions by the warpgroup instructions of Hopper GPUs, solver gpu_wgmma; skipped on other devices.

tests/cpp/conv_wgmma.cpp simulates the kernel's copies and products, in all directions, on any machine.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from common import relative_error
from gpu_solvers import check_configs, first_values, shifted
from hopper import MARKS, TOLERANCE, dtype_of, settings  # noqa: F401

import dlbackend

pytestmark = MARKS
OPS = ("conv_fwd", "conv_bwd_data", "conv_bwd_weight")
LAYOUTS = {2: torch.channels_last, 3: torch.channels_last_3d}


def ops_of(precision: str, groups: int = 1) -> tuple[str, ...]:
    """The weight gradient of groups is for 16 bits."""
    return OPS if groups == 1 or precision.endswith("16") else OPS[:2]


def force(ops: tuple[str, ...]) -> None:
    dlbackend.solvers.force(",".join(f"{op}:gpu_wgmma" for op in ops))


CASES = [  # images, channels, filters, groups, size, filter, stride, padding, dilation
    (2, 64, 128, 1, (8, 16), (3, 3), 1, 1, 1),  # boxes without a rest
    (3, 64, 64, 1, (8, 8), (1, 1), 1, 0, 1),
    (2, 40, 72, 1, (9, 11), (3, 3), 1, 1, 1),
    (5, 128, 130, 1, (7, 7), (3, 3), 1, 1, 1),  # boxes of several images
    (2, 8, 36, 1, (13, 12), (3, 3), 2, 1, 1),
    (2, 24, 33, 1, (14, 15), (3, 2), (3, 2), (2, 1), (1, 2)),
    (2, 16, 40, 1, (12, 9), (1, 1), 2, 0, 1),  # phases without taps
    (2, 3, 70, 1, (20, 21), (7, 7), 2, 3, 1),  # channels that are padded
    (2, 32, 48, 1, (19,), (5,), 1, 2, 2),
    (2, 16, 24, 1, (5, 6, 7), (2, 3, 3), (1, 2, 1), (0, 1, 1), 1),
    (2, 96, 64, 2, (9, 8), (3, 3), 1, 1, 1),
    (2, 60, 120, 3, (10, 7), (3, 3), 2, 1, 1),
]


def run(case, precision: str, channels_last: bool, offset: int = 0) -> None:
    """Forward with a bias and both gradients against float64."""
    n, c, k, groups, size, f, *geometry = case
    conv = (F.conv1d, F.conv2d, F.conv3d)[len(size) - 1]
    layout = LAYOUTS.get(len(size)) if channels_last else None
    dtype = dtype_of(precision)
    tensors = [torch.randn(n, c, *size), torch.randn(k, c // groups, *f), torch.randn(k)]
    inputs = [t.to(dtype).contiguous(memory_format=layout) if layout and t.dim() > 1 else t.to(dtype) for t in tensors]
    want = [t.double().requires_grad_() for t in inputs]
    expected = conv(*want, *geometry, groups)
    grad = torch.randn(expected.shape).to(dtype)
    grad = grad.contiguous(memory_format=layout) if layout else grad
    expected.backward(grad.double())
    ops = ops_of(precision, groups)
    force(ops)
    got = [shifted(t, offset).requires_grad_() for t in inputs]
    y = conv(*got, *geometry, groups)
    y.backward(shifted(grad, offset))
    pairs = [("y", y, expected), ("x", got[0].grad, want[0].grad), ("w", got[1].grad, want[1].grad)]
    errors = {name: relative_error(a, b.detach()) for name, a, b in pairs[: len(ops)]}
    assert max(errors.values()) < TOLERANCE[precision], errors


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("precision", ["bfloat16", "float16", "tf32", "float32"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_convolutions(case, precision, channels_last):
    run(case, precision, channels_last)


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
def test_odd_addresses(precision, channels_last):
    """The copy engine cannot read operands at these addresses, and results cannot be stored in vectors."""
    for offset in (1, 4):
        run(CASES[0], precision, channels_last, offset)


@pytest.mark.parametrize("precision", list(TOLERANCE))
def test_configs(precision):
    """All tiles, both forms, and parts of the reduction, each compared with the reference."""
    dtype = dtype_of(precision)
    x, w = torch.randn(2, 256, 10, 12), torch.randn(130, 256, 3, 3)
    if precision == "bfloat16":
        x, w = (t.contiguous(memory_format=torch.channels_last) for t in (x, w))

    def train() -> None:
        leaves = [t.to(dtype).to("ocl").requires_grad_() for t in (x, w)]
        F.conv2d(*leaves, padding=1).backward(torch.ones(2, 130, 10, 12, dtype=dtype).to("ocl"))

    configs = check_configs("gpu_wgmma", train, 1)
    assert len(configs) >= 2
    assert first_values(configs) <= {64, 128, 256}
    assert {config.split(",")[1] for config in configs} != {"1"}  # parts of the reduction


@pytest.mark.parametrize("channels_last", [True, False])
def test_configs_of_rows_behind(channels_last):
    """Also what adds parts of the reduction finds a channel's scale, in both forms."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    x, w = (torch.randn(size).to("ocl").contiguous(memory_format=layout) for size in ((2, 32, 10, 12), (70, 32, 3, 3)))
    rows, scale, ones = "y0 = mul.f32(x0, x1)", torch.rand(70, 1, 1, device="ocl"), [1, 1]

    def run() -> None:
        torch.ops.dlbackend.convolution_rows(rows, x, w, None, ones, ones, ones, 1, [scale])

    configs = check_configs("gpu_wgmma", run, 1)
    assert {config.split(",")[1] for config in configs} != {"1"}


def test_more_tiles_than_compute_units():
    """A work-group's barriers and tables go on from tile to tile, and no tile is left out."""
    x = torch.randn(9, 64, 60, 62).bfloat16().contiguous(memory_format=torch.channels_last)
    w = torch.randn(200, 64, 3, 3).bfloat16()
    force(OPS)
    leaves = [t.to("ocl").requires_grad_() for t in (x, w)]
    want = [t.double().requires_grad_() for t in (x, w)]
    y, expected = F.conv2d(*leaves, None, 2, 1), F.conv2d(*want, None, 2, 1)
    assert relative_error(y, expected.detach()) < TOLERANCE["bfloat16"]
    grad = torch.randn(expected.shape).bfloat16()
    y.backward(grad.to("ocl"))
    expected.backward(grad.double())
    for got, right in zip(leaves, want, strict=True):
        assert relative_error(got.grad, right.grad) < TOLERANCE["bfloat16"]


def error_of(solver: str, x: torch.Tensor, w: torch.Tensor) -> float:
    """The 2-norm of the error over that of the sums of magnitudes, which is what rounding is relative to."""
    dlbackend.solvers.force(f"conv_fwd:{solver}")
    error = F.conv2d(x.to("ocl"), w.to("ocl"), padding=1).cpu().double() - F.conv2d(x.double(), w.double(), padding=1)
    return (error.norm() / F.conv2d(x.double().abs(), w.double().abs(), padding=1).norm()).item()


@pytest.mark.parametrize("kind", ["normal", "positive", "large"])
def test_float32_is_as_exact_as_by_multiply_add(kind):
    x, w = torch.randn(2, 130, 12, 14), torch.randn(70, 130, 3, 3)
    if kind == "positive":
        x, w = x.abs(), w.abs()
    elif kind == "large":
        x, w = x * 1e18, w * 1e18
    assert error_of("gpu_wgmma", x, w) <= 2 * error_of("gpu_implicit", x, w)


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_infinities_and_nan_stay_where_they_are(precision, channels_last):
    """A box's rows that are beyond the image, and its padding, see nothing of them."""
    dtype = dtype_of(precision)
    x, w = torch.randn(2, 40, 9, 11), torch.randn(24, 40, 3, 3)
    x[0, 3, 8, 10], x[1, 39, 0, 5], x[1, 0, 4, 4], w[5, 2, 1, 1] = math.inf, math.nan, -math.inf, 0.0
    x[0, :, 2, 2], w[:, 1, 0, 0] = 2.0, 1.0  # factors whose rest is zero
    x, w = x.to(dtype), w.to(dtype)
    grad = torch.randn(2, 24, 9, 11).to(dtype)
    grad[1, 7, 4, 5] = math.inf  # where no tap is in the padding
    layout = torch.channels_last if channels_last else torch.contiguous_format
    force(OPS)
    leaves = [t.contiguous(memory_format=layout).to("ocl").requires_grad_() for t in (x, w)]
    want = [t.double().requires_grad_() for t in (x, w)]
    y, expected = F.conv2d(*leaves, padding=1), F.conv2d(*want, padding=1)
    y.backward(grad.contiguous(memory_format=layout).to("ocl"))
    expected.backward(grad.double())
    pairs = [(y.detach(), expected.detach()), *zip((t.grad for t in leaves), (t.grad for t in want), strict=True)]
    for result, right in pairs:
        got = result.cpu().double()
        finite = right.isfinite()
        assert not finite.all()
        assert torch.equal(got.isfinite(), finite)
        assert torch.equal(got.isnan(), right.isnan())
        assert relative_error(got[finite], right[finite]) < TOLERANCE[precision]


def test_bounds_constant_weights_and_transposed():
    dlbackend.solvers.force("conv_fwd:gpu_wgmma,conv_bwd_data:gpu_wgmma")
    x, w, bias = torch.randn(2, 24, 9, 10), torch.randn(40, 24, 3, 3), torch.randn(40)
    arguments = ([1, 1], [1, 1], [1, 1], 1, -1.0, 2.0)
    want = F.conv2d(x.double(), w.double(), bias.double(), padding=1).clamp(-1, 2)
    on_device = [t.to("ocl") for t in (x, w, bias)]
    for constant in (False, True, True):  # the second of those reads what the first has kept
        got = torch.ops.dlbackend.convolution_bounded(*on_device, *arguments, constant).cpu()
        assert (got.min(), got.max()) == (-1, 2)
        assert relative_error(got, want) < 1e-5
    y, more = torch.randn(2, 40, 5, 6), torch.randn(24)
    got = F.conv_transpose2d(y.to("ocl"), w.to("ocl"), more.to("ocl"), 2, 1, 1)
    assert relative_error(got, F.conv_transpose2d(y.double(), w.double(), more.double(), 2, 1, 1)) < 1e-5


def test_results_are_the_same_each_time():
    force(OPS)
    x = torch.randn(4, 64, 30, 30, device="ocl", dtype=torch.bfloat16).requires_grad_()
    w = torch.randn(64, 64, 3, 3, device="ocl", dtype=torch.bfloat16).requires_grad_()

    def results() -> list[torch.Tensor]:
        y = F.conv2d(x, w, padding=1)
        return [y, *torch.autograd.grad(y.sum(), (x, w))]

    first = results()
    for _ in range(5):
        assert all(torch.equal(a, b) for a, b in zip(results(), first, strict=True))


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("left", [torch.int8, torch.uint8])
@pytest.mark.parametrize("case", CASES)
def test_integers(case, left, channels_last):
    """Exact sums with a bias, and bytes of them."""
    n, c, k, groups, size, f, *geometry = case
    if len(size) != 2:
        pytest.skip("one layout of two dimensions is enough")
    dlbackend.solvers.force("conv_fwd:gpu_wgmma")
    x = torch.randint(torch.iinfo(left).min, torch.iinfo(left).max + 1, (n, c, *size), dtype=left)
    w = torch.randint(-128, 128, (k, c // groups, *f), dtype=torch.int8)
    bias, scale = torch.randint(-1000, 1000, (k,), dtype=torch.int32), torch.rand(k, 1, 1) / (c * f[0] * f[1]) ** 0.5
    sums = F.conv2d(x.double(), w.double(), bias.double(), *geometry, groups).long()
    layout = torch.channels_last if channels_last else torch.contiguous_format
    x_ocl, w_ocl = (t.to("ocl").contiguous(memory_format=layout) for t in (x, w))
    where = [[v] * 2 if isinstance(v, int) else list(v) for v in geometry]
    convolution_rows = torch.ops.dlbackend.convolution_rows
    (got,) = convolution_rows("y0 = x0", x_ocl, w_ocl, bias.to("ocl"), *where, groups, [], False)
    assert torch.equal(got.cpu(), sums.int())
    rows = "s = copy.f32(x0); v = mul.f32(s, x1); r = round.f32(v); c = clamp.f32(r, -128, 127); y0 = copy.i8(c)"
    want = (sums.float() * scale).round().clamp(-128, 127)
    for _ in range(3):  # apart, and then by what was built behind
        (rounded,) = convolution_rows(rows, x_ocl, w_ocl, bias.to("ocl"), *where, groups, [scale.to("ocl")], False)
        assert torch.equal(rounded.cpu().float(), want)
        dlbackend.solvers.wait()
