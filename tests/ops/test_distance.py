"""cdist and pdist with their gradients, against float64 on the CPU."""

import pytest
import torch
from common import DEVICE, check_op

import dlbackend

NORMS = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, float("inf")]


@pytest.fixture(autouse=True)
def no_fallback():
    dlbackend.reset_fallback_report()
    yield
    assert not [op for op in dlbackend.fallback_report() if "dist" in op]


@pytest.mark.parametrize("p", NORMS)
def test_cdist(p: float) -> None:
    exact = "donot_use_mm_for_euclid_dist"
    for a, b in (((7, 5), (4, 5)), ((2, 3, 6), (2, 30, 6)), ((3, 1, 4, 2), (2, 5, 2)), ((1, 3), (1, 3))):
        check_op(lambda x, y: torch.cdist(x, y, p), torch.randn(a), torch.randn(b), scale=4)
        check_op(lambda x, y: torch.cdist(x, y, p, compute_mode=exact), torch.randn(a), torch.randn(b), scale=4)
    x = torch.randn(5, 8)[:, ::2]
    check_op(lambda x, y: torch.cdist(x, y, p), x, torch.randn(4, 4).t(), scale=4)


@pytest.mark.parametrize("p", NORMS)
def test_pdist(p: float) -> None:
    for shape in ((7, 5), (2, 1), (30, 3)):
        check_op(lambda x: torch.pdist(x, p), torch.randn(shape), scale=4)


def test_equal_rows_and_empty() -> None:
    x = torch.ones(3, 4, device=DEVICE, requires_grad=True)
    torch.pdist(x).sum().backward()
    assert not x.grad.any().item()  # type: ignore[union-attr]
    assert torch.cdist(torch.empty(0, 3, device=DEVICE), torch.ones(2, 3, device=DEVICE)).shape == (0, 2)
    assert not torch.cdist(torch.empty(4, 0, device=DEVICE), torch.ones(2, 0, device=DEVICE)).any().item()
    assert torch.pdist(torch.ones(1, 3, device=DEVICE)).shape == (0,)
    with pytest.raises(RuntimeError, match="columns"):
        torch.cdist(torch.ones(2, 3, device=DEVICE), torch.ones(2, 4, device=DEVICE))
