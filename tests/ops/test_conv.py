"""Convolutions of 1 to 3 dimensions, transposed ones, and their gradients, against float64 on the CPU."""

import pytest
import torch
import torch.nn.functional as F
from common import assert_layout_as_on_cpu

import dlbackend  # noqa: F401  (registers the device where it is not installed)

FORMATS = {1: torch.contiguous_format, 2: torch.channels_last, 3: torch.channels_last_3d}
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}

# input channels, output channels, groups, spatial size, filter, and keywords of the convolution
CASES = [
    (3, 8, 1, (20, 21), (7, 7), {"stride": 2, "padding": 3}),
    (16, 32, 1, (14, 14), (3, 3), {"padding": 1}),
    (16, 32, 1, (15, 13), (3, 3), {"padding": 1, "stride": 2}),
    (20, 17, 1, (9, 8), (1, 1), {}),
    (16, 24, 1, (9, 8), (1, 1), {"stride": 2}),
    (5, 7, 1, (9, 11), (3, 2), {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2)}),
    (8, 12, 4, (13, 17), (3, 3), {"padding": 1}),
    (64, 64, 2, (8, 8), (3, 3), {"padding": 1}),
    (24, 24, 24, (14, 14), (3, 3), {"padding": 1}),
    (24, 24, 24, (15, 19), (5, 5), {"padding": 2, "stride": 2}),
    (12, 36, 12, (7, 7), (5, 5), {"padding": 4, "stride": 3, "dilation": 2}),
    (4, 6, 1, (20, 20), (3, 3), {"padding": 12, "dilation": 12}),
    (3, 5, 1, (4, 4), (1, 1), {"stride": 3, "padding": 2}),
    (3, 5, 1, (6, 6), (2, 2), {"stride": 5}),
    (70, 20, 1, (40, 1), (3, 1), {"padding": (1, 0)}),
    (6, 8, 1, (40,), (5,), {"padding": 2, "stride": 3}),
    (20, 16, 1, (33,), (3,), {"padding": 4, "dilation": 4}),
    (6, 6, 6, (50,), (9,), {"padding": 4, "stride": 4}),
    (6, 8, 2, (5, 6, 7), (3, 3, 3), {"padding": 1}),
    (6, 6, 6, (5, 6, 7), (3, 2, 3), {"padding": 1, "stride": (1, 2, 1)}),
    (16, 20, 1, (4, 5, 6), (1, 1, 1), {}),
]
TRANSPOSED = [
    (16, 24, 1, (8, 8), (3, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
    (16, 24, 2, (8, 9), (4, 4), {"stride": 2, "padding": 1}),
    (8, 8, 8, (8, 8), (3, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
    (5, 6, 1, (7, 5), (2, 3), {"stride": (3, 1), "dilation": (1, 2)}),
    (6, 4, 1, (10,), (4,), {"stride": 3, "padding": 1, "output_padding": 2}),
    (4, 6, 2, (3, 4, 5), (3, 3, 3), {"stride": 2, "padding": 1}),
    (8, 6, 1, (5, 5), (1, 1), {}),
]


def gradients(case, transposed, device, dtype, tensors, format_):
    x, w, b, seed = tensors
    dims = len(case[3])
    function = getattr(F, f"conv_transpose{dims}d" if transposed else f"conv{dims}d")
    inputs = [t.to(device, dtype) for t in (x, w, b)]
    inputs[:2] = [t.contiguous(memory_format=format_) for t in inputs[:2]]
    inputs = [t.requires_grad_() for t in inputs]
    y = function(*inputs, groups=case[2], **case[5])
    grad = torch.randn(y.shape, generator=torch.Generator().manual_seed(seed)).to(tensors[0].dtype).to(device, dtype)
    return [y.detach(), *torch.autograd.grad(y, inputs, grad.contiguous(memory_format=format_))]


def check(case, transposed, channels_last, dtype=torch.float32):
    torch.manual_seed(0)
    c, k, groups, size, f, _ = case
    x = torch.randn(2, c, *size).to(dtype)
    w = torch.randn(*((c, k // groups) if transposed else (k, c // groups)), *f).to(dtype)
    tensors = (x, w, torch.randn(k).to(dtype), 5)
    format_ = FORMATS[len(size)] if channels_last else torch.contiguous_format
    got = gradients(case, transposed, "ocl", dtype, tensors, format_)
    want = gradients(case, transposed, "cpu", torch.float64, tensors, format_)
    for name, g, e in zip(("output", "input", "weight", "bias"), got, want, strict=True):
        assert g.shape == e.shape
        assert g.dtype == dtype
        error = ((g.cpu().double() - e).norm() / e.norm().clamp_min(1e-20)).item()
        assert error < TOLERANCE[dtype], f"{name}: {error}"
    if channels_last and len(size) > 1:
        assert got[0].is_contiguous(memory_format=format_)


@pytest.mark.parametrize("conv", [F.conv2d, F.conv_transpose2d])
@pytest.mark.parametrize("weight_last", [False, True])
@pytest.mark.parametrize("input_last", [False, True])
def test_results_and_gradients_have_the_layout_of_the_cpu(conv, input_last, weight_last):
    """All are channels last where the input or the weight is."""

    def both(x, w):
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        y = conv(x, w)
        return y.detach(), *torch.autograd.grad(y, (x, w), torch.ones_like(y))

    formats = [torch.channels_last if last else torch.contiguous_format for last in (input_last, weight_last)]
    x, w = (
        torch.randn(4, 4, 5, 6)[..., -n:, -n:].contiguous(memory_format=f) for n, f in zip((5, 3), formats, strict=True)
    )
    assert_layout_as_on_cpu(both, x, w)


@pytest.mark.parametrize("channels_last", [False, True], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_convolution(case, channels_last):
    check(case, False, channels_last)


@pytest.mark.parametrize("channels_last", [False, True], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize("case", TRANSPOSED, ids=str)
def test_transposed(case, channels_last):
    check(case, True, channels_last)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("case", [CASES[1], CASES[3], CASES[8], CASES[6]], ids=str)
def test_other_dtypes(case, dtype):
    check(case, False, False, dtype)


def test_strided_inputs():
    x, w = torch.randn(2, 9, 20, 22), torch.randn(5, 3, 3, 3)
    views = (lambda t: t[:, ::3, 1:-1, ::2], lambda t: t[:, 3:6].mT, lambda t: t[:1, :3].expand(4, 3, 20, 22))
    for view in views:
        got = F.conv2d(view(x.to("ocl")), w.mT.to("ocl"), padding=1)
        torch.testing.assert_close(got.cpu(), F.conv2d(view(x), w.mT, padding=1), rtol=1e-4, atol=1e-4)


def test_without_batch_and_without_bias():
    x, w = torch.randn(3, 9, 9), torch.randn(4, 3, 3, 3)
    torch.testing.assert_close(F.conv2d(x.to("ocl"), w.to("ocl")).cpu(), F.conv2d(x, w), rtol=1e-4, atol=1e-4)
    same = F.conv2d(x.to("ocl"), w.to("ocl"), padding="same")
    torch.testing.assert_close(same.cpu(), F.conv2d(x, w, padding="same"), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mask", [(True, False, False), (False, True, False), (False, False, True), (False,) * 3])
def test_output_mask(mask):
    x, w = torch.randn(2, 4, 6, 6), torch.randn(5, 4, 3, 3)
    grad = torch.randn(2, 5, 4, 4)
    arguments = ([5], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, list(mask))
    got = torch.ops.aten.convolution_backward(*(t.to("ocl") for t in (grad, x, w)), *arguments)
    want = torch.ops.aten.convolution_backward(grad, x, w, *arguments)
    for g, e, wanted in zip(got, want, mask, strict=True):
        assert (g is not None) == wanted
        if wanted:
            torch.testing.assert_close(g.cpu(), e, rtol=1e-4, atol=1e-4)


def test_zero_sizes():
    x = torch.randn(0, 3, 8, 8, device="ocl", requires_grad=True)
    w = torch.randn(4, 3, 3, 3, device="ocl", requires_grad=True)
    y = F.conv2d(x, w, padding=(0, 1))
    assert y.shape == (0, 4, 6, 8)
    y.sum().backward()
    assert w.grad.abs().sum().item() == 0
    assert x.grad.shape == x.shape
    with pytest.raises(RuntimeError, match="Output size is too small"):
        F.conv_transpose1d(torch.ones(1, 1, 1, device="ocl"), torch.ones(1, 1, 2, device="ocl"), padding=1)
    with pytest.raises(RuntimeError, match="Kernel size can't be greater"):
        F.conv2d(torch.randn(2, 3, 2, 8, device="ocl"), w)


def test_nan_propagates():
    x, w = torch.randn(1, 16, 12, 12), torch.randn(32, 16, 3, 3)
    x[0, 3, 5, 6] = float("nan")
    got, want = F.conv2d(x.to("ocl"), w.to("ocl"), padding=1).cpu(), F.conv2d(x, w, padding=1)
    assert torch.equal(got.isnan(), want.isnan())


def test_errors():
    x, w = torch.randn(1, 3, 8, 8, device="ocl"), torch.randn(4, 3, 3, 3, device="ocl")
    with pytest.raises(RuntimeError, match="same"):
        F.conv2d(x, w.double())
    with pytest.raises(RuntimeError):
        F.conv2d(x, w.cpu())
    with pytest.raises(RuntimeError, match="channels"):
        F.conv2d(x[:, :2], w)
    with pytest.raises(NotImplementedError):
        F.conv2d(x.bool(), w.bool())


def test_deterministic():
    x, w = torch.randn(4, 16, 30, 30, device="ocl"), torch.randn(16, 16, 3, 3, device="ocl", requires_grad=True)
    grads = [torch.autograd.grad(F.conv2d(x, w, padding=1).square().sum(), w)[0].cpu() for _ in range(3)]
    assert torch.equal(grads[0], grads[1])
    assert torch.equal(grads[0], grads[2])


def test_output_padding_of_one_tap():
    """Legal below the dilation: pixels of the result that no input reaches."""
    torch.manual_seed(0)
    x, w = torch.randn(2, 4, 3, 5), torch.randn(4, 2, 1, 1)
    want = F.conv_transpose2d(x, w, dilation=2, output_padding=1)
    got = F.conv_transpose2d(x.to("ocl"), w.to("ocl"), dilation=2, output_padding=1)
    torch.testing.assert_close(got.cpu(), want)
