"""Every config of the solvers for GPU-class devices, and their layouts, against float64.

Skipped where the device is not one; tests/test_gpu_kernels.py runs them on any device as if it were.
"""

import pytest
import torch
import torch.nn.functional as F
from common import away_from_zero, on_gpu_class, relative_error
from gpu_solvers import check_configs, check_products, convolve, first_values, run_programs_of_one_problem, shifted

from dlbackend import _C

GPU_CLASS = torch.ocl.is_available() and on_gpu_class()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not GPU_CLASS, reason="the device is not of the GPU class")]

FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
TOLERANCE = {torch.float32: 3e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float64: 1e-13}


@pytest.mark.parametrize("dtype", FLOATS)
def test_configs_of_gpu_tiled(dtype):
    a, b = torch.randn(2, 33, 401).to(dtype), torch.randn(2, 401, 130).to(dtype)

    def run() -> None:
        torch.bmm(a.to("ocl"), b.to("ocl"))
        torch.baddbmm(b[:, :1].to("ocl"), a.mT.contiguous().to("ocl").mT, b.mT.contiguous().to("ocl").mT, alpha=2)
        for rows in (9, 120):  # what the thin and the large tiles are for
            torch.mm(b[0, :rows, :40].to("ocl"), a[0, :, :40].mT.to("ocl").repeat(1, 4))

    configs = check_configs("gpu_tiled", run, 1)
    # the larger tiles of float64 do not fit 48 KiB of local memory
    assert len(first_values(configs)) >= (2 if dtype == torch.float64 else 4)
    assert {config.split(",")[1] for config in configs} != {"1"}


