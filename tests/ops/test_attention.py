"""scaled_dot_product_attention: values and gradients of the fused op against float64, masks, dropout, what is left to
PyTorch's math path, and memory."""

import contextlib

import pytest
import torch
import torch.nn.functional as F
from common import DEVICE, relative_error
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import dlbackend

FUSED = "_scaled_dot_product_fused_attention_overrideable"
NARROW = [torch.float16, torch.bfloat16]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def ops_of(fn) -> set[str]:
    with torch.profiler.profile() as profile:
        fn()
    return {event.key.removeprefix("aten::") for event in profile.key_averages()}


def is_fused(*args, **options) -> bool:
    return FUSED in ops_of(lambda: F.scaled_dot_product_attention(*args, **options))


def results(tensors, grad, mask, device, convert, math=False, bias_grad=False, **options):
    """The result and the gradients of the inputs, and of the mask where that is wanted."""
    inputs = [convert(t.to(device)).detach().requires_grad_() for t in tensors]
    if mask is not None and mask.is_floating_point():
        mask = convert(mask.to(device)).detach().requires_grad_(bias_grad)
    elif mask is not None:
        mask = mask.to(device)
    with sdpa_kernel(SDPBackend.MATH) if math else contextlib.nullcontext():
        out = F.scaled_dot_product_attention(*inputs, attn_mask=mask, **options)
    wanted = [*inputs, mask] if bias_grad else inputs
    return [out, *torch.autograd.grad(out, wanted, convert(grad.to(device)))]


def check(q, k, v, mask=None, bias_grad=False, dtype=torch.float32, **options):
    """Against float64; rounding errors are those of the math path on the CPU, in the same dtype, or up to twice those.
    The sum over a head is one chain of additions, which for long heads errs more than the CPU's several."""
    tensors, grad = [t.to(dtype) for t in (q, k, v)], torch.randn(q.shape).to(dtype)
    mask = mask.to(dtype) if mask is not None and mask.is_floating_point() else mask
    options = {"enable_gqa": q.shape[1] != k.shape[1], **options}
    expected = results(tensors, grad, mask, "cpu", torch.Tensor.double, True, bias_grad, **options)
    plain = results(tensors, grad, mask, "cpu", torch.clone, True, bias_grad, **options)
    actual = results(tensors, grad, mask, DEVICE, torch.clone, False, bias_grad, **options)
    floor = {torch.float32: 5e-7, torch.float16: 4e-4, torch.bfloat16: 3e-3}[dtype]
    for a, p, e in zip(actual, plain, expected, strict=True):
        assert a.shape == e.shape
        assert a.dtype == dtype
        assert not a.isnan().any()
        if e.any():
            assert relative_error(a, e) <= max(2 * relative_error(p, e), floor)
        else:
            # A row with one key has no gradient: what cancels is of the size of one, and the keys' gradients are sums
            # of those over all queries, whose errors are independent.
            assert a.norm() <= floor * (a.numel() * q.shape[2]) ** 0.5


def heads(batch, number, length, dim, transposed=False):
    if transposed:
        return torch.randn(batch, length, number, dim).transpose(1, 2)
    return torch.randn(batch, number, length, dim)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("queries", "keys", "dim"), [(50, 70, 64), (130, 300, 32), (65, 33, 40), (1, 37, 128), (33, 1, 16), (20, 40, 256)]
)
def test_values_and_gradients(queries, keys, dim, causal):
    check(heads(2, 3, queries, dim), *(heads(2, 3, keys, dim) for _ in range(2)), is_causal=causal)


@pytest.mark.parametrize("dtype", NARROW)
def test_narrow_types(dtype):
    q, k, v = heads(2, 4, 70, 80), heads(2, 2, 150, 80), heads(2, 2, 150, 80)
    check(q, k, v, dtype=dtype, is_causal=True)
    check(q, k, v, torch.randn(2, 1, 70, 150), bias_grad=True, dtype=dtype)


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_grouped_heads(kv_heads):
    q, k, v = (heads(2, n, 45, 32, transposed=True) for n in (4, kv_heads, kv_heads))
    check(q, k, v, is_causal=True)
    check(q, k, v, scale=0.3)


