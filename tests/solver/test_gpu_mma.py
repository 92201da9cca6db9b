"""Products and convolutions on tensor cores, solver gpu_mma, and the settings that let float32 go there as TF32.

Skipped where the device has none; tests/test_gpu_kernels.py runs them on any device with the instruction emulated.
"""

import threading

import pytest
import torch
import torch.nn.functional as F
from common import relative_error
from fresh_process import forked_python
from gpu_solvers import check_configs, check_products, convolve, first_values, run_programs_of_one_problem, shifted

import dlbackend
from dlbackend import _C, backend

TENSOR_CORES = torch.ocl.is_available() and torch.ocl.get_device_properties(0).has_tensor_cores
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not TENSOR_CORES, reason="the device has no tensor cores")]

# float32 is rounded to TF32; results of the others are rounded once more when they are stored
TOLERANCE = {torch.float32: 6e-4, torch.float16: 6e-4, torch.bfloat16: 4e-3}
EVERYWHERE = ",".join(f"{op}:gpu_mma" for op in ("gemm", "conv_fwd", "conv_bwd_data", "conv_bwd_weight"))
HALF, TF32, WIDE, SQUARE = 5, 6, 7, 8  # tiles


@pytest.fixture(autouse=True)
def tf32():
    with torch.backends.ocl.flags(fp32_precision="tf32"):
        yield
    dlbackend.solvers.force("")


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(("m", "n", "k"), [(64, 64, 64), (130, 77, 75), (33, 129, 31), (1, 1, 1), (70, 8, 512)])
def test_products(m, n, k, dtype):
    """Both layouts of both operands, gaps and unaligned offsets, an addend, bounds of a tile that is not full."""
    dlbackend.solvers.force(EVERYWHERE)
    # Where nothing is summed nothing averages out: two factors are each rounded to TF32 by up to 2^-11.
    tolerance = 1e-3 if k == 1 and dtype == torch.float32 else TOLERANCE[dtype]
    check_products(m, n, k, dtype, tolerance)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_configs_of_products(dtype):
    # one large tile with a long reduction, which is worth dividing on any device
    a, b = torch.randn(1, 70, 801).to(dtype), torch.randn(1, 801, 120).to(dtype)

    def run() -> None:
        torch.bmm(a.to("ocl"), b.to("ocl"))
        torch.bmm(a.mT.contiguous().to("ocl").mT, b.mT.contiguous().to("ocl").mT)

    configs = check_configs("gpu_mma", run, 2)
    large = TF32 if dtype == torch.float32 else HALF
    assert {large, SQUARE} <= first_values(configs) <= {large, SQUARE, WIDE}
    assert {config.split(",")[1] for config in configs} != {"1"}  # parts of the reduction


CONVS = [  # size, channels, filters, groups, filter, stride, padding, dilation; the last two: many taps, long sums
    ((9, 11), 8, 36, 1, (3, 3), 1, 1, 1),
    ((12, 13), 6, 10, 2, (3, 2), 2, 1, 2),
    ((37,), 5, 34, 1, (7,), 3, 2, 1),
    ((5, 7, 6), 4, 3, 1, (2, 3, 3), (1, 2, 1), (0, 1, 1), 1),
    ((40,), 3, 6, 1, (31,), 1, 15, 1),
    ((6, 5), 128, 9, 1, (3, 3), 1, 1, 1),
]


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("case", CONVS, ids=str)
def test_convolutions(case, dtype, channels_last):
    dlbackend.solvers.force(EVERYWHERE)
    convolve((*case, dtype), TOLERANCE[dtype], channels_last)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_convolutions_at_odd_addresses(dtype, layout):
    """Elements that are read and written in fours are not aligned."""
    dlbackend.solvers.force(EVERYWHERE)
    x, w = (torch.randn(*s).to(dtype).contiguous(memory_format=layout) for s in ((2, 8, 9, 10), (12, 8, 3, 3)))
    grad = torch.randn(2, 12, 9, 10).to(dtype).contiguous(memory_format=layout)
    want = [t.to(torch.float64, copy=True).requires_grad_() for t in (x, w)]
    expected = F.conv2d(*want, padding=1)
    expected.backward(grad.double())
    for offset in (1, 2, 3):
        leaves = [shifted(t, offset).requires_grad_() for t in (x, w)]
        y = F.conv2d(*leaves, padding=1)
        y.backward(shifted(grad, offset))
        for got, right in zip((y, *(t.grad for t in leaves)), (expected, *(t.grad for t in want)), strict=True):
            assert relative_error(got, right) < TOLERANCE[dtype]


