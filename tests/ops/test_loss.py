"""Negative log likelihood and cross entropy, forward and backward."""

import pytest
import torch
import torch.nn.functional as F
from common import DEVICE, FLOATS, assert_near, check_op, layouts

import dlbackend

SHAPES = [(7, 5), (5,), (300, 10), (2, 5, 6, 7), (2, 4, 9)]


def targets(shape, ignored=None):
    classes = shape[1] if len(shape) > 1 else shape[0]
    t = torch.randint(0, classes, (shape[0], *shape[2:]) if len(shape) > 1 else ())
    if ignored is not None and t.dim():
        t.view(-1)[::3] = ignored
    return t


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("ignored", [None, -100, 2])
def test_nll(shape, reduction, ignored):
    t = targets(shape, ignored)
    weight = torch.rand(shape[1] if len(shape) > 1 else shape[0]) + 0.5
    options = {"reduction": reduction, "ignore_index": -100 if ignored is None else ignored}
    for x in layouts(torch.randn(shape)).values():
        check_op(lambda x, t: F.nll_loss(x, t, **options), x, t)
        check_op(lambda x, t: F.nll_loss(x, t, weight.to(x.device, x.dtype), **options), x, t)


@pytest.mark.parametrize("dtype", FLOATS)
def test_cross_entropy(dtype):
    for shape in ((64, 10), (2, 5, 6, 7)):
        for options in ({}, {"label_smoothing": 0.1}, {"reduction": "sum"}):
            check_op(
                lambda x, t, o=options: F.cross_entropy(x, t, **o),
                torch.randn(shape),
                targets(shape),
                dtype=dtype,
                scale=8,
            )


def test_long_sum():
    x, t = torch.rand(100_000, 3), torch.randint(0, 3, (100_000,))
    assert_near(F.nll_loss(x.to(DEVICE), t.to(DEVICE), reduction="sum"), F.nll_loss(x.double(), t, reduction="sum"))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss, F.huber_loss])
def test_mean_and_sum_are_part_of_the_loss(loss, dtype, background_at_rest):
    x, t = torch.randn(40, 50), torch.randn(40, 50)
    for reduction in ("mean", "sum"):
        for layout in layouts(x).values():
            check_op(lambda x, t, r=reduction: loss(x, t, reduction=r), layout, t, dtype=dtype, scale=8)
        a, b = x.to(DEVICE, dtype), t.to(DEVICE, dtype)
        loss(a, b, reduction=reduction)
        torch.ocl.synchronize()
        before = dlbackend._C.kernel_stats()["launches"]
        loss(a, b, reduction=reduction)
        torch.ocl.synchronize()
        assert dlbackend._C.kernel_stats()["launches"] == before + 1
        out = torch.empty(3, device=DEVICE, dtype=torch.float64)
        torch.ops.aten.mse_loss.out(a, b, 1 if reduction == "mean" else 2, out=out)
        assert out.shape == ()
    assert loss(torch.empty(0, device=DEVICE), torch.empty(0, device=DEVICE)).isnan().item()
    with pytest.raises(RuntimeError):
        F.mse_loss(torch.ones(3, dtype=torch.long, device=DEVICE), torch.ones(3, dtype=torch.long, device=DEVICE))


def test_all_ignored_and_empty():
    x, t = torch.randn(4, 3), torch.full((4,), -100)
    assert F.nll_loss(x.to(DEVICE), t.to(DEVICE)).isnan().item()
    assert F.nll_loss(x.to(DEVICE), t.to(DEVICE), reduction="sum").item() == 0
    empty = torch.empty(0, 3, device=DEVICE), torch.empty(0, dtype=torch.int64, device=DEVICE)
    assert F.nll_loss(*empty).isnan().item()
    assert F.nll_loss(*empty, reduction="sum").item() == 0


