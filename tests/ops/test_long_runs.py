"""On CPUs several results, or parts of a long run, are reduced side by side, long runs are computed at several places
in turns, and elementwise results that are larger than the cache are written past it: lengths around those at which
that begins and ends, with rests of every kind.
"""

from typing import Any

import pytest
import torch
from fresh_process import emulating, run_python

import dlbackend  # noqa: F401

DEVICE = "ocl:0"
LENGTHS = (65535, 65536, 65537, 65536 + 255, 100003, 131072, 262144 + 77, 1048576)
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_sums(length: int, dtype: torch.dtype) -> None:
    x = (torch.rand(2, length, dtype=torch.float64) / 64).to(dtype)
    there = x.to(DEVICE)
    # Sums of 64 steps, then of sums: an error of a few roundings, of the result and within.
    tolerance = 4 * max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps if dtype != torch.float64 else 0)
    for got, want in ((there.sum(), x.double().sum()), (there.sum(1), x.double().sum(1))):
        torch.testing.assert_close(got.cpu().double(), want, rtol=tolerance, atol=0)
    torch.testing.assert_close(there.var(1).cpu().double(), x.double().var(1), rtol=max(tolerance, 1e-5), atol=0)


@pytest.mark.parametrize("length", LENGTHS)
def test_positions(length: int) -> None:
    """Every place's elements count once and under their own index, those of the rest included."""
    x = torch.arange(length, dtype=torch.int64) % 1000
    there = x.to(DEVICE)
    assert there.sum().item() == x.sum().item()
    assert (there != 0).sum().item() == (x != 0).sum().item()
    for at in {0, 1, 63, 64, length // 4, length // 2, length * 3 // 4 + 1, length - 1}:
        y = there.clone()
        y[at] = 5000
        assert (y.argmax().item(), y.amax().item()) == (at, 5000)
        y[at] = -1
        assert (y.argmin().item(), y.min().item()) == (at, -1)
    assert there.argmax().item() == 999  # the first of equal ones


@pytest.mark.parametrize("rows", [1, 3, 4, 5, 11, 64, 203])
@pytest.mark.parametrize("length", [16, 63, 64, 65, 191, 256, 1000, 1031, 4096, 5003])
def test_results_side_by_side(rows: int, length: int) -> None:
    """Every result takes its own elements: in one run, in several that are not neighbours, in strided ones."""
    x = torch.randint(-1000, 1000, (3, rows, length))
    x.view(-1)[:: max(length - 1, 7)] = 1000  # ties, in different places of the rows
    there = x.to(DEVICE)
    pairs: list[tuple[torch.Tensor, Any]] = [
        (x[1], 1),
        (x, (0, 2)),
        (x[0], None),
        (x[:, :, ::3], (0, 2)),
        (x.transpose(0, 1), (1, 2)),
    ]
    theirs = [there[1], there, there[0], there[:, :, ::3], there.transpose(0, 1)]
    for (a, dims), b in zip(pairs, theirs, strict=True):
        assert torch.equal(b.sum(dims).cpu(), a.sum(dims))
        assert torch.equal(b.amax(dims or ()).cpu(), a.amax(dims or ()))
        for got, want in zip(
            torch.var_mean(b.double(), dims), torch.var_mean(a.double(), dims, correction=1), strict=True
        ):
            torch.testing.assert_close(got.cpu(), want, rtol=1e-12, atol=1e-12, equal_nan=True)
    for got, want in zip(there.max(2), x.max(2), strict=True):
        assert torch.equal(got.cpu(), want)
    assert torch.equal(there.argmin(2).cpu(), x.argmin(2))
    assert torch.equal((there == 1000).any(2).cpu(), (x == 1000).any(2))


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("start", [0, 1, 3])
def test_elements(length: int, start: int) -> None:
    """Results that start on a line and beside one, contiguous, broadcast along rows, of other widths, in place."""
    a, b = torch.randn(length + 8), torch.randn(length + 8)
    x, y = a.to(DEVICE)[start : start + length], b.to(DEVICE)[start : start + length]
    a, b = a[start : start + length], b[start : start + length]
    guarded = torch.full((length + 16,), 7.0, device=DEVICE)
    torch.add(x, y, out=guarded[start + 1 : start + 1 + length])
    want = torch.full((length + 16,), 7.0)
    torch.add(a, b, out=want[start + 1 : start + 1 + length])
    assert torch.equal(guarded.cpu(), want)  # and nothing before or behind is written
    for dtype in (torch.float64, torch.bfloat16, torch.int64, torch.int8, torch.bool):
        p, q = (a * 10).to(dtype), (x * 10).to(dtype)
        assert torch.equal(q.cpu(), p)
        assert torch.equal((q == q.flip(0)).cpu(), p == p.flip(0))
    assert torch.equal(torch.where(x > 0, x, 0).cpu(), torch.where(a > 0, a, 0))
    rows = length // 5
    wide, narrow = a[: rows * 5].view(5, rows), b[:rows]
    assert torch.equal(
        (x[: rows * 5].view(5, rows) * y[:rows] + y[:5].view(5, 1)).cpu(), wide * narrow + b[:5].view(5, 1)
    )
    x.relu_().add_(y).mul_(x)
    a.relu_().add_(b).mul_(a)
    assert torch.equal(x.cpu(), a)
    half = length // 2
    x[:half].copy_(x[half : 2 * half])
    assert torch.equal(x.cpu(), torch.cat((a[half : 2 * half], a[half:])))


@pytest.mark.slow
def test_past_the_cache(request: pytest.FixtureRequest) -> None:
    options = ["-q", "-p", "no:cacheprovider", "-k", "test_elements"]
    done = run_python("-m", "pytest", str(request.path), *options, **emulating(cache="4096"))
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
