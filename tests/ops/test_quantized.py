"""Quantized tensors, fake quantization and products with quantized weights, against the CPU."""

import io

import pytest
import torch
from common import DEVICE, assert_near
from hopper import HOPPER

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("group", [32, 128])
def test_int4_product_as_on_the_cpu(dtype, group):
    n, k = 48, 256
    q, x = torch.randint(0, 16, (n, k), dtype=torch.int32), torch.randn(5, k).to(dtype)
    parameters = torch.rand(k // group, n, 2).to(dtype)
    results = {}
    for device in ("cpu", DEVICE):
        packed = torch._convert_weight_to_int4pack_for_cpu(q.to(device), 2)
        assert packed.shape == (n, k // 2)
        results[device] = torch._weight_int4pack_mm_for_cpu(x.to(device), packed, group, parameters.to(device))
    assert_near(results[DEVICE], results["cpu"].double(), 40)


@pytest.mark.parametrize("group", [32, 96, 192])
def test_int4_products_of_rounded_inputs(group):
    n, k = 24, 192
    pairs, x = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8), torch.randn(7, k)
    x[3], x[4] = x[3].abs(), 0
    scales = torch.rand(n, k // group)
    results = {}
    for device in ("cpu", DEVICE):
        arguments = (pairs.to(device), scales.to(device), None, group, k, n)
        packed = torch._dyn_quant_pack_4bit_weight(*arguments)
        results[device] = torch._dyn_quant_matmul_4bit(x.to(device), packed, group, k, n)
    assert_near(results[DEVICE], results["cpu"].double(), 40)
    with_bias = torch._dyn_quant_pack_4bit_weight(*arguments[:2], torch.ones(n, device=DEVICE), *arguments[3:])
    biased = torch._dyn_quant_matmul_4bit(x.to(DEVICE), with_bias, group, k, n)
    torch.testing.assert_close(biased, results[DEVICE] + 1)
    with pytest.raises(RuntimeError, match="packed by"):
        torch._dyn_quant_matmul_4bit(x.to(DEVICE), packed[1:], group, k, n)


@pytest.mark.parametrize("out", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("right", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_scaled_products(right, out):
    for m, n, k in ((1, 48, 64), (17, 80, 96), (33, 16, 2064)):
        a, b = torch.randn(m, k).to(torch.float8_e4m3fn), torch.randn(n, k).to(right)
        bias = torch.randn(n)
        product = a.double() @ b.double().T
        for scale_a, scale_b in ((torch.tensor(0.5), torch.tensor([0.3])), (torch.rand(m, 1), torch.rand(1, n))):
            want = product * scale_a.double() * scale_b.double()
            # as of all tensor cores of Hopper GPUs, which keep 14 bits of the sums of 128 products
            cut_off = (a.double().abs() @ b.double().abs().T) * scale_a * scale_b * (2.0**-11 if HOPPER else 0)
            arguments = [t.to(DEVICE) for t in (a, b)]
            for mat2 in (arguments[1].T, arguments[1].T.contiguous()):
                scales = scale_a.to(DEVICE), scale_b.to(DEVICE)
                got = torch._scaled_mm(arguments[0], mat2, *scales, out_dtype=out)
                assert got.dtype == out
                step = {torch.float32: 1e-6, torch.bfloat16: 5e-3, torch.float16: 6e-4, torch.float8_e4m3fn: 0.07}[out]
                bound = want.abs().clamp(max=448) if out == torch.float8_e4m3fn else want.abs()
                limit = want.clamp(-448, 448) if out == torch.float8_e4m3fn else want
                error = (got.cpu().double() - limit).abs()
                assert (error <= step * bound + cut_off + 1e-6 * k + (1e-3 if out == torch.float8_e4m3fn else 0)).all()
                if out != torch.float8_e4m3fn:
                    biased = torch._scaled_mm(arguments[0], mat2, *scales, bias=bias.to(out).to(DEVICE), out_dtype=out)
                    want_biased = want + bias.to(out).double()
                    error = (biased.cpu().double() - want_biased).abs()
                    assert (error <= step * want_biased.abs() + cut_off + 1e-6 * k).all()


def test_wrong_scaled_products():
    a, one = torch.randn(16, 32).to(torch.float8_e4m3fn).to(DEVICE), torch.ones((), device=DEVICE)
    for arguments in (
        (a.float(), a.T, one, one),
        (a, a.T, torch.ones(3, device=DEVICE), one),
        (a, a.T, one.int(), one),
    ):
        with pytest.raises(ValueError, match="Invalid scaling"):
            torch._scaled_mm(*arguments)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        torch._scaled_mm(a, a, one, one)
    assert torch._scaled_mm(a[:0], a.T, one, one, out_dtype=torch.float32).shape == (0, 16)


def test_wrong_int4_products():
    pairs = torch.zeros(16, 32, dtype=torch.uint8, device=DEVICE)
    x, parameters = torch.randn(2, 64, device=DEVICE), torch.rand(2, 16, 2, device=DEVICE)
    run = torch._weight_int4pack_mm_for_cpu
    assert run(x[:0], pairs, 32, parameters).shape == (0, 16)
    with pytest.raises(RuntimeError, match="qGroupSize"):
        run(x, pairs, 16, parameters)
    with pytest.raises(RuntimeError, match="columns must be 32"):
        run(x[:, :32], pairs, 32, parameters)
    with pytest.raises(RuntimeError, match=r"shape \[2, 16, 2\]"):
        run(x, pairs, 32, parameters[:1])
    with pytest.raises(RuntimeError, match="float32, float16 or bfloat16"):
        run(x.int(), pairs, 32, parameters)


def test_elements_of_less_than_a_byte_are_refused_by_name():
    with pytest.raises(NotImplementedError, match=r"QUInt4x2.*use a dtype of a byte, or the CPU"):
        torch.quantize_per_tensor(torch.rand(4, device=DEVICE), 0.1, 0, torch.quint4x2)
