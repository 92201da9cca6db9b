"""Scans of rows that are one chunk or many, short rows side by side, and rows beside each other in memory."""

from __future__ import annotations

import pytest
import torch
from exact import DEVICE, to_device
from fresh_process import forked_python

import dlbackend

SHAPES = [(5,), (4096,), (4097,), (300_000,), (3, 50), (1000, 7), (513, 64), (33, 17, 65), (5, 30_000), (30_000, 70)]


@pytest.fixture(autouse=True)
def no_fallback():
    dlbackend.reset_fallback_report()
    yield
    assert not dlbackend.fallback_report()


def layouts(x: torch.Tensor) -> list[torch.Tensor]:
    """x, and views of it that are not contiguous."""
    return [x, x.transpose(0, 1), x[:, ::2]] if x.dim() > 1 else [x, x[::3]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.complex64], ids=str)
def test_cumsum(dtype: torch.dtype) -> None:
    """A result is the sum of up to 300,000 numbers, so that it rounds as the largest of the sums on its way does."""
    wide = {torch.int64: torch.int64, torch.complex64: torch.complex128}.get(dtype, torch.float64)
    bound = {torch.int64: 0, torch.float16: 1e-3}.get(dtype, 1e-5)
    for shape in SHAPES:
        whole = (torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 4).to(dtype)
        for x in layouts(whole):
            for dim in range(x.dim()):
                exact = x.to(wide).cumsum(dim)
                error = (to_device(x).cumsum(dim).cpu().to(wide) - exact).abs().max()
                assert error <= bound * exact.abs().max(), (shape, x.stride(), dim)


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8], ids=str)
def test_running_extrema(dtype: torch.dtype) -> None:
    for shape in SHAPES:
        whole = (torch.rand(shape, generator=torch.Generator().manual_seed(0)) * 200).to(dtype)
        for x in layouts(whole):
            for dim in range(x.dim()):
                values, indices = to_device(x).cummax(dim)
                expected = x.cummax(dim)
                assert values.cpu().equal(expected.values)
                assert indices.cpu().equal(expected.indices)


@pytest.mark.parametrize("count", [5, 5000, 400_000])
@pytest.mark.parametrize("value", [float("-inf"), float("inf"), float("nan"), torch.iinfo(torch.int64).min])
def test_extrema_of_the_least_of_numbers(count: int, value: float) -> None:
    """Equal elements move the index along, though they are what a scan of no elements begins with."""
    x = torch.full((count,), value)
    for actual, expected in ((x.to(DEVICE).cummax(0), x.cummax(0)), (x.to(DEVICE).cummin(0), x.cummin(0))):
        assert actual.indices.cpu().equal(expected.indices)
        torch.testing.assert_close(actual.values.cpu(), expected.values, rtol=0, atol=0, equal_nan=True)


def test_in_place() -> None:
    x = torch.randint(0, 9, (300_000,), generator=torch.Generator().manual_seed(0))
    y = x.to(DEVICE)
    assert y.cumsum_(0).cpu().equal(x.cumsum(0))
    assert y.cpu().equal(x.cumsum(0))


@pytest.mark.parametrize("rows", [1, 3])
def test_rows_of_many_tiles(rows: int) -> None:
    """On GPUs, of several sections of tiles: the order in which they arrive has no influence on what they add up to."""
    x = torch.randn(rows, 2_300_001, generator=torch.Generator().manual_seed(0))
    there = x.to(DEVICE)
    exact, once = x.double().cumsum(1), there.cumsum(1).cpu()
    assert (once - exact).abs().max() <= 1e-5 * exact.abs().max()
    for _ in range(5):
        assert there.cumsum(1).cpu().equal(once)
    values, indices = there.cummax(1)
    expected = x.cummax(1)
    assert values.cpu().equal(expected.values)
    assert indices.cpu().equal(expected.indices)


TWO_LAUNCHES = """
import torch, dlbackend
x = torch.randint(-9, 9, (3, 700_001), generator=torch.Generator().manual_seed(0))
there = x.to("ocl:0")
for actual, expected in ((there.cumsum(1), x.cumsum(1)), (there.cummax(1).indices, x.cummax(1).indices)):
    assert actual.cpu().equal(expected)
"""


def test_where_work_groups_do_not_wait_for_each_other() -> None:
    done = forked_python(TWO_LAUNCHES, DLBACKEND_EMULATE="class=gpu,groups_advance=0")
    assert done.returncode == 0, done.stderr