CASES_OF_ONE_PROBLEM = """[
    ("conv2d", (2, 4, 9, 8), (8, 4, 3, 3), dict(stride=2, padding=1)),
    ("linear", (33, 20), (12, 20), {}),
]"""


def test_kernels_of_one_problem(tmp_path):
    state = run_programs_of_one_problem(
        tmp_path,
        solvers=("gpu_mma",),
        cases=CASES_OF_ONE_PROBLEM,
        dtypes=(torch.float32, torch.float16),
        precision="tf32",
        gradients=False,  # emulated, each run takes milliseconds
        tolerance=2e-2,
    )
    assert state["specialised"] >= 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_configs_of_convolutions(dtype):
    configs = check_configs("gpu_mma", lambda: convolve((*CONVS[0], dtype), TOLERANCE[dtype], True), 1)
    assert first_values(configs) == {TF32, WIDE, SQUARE} - ({TF32} if dtype == torch.bfloat16 else set())


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_infinities_and_nan_stay_where_they_are(dtype):
    """Rounding to TF32 keeps them, and a row of a tile sees nothing of the others."""
    dlbackend.solvers.force(EVERYWHERE)
    a, b = torch.randn(70, 33).to(dtype), torch.rand(33, 65).to(dtype) + 1
    a[1, 3], a[2, 32], a[69, 0] = float("inf"), float("nan"), float("-inf")
    got, expected = a.to("ocl") @ b.to("ocl"), a.float() @ b.float()
    finite = expected.isfinite()
    assert not finite.all()
    torch.testing.assert_close(got.cpu().float()[~finite], expected[~finite], equal_nan=True)
    assert relative_error(got.cpu()[finite], expected[finite]) < TOLERANCE[dtype]


def test_bounds():
    dlbackend.solvers.force(EVERYWHERE)
    x, w = torch.randn(2, 8, 9, 10), torch.randn(40, 8, 3, 3)
    arguments = (None, [1, 1], [1, 1], [1, 1], 1, -1.0, 2.0)
    got = torch.ops.dlbackend.convolution_bounded(x.to("ocl"), w.to("ocl"), *arguments).cpu()
    assert (got.min(), got.max()) == (-1, 2)
    sums = F.conv2d(x.double(), w.double(), padding=1)
    # Rounding the factors is relative to the sums, of whose norm the bounds leave a fifth: 1.2e-4 at most in 300 draws.
    assert (got - sums.clamp(-1, 2)).norm() < 1.6e-4 * sums.norm()


def keys_of(run) -> list[str]:
    """The problems that it meets."""
    seen = set(dlbackend.solvers.problems())
    run()
    return [key for key in dlbackend.solvers.problems() if key not in seen]


def both(n: int) -> list[str]:
    """The keys of a product and a convolution of a size of their own."""
    x = torch.randn(1, 4, n, n, device="ocl")
    return keys_of(lambda: (x[0, 0] @ x[0, 0], F.conv2d(x, torch.randn(4, 4, 2, 2, device="ocl"))))