def test_strides():
    """Expanded keys, heads with gaps, elements of a head apart, gradients of another layout."""
    q, k, v = heads(2, 2, 40, 48), heads(1, 1, 50, 48).expand(2, 2, -1, -1), heads(2, 2, 50, 96)[..., ::2]
    check(q.transpose(2, 3).contiguous().transpose(2, 3), k, v)
    check(heads(2, 2, 40, 100)[..., 3:51], k, v.transpose(0, 1).contiguous().transpose(0, 1))
    x = torch.randn(2, 40, 3 * 64, device=DEVICE, requires_grad=True)
    parts = [t.view(2, 40, 2, 32).transpose(1, 2) for t in x.chunk(3, -1)]
    out = F.scaled_dot_product_attention(*parts)
    assert out.transpose(1, 2).is_contiguous()  # in the order of the queries' dimensions
    out.sum().backward()
    double = x.detach().cpu().double().requires_grad_()
    F.scaled_dot_product_attention(
        *(t.view(2, 40, 2, 32).transpose(1, 2) for t in double.chunk(3, -1))
    ).sum().backward()
    assert relative_error(x.grad, double.grad) < 1e-6


def test_masks():
    q, k, v = heads(2, 2, 40, 32), heads(2, 2, 50, 32), heads(2, 2, 50, 32)
    mask = torch.rand(40, 50) > 0.3
    mask[3] = mask[39] = False  # rows that are masked altogether are 0, and so are their gradients
    check(q, k, v, mask)
    check(q, k, v, mask.expand(2, 2, 40, 50)[:, :1])
    bias = torch.randn(2, 1, 1, 50).masked_fill(torch.rand(2, 1, 1, 50) > 0.7, -torch.inf)
    check(q, k, v, bias)
    out = F.scaled_dot_product_attention(*(t.to(DEVICE) for t in (q, k, v)), mask.to(DEVICE))
    assert out[:, :, 3].eq(0).all()
    both = mask & torch.ones(40, 50, dtype=torch.bool).tril()  # with is_causal too, which the math path refuses
    expected = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), both)
    out = F.scaled_dot_product_attention(*(t.to(DEVICE) for t in (q, k, v)), mask.to(DEVICE), is_causal=True)
    assert relative_error(out, expected) < 1e-6


def test_rows_masked_by_the_lowest_number():
    """Such rows are means of all values, and their gradients have the same probabilities, though a log-sum-exp beside
    the lowest number has no digit left for the logarithm."""
    tensors, grad = [heads(2, 2, length, 32) for length in (40, 50, 50)], torch.randn(2, 2, 40, 32)
    lowest = torch.full((40, 50), torch.finfo(torch.float32).min)
    expected = results(tensors, grad, lowest, "cpu", torch.clone, True)
    actual = results(tensors, grad, lowest, DEVICE, torch.clone)
    for a, e in zip(actual, expected, strict=True):
        assert relative_error(a, e) < 1e-6


@pytest.mark.parametrize("shape", [(40, 50), (2, 1, 1, 50), (1, 2, 1, 50), (2, 2, 40, 50)])
def test_bias_gradient(shape):
    bias = torch.randn(shape)
    q, k, v = heads(2, 2, 40, 32), heads(2, 2, 50, 32), heads(2, 2, 50, 32)
    check(q, k, v, bias, bias_grad=True)
    if shape[-1] == 50 and shape[-2] == 40:
        check(q, k, v, bias.mT.contiguous().mT, bias_grad=True)


