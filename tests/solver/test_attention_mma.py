"""Attention on tensor cores against float64, forward and backward.

Skipped where the device has none; tests/test_gpu_kernels.py runs this with emulated ones.
"""

import pytest
import torch
import torch.nn.functional as F
from common import DEVICE, relative_error

import dlbackend
from dlbackend import _C

TENSOR_CORES = torch.ocl.is_available() and torch.ocl.get_device_properties(0).has_tensor_cores
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not TENSOR_CORES, reason="the device has no tensor cores")]

TOLERANCE = {torch.float16: 6e-4, torch.bfloat16: 5e-3, torch.float32: 6e-7}


@pytest.fixture(autouse=True)
def _forced():
    torch.manual_seed(0)
    _C.force_solver("attention:gpu_mma,attention_bwd:gpu_mma")
    yield
    _C.force_solver("")


def both_passes(q, k, v, grad, mask=None, **options):
    inputs = [t.detach().requires_grad_() for t in (q, k, v)]
    if mask is not None:
        mask = mask.detach().requires_grad_()
    out = F.scaled_dot_product_attention(*inputs, mask, enable_gqa=True, **options)
    return [out, *torch.autograd.grad(out, inputs if mask is None else [*inputs, mask], grad)]


@pytest.mark.parametrize(
    ("queries", "keys", "heads", "dim", "options", "dtype"),
    [
        (70, 130, 2, 64, {}, torch.bfloat16),
        (65, 40, 1, 22, {"is_causal": True}, torch.float16),
        (37, 90, 1, 128, {"biased": True}, torch.bfloat16),
        (70, 130, 2, 64, {"is_causal": True}, torch.float32),
        (45, 40, 1, 21, {"biased": True}, torch.float32),
    ],
)
def test_against_float64(queries, keys, heads, dim, options, dtype):
    """Few, because each kernel with emulated instructions takes a compiler many seconds."""
    sizes = (heads, queries), (1, keys), (1, keys), (heads, queries)
    tensors = [torch.randn(1, n, length, dim) for n, length in sizes]
    if options.get("biased"):
        tensors.append(torch.randn(queries, keys))
    tensors = [t.to(dtype) for t in tensors]
    options = {name: value for name, value in options.items() if name != "biased"}
    expected = both_passes(*(t.double() for t in tensors), **options)
    actual = both_passes(*(t.to(DEVICE) for t in tensors), **options)
    for a, e in zip(actual, expected, strict=True):
        assert relative_error(a, e) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_dropout_is_that_of_the_reference(dtype):
    tensors = [torch.randn(1, 2, 50, 32).to(dtype).to(DEVICE) for _ in range(4)]
    runs = []
    for solver in ("gpu_mma", "reference"):
        _C.force_solver(f"attention:{solver},attention_bwd:{solver}")
        torch.manual_seed(3)
        runs.append(both_passes(*tensors, dropout_p=0.3))
    for a, e in zip(*runs, strict=True):
        assert relative_error(a, e.cpu()) < TOLERANCE[dtype]
    assert not dlbackend.fallback_report()


def test_rounding_to_tf32():
    """Where that is allowed, one product does instead of three."""
    tensors = [torch.randn(1, 2, 50, 32) for _ in range(4)]
    expected = both_passes(*(t.double() for t in tensors))
    torch.set_float32_matmul_precision("high")
    try:
        actual = both_passes(*(t.to(DEVICE) for t in tensors))
    finally:
        torch.set_float32_matmul_precision("highest")
    for a, e in zip(actual, expected, strict=True):
        assert 2e-5 < relative_error(a, e) < 1e-3


def test_infinities_and_nan_of_float32():
    """The rest of an infinity is 0, and so is that of many a finite factor: no product of both may be a NaN."""
    q, k, v, grad = (torch.randn(1, 1, 40, 32) for _ in range(4))
    v[0, 0, 3, 5], v[0, 0, 7, 6], v[0, 0, 9, 8] = torch.inf, -torch.inf, torch.nan
    q[0, 0, 11] = 0.0  # probabilities of 1 / 40 all over
    k[0, 0, 1] = -torch.finfo(torch.float32).max / 1e3
    expected = both_passes(*(t.clone() for t in (q, k, v, grad)))[0]
    actual = both_passes(*(t.to(DEVICE) for t in (q, k, v, grad)))[0].cpu()
    assert torch.equal(actual.isnan(), expected.isnan())
    assert torch.equal(actual.isinf(), expected.isinf())
    torch.testing.assert_close(actual, expected, equal_nan=True)
