"""Products by the warpgroup instructions of Hopper GPUs, solver gpu_wgmma; skipped on other devices."""

import math

import pytest
import torch
from common import relative_error
from gpu_solvers import check_configs, check_products, first_values, shifted
from hopper import MARKS, TOLERANCE, dtype_of, settings  # noqa: F401

import dlbackend

pytestmark = MARKS


@pytest.mark.parametrize("precision", list(TOLERANCE))
@pytest.mark.parametrize(("m", "n", "k"), [(64, 64, 64), (130, 77, 75), (300, 520, 264), (1, 1, 1), (70, 8, 512)])
def test_products(m, n, k, precision):
    """Both layouts of both operands, gaps and unaligned offsets, an addend, tiles that are not full."""
    dlbackend.solvers.force("gemm:gpu_wgmma")
    check_products(m, n, k, dtype_of(precision), TOLERANCE[precision] * (2 if k == 1 else 1))


@pytest.mark.parametrize("precision", list(TOLERANCE))
def test_configs(precision):
    dtype = dtype_of(precision)
    a, b = torch.randn(1, 300, 2801).to(dtype), torch.randn(1, 2801, 520).to(dtype)

    def run() -> None:
        torch.bmm(a.to("ocl"), b.to("ocl"))
        torch.bmm(a.mT.contiguous().to("ocl").mT, b.mT.contiguous().to("ocl").mT)

    configs = check_configs("gpu_wgmma", run, 2)
    assert first_values(configs) <= {64, 128, 256}
    assert {config.split(",")[1] for config in configs} != {"1"}  # parts of the reduction


def integers(dtype: torch.dtype, *size: int) -> torch.Tensor:
    return torch.randint(torch.iinfo(dtype).min, torch.iinfo(dtype).max + 1, size, dtype=dtype)


def product_rows(rows: str, a: torch.Tensor, b: torch.Tensor, *extras: torch.Tensor) -> torch.Tensor:
    return torch.ops.dlbackend.product_rows(rows, a, b, None, 0, 1, [t.to("ocl") for t in extras])[0].cpu()


BYTES = [(torch.int8, torch.int8), (torch.uint8, torch.int8), (torch.int8, torch.uint8), (torch.uint8, torch.uint8)]


@pytest.mark.parametrize(("left", "right"), BYTES)
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(64, 64, 128), (130, 77, 75), (31, 33, 31), (300, 520, 4097), (70, 8, 33), (257, 129, 1), (1, 1, 1)],
)
def test_sums_of_integers_are_exact(m, n, k, left, right):
    """Both layouts of both operands, gaps and unaligned offsets, an addend, a matrix that all products read."""
    dlbackend.solvers.force("gemm:gpu_wgmma")
    a, b = integers(left, 2, m, k), integers(right, 2, k, n)
    a[0, 0], b[0, :, 0] = torch.iinfo(left).max, torch.iinfo(right).max
    d = torch.randint(-1000, 1000, (m, n), dtype=torch.int32)
    for x in (a, a.mT.contiguous().mT, a[:1].expand(2, -1, -1)):
        for y in (b, b.mT.contiguous().mT, integers(right, 2, k, 2 * n)[:, :, ::2]):
            for offset in (0, 3):
                product = (x.double() @ y.double()).long()
                x_ocl, y_ocl = shifted(x, offset), shifted(y, offset)
                assert torch.equal(product_rows("y0 = x0", x_ocl, y_ocl), product.int())
                run = torch.ops.dlbackend.product_rows
                (got,) = run("y0 = x0", x_ocl[0], y_ocl[0], d.to("ocl"), 3, -2, [])
                assert torch.equal(got.cpu(), (3 * d.long() - 2 * product[0]).int())


def test_configs_of_integers():
    a, b = integers(torch.int8, 300, 5601), integers(torch.int8, 5601, 520)

    def run() -> None:
        torch._int_mm(a.to("ocl"), b.to("ocl"))
        torch._int_mm(a.to("ocl"), b.T.contiguous().to("ocl").T)

    configs = check_configs("gpu_wgmma", run, 2)
    assert first_values(configs) <= {64, 128, 256}
    assert {config.split(",")[1] for config in configs} != {"1"}


