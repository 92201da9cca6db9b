"""The CTC loss and its gradient against float64 on the CPU."""

import pytest
import torch
import torch.nn.functional as F
from common import DEVICE, assert_near

import dlbackend


def check(targets, times, lengths, shape=(12, 3, 6), dtype=torch.float32, **options) -> None:
    """In a layout that is not the contiguous one; `lengths` as lists and as tensors."""
    x = torch.randn(shape[1], shape[0], shape[2]).transpose(0, 1)
    grad = torch.rand(shape[1]) + 0.5 if options.get("reduction") == "none" else torch.tensor(1.5)
    for convert in (lambda v: v, torch.tensor, lambda v: torch.tensor(v, dtype=torch.int32).to(DEVICE)):
        wide, near = x.double().requires_grad_(), x.to(DEVICE, dtype).requires_grad_()
        expected = F.ctc_loss(wide.log_softmax(2), targets, times, lengths, **options)
        dlbackend.reset_fallback_report()
        actual = F.ctc_loss(near.log_softmax(2), targets.to(DEVICE), convert(times), convert(lengths), **options)
        expected.backward(grad.double())
        actual.backward(grad.to(DEVICE, dtype))
        assert not [op for op in dlbackend.fallback_report() if "ctc" in op]
        assert_near(actual.detach(), expected.detach())
        assert_near(near.grad, wide.grad)  # type: ignore[arg-type]


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("zero_infinity", [False, True])
def test_padded_targets(reduction: str, zero_infinity: bool) -> None:
    targets = torch.tensor([[1, 2, 2, 4], [3, 3, 1, 0], [5, 0, 0, 0]])
    check(targets, [12, 10, 7], [4, 3, 1], reduction=reduction, zero_infinity=zero_infinity)
    check(targets, [12, 0, 7], [4, 0, 0], reduction=reduction, zero_infinity=zero_infinity)


def test_targets_in_a_row() -> None:
    targets = torch.tensor([1, 2, 2, 4, 3, 3, 1, 5])
    check(targets, [12, 10, 7], [4, 3, 1])
    check(targets.int(), [12, 10, 7], [4, 3, 1], dtype=torch.float64)
    check(torch.tensor([0, 2, 2, 4, 3, 3, 0, 1]), [12, 10, 7], [4, 3, 1], blank=5)
    check(torch.randint(1, 40, (2 * 60,)), [150, 140], [60, 60], shape=(150, 2, 40))


def test_impossible_targets() -> None:
    """Two equal targets need a blank between them: three times are too few."""
    targets = torch.tensor([[1, 1, 1], [1, 2, 3], [2, 0, 0]])
    check(targets, [3, 3, 3], [3, 3, 1], zero_infinity=True, reduction="sum")
    x = torch.randn(3, 3, 5, device=DEVICE).log_softmax(2)
    loss = F.ctc_loss(x, targets.to(DEVICE), [3, 3, 3], [3, 3, 1], reduction="none")  # type: ignore[arg-type]
    assert loss.isinf().tolist() == [True, False, False]


def test_refuses() -> None:
    x, targets = torch.randn(5, 2, 4, device=DEVICE), torch.ones(2, 3, dtype=torch.int64, device=DEVICE)
    for times, lengths, blank in (([6, 5], [1, 1], 0), ([5], [1, 1], 0), ([5, 5], [4, 1], 0), ([5, 5], [1, 1], 4)):
        with pytest.raises(RuntimeError):
            F.ctc_loss(x, targets, times, lengths, blank=blank)  # type: ignore[arg-type]
