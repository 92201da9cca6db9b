"""Writes to a graph's inputs where the graph computes a new value and copies it there: functionalised batch norms, and
counters of batches. Each would otherwise cost copies that eager mode does not make.
"""

from __future__ import annotations

import operator

import torch
from torch.fx import Graph, Node

aten = torch.ops.aten

_BATCH_NORM = aten._native_batch_norm_legit_functional.default
# Results of _BATCH_NORM that are new values of an argument: the argument, and a result of the same shape.
_STATISTICS = {3: (3, 1), 4: (4, 2)}
_IN_PLACE = {aten.add.Tensor: aten.add_.Tensor, aten.mul.Tensor: aten.mul_.Tensor}


def _copy_of(value: Node, target: object) -> Node | None:
    """The copy_ of the value to an input that its computation and the copy alone use; None where it is another."""
    copies = [n for n in value.users if n.target is aten.copy_.default]
    if not isinstance(target, Node) or target.op != "placeholder" or len(copies) != 1:
        return None
    copy = copies[0]
    return copy if copy.args[:2] == (target, value) and not copy.users and len(target.users) == 2 else None


def _same(a: Node, b: Node) -> bool:
    x, y = a.meta.get("val"), b.meta.get("val")
    return isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) and (x.shape, x.dtype) == (y.shape, y.dtype)


def _batch_norm(norm: Node) -> bool:
    """Lets a norm in training update its running statistics itself. The backward pass of training takes them and does
    not read them: it is given the batch's in their place, which a later forward pass does not change.
    """
    items = {n.args[1]: n for n in norm.users if n.target is operator.getitem}
    if norm.args[5] is not True or not {1, 2, 3, 4} <= set(items):
        return False
    copies = [_copy_of(items[result], norm.args[argument]) for result, (argument, _) in _STATISTICS.items()]
    for result, (_, instead) in _STATISTICS.items():
        others = [n for n in items[result].users if n not in copies]
        if not all(n.op == "output" for n in others) or (others and not _same(items[result], items[instead])):
            return False
    if None in copies:
        return False
    norm.target = aten._native_batch_norm_legit.default
    for copy, (result, (_, instead)) in zip(copies, _STATISTICS.items(), strict=True):
        assert copy is not None
        norm.graph.erase_node(copy)
        items[result].replace_all_uses_with(items[instead])
        norm.graph.erase_node(items[result])
    return True


def _elementwise(node: Node) -> bool:
    """Lets the call write to its first argument."""
    target = node.args[0]
    copy = _copy_of(node, target)
    if copy is None or len(node.users) != 1 or not isinstance(target, Node) or not _same(target, node):
        return False
    node.graph.erase_node(copy)
    node.target = _IN_PLACE[node.target]  # type: ignore[index]
    return True


def write_in_place(graph: Graph) -> bool:
    """Changes the graph; returns whether it did."""
    changed = False
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if node.target is _BATCH_NORM:
            changed |= _batch_norm(node)
        elif node.target in _IN_PLACE:
            changed |= _elementwise(node)
    return changed
