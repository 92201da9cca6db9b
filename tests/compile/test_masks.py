"""Masks of compiled graphs that are always the causal one."""

import pytest
import torch
from common import DEVICE
from torch.nn import functional as F

from dlbackend.compile import backend as rows_backend
from dlbackend.compile import masks

BACKENDS = ("inductor", rows_backend)


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    with torch._inductor.config.patch(force_disable_caches=True):
        yield
    torch._dynamo.reset()


@pytest.fixture
def folded(monkeypatch):
    """How many calls of attention have lost their mask."""
    found = []
    whole = masks._is_causal
    monkeypatch.setattr(masks, "_is_causal", lambda *args: found.append(whole(*args)) or found[-1])
    return found


def positions(q, k):
    return (torch.arange(x.shape[-2], device=q.device) + 0 for x in (q, k))


def as_numbers(q, k):
    """As transformers makes it."""
    row, column = positions(q, k)
    allowed = (column[None, None, None, :] <= row[None, None, :, None]).expand(q.shape[0], 1, -1, -1)
    return torch.where(allowed, 0.0, -torch.inf).to(q.dtype)


def as_booleans(q, k):
    row, column = positions(q, k)
    return torch.logical_not(column > row[:, None])


def banded(q, k):
    row, column = positions(q, k)
    return (column <= row[:, None]) & (column > row[:, None] - 3)


def of_its_inputs(q, k):
    return as_booleans(q, k) | (q.sum() > 1e30)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("mask_of", "folds"), [(as_numbers, True), (as_booleans, True), (banded, False), (of_its_inputs, False)]
)
def test_values_and_gradients(mask_of, folds, backend, folded):
    def attention(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask_of(q, k)) * 2

    torch.manual_seed(0)
    inputs = [torch.randn(2, 3, n, 16) for n in (20, 20, 20)]
    on_cpu = [t.double().requires_grad_() for t in inputs]
    on_device = [t.to(DEVICE).requires_grad_() for t in inputs]
    expected = attention(*on_cpu)
    actual = torch.compile(attention, backend=backend, fullgraph=True)(*on_device)
    torch.testing.assert_close(actual.cpu().double(), expected, rtol=1e-5, atol=1e-5)
    for a, e in zip(
        torch.autograd.grad(actual.square().sum(), on_device),
        torch.autograd.grad(expected.square().sum(), on_cpu),
        strict=True,
    ):
        torch.testing.assert_close(a.cpu().double(), e, rtol=1e-4, atol=1e-4)
    assert any(folded) == folds


@pytest.mark.parametrize("backend", BACKENDS)
def test_evaluation(backend, folded):
    """Also of more keys than queries, where the causal mask begins at the first key."""
    q, k, v = (torch.randn(1, 2, n, 32, device=DEVICE) for n in (9, 14, 14))
    for mask_of in (as_numbers, as_booleans):

        def attention(q, k, v, mask_of=mask_of):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask_of(q, k))

        with torch.no_grad():
            torch.testing.assert_close(torch.compile(attention, backend=backend)(q, k, v), attention(q, k, v))
    assert folded
    assert all(folded)


def test_arguments_by_name():
    """What the call is given by its parameters' names stays."""
    graph = torch.fx.Graph()
    q, k, v = (graph.placeholder(n) for n in "qkv")
    for node in (q, k, v):
        node.meta["val"] = torch.empty(1, 1, 4, 8)
    mask = graph.call_function(
        torch.ops.aten.tril.default, (graph.call_function(torch.ops.aten.ones.default, ([4, 4],)),)
    )
    mask.args[0].kwargs = {"dtype": torch.bool}
    for node in (mask, mask.args[0]):
        node.meta["val"] = torch.ones(4, 4, dtype=torch.bool)
    call = graph.call_function(masks._FORWARD, (q, k, v), {"attn_bias": mask, "dropout_p": 0.25, "scale": 2.0})
    graph.output(call)
    masks.fold_causal_masks(graph)
    assert call.args == (q, k, v, None, 0.25, True)
    assert call.kwargs == {"scale": 2.0}
    assert mask not in graph.nodes