def test_float_mask_beside_narrow_queries_keeps_its_precision():
    q, k, v = (heads(1, 2, 30, 32).to(torch.bfloat16) for _ in range(3))
    bias = 100 + torch.randn(30, 30) / 16
    out = torch.ops.aten._scaled_dot_product_fused_attention_overrideable(
        *(t.to(DEVICE) for t in (q, k, v)), bias.to(DEVICE)
    )[0]
    expected = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), bias.double())
    assert relative_error(out, expected) < 3e-3


def test_special_values():
    """NaN and infinities go where they go on the CPU."""
    q, k, v = heads(1, 1, 20, 16), heads(1, 1, 30, 16), heads(1, 1, 30, 16)
    q[0, 0, 3, 2] = torch.nan
    v[0, 0, 7, 5] = torch.nan
    k[0, 0, 9, 1] = torch.inf
    with sdpa_kernel(SDPBackend.MATH):
        expected = F.scaled_dot_product_attention(q, k, v)
    actual = F.scaled_dot_product_attention(q.to(DEVICE), k.to(DEVICE), v.to(DEVICE)).cpu()
    assert actual.isnan().equal(expected.isnan())
    torch.testing.assert_close(actual, expected, equal_nan=True, rtol=1e-5, atol=1e-5)


def test_dropout():
    """Dropout takes the given share, keeps means, and is the same in both passes and again with the same seed."""
    p, shape = 0.25, (2, 3, 64, 64)
    q, k = (torch.randn(shape, device=DEVICE, requires_grad=True) for _ in range(2))
    v = torch.eye(64, device=DEVICE).expand(shape).clone().requires_grad_()
    torch.manual_seed(7)
    out = F.scaled_dot_product_attention(q, k, v, dropout_p=p)
    factors = (out.detach().cpu() != 0).double() / (1 - p)  # v is one: the result is what dropout left
    share = (factors > 0).double().mean().item()
    assert abs(share - (1 - p)) < 4 * (p * (1 - p) / factors.numel()) ** 0.5
    assert abs(factors[0, 0].mean() - factors[1, 2].mean()) > 0  # each head has its own
    grad = torch.randn(shape)
    out.backward(grad.to(DEVICE))
    dq, dk, dv = (t.detach().cpu().double().requires_grad_() for t in (q, k, v))
    expected = (torch.softmax(dq @ dk.mT / 8, -1) * factors) @ dv
    expected.backward(grad.double())
    for a, e in ((out, expected), (q.grad, dq.grad), (k.grad, dk.grad), (v.grad, dv.grad)):
        assert relative_error(a, e) < 1e-6
    again = F.scaled_dot_product_attention(q, k, v, dropout_p=p)
    torch.manual_seed(7)
    assert F.scaled_dot_product_attention(q, k, v, dropout_p=p).equal(out)
    assert not again.equal(out)
    assert F.scaled_dot_product_attention(q, k, v, dropout_p=1.0).eq(0).all()


def test_empty():
    for batch, queries, keys in ((0, 5, 6), (2, 0, 6), (2, 5, 0)):
        q, k, v = heads(batch, 2, queries, 16), heads(batch, 2, keys, 16), heads(batch, 2, keys, 16)
        grad = torch.randn(q.shape)
        expected = results([q, k, v], grad, None, "cpu", torch.clone, True)
        for a, e in zip(results([q, k, v], grad, None, DEVICE, torch.clone), expected, strict=True):
            assert torch.equal(a.cpu(), e)


def test_backends():
    """torch.nn.attention.sdpa_kernel: math gives the math path, others than the device has an error."""
    q = torch.randn(1, 2, 20, 32, device=DEVICE)
    assert is_fused(q, q, q)
    with sdpa_kernel(SDPBackend.MATH):
        assert not is_fused(q, q, q)
    with sdpa_kernel([SDPBackend.OVERRIDEABLE]):
        assert is_fused(q, q, q)
        with pytest.raises(RuntimeError, match="No available kernel"):
            F.scaled_dot_product_attention(q.double(), q.double(), q.double())
    for backends in ([SDPBackend.EFFICIENT_ATTENTION], [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION]):
        with sdpa_kernel(backends), pytest.raises(RuntimeError, match="No available kernel"):
            F.scaled_dot_product_attention(q, q, q)
    with sdpa_kernel([SDPBackend.ERROR]), pytest.raises(RuntimeError, match="No viable backend"):
        F.scaled_dot_product_attention(q, q, q)


