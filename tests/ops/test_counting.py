"""Counting and grouping: isin, histograms, unique, mode."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from exact import DEVICE, check_same, to_device, values

import dlbackend


@pytest.fixture(autouse=True)
def no_fallback():
    dlbackend.reset_fallback_report()
    yield
    assert not dlbackend.fallback_report()


@pytest.mark.parametrize("tests", [0, 5, 60])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_isin(dtype: torch.dtype, tests: int) -> None:
    x, t = values((30, 7), dtype), values((tests,), dtype, 1)
    check_same(lambda x, t: (torch.isin(x, t), torch.isin(x.t(), t, invert=True)), x, t)
    check_same(lambda x, t: torch.isin(x, t.view(1, -1), assume_unique=tests > 1), x.unique(), t.unique())


def test_isin_of_scalars_and_mixed_dtypes() -> None:
    x = torch.tensor([1.0, 2.0, float("nan"), -0.0, 2.5])
    check_same(lambda x: (torch.isin(x, 2), torch.isin(x, 2, invert=True), torch.isin(2.5, x), torch.isin(x, x)), x)
    check_same(lambda x, t: (torch.isin(x, t), torch.isin(t, x)), x, torch.arange(40))
    check_same(torch.isin, torch.arange(9), torch.tensor(3))
    check_same(lambda x: torch.isin(x, torch.zeros(0, dtype=torch.long, device=x.device)), torch.arange(3))
    out = torch.empty(0, dtype=torch.bool, device=DEVICE)
    torch.isin(to_device(x), to_device(x), out=out)
    assert out.tolist() == torch.isin(x, x).tolist()
    for call in [lambda d: torch.isin(x.bool().to(d), x.to(d)), lambda d: torch.isin(x.to(d), 1j)]:
        with pytest.raises(RuntimeError):
            call("cpu")
        with pytest.raises(RuntimeError):
            call(DEVICE)


@pytest.mark.parametrize("weights", [None, torch.float32, torch.float16, torch.int32], ids=str)
def test_bincount(weights: torch.dtype | None) -> None:
    x = torch.randint(0, 50, (2000,), generator=torch.Generator().manual_seed(0))
    if weights is None:
        check_same(lambda x: (x.bincount(), x.bincount(minlength=70), x.to(torch.uint8).bincount()), x)
        check_same(lambda x: (x[:0].bincount(), x[:0].bincount(minlength=3), x[::3].int().bincount()), x)
        check_same(lambda x: (x[:1] * 100_000).bincount(), x + 1)
    else:
        check_same(lambda x, w: x.bincount(w, minlength=60), x, values((2000,), weights), close=True)
    with pytest.raises(RuntimeError, match="non-negative"):
        to_device(x - 1).bincount()


def test_counts_of_many_elements() -> None:
    x = torch.randint(0, 1000, (300_000,), generator=torch.Generator().manual_seed(0))
    f = torch.randn(300_000, generator=torch.Generator().manual_seed(0))
    check_same(lambda x, f: (x.bincount(), f.histc(100, -2, 2), f.histc(30)), x, f)
    # Sums of 300 numbers in any order, which GPUs' atomic additions leave open: each addition rounds a partial sum of
    # up to 60 by at most half a unit, 2e-6, with a standard deviation of that over the root of three. The errors of 300
    # add up like a random walk's steps; among 5000 sums the largest is within four standard deviations.
    sums: list[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = [
        lambda x, f: x.bincount(f),
        lambda x, f: torch.zeros(1000, dtype=f.dtype, device=f.device).index_add_(0, x, f),
        lambda x, f: torch.ones(1000, 3, dtype=f.dtype, device=f.device).index_add_(0, x, f[:, None].expand(-1, 3)),
    ]
    for fn in sums:
        actual = fn(x.to(DEVICE), f.to(DEVICE))
        torch.testing.assert_close(actual.cpu().double(), fn(x, f.double()), rtol=0, atol=4 * 2e-6 * (300 / 3) ** 0.5)
    check_same(lambda x, f: torch.zeros(1000, device=x.device).scatter_reduce_(0, x, f, "amax", include_self=False),
               x, f)  # fmt: skip
    check_same(lambda x: torch.ones(1000, dtype=torch.long, device=x.device).scatter_reduce_(0, x, x | 1, "prod"), x)
    check_same(lambda x: torch.zeros(1000, dtype=torch.complex64, device=x.device).index_add_(0, x, x * (1 + 2j)), x,
               close=True)  # fmt: skip
    many = torch.randperm(300_000, generator=torch.Generator().manual_seed(0))
    check_same(lambda i, f: torch.zeros(300_000, device=i.device).index_add_(0, i, f), many, f)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8], ids=str)
def test_histc_of_integers_is_that_of_floats(dtype: torch.dtype) -> None:
    x = torch.randint(0, 100, (1000,), generator=torch.Generator().manual_seed(0)).to(dtype)
    for bins, low, high in [(10, 0, 100), (7, 13, 50), (3, 0, 0), (100, 5, 6)]:
        expected = torch.histc(x.double(), bins, low, high)
        actual = torch.histc(to_device(x), bins, low, high)
        assert actual.dtype == dtype
        assert torch.equal(actual.cpu().long() % 256, expected.long() % 256)
    same = torch.histc(to_device(torch.full((5,), 3, dtype=dtype)), 4)
    assert same.tolist() == torch.histc(torch.full((5,), 3.0), 4).tolist()
    with pytest.raises(NotImplementedError):
        torch.histc(to_device(x > 3), 4)


@pytest.mark.parametrize(
    "share",
    [
        lambda x: (x, x),
        lambda x: (x, x[:4]),
        lambda x: (x[:6], x[4:]),
        lambda x: (x[::2], x[:4]),
        lambda x: (x, x[::2]),
        lambda x: (x[:4], x[4:]),
        lambda x: (x.view(2, 4).t(), x[:4]),
    ],
)
def test_histc_into_its_input(share) -> None:
    """The CPU clears the result before it counts, but has copied an input that is no line in memory before that."""

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        results = []
        for bounds in [(), (0.5, 3)]:
            y = x.clone()
            source, out = share(y)
            torch.histc(source, len(out), *bounds, out=out)
            results.append(y)
        return results

    check_same(call, torch.tensor([0.0, 1.5, 3.0, 4.5, 1.0, 2.5, 4.0, 0.5]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_histogram(dtype: torch.dtype) -> None:
    x, w = values((60, 4), dtype), values((60, 4), dtype, 1).abs()
    edges = torch.tensor([-2.0, 0.5, 1.0, 3.0], dtype=dtype)
    check_same(lambda x: (*torch.histogram(x, 7), *torch.histogram(x, 5, range=(-1.0, 2.0))), x, close=True)
    check_same(lambda x, w: torch.histogram(x, 7, weight=w, density=True), x, w, close=True)
    check_same(lambda x, e: torch.histogram(x, e.flip(0)), x, edges)
    check_same(lambda x, e, w: (*torch.histogram(x, e), *torch.histogram(x.t(), e, weight=w.t())), x, edges, w,
               close=True)  # fmt: skip
    check_same(lambda x: torch.histogram(x, x[0].sort()[0].repeat(2)), x)  # edges that elements lie on
    flat = lambda r: (r[0], *r[1])  # noqa: E731
    check_same(lambda x: flat(torch.histogramdd(x[:, :2], [3, 4])), x, close=True)
    check_same(lambda x, w: flat(torch.histogramdd(x[:, :2], [3, 4], weight=w[:, 0], density=True)), x, w, close=True)
    check_same(lambda x, e: flat(torch.histogramdd(x[:, :2], [e, e[:2]])), x, edges)
    hist, bins = torch.empty(0, dtype=dtype, device=DEVICE), torch.empty(0, dtype=dtype, device=DEVICE)
    torch.histogram(to_device(x), to_device(edges), out=(hist, bins))
    assert torch.equal(hist.cpu(), torch.histogram(x, edges)[0])
    assert torch.equal(bins.cpu(), edges)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.histogram(x, 0),
        lambda x: torch.histogram(x, 3, range=(1.0, 0.0)),
        lambda x: torch.histogram(x, 3, weight=x[:2]),
        lambda x: torch.histogram(x, x.new_zeros(3, dtype=torch.double)),
        lambda x: torch.histogramdd(x, [3, 3]),
        lambda x: torch.histogram(x.long(), 3),
        lambda x: torch.histogram(x / 0, 3),
        lambda x: torch.unique(x.to(torch.complex64)),
        lambda x: torch.unique(x.new_zeros(3, 0), dim=0),
        lambda x: torch.mode(x.to(torch.complex64)),
        lambda x: torch.mode(x[:0]),
        torch.bincount,
    ],
)
def test_refuses_what_the_cpu_refuses(call: Callable[[torch.Tensor], object]) -> None:
    x = torch.arange(6.0)
    with pytest.raises((RuntimeError, IndexError, NotImplementedError)) as expected:
        call(x)
    with pytest.raises(type(expected.value)):
        call(to_device(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_unique(dtype: torch.dtype) -> None:
    x = values((40, 3), dtype)
    x[7:20] = x[7]
    both = {"return_inverse": True, "return_counts": True}
    check_same(lambda x: (*torch.unique(x, **both), *torch.unique_consecutive(x, **both)), x)
    check_same(lambda x: (torch.unique(x), *torch.unique(x, return_counts=True), *torch._unique(x)[:1]), x)
    for dim in [0, 1]:
        check_same(lambda x, d: torch.unique(x, dim=d, **both), x, dim)
        check_same(lambda x, d: torch.unique_consecutive(x, dim=d, **both), x, dim)
    check_same(lambda x: torch.unique(x[:, 0], dim=0, **both), x)
    check_same(lambda x: torch.unique(x[:0], **both), x)
    check_same(lambda x: torch.unique(x[:0], dim=0, **both), x)


def test_unique_of_many() -> None:
    x = torch.randint(0, 9000, (200_000,), generator=torch.Generator().manual_seed(0))
    both = {"return_inverse": True, "return_counts": True}
    check_same(lambda x: (*x.unique(**both), *(x // 500).unique_consecutive(**both)), x)
    check_same(lambda x: (*(x % 40).view(-1, 4).unique(dim=0, **both),), x)
    nan = torch.tensor([1.0, float("nan"), float("nan"), 0.0, 1.0])
    check_same(lambda x: x.unique(**both), nan)
    check_same(lambda x: x.unique_consecutive(**both), nan)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_mode(dtype: torch.dtype) -> None:
    x = values((9, 7, 5), dtype)
    for dim in [0, 1, -1]:
        check_same(lambda x, d: (*x.mode(d), *x.mode(d, keepdim=True), *x.mT.mode(d)), x, dim)
    check_same(lambda x: x[0, 0, 0].mode(), x)
    check_same(lambda x: x[:, :0].mode(0), x)
    out = torch.empty(0, dtype=dtype, device=DEVICE), torch.empty(0, dtype=torch.long, device=DEVICE)
    torch.mode(to_device(x), 1, out=out)
    assert torch.equal(out[0].cpu(), x.mode(1)[0])
    assert torch.equal(out[1].cpu(), x.mode(1)[1])


def test_uint64_sorts_by_size() -> None:
    x = torch.tensor([3, 2**63 + 5, 0, 2**63 - 1, 2**64 - 1], dtype=torch.uint64)
    check_same(lambda x: (*x.sort(), *x.sort(descending=True)), x)