def test_class_out_of_range():
    """Reported at the next synchronising call; nothing is read or written out of bounds, and the device goes on."""
    for shape, bad in (((4, 3), 3), ((4, 3), -1), ((1, 3, 2, 2), 70)):
        x, t = torch.randn(shape, device=DEVICE, requires_grad=True), targets(shape)
        t.view(-1)[1] = bad
        loss = F.nll_loss(x, t.to(DEVICE))
        with pytest.raises(IndexError, match="out of bounds"):
            loss.item()
        loss.backward()
        with pytest.raises(IndexError, match="out of bounds"):
            torch.ocl.synchronize()
    torch.ocl.synchronize()
    with pytest.raises((RuntimeError, ValueError)):
        F.nll_loss(torch.randn(4, 3, device=DEVICE), torch.zeros(5, dtype=torch.int64, device=DEVICE))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_margin_losses(reduction):
    dlbackend.reset_fallback_report()
    x, target, weight = torch.randn(5, 7), torch.tensor([0, 6, 3, 3, 1]), torch.rand(7)
    labels = torch.tensor([[0, 3, -1, 2, 0, 0, 0], [-1] * 7, [6, 5, 4, 3, 2, 1, 0], [2, 2, -1, 0, 0, 0, 0], [1] * 7])
    cases = [
        (lambda x, t: F.multilabel_margin_loss(x, t, reduction=reduction), labels),
        (lambda x, t: F.multi_margin_loss(x, t, reduction=reduction), target),
        (lambda x, t: F.multi_margin_loss(x, t, p=2, margin=0.5, weight=weight.to(x), reduction=reduction), target),
        (lambda x, t: F.multi_margin_loss(x[0], t[0], reduction=reduction), target),
        (lambda x, t: F.multilabel_margin_loss(x[0], t[0], reduction=reduction), labels),
    ]
    for fn, t in cases:
        a, b = x.double().requires_grad_(), x.to(DEVICE).requires_grad_()
        expected, actual = fn(a, t), fn(b, t.to(DEVICE))
        assert_near(actual.detach(), expected.detach())
        grad = torch.rand_like(expected)
        expected.backward(grad)
        actual.backward(grad.float().to(DEVICE))
        assert_near(b.grad, a.grad)
    assert dlbackend.fallback_report() == {}
    y = x.to(DEVICE)
    with pytest.raises(ValueError, match="p == 1"):
        F.multi_margin_loss(y, target.to(DEVICE), p=3)
    with pytest.raises(RuntimeError, match="Long"):
        F.multi_margin_loss(y, target.int().to(DEVICE))
    with pytest.raises(RuntimeError, match="inconsistent target size"):
        F.multilabel_margin_loss(y, labels[:2].to(DEVICE))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_cross_entropy_of_scores_is_one_launch(dtype, background_at_rest):
    x, t = torch.randn(40, 5) * 4, torch.rand(40, 5)
    weight, positive = torch.rand(40, 1), torch.rand(5) + 0.5
    for reduction in ("none", "mean", "sum"):
        for options in ({}, {"weight": weight}, {"pos_weight": positive}, {"weight": weight, "pos_weight": positive}):
            for layout in layouts(x).values():
                check_op(
                    lambda x, t, r=reduction, o=options: F.binary_cross_entropy_with_logits(
                        x, t, reduction=r, **{name: w.to(x.device, x.dtype) for name, w in o.items()}
                    ),
                    layout,
                    t,
                    dtype=dtype,
                    scale=8,
                )
            a, b, *_ = (v.to(DEVICE, dtype) for v in (x, t))
            placed = {name: w.to(DEVICE, dtype) for name, w in options.items()}
            F.binary_cross_entropy_with_logits(a, b, reduction=reduction, **placed)
            torch.ocl.synchronize()
            before = dlbackend.kernel_stats()["launches"]
            F.binary_cross_entropy_with_logits(a, b, reduction=reduction, **placed)
            torch.ocl.synchronize()
            assert dlbackend.kernel_stats()["launches"] - before == 1


def test_cross_entropy_of_scores_at_the_edges():
    x = torch.tensor([float("inf"), -float("inf"), float("nan"), 200.0, -200.0, 0.0])
    for t in (torch.zeros(6), torch.ones(6), torch.full((6,), 0.5)):
        want = F.binary_cross_entropy_with_logits(x, t, reduction="none")
        torch.testing.assert_close(
            F.binary_cross_entropy_with_logits(x.to(DEVICE), t.to(DEVICE), reduction="none").cpu(), want, equal_nan=True
        )
    empty = torch.zeros(0, device=DEVICE)
    assert F.binary_cross_entropy_with_logits(empty, empty).isnan()
    with pytest.raises(RuntimeError, match=r"shape|size"):
        F.binary_cross_entropy_with_logits(x.to(DEVICE), x.to(DEVICE), weight=torch.ones(2, 6, device=DEVICE))
    with pytest.raises(ValueError, match="must be the same as input size"):
        F.binary_cross_entropy_with_logits(x.to(DEVICE), x[:3].to(DEVICE))