def test_what_is_left_to_the_math_path():
    q = torch.randn(1, 2, 20, 32, device=DEVICE)
    small, large, flat = q[..., :8], torch.randn(1, 1, 4, 264, device=DEVICE), q[0]
    for t in (q.double(), small, large, flat):
        assert not is_fused(t, t, t)
        expected = F.scaled_dot_product_attention(*(t.cpu().double(),) * 3)
        assert relative_error(F.scaled_dot_product_attention(t, t, t), expected) < 1e-6
    v = torch.randn(1, 2, 20, 48, device=DEVICE)
    assert F.scaled_dot_product_attention(q, q, v).shape == v.shape
    mask = torch.ones(20, 20, dtype=torch.bool, device=DEVICE)
    for wrong in ({"attn_mask": mask[:, :7]}, {"dropout_p": 1.5}):
        for device in ("cpu", DEVICE):
            options = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in wrong.items()}
            with pytest.raises(RuntimeError):
                F.scaled_dot_product_attention(*(q.to(device),) * 3, **options)


def test_modules():
    """nn.MultiheadAttention and the layers above it, in training and fused for evaluation, without fallbacks."""
    dlbackend.reset_fallback_report()
    layer = nn.TransformerEncoderLayer(64, 4, 96, dropout=0, batch_first=True)
    decoder = nn.TransformerDecoderLayer(64, 4, 96, dropout=0, batch_first=True)
    x, memory = torch.randn(2, 21, 64), torch.randn(2, 13, 64)
    on_device = [m.to(DEVICE) for m in (nn.TransformerEncoderLayer(64, 4, 96, 0, batch_first=True), decoder)]
    on_device[0].load_state_dict(layer.state_dict())
    for training in (True, False):
        layer.train(training), on_device[0].train(training)
        with torch.set_grad_enabled(training):
            assert FUSED in ops_of(lambda: on_device[0](x.to(DEVICE)))
            expected = layer(x)
            assert relative_error(on_device[0](x.to(DEVICE)), expected) < 1e-6
    assert FUSED in ops_of(lambda: on_device[1](x.to(DEVICE), memory.to(DEVICE)))
    with torch.no_grad():  # with a causal mask too
        mask = nn.Transformer.generate_square_subsequent_mask(21)
        assert relative_error(on_device[0](x.to(DEVICE), mask.to(DEVICE)), layer(x, mask)) < 1e-6
    assert not dlbackend.fallback_report()


def test_autocast():
    q = torch.randn(1, 2, 40, 32, device=DEVICE, requires_grad=True)
    with torch.autocast("ocl", torch.bfloat16):
        out = F.scaled_dot_product_attention(q, q, q, is_causal=True)
    assert out.dtype == torch.bfloat16
    out.sum().backward()
    assert q.grad.dtype == torch.float32


def test_memory_is_linear_in_length():
    """No pass makes a matrix of all scores: they allocate a few times the operands."""
    length = 2048
    q, k, v = (torch.randn(1, 2, length, 16, device=DEVICE, requires_grad=True) for _ in range(3))
    torch.ocl.synchronize()
    torch.ocl.reset_peak_memory_stats()
    before = torch.ocl.memory_allocated()
    F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
    assert torch.ocl.max_memory_allocated() - before < 16 * q.numel() * q.element_size() < 2 * length * length * 4


def test_deterministic():
    q, k, v = (torch.randn(1, n, 150, 64, device=DEVICE, requires_grad=True) for n in (4, 2, 2))
    runs = []
    for _ in range(2):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        runs.append([out, *torch.autograd.grad(out.square().sum(), (q, k, v))])
    for a, b in zip(*runs, strict=True):
        assert a.equal(b)
