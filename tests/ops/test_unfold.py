"""Unfolding and folding images, the gradient of windows, shuffled channels and copied parts."""

import pytest
import torch
import torch.nn.functional as F
from common import DEVICE, FLOATS, check_op, layouts

import dlbackend

WINDOWS = [
    {"kernel_size": 3},
    {"kernel_size": (2, 3), "stride": (2, 1), "padding": (1, 2)},
    {"kernel_size": (3, 2), "dilation": (2, 3), "padding": (0, 4), "stride": 3},
]


@pytest.fixture(autouse=True)
def no_fallback():
    dlbackend.reset_fallback_report()
    yield
    assert not dlbackend.fallback_report()


@pytest.mark.parametrize("windows", WINDOWS, ids=str)
def test_unfold_and_fold(windows):
    shape = (2, 3, 8, 150)
    for x in layouts(torch.randn(shape)).values():
        check_op(lambda x: F.unfold(x, **windows), x)
    columns = F.unfold(torch.randn(shape), **windows)
    for c in layouts(columns).values():
        check_op(lambda c: F.fold(c, shape[2:], **windows), c, scale=2)
    check_op(lambda x: F.unfold(x, **windows), torch.randn(shape[1:]))
    check_op(lambda c: F.fold(c, shape[2:], **windows), columns[0], scale=2)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.bool, torch.complex64])
def test_dtypes(dtype):
    x = (torch.randn(2, 3, 6, 5) * 2).to(dtype)
    columns = F.unfold(x.to(DEVICE), 2, padding=1)
    assert columns.cpu().equal(F.unfold(x, 2, padding=1))
    folded = F.fold(columns, (6, 5), 2, padding=1).cpu()
    torch.testing.assert_close(folded, F.fold(columns.cpu(), (6, 5), 2, padding=1))


def test_out_empty_and_errors():
    x = torch.randn(2, 3, 6, 5, device=DEVICE)
    out = torch.empty(0, device=DEVICE)
    args = ([2, 2], [1, 1], [0, 0], [1, 1])
    torch.ops.aten.im2col.out(x, *args, out=out)
    assert out.equal(F.unfold(x, 2))
    strided = torch.empty(2, 20, 12, device=DEVICE).transpose(1, 2)
    torch.ops.aten.im2col.out(x, *args, out=strided)
    assert strided.equal(out)
    image = torch.empty(2, 6, 5, 3, device=DEVICE).permute(0, 3, 1, 2)
    torch.ops.aten.col2im.out(out, [6, 5], *args, out=image)
    torch.testing.assert_close(image, F.fold(out, (6, 5), 2))
    assert F.unfold(x[:0], 2).shape == (0, 12, 20)
    for bad in (lambda: F.unfold(x, 9), lambda: F.unfold(x, 0), lambda: F.fold(out, (9, 9), 2)):
        with pytest.raises(RuntimeError):
            bad()
    with pytest.raises(NotImplementedError):
        F.unfold(x.long(), 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("dim", "size", "step"), [(1, 3, 1), (-1, 2, 3), (0, 2, 2)])
def test_gradient_of_windows(dim, size, step, dtype):
    check_op(lambda x: x.unfold(dim, size, step), torch.randn(4, 9, 7), dtype=dtype)
    ones = torch.ones(4, 9, 7, dtype=torch.int64).unfold(dim, size, step)
    args = ([4, 9, 7], dim, size, step)
    expected = torch.ops.aten.unfold_backward(ones, *args)
    assert torch.ops.aten.unfold_backward(ones.to(DEVICE), *args).cpu().equal(expected)


def test_channel_shuffle():
    for x in layouts(torch.randn(2, 6, 4, 5)).values():
        check_op(lambda x: F.channel_shuffle(x, 3), x)
    x = torch.arange(24).view(1, 12, 2)
    assert F.channel_shuffle(x.to(DEVICE), 4).cpu().equal(F.channel_shuffle(x, 4))
    for bad in (5, 0):
        with pytest.raises(RuntimeError):
            F.channel_shuffle(x.to(DEVICE), bad)


def test_narrow_copy():
    x = torch.randn(4, 6)
    for dtype in (torch.float32, torch.int64, torch.bool, torch.complex64):
        t = x.to(dtype)
        assert torch.narrow_copy(t.to(DEVICE), 1, -4, 3).cpu().equal(t.narrow(1, -4, 3))
    strided = torch.zeros(3, 8, device=DEVICE).t()[::2]
    torch.narrow_copy(x.to(DEVICE), 1, 1, 3, out=strided)
    assert strided.cpu().equal(x.narrow(1, 1, 3))
    with pytest.raises((RuntimeError, IndexError)):
        torch.narrow_copy(x.to(DEVICE), 1, 4, 3)
    with pytest.raises(RuntimeError):
        torch.narrow_copy(x.to(DEVICE), 1, 1, 3, out=torch.empty(4, 3, device=DEVICE, dtype=torch.float64))