def test_float32_is_rounded_only_where_it_is_allowed():
    """By this backend's setting or PyTorch's; never by default; the problem's key says so."""

    def allowed(n: int) -> list[bool]:  # of a product and a convolution
        return ["tf32=1" in key for key in sorted(both(n), reverse=True)]

    assert allowed(20) == [True, True]
    assert _C.explain_problem(both(21)[0]).count("gpu_mma: applicable") == 1
    torch.backends.ocl.fp32_precision = "none"
    assert allowed(22) == [False, False]
    assert "not allowed" in _C.explain_problem(both(23)[0])
    x = torch.randn(1, 4, 27, 27, device="ocl", requires_grad=True)
    keys = keys_of(lambda: F.conv2d(x, torch.ones(4, 4, 2, 2, device="ocl", requires_grad=True)).sum().backward())
    assert sum(key.startswith("conv_") for key in keys) == 3
    assert not any("tf32" in key for key in keys)
    # an assignment fails once any test of this process has imported PyTorch's databases of ops
    with torch.backends.flags(fp32_precision="tf32"):
        assert allowed(24) == [True, True]
    try:
        torch.set_float32_matmul_precision("high")
        assert allowed(25) == [True, False]
        torch.backends.ocl.fp32_precision = "ieee"
        assert allowed(26) == [False, False]
    finally:
        torch.set_float32_matmul_precision("highest")


def test_a_thread_may_have_its_own():
    """Two threads in turns: neither's setting reaches the other or stays behind."""
    torch.backends.ocl.fp32_precision = "none"
    entered, leave, seen = threading.Event(), threading.Event(), []

    def other() -> None:
        with backend.fp32_precision_here("tf32"):
            entered.set()
            leave.wait(60)
            seen.append(["tf32=1" in key for key in both(30)])
        seen.append(["tf32=1" in key for key in both(31)])

    thread = threading.Thread(target=other)
    thread.start()
    assert entered.wait(60)
    with backend.fp32_precision_here("tf32"):
        assert ["tf32=1" in key for key in both(28)] == [True, True]
    assert ["tf32=1" in key for key in both(29)] == [False, False]
    leave.set()
    thread.join()
    assert seen == [[True, True], [False, False]]
    assert torch.backends.ocl.fp32_precision == "none"


def test_what_was_checked_as_tf32_is_checked_again(tmp_path):
    """A result that is right to TF32's tolerance says nothing about float32's."""
    code = """
import torch, dlbackend
x = torch.randn(48, 40, device="ocl")
dlbackend.solvers.force("gemm:-gpu_mma,gemm:-gpu_gemv,gemm:-clblast")
for precision in ("tf32", "ieee", "tf32"):
    torch.backends.ocl.fp32_precision = precision
    x @ x.mT
    print(dlbackend.solvers.stats()["verified"])
"""
    done = forked_python(code, DLBACKEND_CACHE_DIR=str(tmp_path), DLBACKEND_FIND_MODE="fast", DLBACKEND_PACKS="")
    assert done.stdout.split() == ["1", "2", "2"], done.stdout + done.stderr


def test_an_unknown_precision_is_refused():
    with pytest.raises(ValueError, match="fp32_precision 'bf16' does not exist; there are none, ieee, tf32"):
        torch.backends.ocl.fp32_precision = "bf16"
    assert torch.backends.ocl.fp32_precision == "tf32"


def test_tf32_is_tuned():
    model = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3), torch.nn.ReLU()).eval()
    options = {"layout": "nchw", "fusion": "off", "solvers": "heuristic"}
    found = dlbackend.tune(model, torch.randn(2, 8, 9, 9), precision="fp32,tf32", **options)
    errors = {e["precision"]: e["accuracy"]["relative_l2"] for e in found.data["configurations"]}
    assert errors["fp32"] < 1e-5 < errors["tf32"] < 1e-3
    tf32 = next(e for e in found.data["configurations"] if e["precision"] == "tf32")
    assert all("tf32=1" in key for key in tf32["solutions"])
    assert torch.backends.ocl.fp32_precision == "tf32"  # the program's own, without which fp32 was measured
