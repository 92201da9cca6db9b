"""Reductions over what indices or lengths name: index_reduce, segment_reduce, bags of embeddings, renorm, hashes."""

from __future__ import annotations

import pytest
import torch
from exact import DEVICE, DTYPES, check_same, to_device, values

import dlbackend


@pytest.fixture(autouse=True)
def no_fallback():
    dlbackend.reset_fallback_report()
    yield
    assert not dlbackend.fallback_report()


@pytest.mark.parametrize("reduce", ["prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64], ids=str)
def test_index_reduce(dtype: torch.dtype, reduce: str) -> None:
    x, index, source = values((5, 4, 3), dtype), torch.tensor([0, 2, 0, 2, 4, 2]), values((6, 4, 3), dtype, 1) * 0.5
    source = source.to(dtype)
    check_same(lambda x, i, s: x.index_reduce(0, i, s, reduce), x, index, source, close=True)
    check_same(lambda x, i, s: x.index_reduce(0, i, s, reduce, include_self=False), x, index, source, close=True)
    check_same(lambda x, i, s: x.mT.index_reduce_(1, i[:4] % 3, s[:5].mT[:, [0, 1, 2, 0]], reduce), x, index, source,
               close=True)  # fmt: skip
    check_same(lambda x, i, s: x[0, 0, 0].index_reduce(0, i[:1].int(), s[0, 0, 0], reduce), x, index, source)
    check_same(lambda x, i, s: x.index_reduce(0, i[:0], s[:0], reduce, include_self=False), x, index, source)


def test_index_reduce_refuses() -> None:
    x, i = torch.zeros(3), torch.tensor([0, 1])
    for call in [
        lambda x, i: x.index_reduce(0, i, x[:2], "sum"),
        lambda x, i: x.bool().index_reduce(0, i, x[:2].bool(), "amax"),
        lambda x, i: x.index_reduce(0, i, x[:2].double(), "amax"),
    ]:
        with pytest.raises((RuntimeError, NotImplementedError)) as expected:
            call(x, i)
        with pytest.raises(type(expected.value)):
            call(to_device(x), to_device(i))


@pytest.mark.parametrize("reduce", ["prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("dtype", [torch.bool, torch.complex64], ids=str)
def test_index_reduce_of_other_numbers(dtype: torch.dtype, reduce: str) -> None:
    """The CPU combines slices of these where the combining op takes them, and single numbers never."""
    x, source = values((5, 4), dtype), values((6, 4), dtype, 1)
    x[1], source[2, 1] = 0, 0
    index = torch.tensor([0, 2, 0, 2, 4, 2])
    calls = [
        lambda x, i, s: x.index_reduce(0, i, s, reduce),
        lambda x, i, s: x.clone().index_reduce_(0, i, s, reduce),
        lambda x, i, s: torch.index_reduce(x, 0, i, s, reduce, out=torch.empty_like(x)),
        lambda x, i, s: x.mT.index_reduce(1, i.int(), s.mT, reduce),
        lambda x, i, s: x.index_reduce(0, i, s, reduce, include_self=False),
        lambda x, i, s: x.index_reduce(0, i[:0], s[:0], reduce),
        lambda x, i, s: x.index_reduce(0, i[:0], s[:0], reduce, include_self=False),
        lambda x, i, s: x[:, :0].index_reduce(0, i, s[:, :0], reduce),
        lambda x, i, s: x[:, 0].index_reduce(0, i, s[:, 0], reduce),
        lambda x, i, s: x[:, 0].index_reduce(0, i[:0], s[:0, 0], reduce),
        lambda x, i, s: x[0, 0].index_reduce(0, i[:1], s[0, 0], reduce),
    ]
    for call in calls:
        refused = False
        try:
            call(x, index, source)
        except NotImplementedError:
            refused = True
        if refused:
            with pytest.raises(NotImplementedError):
                call(to_device(x), to_device(index), to_device(source))
        else:
            check_same(call, x, index, source, close=True)


@pytest.mark.parametrize("reduce", ["sum", "mean", "prod", "max", "min"])
@pytest.mark.parametrize("initial", [None, 2.0])
def test_segment_reduce(reduce: str, initial: float | None) -> None:
    nan = float("nan")
    x = torch.tensor([1.0, 3, 3, 0, 2, nan, 4, 0.5])
    lengths, offsets = torch.tensor([3, 0, 3, 2]), torch.tensor([0, 3, 3, 6, 8])

    def gradient(x: torch.Tensor, lengths: torch.Tensor, offsets: torch.Tensor) -> list[torch.Tensor]:
        x = x.requires_grad_()
        results = []  # type: ignore[var-annotated]
        for given in [{"lengths": lengths}, {"offsets": offsets}, {"lengths": lengths, "unsafe": True}]:
            y = torch.segment_reduce(x, reduce, initial=initial, **given)  # type: ignore[arg-type]
            for sign in [1, -1]:
                results += torch.autograd.grad(y, x, torch.arange(1, 5, device=x.device) * sign, retain_graph=True)
            results.append(y.detach())
        return results

    check_same(gradient, x, lengths, offsets, close=True)
    batch = values((2, 8, 3), torch.float32)
    both = torch.stack([lengths, lengths.flip(0)])
    check_same(
        lambda x, n: torch.segment_reduce(x, reduce, lengths=n, axis=1, initial=initial), batch, both, close=True
    )
    check_same(lambda x, n: torch.segment_reduce(x[:0], reduce, lengths=n[0, 1:2], initial=initial), x, both)
    half = values((8,), torch.float16)
    check_same(
        lambda x, n: torch.segment_reduce(x, reduce, lengths=n.int(), initial=initial), half, lengths, close=True
    )


@pytest.mark.parametrize(
    "given",
    [
        {"lengths": [2, 2]},
        {"lengths": [-1, 5]},
        {},
        {"indices": [0]},
        {"lengths": [2.0, 2.0]},
        {"lengths": [4], "axis": 1},
        {"lengths": [4], "reduce": "foo"},
    ],
    ids=str,
)
def test_segment_reduce_refuses(given: dict) -> None:
    def call(device: str) -> object:
        tensors = {k: torch.tensor(v, device=device) if isinstance(v, list) else v for k, v in given.items()}
        return torch.segment_reduce(torch.zeros(3, device=device), **{"reduce": "sum", **tensors})  # type: ignore[arg-type]

    with pytest.raises((RuntimeError, IndexError, NotImplementedError)) as expected:
        call("cpu")
    with pytest.raises(type(expected.value)):
        call(DEVICE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 3])
def test_bags(dtype: torch.dtype, mode: str, padding: int | None) -> None:
    weight = values((10, 70), dtype) * 0.25
    index, offsets = torch.tensor([3, 1, 1, 9, 3, 3, 0, 7, 2]), torch.tensor([0, 3, 3, 4, 9])
    scales = values((9,), dtype, 3) if mode == "sum" else None

    def gradients(w: torch.Tensor, i: torch.Tensor, o: torch.Tensor, *s: torch.Tensor) -> list[torch.Tensor]:
        results = []
        for last, index, offsets in [
            (False, i, o),
            (True, i, o),
            (False, i.int(), o.int()),
            (False, i.view(3, 3), None),
        ]:
            w = w.detach().requires_grad_()
            s = [t.detach().view(index.shape).requires_grad_() for t in s]  # type: ignore[assignment]
            y = torch.nn.functional.embedding_bag(
                index, w, offsets, mode=mode, include_last_offset=last, padding_idx=padding,
                per_sample_weights=s[0] if s else None,
            )  # fmt: skip
            y.backward(torch.arange(y.numel(), device=w.device).view(y.shape).to(y.dtype) / y.numel())
            results += [y.detach(), w.grad, *[t.grad for t in s]]
        return results  # type: ignore[return-value]

    check_same(gradients, weight, index, offsets, *([scales] if mode == "sum" else []), close=True)


def test_bags_take_the_first_maximum() -> None:
    weight = torch.tensor([[1.0, float("nan")], [1.0, 2.0], [float("nan"), 3.0]])
    args = torch.tensor([1, 0, 2, 2, 1]), torch.tensor([0, 3])
    check_same(lambda w, i, o: torch._embedding_bag(w, i, o, False, 2)[::3], weight, *args)


def test_bags_of_nothing() -> None:
    weight = values((4, 5), torch.float32)
    none = torch.zeros(0, dtype=torch.long)
    bag = torch.nn.functional.embedding_bag
    check_same(lambda w, i: (bag(i, w, i), bag(i, w, torch.zeros(3, dtype=torch.long, device=w.device))), weight, none)
    for offsets in [[1, 2], [0, 9], [0, 2, 1]]:
        with pytest.raises(RuntimeError):
            bag(torch.tensor([0, 1, 2], device=DEVICE), to_device(weight), torch.tensor(offsets, device=DEVICE)).cpu()
    with pytest.raises(RuntimeError):
        bag(torch.tensor([0, 4], device=DEVICE), to_device(weight), torch.tensor([0], device=DEVICE)).cpu()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_gradients_of_many_repeats_are_added_up_in_float(dtype: torch.dtype) -> None:
    index = torch.arange(8000) % 2
    grad = torch.full((8000, 3), 0.11).to(dtype)
    expected = torch.zeros(2, 3, dtype=torch.double).index_add_(0, index, grad.double())
    embedded = torch.ops.aten.embedding_dense_backward(to_device(grad), to_device(index), 2, -1, False)
    torch.testing.assert_close(embedded.cpu().double(), expected, rtol=4e-3, atol=0)
    added = torch.zeros(2, 3, dtype=dtype, device=DEVICE).index_add_(0, to_device(index), to_device(grad))
    torch.testing.assert_close(added.cpu().double(), expected, rtol=4e-3, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.complex64], ids=str)
def test_renorm(dtype: torch.dtype) -> None:
    x = values((5, 4, 3), dtype)
    for p, dim in [(2, 0), (1, -1), (float("inf"), 1), (0.5, 1)]:
        check_same(
            lambda x, p, d: (x.renorm(p, d, 4.0), x.mT.renorm(p, d, 1), x.renorm_(p, d, 3)), x, p, dim, close=True
        )
    if not dtype.is_complex:
        index = torch.tensor([1, 4, 1, 0])
        for p in [2.0, 1.0]:
            check_same(lambda x, i, p: torch.embedding_renorm_(x[:, :, 0].contiguous(), i, 4.0, p), x, index, p,
                       close=True)  # fmt: skip
    for args in [(0, 0, 1.0), (2, 3, 1.0), (2, 0, -1.0)]:
        with pytest.raises((RuntimeError, IndexError)) as expected:
            x.renorm(*args)
        with pytest.raises(type(expected.value)):
            to_device(x).renorm(*args)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if not d.is_complex], ids=str)
