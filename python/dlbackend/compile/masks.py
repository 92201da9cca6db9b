"""Attention of a graph whose mask is always the causal one.

Models that are compiled make their masks within the graph, from counted positions alone; eager mode asks for causal
attention, which reads no mask and skips half of the scores.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Graph, Node

aten = torch.ops.aten
_FORWARD = aten._scaled_dot_product_fused_attention_overrideable.default
_BACKWARD = aten._scaled_dot_product_fused_attention_overrideable_backward.default
_PLACES = {_FORWARD: (3, 5), _BACKWARD: (4, 13)}  # of the mask, and of whether attention is causal
MOST = 2**26  # elements of a mask that is computed to be looked at


def _is_plain(node: Node) -> bool:
    """Whether the call gives the same each time, wherever it runs, and changes nothing."""
    target = node.target
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload):
        return False
    if target._schema.is_mutable or torch.Tag.nondeterministic_seeded in target.tags:
        return False
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and all(isinstance(s, int) for s in value.shape)


def _is_pointwise(node: Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.pointwise in node.target.tags


def _constant(node: Node, known: dict[Node, torch.Tensor | None]) -> torch.Tensor | None:
    """The value of a call that depends on nothing but numbers, on the CPU, without copies that expand() asks for."""
    if node in known:
        return known[node]
    known[node] = None
    if not _is_plain(node) or any(_constant(n, known) is None for n in node.all_input_nodes):
        return None
    args: Any
    kwargs: Any
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: known[n])
    if node.target is aten.expand.default and all(_is_pointwise(user) or user.target in _PLACES for user in node.users):
        known[node] = args[0]  # these broadcast
        return known[node]
    size = math.prod(node.meta["val"].shape)
    if node.all_input_nodes and _is_pointwise(node):
        size = math.prod(torch.broadcast_shapes(*(known[n].shape for n in node.all_input_nodes)))  # type: ignore
    if size <= MOST:
        if "device" in kwargs:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        known[node] = node.target(*args, **kwargs)  # type: ignore[operator]
    return known[node]


def _is_causal(mask: torch.Tensor, queries: int, keys: int) -> bool:
    if mask.shape[-2:] != (queries, keys) or mask.shape[:-2].numel() != 1:
        return False
    mask = mask.reshape(queries, keys)
    allowed = torch.ones(queries, keys, dtype=torch.bool).tril()
    if mask.dtype == torch.bool:
        return torch.equal(mask, allowed)
    return bool((mask[allowed] == 0).all()) and bool((mask[~allowed] == -torch.inf).all())


def fold_causal_masks(graph: Graph) -> None:
    """Makes calls of attention causal, without a mask, where the mask is known to be the causal one."""
    known: dict[Node, torch.Tensor | None] = {}
    changed = False
    with torch.utils._python_dispatch._disable_current_modes():
        for node in graph.nodes:
            if node.target not in _PLACES:
                continue
            at, causal = _PLACES[node.target]
            parameters = node.target._schema.arguments[len(node.args) : causal + 1]
            args = [*node.args, *(node.kwargs.get(p.name, p.default_value) for p in parameters)]
            mask = args[at]
            if not isinstance(mask, Node) or args[causal]:
                continue
            wants_mask = node.target is _BACKWARD and args[5][3]
            value = None if wants_mask else _constant(mask, known)
            queries, keys = (args[i + at - 3].meta["val"].shape[-2] for i in (0, 1))
            if value is None or not _is_causal(value, queries, keys):
                continue
            args[at], args[causal] = None, True
            given = {p.name for p in parameters}
            changed, node.args = True, tuple(args)
            node.kwargs = {name: value for name, value in node.kwargs.items() if name not in given}
    if changed:
        graph.eliminate_dead_code()
