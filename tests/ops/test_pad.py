"""Reflection, replication, constant and circular padding, forward and backward."""

import pytest
import torch
import torch.nn.functional as F
from common import DEVICE, FLOATS, assert_layout_as_on_cpu, check_op, layouts, with_input_grad

CASES = [
    ((2, 3, 7), (2, 3)),
    ((3, 7), (6, 0)),
    ((2, 3, 5, 6), (1, 2, 3, 4)),
    ((2, 70, 4, 3), (2, 2, 0, 1)),
    ((2, 3, 3, 4, 5), (1, 2, 3, 2, 2, 1)),
]


@pytest.mark.parametrize(("shape", "padding"), CASES, ids=str)
@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_pad(shape, padding, mode):
    for x in layouts(torch.randn(shape)).values():
        check_op(lambda x: F.pad(x, padding, mode=mode), x, scale=2)


@pytest.mark.parametrize(("shape", "padding"), CASES, ids=str)
@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_layout(shape, padding, mode):
    for x in layouts(torch.randn(shape)).values():
        assert_layout_as_on_cpu(with_input_grad(lambda x: F.pad(x, padding, mode=mode)), x)


@pytest.mark.parametrize("mode", ["constant", "circular"])
def test_composites(mode):
    check_op(lambda x: F.pad(x, (2, 1, 1, 2), mode=mode), torch.randn(2, 3, 5, 6))


def test_single_element_and_crop():
    check_op(lambda x: F.pad(x, (3, 2), mode="replicate"), torch.randn(2, 3, 1))
    check_op(lambda x: F.pad(x, (-1, 2, 1, -2), mode="replicate"), torch.randn(2, 3, 5, 6))
    check_op(lambda x: F.pad(x, (-1, 2, 1, -2), mode="reflect"), torch.randn(2, 3, 5, 6))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_dtypes(dtype, mode):
    check_op(lambda x: F.pad(x, (1, 2, 3, 4), mode=mode), torch.randn(2, 3, 5, 6), dtype=dtype, scale=4)


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64, torch.complex128, torch.int32])
def test_moved_bits(dtype):
    x = torch.randn(2, 3, 5, 6).mul(100).to(dtype)
    for mode in ("reflect", "replicate"):
        assert F.pad(x.to(DEVICE), (1, 2, 3, 4), mode=mode).cpu().equal(F.pad(x, (1, 2, 3, 4), mode=mode))


def test_errors():
    with pytest.raises(RuntimeError):
        F.pad(torch.ones(1, 2, 4, 4, device=DEVICE), (4, 0, 0, 0), mode="reflect")
    with pytest.raises(RuntimeError):
        F.pad(torch.ones(1, 2, 4, device=DEVICE), (4, 0), mode="reflect")


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_gradient_of_complex(mode):
    x = torch.randn(2, 3, 5, 6, dtype=torch.complex64)
    a, b = x.clone().requires_grad_(), x.to(DEVICE).requires_grad_()
    for leaf in (a, b):
        (F.pad(leaf, (1, 2, 2, 1), mode).abs() ** 2).sum().backward()
    torch.testing.assert_close(b.grad.cpu(), a.grad)
