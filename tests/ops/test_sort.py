"""sort, topk, kthvalue, median: order, stability, NaN, every dtype and layout."""

import pytest
import torch
from exact import DEVICE, DTYPES, check_same, values

ORDERED = [d for d in DTYPES if not d.is_complex]


@pytest.mark.parametrize("dtype", ORDERED, ids=str)
def test_stable_sort(dtype: torch.dtype) -> None:
    x = values((6, 70, 5), dtype)
    for dim in (0, 1, -1):
        for descending in (False, True):
            check_same(lambda t, d=dim, r=descending: t.sort(dim=d, descending=r, stable=True), x)
    check_same(lambda t: t.transpose(0, 1).sort(dim=0, stable=True), x)
    check_same(lambda t: t[:, ::3].sort(dim=1, stable=True), x)


@pytest.mark.parametrize("length", [1, 2, 47, 48, 49, 1000, 1025, 40_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.float16], ids=str)
def test_lengths(dtype: torch.dtype, length: int) -> None:
    x = (torch.randn(length, generator=torch.Generator().manual_seed(length)) * 1000).to(dtype)
    check_same(lambda t: t.sort(stable=True), x)
    check_same(lambda t: t.sort(stable=True, descending=True), x)


def test_special_numbers() -> None:
    nan, inf = float("nan"), float("inf")
    x = torch.tensor([3.0, nan, -0.0, inf, 0.0, -inf, -1.5, nan, 1e-40, -1e-40, 0.0])
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        check_same(lambda t: t.sort(stable=True), x.to(dtype))
        check_same(lambda t: t.sort(stable=True, descending=True), x.to(dtype))
    extremes = torch.tensor([2**63 - 1, -(2**63), 0, -1, 1])
    check_same(lambda t: t.sort(stable=True), extremes)
    check_same(lambda t: t.sort(stable=True, descending=True), extremes)


def test_shapes() -> None:
    check_same(lambda t: t.sort(), torch.tensor(3.0))
    check_same(lambda t: t.sort(0), torch.empty(0, 3))
    check_same(lambda t: t.argsort(1), torch.tensor([[3, 1, 2], [9, 7, 8]]))
    check_same(lambda t: t.msort(), torch.tensor([[3, 1], [1, 2]]))
    with pytest.raises(IndexError):
        torch.ones(3, device=DEVICE).sort(2)


@pytest.mark.parametrize("dtype", [d for d in ORDERED if d != torch.bool], ids=str)
def test_topk(dtype: torch.dtype) -> None:
    x = torch.stack([torch.randperm(100, generator=torch.Generator().manual_seed(i)) for i in range(4)])
    x = x.to(dtype)
    for k in (1, 5, 60, 100):
        for largest in (True, False):
            check_same(lambda t, k=k, m=largest: t.topk(k, largest=m), x)
    check_same(lambda t: t.t().topk(3, dim=0).values, x)
    with pytest.raises(RuntimeError, match="out of range"):
        torch.ones(3, device=DEVICE).topk(4)


def test_kth_and_median() -> None:
    x = values((5, 31), torch.float32)
    check_same(lambda t: t.kthvalue(4), x)
    check_same(lambda t: t.kthvalue(2, dim=0, keepdim=True), x)
    check_same(lambda t: t.median(1), x)
    check_same(lambda t: (t.median(), t.nanmedian(), t.long().median()), x)
    x[2, 3] = x[4, 5] = x[4, 6] = float("nan")
    check_same(lambda t: t.median(1), x)
    check_same(lambda t: t.nanmedian(1, keepdim=True), x)
    check_same(lambda t: t.median(), x)