def test_hash(dtype: torch.dtype) -> None:
    x = values((4, 5, 3), dtype)
    check_same(
        lambda x: (torch.hash_tensor(x), torch.hash_tensor(x, (0, 2)), torch.hash_tensor(x.mT, 1, keepdim=True)), x
    )
    if dtype.is_floating_point:
        odd = torch.tensor([float("nan"), float("inf"), -0.0, 1e-40, 6e-8, -3e-39], dtype=dtype)
        check_same(lambda x: torch.hash_tensor(x[:, None], 1), odd)
    out = torch.empty(0, dtype=torch.uint64, device=DEVICE)
    torch.hash_tensor(to_device(x), 0, out=out)
    assert torch.equal(out.cpu(), torch.hash_tensor(x, 0))
    with pytest.raises(RuntimeError, match="mode"):
        torch.hash_tensor(to_device(x), mode=1)


def test_zeros_without_memory() -> None:
    zeros = torch._efficientzerotensor((2, 3), device=DEVICE)
    assert zeros._is_zerotensor()
    one = torch.ones(2, 3, device=DEVICE)
    assert (zeros + one).cpu().eq(1).all()
    assert (zeros * one).cpu().eq(0).all()
    assert zeros.clone().cpu().eq(0).all()

    def gradient(x: torch.Tensor) -> torch.Tensor:
        x = x.requires_grad_()
        return torch.autograd.grad(torch.sgn(x).sum() + x.sum(), x)[0]

    check_same(gradient, torch.randn(4))