@pytest.mark.parametrize("dtype", FLOATS)
def test_products_of_gpu_plain(dtype):
    _C.force_solver("gemm:gpu_plain")
    check_products(70, 75, 37, dtype, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", FLOATS)
def test_gpu_gemv(dtype):
    """Both layouts of the matrix, gaps, broadcast, unaligned offsets, few rows and few columns, one to eight."""
    _C.force_solver("gemm:gpu_gemv")
    for rows, n, k in ((1, 1, 1), (1, 64, 2048), (1, 131, 37), (3, 30, 260), (4, 7, 9), (8, 36, 1100)):
        x, a = torch.randn(3, rows, k).to(dtype), torch.randn(3, k, n).to(dtype)
        d = torch.randn(3, n).to(dtype)[:, None]
        wide = torch.randn(3, k, 2 * n).to(dtype)[:, :, ::2]
        for x_ in (x, x[:1].expand(3, -1, -1), x.mT.contiguous().mT):
            for a_ in (a, a.mT.contiguous().mT, wide, a[:1].expand(3, -1, -1)):
                for offset in (0, 3):
                    x_ocl, a_ocl, product = shifted(x_, offset), shifted(a_, offset), x_.double() @ a_.double()
                    assert relative_error(torch.bmm(x_ocl, a_ocl), product) < TOLERANCE[dtype]
                    got = torch.baddbmm(d.to("ocl"), x_ocl, a_ocl, beta=0.5, alpha=-2)
                    assert relative_error(got, 0.5 * d.double() - 2 * product) < TOLERANCE[dtype]
                    assert relative_error(torch.bmm(a_ocl.mT, x_ocl.mT), product.mT) < TOLERANCE[dtype]


def test_configs_of_gpu_gemv():
    x, a = torch.randn(5, 2051, device="ocl"), torch.randn(2051, 70, device="ocl")
    row, many = torch.randn(1, 1024, device="ocl"), torch.randn(8, 1, 1024, device="ocl")

    def run() -> None:
        torch.mm(x, a)
        torch.mm(a.mT, x.mT)
        F.linear(row, torch.randn(96, 1024, device="ocl"), torch.randn(96, device="ocl"))
        torch.bmm(many, torch.randn(8, 1024, 36, device="ocl"))

    configs = check_configs("gpu_gemv", run, 2)
    assert first_values(configs) == {8, 32, 128}
    assert {config.split(",")[1] for config in configs} != {"1"}


def test_gpu_gemv_special_values():
    """Beta 0 reads no NaN, nothing to sum is zero, infinities stay in their row."""
    _C.force_solver("gemm:gpu_gemv")
    x, a = torch.randn(2, 70), torch.randn(70, 35)
    x[1, 3] = float("inf")
    nan = torch.full((2, 35), float("nan"))
    got = torch.addmm(nan.to("ocl"), x.to("ocl"), a.to("ocl"), beta=0)
    torch.testing.assert_close(got.cpu(), x @ a, equal_nan=True, rtol=1e-5, atol=1e-4)
    assert got[0].isfinite().all()
    empty = torch.addmm(torch.ones(35, device="ocl"), torch.empty(2, 0, device="ocl"), torch.empty(0, 35, device="ocl"))
    assert (empty == 1).all()


CONVS = [  # size, channels, filters, groups, filter, stride, padding, dilation, dtype
    ((9, 11), 8, 28, 1, (3, 3), 1, 1, 1, torch.float32),
    ((9, 11), 8, 28, 1, (3, 3), 1, 1, 1, torch.float16),
    ((9, 11), 8, 28, 1, (3, 3), 1, 1, 1, torch.bfloat16),
    ((9, 11), 8, 28, 1, (3, 3), 1, 1, 1, torch.float64),
    ((12, 13), 6, 10, 2, (3, 2), 2, 1, 2, torch.float32),
    ((37,), 5, 34, 1, (7,), 3, 2, 1, torch.float32),
    ((5, 7, 6), 4, 3, 1, (2, 3, 3), (1, 2, 1), (0, 1, 1), 1, torch.float32),
]


@pytest.mark.parametrize("case", CONVS, ids=str)
def test_configs_of_gpu_implicit(case):
    dtype = case[-1]

    def run() -> None:  # the layouts take different programs, which would be many for every dtype
        if dtype != torch.float16:
            convolve(case, TOLERANCE[dtype], False)
        if len(case[0]) == 2 and dtype in (torch.float32, torch.float16):
            convolve(case, TOLERANCE[dtype], True)

    # The larger tiles of float64 do not fit 48 KiB of local memory. Where each work-group has a compute unit of its
    # own, the others take half as long again as the best, and are not tried.
    alone = dtype == torch.float64 and _C.device_properties(0).compute_units > 16
    tiles = 1 if alone else 2 if dtype == torch.float64 else 3
    assert len(first_values(check_configs("gpu_implicit", run, 1 if alone else 2))) >= tiles


@pytest.mark.parametrize("case", [*CONVS, ((23, 21), 70, 66, 1, (3, 3), 2, 1, 1, torch.float32)], ids=str)
def test_convolutions_of_gpu_plain(case):
    """All directions; sums over enough pixels to be divided, and more than a tile of rows and columns."""
    _C.force_solver(",".join(f"{op}:gpu_plain" for op in ("conv_fwd", "conv_bwd_data", "conv_bwd_weight")))
    for channels_last in (False, True) if len(case[0]) == 2 else (False,):
        convolve(case, TOLERANCE[case[-1]], channels_last)


WINOGRADS = [
    ((9, 14), 5, 6, 1, (3, 3), 1, 1, 1, torch.float32),
    ((9, 14), 5, 6, 1, (3, 3), 1, 1, 1, torch.float16),
    ((9, 14), 5, 6, 1, (3, 3), 1, 1, 1, torch.bfloat16),
    ((6, 8), 8, 12, 4, (3, 3), 1, (2, 0), 1, torch.float32),
    ((3, 7, 9), 4, 3, 1, (1, 3, 3), 1, (1, 0, 1), 1, torch.float32),
]


@pytest.mark.parametrize("case", WINOGRADS, ids=str)
def test_configs_of_gpu_winograd(case):
    def run() -> None:
        for channels_last in (False, True):
            convolve(case, TOLERANCE[case[-1]], channels_last)

    assert first_values(check_configs("gpu_winograd", run, 2)) == {2, 4}


def test_gpu_winograd_in_chunks():
    """More tiles than the small chunk holds, the last chunk incomplete: the weight gradient adds them up."""
    x, w = torch.randn(2, 16, 173, 171), torch.randn(16, 16, 3, 3)
    want, leaf = w.double().requires_grad_(), w.to("ocl").requires_grad_()

    def run() -> None:
        y, expected = F.conv2d(x.to("ocl"), leaf, padding=1), F.conv2d(x.double(), want, padding=1)
        grad = torch.randn_like(y)
        y.backward(grad)
        expected.backward(grad.cpu().double())
        assert relative_error(y, expected.detach()) < TOLERANCE[torch.float32]
        assert relative_error(leaf.grad, want.grad) < 1e-5  # of so many summands

    configs = check_configs("gpu_winograd", run, 3)
    assert {config.split(",")[1] for config in configs} == {"192", "16"}


def test_gpu_winograd_keeps_infinities_where_they_are():
    x, w = torch.randn(2, 20, 19, 22), away_from_zero(35, 20, 3, 3)
    x[0, 3, 7, 7], x[1, 9, 15, 2], x[1, 1, 0, 19] = float("inf"), float("nan"), 3e38
    _C.force_solver("conv_fwd:gpu_winograd,conv_bwd_weight:gpu_winograd")
    leaf = w.to("ocl").requires_grad_()
    result = F.conv2d(x.to("ocl"), leaf, padding=1)
    expected = F.conv2d(x, w.requires_grad_(), padding=1)
    assert not expected.isfinite().all()
    torch.testing.assert_close(result.detach().cpu(), expected.detach(), equal_nan=True, rtol=1e-5, atol=1e-4)
    grad = away_from_zero(*expected.shape)
    result.backward(grad.to("ocl"))
    expected.backward(grad)
    assert leaf.grad is not None
    assert w.grad is not None
    assert not w.grad.isfinite().all()
    torch.testing.assert_close(leaf.grad.cpu(), w.grad, equal_nan=True, rtol=1e-4, atol=1e-3)


CASES_OF_ONE_PROBLEM = """[
    ("conv2d", (2, 4, 9, 8), (8, 4, 3, 3), dict(padding=1)),
    ("conv2d", (2, 3, 9, 8), (6, 3, 2, 3), dict(stride=2, padding=1)),
    ("conv2d", (2, 6, 9, 8), (4, 3, 3, 3), dict(groups=2, dilation=2)),
    ("linear", (33, 20), (12, 20), {}),
]"""


def test_kernels_of_one_problem_are_right(tmp_path):
    state = run_programs_of_one_problem(
        tmp_path, solvers=("gpu_tiled", "gpu_implicit"), cases=CASES_OF_ONE_PROBLEM, gradients=True, tolerance=1e-4
    )
    assert state["specialised"] >= 12
