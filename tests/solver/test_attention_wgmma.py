"""Attention by the warpgroup instructions of Hopper GPUs, solver gpu_wgmma, against float64.

Skipped on other devices, where tests/kernels/test_wgmma.py interprets its kernels.
"""

import pytest
import torch
import torch.nn.functional as F
from common import relative_error
from gpu_solvers import check_configs, shifted
from hopper import MARKS

import dlbackend
from dlbackend import _C

pytestmark = MARKS

TOLERANCE = {torch.float16: 6e-4, torch.bfloat16: 5e-3}
DTYPES = list(TOLERANCE)


def force(solver: str) -> None:
    _C.force_solver(f"attention:{solver},attention_bwd:{solver}")


@pytest.fixture(autouse=True)
def _forced():
    torch.manual_seed(0)
    force("gpu_wgmma")
    yield
    _C.force_solver("")


def both_passes(q, k, v, grad, mask=None, **options):
    inputs = [t.detach().requires_grad_() for t in (q, k, v)]
    if mask is not None and mask.is_floating_point():
        mask = mask.detach().requires_grad_()
        inputs.append(mask)
    out = F.scaled_dot_product_attention(*inputs[:3], mask, enable_gqa=True, **options)
    return [out, *torch.autograd.grad(out, inputs, grad)]


def tensors_of(batch, heads, kv_heads, queries, keys, dim, dtype):
    sizes = (heads, queries), (kv_heads, keys), (kv_heads, keys), (heads, queries)
    return [torch.randn(batch, n, length, dim).to(dtype) for n, length in sizes]


def check(tensors, mask=None, **options):
    masks = [] if mask is None else [mask]
    double = [m.double() if m.is_floating_point() else m for m in masks]
    expected = both_passes(*(t.double() for t in tensors), *double, **options)
    actual = both_passes(*(t.to("ocl") for t in tensors), *(m.to("ocl") for m in masks), **options)
    for a, e in zip(actual, expected, strict=True):
        assert not a.isnan().any()
        # over a single key the softmax has no gradient, and numbers of magnitude 1 leave their rounding
        assert (a.cpu().double() - e).norm() < TOLERANCE[tensors[0].dtype] * max(e.norm(), 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [64, 128, 40])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (128, 128), (300, 700), (700, 300), (1000, 1000)])
def test_values_and_gradients(queries, keys, dim, causal, dtype):
    check(tensors_of(2, 3, 3, queries, keys, dim, dtype), is_causal=causal)


@pytest.mark.parametrize("causal", [False, True])
def test_more_blocks_than_compute_units(causal):
    """A work-group's barriers go on from block to block, and no block is left out; heads are grouped."""
    check(tensors_of(3, 32, 4, 500, 400, 64, torch.bfloat16), is_causal=causal)


@pytest.mark.parametrize("scale", [0.7, 0.0, -0.3])
def test_scales(scale):
    check(tensors_of(1, 2, 1, 200, 300, 64, torch.float16), scale=scale)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [64, 128])
def test_masks(dim, dtype):
    tensors = tensors_of(2, 2, 2, 200, 300, dim, dtype)
    mask = torch.rand(200, 300) > 0.3
    check(tensors, mask)
    check(tensors, torch.randn(2, 1, 200, 300).to(dtype))
    check(tensors, torch.randn(1, 2, 1, 300).masked_fill(torch.rand(300) > 0.7, -torch.inf).to(dtype))


def test_rows_without_keys_are_zero():
    tensors = [t.to("ocl") for t in tensors_of(1, 2, 2, 200, 300, 64, torch.bfloat16)]
    mask = torch.ones(200, 300, dtype=torch.bool)
    mask[3] = mask[199] = False
    for t in both_passes(*tensors, mask.to("ocl"))[:2]:
        assert t[:, :, [3, 199]].eq(0).all()
        assert not t.isnan().any()


def test_rows_masked_by_the_lowest_number_are_means():
    q, k, v, _ = (t.to("ocl") for t in tensors_of(1, 1, 1, 130, 200, 64, torch.bfloat16))
    mask = torch.full((130, 200), torch.finfo(torch.bfloat16).min).bfloat16().to("ocl")
    out = F.scaled_dot_product_attention(q, k, v, mask)
    assert relative_error(out, v.cpu().double().mean(2, keepdim=True).expand(1, 1, 130, 64)) < 5e-3


@pytest.mark.parametrize(("dim", "causal"), [(64, False), (128, True)])
def test_dropout_is_that_of_the_reference(dim, causal):
    tensors = [t.to("ocl") for t in tensors_of(1, 2, 1, 150, 190, dim, torch.bfloat16)]
    runs = []
    for solver in ("gpu_wgmma", "reference"):
        force(solver)
        torch.manual_seed(3)
        runs.append(both_passes(*tensors, dropout_p=0.3, is_causal=causal))
    for a, e in zip(*runs, strict=True):
        assert relative_error(a, e.cpu()) < TOLERANCE[torch.bfloat16]
    assert not dlbackend.fallback_report()


def test_views_and_odd_addresses():
    """[batch, length, heads, size] as transformers have it, shared heads, and what the copy engine does not take."""
    laid_out = [
        t.transpose(1, 2).contiguous().transpose(1, 2) for t in tensors_of(2, 3, 3, 150, 200, 64, torch.bfloat16)
    ]
    check(laid_out)
    q, k, v, grad = tensors_of(2, 3, 1, 150, 200, 64, torch.bfloat16)
    expected = both_passes(*(t.double() for t in (q, k, v, grad)))
    for offset in (0, 8, 3):
        actual = both_passes(*(shifted(t, offset) for t in (q, k, v, grad)))
        for a, e in zip(actual, expected, strict=True):
            assert relative_error(a, e) < TOLERANCE[torch.bfloat16], offset
    shared = [torch.randn(1, 1, 200, 64).bfloat16().to("ocl").expand(2, 3, -1, -1) for _ in range(2)]
    out = F.scaled_dot_product_attention(q.to("ocl"), *shared)
    assert relative_error(out, F.scaled_dot_product_attention(q.double(), *(t.cpu().double() for t in shared))) < 5e-3


def test_results_are_the_same_each_time():
    tensors = [t.to("ocl") for t in tensors_of(2, 8, 4, 700, 900, 128, torch.bfloat16)]
    first = both_passes(*tensors, is_causal=True)
    for _ in range(5):
        assert all(torch.equal(a, b) for a, b in zip(both_passes(*tensors, is_causal=True), first, strict=True))


@pytest.mark.parametrize("dim", [64, 128])
def test_configs(dim):
    _C.force_solver("")
    q, k, v, _ = (t.to("ocl") for t in tensors_of(1, 4, 2, 300, 500, dim, torch.bfloat16))

    def run() -> None:
        F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    configs = check_configs("gpu_wgmma", run, 4)
    assert len(configs) == 4
