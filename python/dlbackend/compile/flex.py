"""flex_attention on the device, as ops that autograd, the compiler and eager mode know.

A mask and a score_mod that adds to the score, such as ALiBi or relative positions, become the mask of the fused
attention, which makes no matrix of the scores. Other score_mods, and what asks for log-sum-exps or maxima, run by
PyTorch's own composition, whose elementwise steps the compiler fuses; so does all of it in eager mode.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch._higher_order_ops.flex_attention import _permute_strides, sdpa_dense
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import get_proxy_mode

aten = torch.ops.aten
_ADD = (operator.add, torch.add, aten.add.Tensor, aten.add.Scalar, "add")
_SUB = (operator.sub, torch.sub, aten.sub.Tensor, aten.sub.Scalar, "sub")
_WHERE = (torch.where, aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther)
_FULL = (aten.full.default, torch.full, torch.tensor, aten.scalar_tensor.default)
_ALL_OF_IT = 1 << 30  # the size of blocks of a mask that masks nothing
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def _parts(graph: torch.fx.Graph) -> tuple[list[Node], Any]:
    """A graph's inputs and its result."""
    (result,) = (n.args[0] for n in graph.nodes if n.op == "output")
    if isinstance(result, (tuple, list)) and len(result) == 1:
        (result,) = result
    return [n for n in graph.nodes if n.op == "placeholder"], result


def _is_minus_infinity(value: Any) -> bool:
    if isinstance(value, Node) and value.target in _FULL:
        value = value.args[-1]
    return isinstance(value, float) and value == -math.inf


def adds_to_score(module: Any) -> bool:
    """Whether a score_mod's result is the score and terms that do not depend on it, or minus infinity."""
    if not isinstance(module, GraphModule):
        return False
    (score, *_), result = _parts(module.graph)
    of_score = {score}
    for node in module.graph.nodes:
        if any(n in of_score for n in node.all_input_nodes):
            of_score.add(node)

    def adds(value: Any) -> bool:
        if not isinstance(value, Node) or value not in of_score:
            return _is_minus_infinity(value)
        if value is score:
            return True
        dependent = [a for a in value.args if isinstance(a, Node) and a in of_score]
        if len(value.args) < 2 or value.kwargs:
            return False
        if value.target in _ADD:
            return len(dependent) == 1 and adds(dependent[0])
        if value.target in _SUB:
            return dependent == [value.args[0]] and adds(dependent[0])
        if value.target in _WHERE and len(value.args) == 3:
            return value.args[0] not in dependent and all(map(adds, value.args[1:]))
        return False

    return result in of_score and adds(result)


def _is_identity(module: GraphModule) -> bool:
    inputs, result = _parts(module.graph)
    return result is inputs[0]


def _is_causal(module: Any) -> bool:
    """Whether a mask_mod is `q_idx >= kv_idx`."""
    if not isinstance(module, GraphModule):
        return False
    (_, _, query, key, *_), result = _parts(module.graph)
    if not isinstance(result, Node) or result.kwargs:
        return False
    at_least = result.target in (operator.ge, torch.ge, aten.ge.Tensor, "ge") and result.args == (query, key)
    return at_least or (result.target in (operator.le, torch.le, aten.le.Tensor, "le") and result.args == (key, query))


def _for_all(function: Callable[..., Any], sizes: Sequence[Any], others: Sequence[Any], device: torch.device) -> Any:
    """What a function of batch, head, query and key gives for all of them, in four dimensions, with one element in
    those on which it does not depend.
    """
    from torch.nn.attention.flex_attention import _vmap_for_bhqkv

    indices = [torch.arange(0, size, device=device) for size in sizes]
    with TransformGetItemToIndex():
        made = _vmap_for_bhqkv(function, prefix=(), suffix=(None,) * len(others))(*indices, *others)
    for dim in (0, 1):
        made = made.narrow(dim, 0, 1) if made.stride(dim) == 0 else made
    return made


def _fused(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: GraphModule,
    block_mask: tuple[Any, ...],
    scale: float,
    score_others: Sequence[Any],
    mask_others: Sequence[Any],
) -> torch.Tensor:
    """The result by the fused attention."""
    sizes = (*query.shape[:3], key.shape[2])
    mask, mask_mod = None, block_mask[-1]
    masks = _ALL_OF_IT not in block_mask[-3:-1]
    causal = masks and _is_causal(mask_mod)
    if masks and not causal:
        mask = _for_all(mask_mod, sizes, mask_others, query.device)
    if not _is_identity(score_mod):
        zero = torch.zeros((), device=query.device)
        bias = _for_all(lambda *given: score_mod(zero, *given), sizes, score_others, query.device).float()
        mask = bias if mask is None else torch.where(mask, bias, -math.inf)
    key, value = (t.expand(query.shape[0], *t.shape[1:]) for t in (key, value))
    grouped = query.shape[1] != key.shape[1]
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=grouped
    )


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Any,
    block_mask: tuple[Any, ...],
    scale: float,
    kernel_options: dict[str, Any],
    score_mod_other_buffers: tuple[Any, ...] = (),
    mask_mod_other_buffers: tuple[Any, ...] = (),
) -> tuple[torch.Tensor, ...]:
    """As torch._higher_order_ops.flex_attention's op: the result, log-sum-exps and maxima, both in powers of two. In a
    graph those that nothing takes are not computed.
    """
    others = (score_mod_other_buffers, mask_mod_other_buffers)
    out, *statistics = sdpa_dense(query, key, value, score_mod, block_mask, scale, kernel_options, *others)
    same = query.dtype == key.dtype == value.dtype and query.shape[-1] == value.shape[-1]
    if get_proxy_mode() is not None and same and query.dtype in _DTYPES and adds_to_score(score_mod):
        out = _fused(query, key, value, score_mod, block_mask, scale, *others)
        out = _permute_strides(out, query.stride())
    return (out, *statistics)


def attention_in_autocast(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *others: Any) -> Any:
    """attention() of operands in the dtype of autocast, as on other devices."""
    from torch._higher_order_ops.flex_attention import flex_attention

    op: Any = flex_attention
    keys: Any = torch._C.DispatchKey
    dtype = torch.get_autocast_dtype("ocl")
    narrowed = [t.to(dtype) if t.dtype in _DTYPES else t for t in (query, key, value)]
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(keys.AutocastPrivateUse1)):
        return op(*narrowed, *others)