@pytest.mark.parametrize("to", ["i8", "u8", "bf16", "f16", "f32"])
@pytest.mark.parametrize(("m", "n", "k"), [(300, 520, 4097), (130, 77, 75), (7, 1, 640)])
def test_rows_behind_integers(m, n, k, to):
    """Scales for rows and columns, then a result of another dtype: in rows of whole units and in others."""
    dlbackend.solvers.force("gemm:gpu_wgmma")
    a, b = integers(torch.int8, m, k), integers(torch.int8, n, k).T
    of_rows, of_columns = torch.rand(m, 1) / 100, torch.rand(n) / k**0.5
    rows = "s = copy.f32(x0); v = mul.f32(s, x1); w = mul.f32(v, x2); "
    low, high = (0, 255) if to == "u8" else (-128, 127)
    rounded = f"r = round.f32(w); c = clamp.f32(r, {low}, {high}); y0 = copy.{to}(c)"
    rows += rounded if to in ("i8", "u8") else f"y0 = copy.{to}(w)"
    want = (a.long() @ b.long()).float() * of_rows * of_columns
    got = product_rows(rows, a.to("ocl"), b.to("ocl"), of_rows, of_columns)
    turned = product_rows(rows, b.T.contiguous().to("ocl"), a.T.to("ocl"), of_rows[:, 0], of_columns[:, None])
    assert torch.equal(turned.T.float(), got.float())
    if to in ("i8", "u8"):
        assert (got.float() - want.round().clamp(low, high)).abs().max() <= 1  # where the float is next to the middle
        assert (got.float() == want.round().clamp(low, high)).float().mean() > 0.99
    else:
        step = {"f32": 1e-6, "f16": 1e-3, "bf16": 8e-3}[to]
        torch.testing.assert_close(got, want.to(got.dtype), rtol=step, atol=1e-6)


FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.parametrize("right", FLOAT8)
@pytest.mark.parametrize("left", FLOAT8)
@pytest.mark.parametrize(
    ("m", "n", "k"), [(64, 64, 128), (130, 77, 75), (300, 520, 4097), (70, 8, 33), (257, 129, 1), (1, 1, 1)]
)
def test_float8(m, n, k, left, right):
    dlbackend.solvers.force("gemm:gpu_wgmma")
    a, b = torch.randn(m, k).to(left), torch.randn(k, n).to(right)
    wide = torch.randn(k, 2 * n).to(right)[:, ::2]
    for x in (a, a.T.contiguous().T):
        for y in (b, b.T.contiguous().T, wide):
            for offset in (0, 3):
                got = product_rows("y0 = x0", shifted(x, offset), shifted(y, offset)).double()
                x_, y_ = x.double(), y.double()
                # tensor cores cut the sums of 32 products off behind 13 binary places of the largest one
                assert ((got - x_ @ y_).abs() <= 2**-11 * (x_.abs() @ y_.abs())).all()


def test_sums_of_float8_leave_the_tensor_cores():
    """With 14 bits alone what is added to a large sum would be lost."""
    dlbackend.solvers.force("gemm:gpu_wgmma")
    a, b = torch.full((130, 40 * 128), 1 / 16), torch.ones(40 * 128, 140)
    a[:, :128] = 16
    a, b = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
    assert torch.equal(product_rows("y0 = x0", a.to("ocl"), b.to("ocl")).double(), a.double() @ b.double())


