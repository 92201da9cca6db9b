"""Strided nested tensors, and the fused attention and encoder layers of eval mode, against the CPU."""

import copy
import itertools
import math

import pytest
import torch
from common import DEVICE, assert_near
from torch import nn

import dlbackend

LENGTHS = [5, 2, 7]


@pytest.fixture(autouse=True)
def none_on_the_cpu():
    dlbackend.reset_fallback_report()
    yield
    assert dlbackend.fallback_report() == {}


def lists(*last: int, requires_grad: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """The same nested tensor on the CPU, in float64, and on the device."""
    parts = [torch.randn(n, *last) for n in LENGTHS]
    cpu = torch.nested.nested_tensor([p.double() for p in parts], requires_grad=requires_grad)
    return cpu, torch.nested.nested_tensor(parts, device=DEVICE, requires_grad=requires_grad)


def assert_nested(actual: torch.Tensor, expected: torch.Tensor, scale: float = 1.0) -> None:
    assert actual.is_nested
    assert actual.device.type == "ocl"
    for a, e in zip(actual.unbind(), expected.unbind(), strict=True):
        assert_near(a.detach(), e.detach(), scale)


def padding_mask(length: int) -> torch.Tensor:
    return torch.arange(length)[None] >= torch.tensor(LENGTHS)[:, None]


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("mask", ["none", "padding", "source"])
def test_encoder(norm_first, activation, mask):
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=norm_first, activation=activation)
    cpu = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first).double().eval()
    net = copy.deepcopy(cpu).float().to(DEVICE)
    x = torch.randn(3, 7, 16)
    options, device_options = {}, {}
    if mask == "padding":
        options = {"src_key_padding_mask": padding_mask(7)}
    if mask == "source":
        options = {"mask": torch.ones(7, 7, dtype=torch.bool).triu(1)}
    device_options = {name: value.to(DEVICE) for name, value in options.items()}
    with torch.no_grad():
        expected, actual = cpu(x.double(), **options), net(x.to(DEVICE), **device_options)
        if mask == "padding":
            expected, actual = (r.masked_fill(padding_mask(7).to(r.device)[..., None], 0) for r in (expected, actual))
    assert_near(actual, expected, 5)


@pytest.mark.parametrize("need_weights", [False, True])
def test_multihead_attention(need_weights):
    cpu = nn.MultiheadAttention(12, 3, batch_first=True).double().eval()
    net = copy.deepcopy(cpu).float().to(DEVICE)
    x = torch.randn(3, 7, 12)
    for options in ({}, {"key_padding_mask": padding_mask(7)}):
        there = {name: value.to(DEVICE) for name, value in options.items()}
        with torch.no_grad():
            expected = cpu(x.double(), x.double(), x.double(), need_weights=need_weights, **options)
            y = x.to(DEVICE)
            actual = net(y, y, y, need_weights=need_weights, **there)
        assert_near(actual[0], expected[0], 5)
        if need_weights:
            assert_near(actual[1], expected[1], 5)
        assert need_weights or actual[1] is None


def test_masked_softmax():
    x = torch.randn(2, 3, 4, 4)
    padding = torch.tensor([[False, True, False, True], [True, True, True, True]])
    source = torch.ones(4, 4, dtype=torch.bool).triu(1)
    for mask, kind in ((padding, 1), (source, 0), (x > 0.3, 2)):
        expected = torch._masked_softmax(x.double(), mask, 3, kind)
        actual = torch._masked_softmax(x.to(DEVICE), mask.to(DEVICE), 3, kind)
        assert_near(actual, expected)
    grad, mask = torch.randn(2, 3, 4, 4), x > 0.3
    y = torch._masked_softmax(x.double(), mask, 3, 2)
    backward = torch.ops.aten._masked_softmax_backward
    assert_near(
        backward(grad.to(DEVICE), y.float().to(DEVICE), mask.to(DEVICE), 3), backward(grad.double(), y, mask, 3)
    )
    y = x.to(DEVICE)
    with pytest.raises(RuntimeError, match="should be a boolean tensor"):
        torch._masked_softmax(y, y, 3, 2)
    with pytest.raises(RuntimeError, match="Mask Type should be defined"):
        torch._masked_softmax(y, y > 0, 3, None)
    with pytest.raises(RuntimeError, match="shape"):
        torch._masked_softmax(y, padding.to(DEVICE), 3, 2)


