"""softmax and log_softmax, forward and backward."""

import pytest
import torch
from common import DEVICE, FLOATS, assert_near, check_op, layouts

FUNCTIONS = [torch.softmax, torch.log_softmax]


@pytest.mark.parametrize("fn", FUNCTIONS)
@pytest.mark.parametrize("shape", [(), (1,), (4, 10), (130, 1000), (3, 100, 7), (2, 5, 70, 3), (3, 0), (0, 4)], ids=str)
def test_softmax(fn, shape):
    for x in layouts(torch.randn(shape) * 3).values():
        for dim in range(max(1, x.dim())):
            check_op(lambda x, dim=dim: fn(x, dim), x, scale=2)


@pytest.mark.parametrize("fn", FUNCTIONS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_dtypes(fn, dtype):
    for shape, dim in (((5, 130), 1), ((5, 13, 6), 1)):
        check_op(lambda x, dim=dim: fn(x, dim), torch.randn(shape), dtype=dtype, scale=2)


@pytest.mark.parametrize("fn", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_to_float(fn, dtype):
    x = torch.randn(5, 40).to(dtype)
    a, b = x.double().requires_grad_(), x.to(DEVICE).requires_grad_()
    expected, actual = fn(a, -1), fn(b, -1, dtype=torch.float32)
    assert_near(actual.detach(), expected.detach())
    expected.sum().backward()
    actual.sum().backward()
    assert_near(b.grad, a.grad, 2)


@pytest.mark.parametrize("fn", FUNCTIONS)
@pytest.mark.parametrize("dim", [0, 1])
def test_special_values(fn, dim):
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([[1.0, -inf, 2.0], [-inf, -inf, -inf], [inf, 1.0, 2.0], [nan, 1.0, 2.0], [-1e30, 0.0, 90.0]])
    assert_near(fn(x.to(DEVICE), dim), fn(x.double(), dim))


def test_out_and_errors():
    x = torch.randn(4, 6)
    out = torch.empty(6, 4, device=DEVICE).t()
    torch.softmax(x.to(DEVICE), 1, out=out)
    assert_near(out, x.double().softmax(1))
    with pytest.raises(RuntimeError):
        torch.softmax(torch.ones(3, dtype=torch.int64, device=DEVICE), 0)
    with pytest.raises(IndexError):
        torch.softmax(torch.ones(3, device=DEVICE), 2)
