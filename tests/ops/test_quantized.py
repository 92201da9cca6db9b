"""Quantized tensors, fake quantization and products with quantized weights, against the CPU."""

import io

import pytest
import torch
from common import DEVICE, assert_near

import dlbackend


@pytest.fixture(autouse=True)
def none_on_the_cpu():
    dlbackend.reset_fallback_report()
    yield
    assert dlbackend.fallback_report() == {}


def assert_quantized(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """The same integers, but for ties that are rounded from another side, and the same parameters."""
    assert actual.device.type == "ocl"
    assert actual.is_quantized
    assert actual.dtype == expected.dtype
    assert actual.qscheme() == expected.qscheme()
    apart = (actual.int_repr().cpu().long() - expected.int_repr().long()).abs()
    assert apart.max() <= 1
    assert (apart > 0).float().mean() < 0.01


@pytest.mark.parametrize("dtype", [torch.quint8, torch.qint8, torch.qint32], ids=str)
def test_per_tensor(dtype):
    x = torch.randn(5, 70) * 3
    if dtype != torch.qint32:  # kernels compute in float32, which has not all of its numbers
        x[0, :3] = torch.tensor([1e9, -1e9, 0.0])
    zero_point = 10 if dtype == torch.quint8 else -3
    expected = torch.quantize_per_tensor(x, 0.05, zero_point, dtype)
    actual = torch.quantize_per_tensor(x.to(DEVICE), 0.05, zero_point, dtype)
    assert_quantized(actual, expected)
    assert (actual.q_scale(), actual.q_zero_point()) == (0.05, zero_point)
    torch.testing.assert_close(actual.dequantize().cpu(), expected.dequantize(), rtol=1e-6, atol=0.0501)
    moved = expected.to(DEVICE)
    assert moved.dequantize().cpu().equal(expected.dequantize())
    assert moved.cpu().equal(expected)
    assert moved.equal(moved.clone())
    assert not moved.equal(torch.quantize_per_tensor(x.to(DEVICE), 0.06, zero_point, dtype))
    assert moved.view(70, 5).int_repr().cpu().equal(expected.view(70, 5).int_repr())
    assert moved.t().dequantize().cpu().equal(expected.t().dequantize())
    assert torch.quantize_per_tensor(x[:0].to(DEVICE), 0.05, zero_point, dtype).dequantize().shape == (0, 70)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("floats", [False, True])
def test_per_channel(axis, floats):
    x = torch.randn(6, 4)
    n = x.shape[axis]
    scales = torch.rand(n, dtype=torch.float32 if floats else torch.float64) * 0.05 + 0.01
    zeros = torch.randn(n) if floats else torch.randint(0, 20, (n,))
    expected = torch.quantize_per_channel(x, scales, zeros, axis, torch.quint8)
    actual = torch.quantize_per_channel(x.to(DEVICE), scales.to(DEVICE), zeros.to(DEVICE), axis, torch.quint8)
    assert_quantized(actual, expected)
    assert actual.q_per_channel_axis() == axis
    assert actual.q_per_channel_scales().cpu().equal(expected.q_per_channel_scales())
    moved = expected.to(DEVICE)
    torch.testing.assert_close(moved.dequantize().cpu(), expected.dequantize())


def test_printing_saving_and_errors():
    x = torch.quantize_per_tensor(torch.randn(3).to(DEVICE), 0.1, 0, torch.qint8)
    assert "torch.per_tensor_affine" in repr(x)
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    assert torch.load(file, weights_only=True).dequantize().equal(x.dequantize())
    with pytest.raises(RuntimeError):
        torch.quantize_per_tensor(torch.ones(3, dtype=torch.int64, device=DEVICE), 0.1, 0, torch.qint8)
    with pytest.raises(RuntimeError):
        torch.quantize_per_tensor(torch.ones(3, device=DEVICE), 0.1, 500, torch.qint8)


FAKE = {
    "tensor": lambda x, s, z: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, -8, 7),
    "qparams": lambda x, s, z: torch.fake_quantize_per_tensor_affine(x, s[0], z[0], -8, 7),
    "channel": lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s, z, 1, -8, 7),
}