UNARY = [torch.relu, torch.tanh, torch.neg, torch.abs, torch.sin, torch.cos, nn.functional.silu, nn.functional.gelu]


@pytest.mark.parametrize("fn", UNARY)
def test_unary(fn):
    cpu, net = lists(6)
    assert_nested(fn(net), fn(cpu))


def test_arithmetic():
    cpu, net = lists(6)
    assert_nested(net + net, cpu + cpu)
    assert_nested(net * net, cpu * cpu)
    assert_nested(net * 3, cpu * 3)
    assert_nested(net / 2, cpu / 2)
    assert_nested(net - net * 0.5, cpu - cpu * 0.5)
    net.mul_(2)
    cpu.mul_(2)
    assert_nested(net, cpu)
    assert_nested(net.to(torch.float16).float(), cpu, 100)
    assert_nested(net.cpu().to(DEVICE), cpu)
    assert_nested(net.clone(), cpu)


def test_shapes():
    cpu, net = lists(6)
    assert torch.equal(net._nested_tensor_size(), cpu._nested_tensor_size())
    assert_nested(net.transpose(1, 2), cpu.transpose(1, 2))
    assert_nested(net.view(3, -1, 2, 3), cpu.view(3, -1, 2, 3))
    assert_near(net.to_padded_tensor(-1.0), cpu.to_padded_tensor(-1.0))
    assert_near(net.to_padded_tensor(0.0, (3, 9, 8)), cpu.to_padded_tensor(0.0, (3, 9, 8)))
    assert_near(net[1], cpu[1])
    assert_nested(torch.cat([net, net]), torch.cat([cpu, cpu]))
    assert "nested_tensor" in repr(net)
    x, mask = torch.randn(3, 7, 4), padding_mask(7)
    assert_nested(
        torch._nested_tensor_from_mask(x.to(DEVICE), ~mask.to(DEVICE)),
        torch._nested_tensor_from_mask(x.double(), ~mask),
    )
    assert torch._nested_tensor_from_mask_left_aligned(x.to(DEVICE), ~mask.to(DEVICE))
    assert not torch._nested_tensor_from_mask_left_aligned(x.to(DEVICE), mask.to(DEVICE))


def test_gradients_of_a_layer():
    cpu, net = lists(6, requires_grad=True)
    modules = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 6)).double()
    there = copy.deepcopy(modules).float().to(DEVICE)
    expected, actual = modules(cpu), there(net)
    assert_nested(actual, expected, 5)
    expected.to_padded_tensor(0).square().sum().backward()
    actual.to_padded_tensor(0).square().sum().backward()
    assert_nested(net.grad, cpu.grad, 20)
    for a, e in zip(there.parameters(), modules.parameters(), strict=True):
        assert_near(a.grad, e.grad, 20)


def test_attention():
    cpu, net = lists(2, 4)
    q, k = cpu.transpose(1, 2).contiguous(), net.transpose(1, 2).contiguous()
    assert_nested(
        nn.functional.scaled_dot_product_attention(k, k, k), nn.functional.scaled_dot_product_attention(q, q, q), 5
    )
    assert_nested(torch.matmul(k, k.transpose(2, 3)), torch.matmul(q, q.transpose(2, 3)), 5)
    assert_nested(torch.softmax(net, -1), torch.softmax(cpu, -1))
    assert_nested(nn.functional.dropout(net, 0.0), cpu)
    with torch.random.fork_rng():
        dropped = nn.functional.dropout(net, 0.5).to_padded_tensor(0)
    kept = dropped != 0
    assert_near(dropped[kept] / 2, cpu.to_padded_tensor(0)[kept.cpu()])
    assert 0 < kept.sum().item() < sum(LENGTHS) * 8
    assert math.isclose(net.to_padded_tensor(0).sum().item(), cpu.to_padded_tensor(0).sum().item(), abs_tol=1e-4)


