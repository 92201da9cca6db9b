"""Products by the warpgroup instructions of Hopper GPUs, solver gpu_wgmma; skipped on other devices."""

import math

import pytest
import torch
from common import relative_error
from gpu_solvers import check_configs, check_products, first_values
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
