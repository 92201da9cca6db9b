"""Fourier transforms against float64 on the CPU: kinds, lengths, layouts, every solver."""

import math

import pytest
import torch
from common import DEVICE
from fresh_process import emulating, fresh_python

import dlbackend

EPS = {torch.complex64: 2**-24, torch.complex128: 2**-53}
REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64}
# one pass of each radix, several, large primes, a square of one
LENGTHS = [1, 2, 3, 7, 8, 11, 13, 30, 64, 97, 169, 210, 360, 509, 1000]


def near(actual: torch.Tensor, expected: torch.Tensor, points: int) -> None:
    """Within a few eps of the largest result, times the logarithm of the number of points."""
    assert actual.device.type == "ocl"
    assert actual.shape == expected.shape
    if expected.numel() == 0:
        return
    wide = actual.cpu().to(expected.dtype)
    eps = EPS[torch.complex64 if actual.dtype in (torch.float32, torch.complex64) else torch.complex128]
    error = ((wide - expected).abs().max() / expected.abs().max().clamp_min(1e-30)).item()
    assert error < 4 * eps * max(1, math.log2(max(points, 1))), (error / eps, points)


def wide(t: torch.Tensor) -> torch.Tensor:
    return t.to(torch.complex128 if t.is_complex() else torch.float64)


def check(fn, x: torch.Tensor, points: int) -> None:
    near(fn(x.to(DEVICE)), fn(wide(x)), points)


