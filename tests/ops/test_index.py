"""Indexing: reading and writing through indices and masks, accumulation, embeddings, counting."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from common import FLOATS, assert_layout_as_on_cpu
from exact import DEVICE, DTYPES, check_same, values

import dlbackend

MOST = [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64]


def indices(high: int, shape: tuple[int, ...], low: int = 0, seed: int = 0) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_read(dtype: torch.dtype) -> None:
    x, i, j = values((5, 6, 7), dtype), indices(5, (9,)), indices(5, (9,), -5, 1)
    check_same(lambda x, i, j: (x[i], x[:, j], x[i, :, j], x[i[:, None], j], x[..., i, :], x[None, j]), x, i, j)
    check_same(lambda x, i: (x[i.int()], x.t()[i] if x.dim() == 2 else x.mT[:, i]), x, i)
    check_same(lambda x, i: (x.index_select(0, i), x.transpose(0, 2).index_select(2, i.int())), x, i)
    check_same(lambda x, i: x.gather(0, i), x, indices(5, (3, 6, 4)))
    check_same(lambda x, i: x.mT.gather(2, i), x, indices(6, (5, 2, 3)).mT.contiguous().mT)
    check_same(lambda x, i: x.take(i), x, indices(210, (3, 4), -210))


PERMUTED = {
    "channels_last": torch.randn(4, 3, 5, 6).to(memory_format=torch.channels_last),
    "channels_last_3d": torch.randn(4, 3, 2, 5, 6).to(memory_format=torch.channels_last_3d),
    "contiguous": torch.randn(4, 3, 5, 6),
    "permuted": torch.randn(5, 4, 6).permute(1, 2, 0),
    "reversed": torch.randn(5, 4, 6).permute(2, 1, 0),
    "transposed": torch.randn(4, 6).t(),
    "sliced": torch.randn(4, 8, 5, 6).to(memory_format=torch.channels_last)[:, 1:7:2],
    "ones": torch.randn(2, 2, 1, 4).to(memory_format=torch.channels_last),
}
# x, a vector of indices, a matrix of them
READS = {
    "first": lambda x, i, k: x[i],
    "second": lambda x, i, k: x[:, i],
    "last": lambda x, i, k: x[..., i],
    "first two": lambda x, i, k: x[i, i],
    "not adjacent": lambda x, i, k: x[i, ..., i],
    "matrix": lambda x, i, k: x[k],
    "transposed matrix": lambda x, i, k: x[:, k.t()],
    "two matrices": lambda x, i, k: x[k.t(), k.t()],
    "broadcast": lambda x, i, k: x[i, i[:, None]],
    "slice before": lambda x, i, k: x[1:, i],
    "slice after": lambda x, i, k: x[i, 1:],
    "new dimension": lambda x, i, k: x[None, i],
    "mask": lambda x, i, k: x[torch.arange(x.shape[0], device=x.device) % 2 == 0],
    "second mask": lambda x, i, k: x[:, torch.arange(x.shape[1], device=x.device) % 2 == 0],
    "whole mask": lambda x, i, k: x[x > 0],
    "nothing": lambda x, i, k: x[i[:0]],
    "out": lambda x, i, k: torch.ops.aten.index.Tensor_out(x, [None, i], out=x.new_empty(0)),
}


@pytest.mark.parametrize("layout", PERMUTED)
@pytest.mark.parametrize("read", READS)
def test_results_keep_the_order_of_dimensions(layout: str, read: str) -> None:
    x = PERMUTED[layout]
    size = min(2, *x.shape)  # what every dimension has
    assert_layout_as_on_cpu(READS[read], x, indices(size, (7,)), indices(size, (2, 3)))


def test_a_number_of_another_dtype_through_a_mask():
    """Where it is on the CPU, as masked_fill_() takes it; a tensor of the device has to have the dtype."""
    for given in (torch.tensor(2.5), torch.tensor([3], dtype=torch.int64), torch.tensor(1e9)):
        for select in (lambda m: m, lambda m: m[:, 0], lambda m: (slice(None), m[0])):
            y, mask = torch.zeros(4, 3), torch.rand(4, 3) > 0.5
            ours = y.to(DEVICE)
            y[select(mask)] = given
            ours[select(mask.to(DEVICE))] = given
            assert ours.cpu().equal(y)
    half = torch.zeros(3, dtype=torch.half, device=DEVICE)
    half[torch.tensor([True, False, True], device=DEVICE)] = torch.tensor(2.0)
    assert half.tolist() == [2, 0, 2]
    with pytest.raises(RuntimeError, match="dtypes match"):
        half[half > 0] = torch.tensor(2.0, device=DEVICE)
    with pytest.raises(IndexError):
        half[torch.ones(2, dtype=torch.bool, device=DEVICE)] = torch.tensor(2.0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_masks(dtype: torch.dtype) -> None:
    x = values((5, 6, 7), dtype)
    mask = values((5, 6, 7), torch.float32, 3) > 0.5
    check_same(lambda x, m: (x[m], x[m[:, 0, 0]], x[:, m[0]], x.masked_select(m), x.masked_select(m[0, 0])), x, mask)
    check_same(lambda x: (x.nonzero(), x.mT.nonzero(), x.count_nonzero()), x)
    check_same(lambda x, m, s: x.masked_scatter(m, s), x, mask, values((300,), dtype, 5))
    check_same(lambda x, m, s: x.mT.masked_scatter_(m.mT, s), x, mask, values((300,), dtype, 5))

    def assign(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        x[m] = 1
        x[m[:, 0, 0]] = x[0].clone()
        return x

    check_same(assign, x, mask)


def test_nonzero_shapes() -> None:
    for x in (
        torch.tensor(3.0),
        torch.tensor(0),
        torch.zeros(0, 3),
        torch.zeros(4, 2),
        values((100_001,), torch.int32),
    ):
        check_same(lambda x: x.nonzero(), x)
    mask = values((9, 5), torch.bool)
    check_same(lambda x: (torch.nonzero_static(x, size=100, fill_value=-1), torch.nonzero_static(x, size=3)), mask)


def test_nonzero_has_the_strides_of_the_cpu() -> None:
    mask = torch.rand(3, 4, 5) > 0.5
    out = torch.empty(0, dtype=torch.long, device=DEVICE)
    for found in (mask.to(DEVICE).nonzero(), torch.nonzero(mask.to(DEVICE), out=out)):
        assert found.stride() == mask.nonzero().stride()
        assert torch.equal(found.cpu(), mask.nonzero())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_write(dtype: torch.dtype) -> None:
    x, s = values((5, 6, 7), dtype), values((7, 6, 7), dtype, 1)
    once = torch.stack([torch.randperm(5)[:4] for _ in range(42)]).view(6, 7, 4).permute(2, 0, 1)
    check_same(lambda x, i, s: (x.scatter(0, i, s), x.scatter(0, i, 1)), x, once, s)
    check_same(lambda x, i, s: x.transpose(0, 2).scatter_(2, i.transpose(0, 2), s.transpose(0, 2)), x, once, s)
    p = torch.tensor([3, 0, 1])
    check_same(lambda x, i, s: (x.index_copy(0, i, s[:3]), x.index_fill(1, -i, 1), x.put(i, s[0, 0, :3])), x, p, s)
    check_same(lambda x, i, s: x.index_put((i,), s[:3]), x, p, s)
    check_same(lambda x, i, s: x.index_put((i, i), s[:3, 0]), x, p, s)

    def assign(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        x[:, i] = s[:5, :3]
        x[i, :, i] = s[0, 0, 0]
        x[i[:2, None], i] = s[0, 0, :3, None]
        return x

    check_same(assign, x, p, s)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_accumulate(dtype: torch.dtype) -> None:
    x, s = values((5, 6, 7), dtype), values((7, 6, 7), dtype, 1)
    full, rows, p = indices(5, (7, 4, 6)), indices(5, (7,)), torch.tensor([3, 0, 3])
    check_same(lambda x, i, s: x.scatter_add(0, i, s), x, full, s, close=True)
    check_same(lambda x, i, s: x.mT.scatter_add(0, i.mT, s.mT), x, full, s, close=True)
    check_same(lambda x, i, s: x.index_add(0, i, s), x, rows, s, close=True)
    check_same(lambda x, i, s: x.index_add(2, i.int(), s[:5]), x, rows, s, close=True)
    check_same(lambda x, i, s: x.put_(i, s[0, 0, :3], accumulate=True), x, p, s, close=True)
    check_same(lambda x, i, s: x.index_put((i,), s[:3], accumulate=True), x, p, s, close=True)
    check_same(lambda x, i, s: x.index_put((i, -i), s[:3, 0], accumulate=True), x, p, s, close=True)
    check_same(lambda x, i, s: x.mT.index_put_((i, i), s[:3, 0, :6], accumulate=True), x, p, s, close=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.int8], ids=str)
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
def test_scatter_reduce(dtype: torch.dtype, reduce: str) -> None:
    x, s, i = values((5, 6), dtype), values((4, 6), dtype, 1), indices(5, (4, 6))
    for include in (True, False):
        check_same(lambda x, i, s, n=include: x.scatter_reduce(0, i, s, reduce, include_self=n), x, i, s, close=True)


def test_accumulation_is_the_same_each_time() -> None:
    i, s = indices(50, (30_000,)).to(DEVICE), torch.rand(30_000, device=DEVICE)
    first = torch.zeros(50, device=DEVICE).index_put_((i,), s, accumulate=True)
    assert torch.equal(first, torch.zeros(50, device=DEVICE).index_put_((i,), s, accumulate=True))
    torch.testing.assert_close(
        first.cpu().double(),
        torch.zeros(50, dtype=torch.float64).index_add(0, i.cpu(), s.cpu().double()),
        rtol=1e-5,
        atol=0,
    )


@pytest.mark.parametrize(
    ("op", "call"),
    [
        ("index", lambda x, i: x[i]),
        ("index_select", lambda x, i: x.index_select(0, i)),
        ("gather", lambda x, i: x.gather(0, i[:, None])),
        ("take", lambda x, i: x.take(i)),
        ("scatter", lambda x, i: x.scatter(0, i[:, None], 1.0)),
        ("scatter_add", lambda x, i: x.scatter_add(0, i[:, None], x)),
        ("index_add", lambda x, i: x.index_add(0, i, x[:1])),
        ("index_copy", lambda x, i: x.index_copy(0, i, x[:1])),
        ("index_fill_", lambda x, i: x.index_fill(0, i, 1)),
        ("index_put_", lambda x, i: x.index_put((i,), x[0])),
        ("put_", lambda x, i: x.clone().put_(i, x[0, :1])),
    ],
)
def test_bad_index_is_reported_and_the_device_goes_on(op: str, call: Callable[..., object]) -> None:
    x = torch.ones(3, 4, device=DEVICE)
    for bad in (10**12, 50, -51):
        with pytest.raises((IndexError, RuntimeError)) as expected:
            call(torch.ones(3, 4), torch.tensor([bad]))
        with pytest.raises(expected.type, match=rf"(?s)(?=.*{op}).*{bad}.*out of bounds"):  # noqa: PT012
            call(x, torch.tensor([bad], device=DEVICE))
            torch.ocl.synchronize()
        assert x.sum().item() == 12


def test_errors_that_shapes_tell() -> None:
    x = torch.ones(3, 4, device=DEVICE)
    i = torch.tensor([0, 1], device=DEVICE)
    with pytest.raises(IndexError, match="too many indices"):
        x[i, i, i]
    with pytest.raises(RuntimeError, match="shape mismatch"):  # before the dtypes that do not match either
        torch.arange(4, device=DEVICE)[[0, 1]] = torch.ones(3, device=DEVICE)
    with pytest.raises(IndexError, match="broadcast"):
        x[i, torch.tensor([0, 1, 2], device=DEVICE)]
    with pytest.raises(IndexError, match="mask"):
        x[torch.ones(2, dtype=torch.bool, device=DEVICE)]
    with pytest.raises(RuntimeError, match="shape mismatch"):
        x[i] = torch.ones(3, 3, device=DEVICE)
    with pytest.raises(RuntimeError, match="umber of elements of source"):
        x.masked_scatter_(x > 0, torch.ones(2, device=DEVICE))


def embedding(weight: torch.Tensor, i: torch.Tensor, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    weight.requires_grad_()
    out = torch.nn.functional.embedding(i, weight, **options)
    out.backward(torch.arange(out.numel(), device=out.device, dtype=out.dtype).view(out.shape) / out.numel())
    assert weight.grad is not None
    return out.detach(), weight.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
def test_embedding(dtype: torch.dtype) -> None:
    weight, i = values((10, 16), dtype), indices(10, (4, 30))
    for options in ({}, {"padding_idx": 3}, {"scale_grad_by_freq": True}, {"max_norm": 2.0}):
        check_same(lambda w, i, o=options: embedding(w.clone(), i, **o)[1], weight, i, close=True)
        check_same(lambda w, i, o=options: embedding(w.clone(), i.int(), **o)[0], weight, i, close=True)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bag_without_bags(mode: str) -> None:
    weight = torch.ones(4, 2, device="ocl", requires_grad=True)
    i, offsets = torch.tensor([0, 1, 2], device="ocl"), torch.tensor([], dtype=torch.int64, device="ocl")
    out = torch.nn.functional.embedding_bag(i, weight, offsets, mode=mode)
    assert out.shape == (0, 2)
    out.sum().backward()
    assert weight.grad is not None
    assert weight.grad.eq(0).all()


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bag(mode: str) -> None:
    weight, i, offsets = values((10, 16), torch.float32), indices(10, (30,)), torch.tensor([0, 5, 5, 20])

    def bag(w: torch.Tensor, i: torch.Tensor, o: torch.Tensor, **options: Any) -> tuple[torch.Tensor, ...]:
        w = w.clone().requires_grad_()
        out = torch.nn.functional.embedding_bag(i, w, o, mode=mode, **options)
        out.sin().sum().backward()
        assert w.grad is not None
        return out.detach(), w.grad

    check_same(bag, weight, i, offsets, close=True)
    check_same(lambda w, i, o: bag(w, i, o, padding_idx=2), weight, i, offsets, close=True)
    if mode == "sum":
        scale = values((30,), torch.float32, 7)

        def weighted(w: torch.Tensor, i: torch.Tensor, o: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, ...]:
            s = s.clone().requires_grad_()
            out = bag(w, i, o, per_sample_weights=s)
            assert s.grad is not None
            return *out, s.grad

        check_same(weighted, weight.double(), i, offsets, scale.double(), close=True)


def test_counting() -> None:
    i = indices(20, (1000,))
    check_same(lambda i: (torch.bincount(i), torch.bincount(i, minlength=30)), i)
    check_same(torch.bincount, i, values((1000,), torch.float32), close=True)
    check_same(lambda x: torch.histc(x, 10), values((1000,), torch.float32))
    check_same(lambda x: torch.histc(x, 7, -2, 2), values((1000,), torch.float32))
    check_same(lambda i: torch.nn.functional.one_hot(i, 20), i)
    with pytest.raises(RuntimeError, match="non-negative"):
        torch.bincount(torch.tensor([-1], device=DEVICE))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool], ids=str)
def test_unique(dtype: torch.dtype) -> None:
    x = values((20, 30), torch.float32).round().to(dtype)
    check_same(lambda x: torch.unique(x, return_inverse=True, return_counts=True), x)
    check_same(lambda x: torch.unique_consecutive(x.flatten(), return_inverse=True, return_counts=True), x)
    check_same(torch.unique, x[:0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.float16], ids=str)
def test_search(dtype: torch.dtype) -> None:
    rows, x = values((3, 9), torch.float32).to(dtype).sort(1).values, values((3, 20), torch.float32, 4).to(dtype)
    for right in (False, True):
        check_same(lambda b, x, r=right: torch.searchsorted(b, x, right=r), rows, x)
        check_same(lambda b, x, r=right: torch.bucketize(x, b[0], right=r, out_int32=True), rows, x)
    check_same(
        lambda b, o, x: torch.searchsorted(b, x, sorter=o), rows.flip(1), torch.arange(8, -1, -1).repeat(3, 1), x
    )
    check_same(lambda b: torch.searchsorted(b[0], 1.5), rows)


def test_new_shapes_compile_nothing() -> None:
    def work(n: int) -> None:
        x = torch.rand(n, 5, device=DEVICE)
        i = torch.arange(n, device=DEVICE).flip(0)
        x[i], x.scatter_add(0, i[:, None].expand(n, 5), x), x[x > 0.5], torch.cat([x, x[:3]]), x.sort(0)
        torch.nn.functional.dropout(x, 0.5), x.tril(), x.normal_()

    for n in (40, 41, 60):  # vectors want multiples of four
        work(n)
    before = dlbackend.kernel_stats()["compiled"] + dlbackend.kernel_stats()["loaded"]
    for n in range(41, 59):
        work(n)
    assert dlbackend.kernel_stats()["compiled"] + dlbackend.kernel_stats()["loaded"] == before


def test_printing_needs_no_fallback() -> None:
    dlbackend.reset_fallback_report()
    for x in (
        torch.rand(3, 4),
        torch.arange(5),
        torch.ones(2) > 0,
        torch.full((2,), 1e9),
        torch.ones(2, 0),
        torch.tensor(2.5),
    ):
        assert "ocl:0" in repr(x.to(DEVICE))
    assert dlbackend.fallback_report() == {}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_histc_on_the_edges_of_bins(dtype: torch.dtype) -> None:
    x = (torch.arange(1001, dtype=torch.float64) / 1000).to(dtype)
    for bins in (10, 37, 100, 1000):
        assert torch.equal(torch.histc(x.to(DEVICE), bins).cpu(), torch.histc(x, bins))
    for value in (7.0, 30000.0, 1e9, 1e30):  # a range of one value is widened
        x = torch.full((2,), value, dtype=torch.float64).to(dtype)
        if x.isfinite().all():
            assert torch.histc(x.to(DEVICE), 3).tolist() == [0, 2, 0]
        else:
            with pytest.raises(RuntimeError, match="not finite"):
                torch.histc(x.to(DEVICE), 3)
    with pytest.raises(RuntimeError, match="max must be larger than min"):
        torch.histc(x.to(DEVICE), 3, 2, 1)


def test_offsets_of_bags_do_not_decrease() -> None:
    weight, indices = torch.randn(4, 3, device=DEVICE), torch.arange(4, device=DEVICE)
    for offsets in ([0, 3, 1], [0, 2, 2, 1]):
        with pytest.raises(RuntimeError, match="decrease"):
            torch.nn.functional.embedding_bag(indices, weight, torch.tensor(offsets, device=DEVICE)).cpu()
    assert weight.sum().isfinite()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_weights_of_bags_in_half(dtype: torch.dtype) -> None:
    """Products are added up before they are rounded."""
    weight, factors, indices = torch.randn(50, 8).to(dtype), torch.randn(400).to(dtype), torch.randint(50, (400,))
    wanted = (weight[indices].double() * factors.double()[:, None]).view(2, 200, 8).sum(1)
    got = torch.nn.functional.embedding_bag(
        indices.to(DEVICE),
        weight.to(DEVICE),
        torch.tensor([0, 200], device=DEVICE),
        mode="sum",
        per_sample_weights=factors.to(DEVICE),
    )
    # One rounding to 8 (float16: 11) bits, and float's in 200 sums.
    torch.testing.assert_close(got.cpu().double(), wanted, rtol=torch.finfo(dtype).eps / 2 * 1.01, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8], ids=str)
def test_many_indices(dtype: torch.dtype) -> None:
    """Indices are tested in blocks: more of them than one, with rests, of either type, from the end, with steps."""
    x, i = values((700, 3), dtype), indices(700, (1701,), -700)
    check_same(lambda x, i: (x[:, 0][i], x[i], x[:, 1][i.int()], x.t()[0][i[::2]], x.flatten()[i]), x, i)
    check_same(lambda x, i: x[:, 2].gather(0, i % 700), x, i)
    place = torch.randperm(2000, generator=torch.Generator().manual_seed(2))[:1701]
    source = values((1701,), dtype)
    for at in (place, place.int() if dtype == torch.float32 else place):
        check_same(lambda s, at: torch.zeros_like(s).repeat(2).index_copy(0, at, s), source, at.long())
        check_same(lambda s, at: torch.zeros(2000, dtype=s.dtype, device=s.device).index_put((at,), s), source, at)


REPEATED: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "index_put": lambda x, i, s: x.index_put((i,), s),
    "index_put of strided": lambda x, i, s: x.t().contiguous().t().index_put((i,), s),
    "index_put of columns": lambda x, i, s: x.t().index_put((torch.arange(3, device=x.device)[:, None], i), s.t()).t(),
    "index_copy": lambda x, i, s: x.index_copy(0, i, s),
    "scatter": lambda x, i, s: x.scatter(0, i[:, None].expand(-1, 3), s),
    "scatter to more": lambda x, i, s: x.scatter(0, i[:, None].expand(-1, 2), s),
    "put": lambda x, i, s: x.put(i[:, None] * 3 + torch.arange(3, device=x.device), s),
}


@pytest.mark.parametrize("dtype", [*MOST, torch.complex128], ids=str)
def test_deterministic_writes_of_many(dtype: torch.dtype) -> None:
    """Of what is written to one place the last stays, on GPUs too."""
    x, i, s = values((40, 3), dtype), indices(40, (3000,), seed=3), values((3000, 3), dtype, 1)
    last = torch.zeros(40, dtype=torch.long).tolist()
    for row, place in enumerate(i.tolist()):
        last[place] = row
    chosen = s[torch.tensor(last)]
    torch.use_deterministic_algorithms(True)
    try:
        for name, write in REPEATED.items():
            wanted = chosen.clone()
            if name == "scatter to more":
                wanted[:, 2] = x[:, 2]
            actual = write(x.to(DEVICE), i.to(DEVICE), s.to(DEVICE))
            assert actual.cpu().equal(wanted), name
        assert x.to(DEVICE).index_fill(0, i[:7].to(DEVICE), 1).cpu().equal(x.index_fill(0, i[:7], 1))
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("some", [0.0, 0.3, 1.0])
def test_many_of_a_mask(some: float) -> None:
    x = torch.rand(37, 1001, generator=torch.Generator().manual_seed(1))
    check_same(lambda x, m: (m.nonzero(), x[m], m.flatten()[3:30_001].nonzero()), x, x < some)
    check_same(lambda m: torch.nonzero_static(m, size=5000, fill_value=-3), x < some)


@pytest.mark.parametrize("cells", [5, 3000])
def test_sums_of_many(cells: int) -> None:
    source, i = torch.randint(-9, 9, (40_000,)).float(), indices(cells, (40_000,))
    check_same(lambda s, i: s.new_zeros(cells).scatter_add(0, i, s), source, i)
    check_same(lambda s, i: s.new_zeros(cells).index_add(0, i.int(), s), source, i)
    check_same(lambda s, i: s.new_zeros(cells).index_put((i - cells,), s, accumulate=True), source, i)
    signed = torch.where(source > 0, i, i - cells)  # rows are named from both ends
    check_same(lambda s, i: s.new_zeros(cells).index_put((i,), s, accumulate=True), source, signed)
    check_same(lambda s, i: s.new_zeros(cells).scatter_reduce(0, i, s, "amax"), source, i)
    two = source.view(2, 20_000).t().contiguous()
    check_same(lambda s, i: s.new_zeros(cells, 2).scatter_add(0, i.view(2, -1).t(), s), two, i)
    check_same(lambda s, i: s.new_zeros(cells, 3).index_put((i, i % 3), s, accumulate=True), source, i)
    bad = i.clone()
    bad[1234] = cells
    with pytest.raises(RuntimeError):
        source.new_zeros(cells).to(DEVICE).scatter_add(0, bad.to(DEVICE), source.to(DEVICE)).cpu()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [16, 200, 64])
def test_wide_bags(dtype: torch.dtype, width: int) -> None:
    weight, i = torch.randn(50, width).to(dtype), indices(50, (300,))
    offsets = torch.tensor([0, 0, 7, 50, 299])
    for mode in ("sum", "mean", "max"):
        for padding in (None, 4):
            found = torch.nn.functional.embedding_bag(
                i.to(DEVICE), weight.to(DEVICE), offsets.to(DEVICE), mode=mode, padding_idx=padding
            )
            expected = torch.nn.functional.embedding_bag(i, weight.double(), offsets, mode=mode, padding_idx=padding)
            rtol, atol = (1e-5, 1e-4) if dtype == torch.float32 else (None, None)  # sums of 249
            torch.testing.assert_close(found.cpu(), expected.to(dtype), rtol=rtol, atol=atol)