def test_errors():
    _, net = lists(6)
    with pytest.raises(RuntimeError, match="The shape at dimension 0 of normalized_shape"):
        nn.functional.layer_norm(net, (5,))
    with pytest.raises(RuntimeError, match="contiguous"):
        nn.functional.layer_norm(net.transpose(1, 2), (6,))


def test_jagged_layout():
    results = []
    for device, dtype in (("cpu", torch.float64), (DEVICE, torch.float32)):
        torch.manual_seed(0)
        parts = [torch.randn(n, 8).to(device, dtype).requires_grad_() for n in LENGTHS]
        net = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.ReLU()).to(device, dtype)
        x = net(torch.nested.as_nested_tensor(parts, layout=torch.jagged))
        padded = torch.nested.to_padded_tensor(x, 0.5)
        heads = x.unflatten(-1, [2, 4]).transpose(1, 2)
        attended = nn.functional.scaled_dot_product_attention(heads, heads, heads)
        attended.values().sum().backward()
        results.append([padded.detach(), attended.values().detach(), *(p.grad for p in parts)])
    for actual, expected in zip(results[1], results[0], strict=True):
        assert_near(actual, expected, 20)


def test_jagged_and_padded():
    offsets, values = torch.tensor([0, 2, 2, 7, 8]), torch.randn(8, 3)
    to_padded, to_jagged = (
        torch.ops.aten._jagged_to_padded_dense_forward,
        torch.ops.aten._padded_dense_to_jagged_forward,
    )
    for length in (1, 5, 6):
        expected = to_padded(values.double(), [offsets], [length], -1.0)
        actual = to_padded(values.to(DEVICE), [offsets.to(DEVICE)], [length], -1.0)
        assert_near(actual, expected)
        back = to_jagged(actual, [offsets.to(DEVICE)])
        assert back.shape == values.shape
        kept = torch.cat([torch.arange(n) < length for n in (2, 0, 5, 1)])
        assert_near(back, values.double() * kept[:, None])
    assert to_jagged(actual, [offsets.to(DEVICE)], 8).cpu().equal(values)
    wholes = values.mul(100).to(torch.int64)
    for dtype in (torch.int64, torch.uint8):  # infinities are the ends of what the dtype can hold
        cast = wholes.to(dtype)
        for padding, value in ((math.inf, torch.iinfo(dtype).max), (-math.inf, torch.iinfo(dtype).min), (7.0, 7)):
            for length in (0, 6):
                actual = to_padded(cast.to(DEVICE), [offsets.to(DEVICE)], [length], padding).cpu()
                assert actual.dtype == dtype
                expected = torch.full((4, length, 3), value, dtype=dtype)
                for row, (first, last) in enumerate(itertools.pairwise(offsets.tolist())):
                    expected[row, : last - first] = cast[first : min(last, first + length)]
                assert actual.equal(expected)
    with pytest.raises(RuntimeError, match="offsets"):
        to_padded(values.to(DEVICE), [offsets.to(DEVICE)[:0]], [3], 0.0)


def test_derivatives_that_are_for_nested_tensors():
    cpu, nested = lists(3, requires_grad=True)
    for more in ((), (True,)):  # an op of PyTorch's own tests
        for x in (cpu, nested):
            x.grad = None
            torch._test_autograd_multiple_dispatch(x, *more).backward(x.detach())
        assert_nested(nested.grad, cpu.grad)


def test_sizes_of_padded_tensors_are_checked():
    padded, sizes = torch.rand(2, 3, 4), torch.tensor([[2, 4], [3, 1]])
    expected = torch.ops.aten._nested_from_padded(padded, sizes)
    for there in (sizes, sizes.to(DEVICE)):
        actual = torch.ops.aten._nested_from_padded(padded.to(DEVICE), there)
        assert all(a.cpu().equal(e) for a, e in zip(actual.unbind(), expected.unbind(), strict=True))
    with pytest.raises(RuntimeError, match="a row of int64 sizes"):
        torch.ops.aten._nested_from_padded(padded.to(DEVICE), sizes[0])