@pytest.mark.parametrize("name", FAKE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_fake(name, dtype):
    x, s, z = torch.randn(9, 5).to(dtype), torch.tensor([0.1, 0.2, 0.3, 0.15, 0.25]), torch.arange(5, dtype=torch.int32)
    a, b = x.clone().double().requires_grad_(), x.to(DEVICE).requires_grad_()
    expected, actual = FAKE[name](a, s, z), FAKE[name](b, s.to(DEVICE), z.to(DEVICE))
    # The CPU takes the inverse of the scale in float32, whatever the dtype.
    assert_near(actual.detach(), expected.detach(), 100 if dtype == torch.float64 else 4)
    expected.backward(torch.ones_like(expected))
    actual.backward(torch.ones_like(actual))
    assert b.grad.cpu().double().equal(a.grad)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("channels", [False, True])
def test_observed(channels, symmetric):
    dlbackend.reset_fallback_report()
    state = {}
    for device in ("cpu", DEVICE):
        shape = (0,) if channels else (1,)
        state[device] = [torch.full(shape, f).to(device) for f in (float("inf"), -float("inf"), 1.0)]
        state[device].append(torch.zeros(shape, dtype=torch.int32).to(device))
    for observe, enable in ((1, 0), (1, 1), (0, 1), (1, 1)):
        x, results = torch.randn(6, 5) * 3 + 1, []
        for device in ("cpu", DEVICE):
            flags = [torch.tensor([flag]).to(device) for flag in (observe, enable)]
            there = x.detach().to(device).requires_grad_()
            out = torch.fused_moving_avg_obs_fake_quant(
                there, *flags, *state[device], 0.25, -8, 7, 0, channels, symmetric
            )
            out.sum().backward()
            results.append([out.detach().cpu(), there.grad.cpu()])
        if enable:  # the CPU leaves the memory of what it did not compute as it is
            for a, e in zip(state[DEVICE], state["cpu"], strict=True):
                torch.testing.assert_close(a.cpu(), e)
        for a, e in zip(results[1], results[0], strict=True):
            torch.testing.assert_close(a, e, rtol=1e-5, atol=1e-5)
    assert dlbackend.fallback_report() == {}


@pytest.mark.parametrize("channels", [False, True])
def test_learnable(channels):
    n = 5 if channels else 1
    results = []
    for device in ("cpu", DEVICE):
        torch.manual_seed(0)
        leaves = [torch.randn(9, 5), torch.rand(n) * 0.2 + 0.1, torch.rand(n) * 3]
        x, scale, zero = (t.to(device).requires_grad_() for t in leaves)
        arguments = (x, scale, zero, 1, -8, 7, 0.5) if channels else (x, scale, zero, -8, 7, 0.5)
        function = (
            torch._fake_quantize_learnable_per_channel_affine
            if channels
            else (torch._fake_quantize_learnable_per_tensor_affine)
        )
        y = function(*arguments)
        y.square().sum().backward()
        results.append([y.detach(), x.grad, scale.grad, zero.grad])
    for actual, expected in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-4)


def test_integer_products():
    a, b = (torch.randint(-128, 128, shape, dtype=torch.int8) for shape in ((20, 70), (70, 24)))
    actual = torch._int_mm(a.to(DEVICE), b.to(DEVICE))
    assert actual.dtype == torch.int32
    assert actual.cpu().equal(a.int() @ b.int())
    with pytest.raises(RuntimeError, match="dtype"):
        torch._int_mm(a.int().to(DEVICE), b.to(DEVICE))
    x, scales = torch.randn(3, 64), torch.rand(16) * 0.1
    w = torch.randint(-128, 128, (16, 64), dtype=torch.int8)
    actual = torch._weight_int8pack_mm(x.to(DEVICE), w.to(DEVICE), scales.to(DEVICE))
    assert_near(actual, (x.double() @ w.double().t()) * scales.double(), 10)


def test_int4_product():
    n, k, group = 16, 64, 32
    q, x = torch.randint(0, 16, (n, k)), torch.randn(3, k)
    parameters = torch.rand(k // group, n, 2)
    pairs = (q[:, ::2] << 4 | q[:, 1::2]).to(torch.uint8).to(DEVICE)
    packed = torch._convert_weight_to_int4pack(pairs, 2)
    assert packed.shape == torch._convert_weight_to_int4pack(pairs.to("meta"), 2).shape
    actual = torch._weight_int4pack_mm(x.to(DEVICE), packed, group, parameters.to(DEVICE))
    scale, zero = (parameters[..., i].t().repeat_interleave(group, 1).double() for i in (0, 1))
    assert_near(actual, x.double() @ ((q - 8) * scale + zero).t(), 10)


def test_elements_of_less_than_a_byte_are_refused_by_name():
    with pytest.raises(NotImplementedError, match=r"QUInt4x2.*use a dtype of a byte, or the CPU"):
        torch.quantize_per_tensor(torch.rand(4, device=DEVICE), 0.1, 0, torch.quint4x2)