@pytest.mark.parametrize("out", [torch.bfloat16, torch.float16, torch.float32])
def test_scaled_products(out):
    dlbackend.solvers.force("gemm:gpu_wgmma")
    a, b = torch.randn(300, 1040).to(torch.float8_e4m3fn), torch.randn(528, 1040).to(torch.float8_e4m3fn).T
    of_rows, of_columns, bias = torch.rand(300, 1), torch.rand(1, 528), torch.randn(528).to(out)
    got = torch._scaled_mm(
        a.to("ocl"), b.to("ocl"), of_rows.to("ocl"), of_columns.to("ocl"), bias=bias.to("ocl"), out_dtype=out
    )
    want = (a.double() @ b.double()) * of_rows * of_columns + bias.double()
    size = (a.double().abs() @ b.double().abs()) * of_rows * of_columns
    step = {torch.float32: 1e-6, torch.float16: 6e-4, torch.bfloat16: 4e-3}[out]
    assert got.dtype == out
    assert ((got.cpu().double() - want).abs() <= step * want.abs() + 2**-11 * size).all()


def test_more_tiles_than_compute_units():
    """A work-group's barriers go on from tile to tile, and no tile is left out."""
    dlbackend.solvers.force("gemm:gpu_wgmma")
    a, b = torch.randn(7, 1000, 200).bfloat16(), torch.randn(7, 200, 1100).bfloat16()
    assert relative_error(torch.bmm(a.to("ocl"), b.to("ocl")), a.double() @ b.double()) < TOLERANCE["bfloat16"]


def error_of(solver: str, a: torch.Tensor, b: torch.Tensor) -> float:
    """The 2-norm of the error over that of the sums of magnitudes, which is what rounding is relative to."""
    dlbackend.solvers.force(f"gemm:{solver}")
    error = (a.to("ocl") @ b.to("ocl")).cpu().double() - a.double() @ b.double()
    return (error.norm() / (a.double().abs() @ b.double().abs()).norm()).item()


@pytest.mark.parametrize("k", [32, 100, 1000, 20000])
@pytest.mark.parametrize("kind", ["normal", "positive", "cancelling", "large", "small", "spread"])
def test_float32_is_as_exact_as_by_multiply_add(kind, k):
    a, b = torch.randn(130, k), torch.randn(k, 140)
    if kind == "positive":
        a, b = a.abs(), b.abs()
    elif kind == "cancelling":
        a = torch.cat((a, -a * (1 + 1e-6)), 1)
        b = torch.cat((b, b), 0)
    elif kind in ("large", "small"):
        a, b = (t * (1e18 if kind == "large" else 1e-16) for t in (a, b))
    elif kind == "spread":
        a, b = (t * torch.exp(4 * torch.randn_like(t)) for t in (a, b))
    # Where magnitudes spread, a few products rule the whole norm, so there is no mean over many. Three products of TF32
    # have an error of 7e-7 of one at most: 2^-10 times 2^-11 of it are left out, and the rests are rounded to 2^-22 and
    # 2^-23.
    limit = 7e-7 if kind == "spread" else 2 * error_of("gpu_tiled", a, b)
    assert error_of("gpu_wgmma", a, b) <= limit


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_infinities_and_nan(precision):
    dtype = dtype_of(precision)
    a, b = torch.randn(200, 70), torch.randn(70, 150)
    a[3, 5], a[150, 60], b[7, 100], a[20, 20], b[20, 9] = math.inf, math.nan, -math.inf, math.inf, 0.0
    a[60], b[5, 4] = 2.0, 1.0  # factors whose rest is zero
    a, b = a.to(dtype), b.to(dtype)
    dlbackend.solvers.force("gemm:gpu_wgmma")
    got, want = (a.to("ocl") @ b.to("ocl")).cpu().double(), a.double() @ b.double()
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.isinf(), want.isinf())
    assert torch.equal(got[got.isinf()], want[want.isinf()])
    finite = want.isfinite()
    assert relative_error(got[finite], want[finite]) < TOLERANCE[precision]


def test_results_are_the_same_each_time():
    dlbackend.solvers.force("gemm:gpu_wgmma")
    a, b = torch.randn(500, 3000, device="ocl"), torch.randn(3000, 400, device="ocl")
    first = a @ b
    assert all(torch.equal(a @ b, first) for _ in range(5))