def with_out(fn, values_are_input: bool = False, indices_are_input: bool = False):
    """`fn(x, out=)` with one of the results in x's memory."""

    def call(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = x if values_are_input else torch.empty_like(x)
        return fn(x, out=(given, x if indices_are_input else torch.empty_like(x, dtype=torch.int64)))

    return call


@pytest.mark.parametrize("layout", [lambda x: x, lambda x: x.t(), lambda x: x[:, ::2]], ids=["rows", "columns", "gaps"])
@pytest.mark.parametrize("dim", [0, 1])
def test_results_in_the_inputs_memory(layout, dim: int) -> None:
    x = layout(torch.randperm(48).view(6, 8))
    for fn in (torch.sort, lambda x, d, out: torch.topk(x, x.shape[d], d, out=out)):
        into = lambda x, out, fn=fn: fn(x, dim, out=out)  # noqa: E731
        check_same(with_out(into, values_are_input=True), x.float() if x.is_contiguous() else x)
        check_same(with_out(into, indices_are_input=True), x)


@pytest.mark.parametrize("fn", [torch.sort, lambda x, d, out: torch.topk(x, 4, d, out=out)], ids=["sort", "topk"])
def test_results_in_part_of_the_inputs_memory(fn) -> None:
    x = torch.rand(5, 4, device=DEVICE)
    with pytest.raises(RuntimeError, match="some elements of the input tensor and the written-to tensor"):
        fn(x[:4], 0, out=(x[1:], torch.empty(4, 4, dtype=torch.int64, device=DEVICE)))


@pytest.mark.parametrize("name", ["mode", "kthvalue"])
def test_out(name: str) -> None:
    first = (1,) if name == "kthvalue" else ()
    fn = lambda x, out: getattr(torch, name)(x, *first, 1, out=out)  # noqa: E731
    empty = lambda x, dtype=None: torch.empty(5, dtype=dtype, device=x.device)  # noqa: E731
    x = torch.randint(3, (5, 7)).float()
    check_same(lambda x: fn(x, (empty(x), empty(x, torch.int64)))[0], x)
    check_same(lambda x: fn(x, (x.new_empty(0), x.new_empty(0, dtype=torch.int64)))[0], x)
    for t in (x, x.to(DEVICE)):
        with pytest.raises(RuntimeError, match="some elements of the input tensor and the written-to tensor"):
            fn(t, (t.view(-1)[:5], empty(t, torch.int64)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.uint8, torch.float64], ids=str)
@pytest.mark.parametrize("largest", [False, True])
def test_topk_of_many(dtype: torch.dtype, largest: bool) -> None:
    wide = torch.randn(3, 5000) * 30
    few = torch.randint(0, 7, (2, 3000)).to(dtype)
    for x in (wide.to(dtype) if dtype != torch.uint8 else wide.abs().clamp(max=255).to(dtype), few):
        values, places = x.to(DEVICE).topk(700, largest=largest)
        order = x.sort(dim=1, descending=largest, stable=True)
        assert torch.equal(values.cpu(), order.values[:, :700])
        assert torch.equal(places.cpu(), order.indices[:, :700])
    if dtype.is_floating_point:
        wide[0, :900] = float("nan")
        values = wide.to(dtype).to(DEVICE).topk(1000, largest=largest).values
        expected = wide.to(dtype).sort(dim=1, descending=largest).values[:, :1000]
        assert torch.equal(values.cpu().nan_to_num(7), expected.nan_to_num(7))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8], ids=str)
@pytest.mark.parametrize("length", [6000, 20_000])
def test_long_rows(dtype: torch.dtype, length: int) -> None:
    """Rows that many work-groups of a GPU share: whole, the first of them, and one element."""
    x = torch.randn(3, length, generator=torch.Generator().manual_seed(length)) * 30
    x = (x.abs() if dtype == torch.uint8 else x).to(dtype)
    x[2] = x[2, 0]  # no digit varies
    if dtype.is_floating_point:
        x[0, ::7], x[0, 1:20], x[0, 20:40] = float("nan"), -0.0, 0.0
    on_device = x.to(DEVICE)
    for descending in (False, True):
        order = x.sort(dim=1, stable=True, descending=descending)
        check_same(lambda t, r=descending: t.sort(dim=1, stable=True, descending=r), x)
        for k in (10, 2500, 5500):
            got = on_device.topk(k, largest=descending)
            torch.testing.assert_close(got.values.cpu(), order.values[:, :k], rtol=0, atol=0, equal_nan=True)
            assert torch.equal(got.indices.cpu(), order.indices[:, :k])
    rows, first = torch.arange(3), x.sort(dim=1, stable=True)
    assert torch.equal(on_device.kthvalue(700).indices.cpu(), first.indices[:, 699])
    for name in ("kthvalue", "median", "nanmedian"):
        args = (700, 1) if name == "kthvalue" else (1,)
        got = getattr(on_device, name)(*args)
        expected = getattr(x, name)(*args).values
        torch.testing.assert_close(got.values.cpu(), expected, rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(x[rows, got.indices.cpu()], expected, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(torch.signbit(on_device.sort(1).values.cpu()), torch.signbit(first.values))