def test_sparse_gradient_of_gather_is_dense() -> None:
    x = torch.randn(3, 4, device=DEVICE, requires_grad=True)
    index = torch.tensor([[0, 2, 2, 0]], device=DEVICE)
    (grad,) = torch.autograd.grad(x.gather(0, index, sparse_grad=True).square().sum(), x, create_graph=True)
    assert grad.layout == torch.strided
    torch.testing.assert_close(grad, torch.autograd.grad(x.gather(0, index).square().sum(), x)[0])
    assert torch.autograd.grad(grad.sum(), x)[0].sum().item() == 8


@pytest.mark.parametrize("rank", [16, 17, 20])
def test_nonzero_of_many_dimensions(rank: int) -> None:
    shape = [1] * rank
    shape[0], shape[3], shape[-1] = 3, 2, 4
    x = values((24,), torch.float32).clamp_min(0).view(shape)
    check_same(
        lambda x: (x.nonzero(), torch.nonzero_static(x, size=30, fill_value=-2), x.transpose(0, -1).nonzero()), x
    )


def test_fill_through_an_index_of_the_host() -> None:
    x = torch.zeros(3, 4, device=DEVICE)
    x.index_fill_(1, torch.tensor([0, -1]), 2.0)
    assert x.cpu().tolist() == torch.zeros(3, 4).index_fill_(1, torch.tensor([0, -1]), 2.0).tolist()


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64], ids=str)
def test_masked_select_refuses(dtype: torch.dtype) -> None:
    x = torch.zeros(3, dtype=dtype)
    for device in ["cpu", DEVICE]:
        with pytest.raises(NotImplementedError):
            x.to(device).masked_select(torch.ones(3, dtype=torch.bool, device=device))
    with pytest.raises(RuntimeError, match="BoolTensor"):
        to_device(torch.zeros(3)).masked_select(torch.ones(3, dtype=torch.uint8, device=DEVICE))


def test_bags_of_rows_of_any_width() -> None:
    call = torch.nn.functional.embedding_bag
    for width in [1, 63, 64, 65, 200]:
        weight, index = values((50, width), torch.float32), torch.arange(300) * 7 % 50
        check_same(
            lambda w, i: (call(i.view(30, 10), w), call(i.view(30, 10), w, mode="max")), weight, index, close=True
        )