def check_kinds(n: int, batch: int, dtype: torch.dtype) -> None:
    x = torch.randn(batch, n, dtype=dtype)
    r = torch.randn(batch, n, dtype=REAL[dtype])
    half = torch.randn(batch, n // 2 + 1, dtype=dtype)
    check(torch.fft.fft, x, n)
    check(torch.fft.ifft, x, n)
    check(torch.fft.rfft, r, n)
    check(torch.fft.fft, r, n)
    check(lambda t: torch.fft.irfft(t, n=n), half, n)
    columns = x.t().contiguous()
    near(torch.fft.fft(columns.to(DEVICE), dim=0), torch.fft.fft(wide(columns), dim=0), n)


@pytest.fixture(autouse=True)
def no_fallback():
    dlbackend.reset_fallback_report()
    yield
    assert not [op for op in dlbackend.fallback_report() if "_fft_" in op]


@pytest.mark.parametrize("n", LENGTHS)
def test_lengths(n: int) -> None:
    for batch in (1, 19):
        check_kinds(n, batch, torch.complex64)
    check_kinds(n, 3, torch.complex128)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("n", [8, 16, 128, 512, 4096])
def test_powers_of_two_along_and_across(n: int, dtype: torch.dtype) -> None:
    rows, columns = torch.randn(3, n, dtype=dtype), torch.randn(2, n, 20, dtype=dtype)
    check(torch.fft.fft, rows, n)
    check(torch.fft.ifft, rows[:, ::2], n // 2)
    for transform in (torch.fft.fft, torch.fft.ifft):
        check(lambda t, f=transform: f(t, dim=1), columns, n)
        check(lambda t, f=transform: f(t, dim=-1), columns.mT, n)


@pytest.fixture
def forced():
    yield lambda name: dlbackend.solvers.force(f"fft:{name}")
    dlbackend.solvers.force("")


@pytest.mark.parametrize(
    ("solver", "n", "batch"),
    [
        ("stockham", 960, 21),
        ("stockham", 2048, 2),
        ("four_step", 1155, 18),
        ("four_step", 4096, 3),
        ("four_step", 16384, 70),  # several chunks
        ("bluestein", 101, 5),
        ("bluestein", 262, 17),
        ("bluestein", 4099, 2),  # too long for a tile
        ("bluestein", 8198, 2),
        ("reference", 45, 3),
    ],
)
def test_solvers(forced, solver: str, n: int, batch: int) -> None:
    forced(solver)
    check_kinds(n, batch, torch.complex64)


@pytest.mark.slow
@pytest.mark.parametrize("n", [2**20, 3 * 5 * 7 * 11 * 13 * 16, 65537, 2 * 65537, 2**17 * 9])
@pytest.mark.parametrize("dtype", list(EPS), ids=str)
def test_long(n: int, dtype: torch.dtype) -> None:
    check_kinds(n, 2, dtype)


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
def test_many_dimensions(norm: str) -> None:
    x, r = torch.randn(4, 6, 5, 7, dtype=torch.complex64), torch.randn(4, 6, 5, 8)
    for dims in ((-1,), (0,), (1, 3), (3, 0), (2, 1, 0), None):
        points = math.prod(x.shape if dims is None else [x.shape[d] for d in dims])
        check(lambda t, d=dims: torch.fft.fftn(t, dim=d, norm=norm), x, points)
        check(lambda t, d=dims: torch.fft.ifftn(t, dim=d, norm=norm), x, points)
        check(lambda t, d=dims: torch.fft.rfftn(t, dim=d, norm=norm), r, points)
        check(lambda t, d=dims: torch.fft.irfftn(t, dim=d, norm=norm), x, points)
        check(lambda t, d=dims: torch.fft.hfftn(t, dim=d, norm=norm), x, points)
    check(lambda t: torch.fft.fft2(t, s=(9, 4), norm=norm), x, 36)


def test_layouts() -> None:
    x = torch.randn(6, 5, 8, 9, dtype=torch.complex64)
    r = torch.randn(6, 5, 8, 9)
    for view in (
        lambda t: t.transpose(0, 3),
        lambda t: t[:, 1:, ::2, ::3],
        lambda t: t.permute(2, 0, 3, 1)[1:],
        lambda t: t[:1].expand(4, 5, 8, 9),
        lambda t: t.flip(1).as_strided((6, 4, 7), (360, 9, 5)),  # overlapping
    ):
        for dim in (0, 1, -1):
            near(torch.fft.fft(view(x.to(DEVICE)), dim=dim), torch.fft.fft(wide(view(x)), dim=dim), 16)
            near(torch.fft.rfft(view(r.to(DEVICE)), dim=dim), torch.fft.rfft(wide(view(r)), dim=dim), 16)
    near(torch.fft.fft(x.to(DEVICE).conj()), torch.fft.fft(wide(x).conj()), 9)
    # more dimensions with gaps than kernels take
    gaps = torch.randn(4, 4, 4, 4, 4, 4, dtype=torch.complex64)
    cut = (slice(0, 3),) * 6
    near(torch.fft.fft(gaps.to(DEVICE)[cut], dim=2), torch.fft.fft(wide(gaps[cut]), dim=2), 3)


def test_results_given() -> None:
    x = torch.randn(5, 12, dtype=torch.complex64)
    d, expected = x.to(DEVICE), torch.fft.fft(wide(x))
    out = torch.empty(0, dtype=torch.complex64, device=DEVICE)
    assert torch.fft.fft(d, out=out) is out
    near(out, expected, 12)
    gaps = torch.zeros(5, 24, dtype=torch.complex64, device=DEVICE)
    torch.fft.fft(d, out=gaps[:, ::2])
    near(gaps[:, ::2], expected, 12)
    assert not gaps[:, 1::2].any().item()
    torch.fft.fft(d, out=d)
    near(d, expected, 12)
    with pytest.raises(RuntimeError):
        torch.fft.fft(d, out=torch.empty(5, 12, device=DEVICE))
    with pytest.raises(RuntimeError):
        torch.fft.fft(torch.randn(4, device=DEVICE).half())
    near(torch.fft.fft(torch.ones(4, dtype=torch.int64, device=DEVICE)), torch.fft.fft(torch.ones(4).double()), 4)
    for shape in ((0, 4), (3, 0, 4)):
        assert torch.fft.fft(torch.empty(shape, dtype=torch.complex64, device=DEVICE)).shape == shape


def test_gradients() -> None:
    for fn, n in ((torch.fft.fft, 12), (torch.fft.rfft, 12), (torch.fft.rfft, 9)):
        x = torch.randn(3, n, dtype=torch.float64, requires_grad=True)
        d = x.detach().to(DEVICE).requires_grad_()
        fn(x).abs().sum().backward()
        fn(d).abs().sum().backward()
        torch.testing.assert_close(d.grad.cpu(), x.grad)  # type: ignore[union-attr]


def test_stft_there_and_back() -> None:
    x, window = torch.randn(2, 1600), torch.hann_window(200)
    expected = torch.stft(x.double(), 200, 50, window=window.double(), return_complex=True)
    actual = torch.stft(x.to(DEVICE), 200, 50, window=window.to(DEVICE), return_complex=True)
    near(actual, expected, 200)
    back = torch.istft(actual, 200, 50, window=window.to(DEVICE), length=1600)
    torch.testing.assert_close(back.cpu(), x, rtol=1e-4, atol=1e-5)


def test_a_new_length_compiles_nothing() -> None:
    torch.fft.fft(torch.randn(3, 40, dtype=torch.complex64, device=DEVICE))
    compiled = dlbackend.kernel_stats()["compiled"]
    for n in (18, 48, 75, 480):  # powers of two have programs of their own on GPUs
        torch.fft.fft(torch.randn(3, n, dtype=torch.complex64, device=DEVICE))
        torch.fft.rfft(torch.randn(3, n, device=DEVICE))
    assert dlbackend.kernel_stats()["compiled"] == compiled


def test_vectors_of_four_floats():
    """The narrowest that CPUs have; two doubles in one are too few for the kernels, which then take two vectors."""
    code = """
import torch, dlbackend
for dtype in (torch.complex64, torch.complex128):
    x = torch.randn(5, 60, dtype=dtype)
    torch.testing.assert_close(torch.fft.fft(x.to("ocl")).cpu(), torch.fft.fft(x))
"""
    done = fresh_python(code, **emulating(vector_floats="4"))
    assert done.returncode == 0, done.stderr[-2000:]


def test_dimensions_counted_from_the_last():
    x = torch.randn(3, 8)
    aten = torch.ops.aten
    near(aten._fft_r2c(x.to(DEVICE), [-1], 0, True), torch.fft.rfft(x.double()), 8)
    out = torch.empty(0, dtype=torch.complex64, device=DEVICE)
    near(aten._fft_r2c.out(x.to(DEVICE), [-1], 0, True, out=out), torch.fft.rfft(x.double()), 8)
    near(aten._fft_c2c(x.to(DEVICE, torch.complex64), [-2], 0, True), torch.fft.fft(x.double(), dim=0), 3)
    near(aten._fft_c2r(torch.fft.rfft(x).to(DEVICE), [-1], 2, 8), x.double(), 8)
    with pytest.raises(IndexError, match="out of range"):
        aten._fft_r2c(x.to(DEVICE), [2], 0, True)
