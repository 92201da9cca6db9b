"""Replays compiled graphs (torch.compile's mode "reduce-overhead"): after a few calls a graph of ATen calls is captured
into a graph of torch.ocl, and further calls enqueue its kernels without Python.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from dlbackend import _C
from dlbackend.ocl.graphs import OclGraph, graph, is_current_stream_capturing

MOST_SIZES = 8  # of inputs, for each of which there is a graph
FEWEST_CALLS, MOST_CALLS = 3, 8  # before a graph is captured, so that kernels are built and addresses are settled
# What reads numbers on the host that each replay of the graph they come from sets anew.
LIVE_ON_HOST = torch.ops.aten._scaled_dot_product_fused_attention_overrideable_backward.default

Function = Callable[[list[Any]], Sequence[Any]]


class Captured:
    """A graph for inputs of some sizes, whose static inputs lie where they lay when it was captured."""

    def __init__(self, run: Function, given: list[Any], copied: set[int]) -> None:
        # The others are not kept: what another graph returned would seem to be in use for ever.
        self.copied = {i: given[i].clone() for i in sorted(copied)}
        inputs = [self.copied.get(i, x) for i, x in enumerate(given)]
        self.graph = OclGraph()
        with graph(self.graph):
            made = list(run(list(inputs)))
        own = {id(x): i for i, x in enumerate(inputs) if isinstance(x, torch.Tensor)}
        # Of each result: an input's number, a constant, or its place among the graph's tensors.
        self.results: list[tuple[str, Any]] = []
        tensors: list[torch.Tensor] = []
        for value in made:
            if id(value) in own:
                self.results.append(("input", own[id(value)]))
            elif isinstance(value, torch.Tensor):
                self.results.append(("made", len(tensors)))
                tensors.append(value)
            else:
                self.results.append(("constant", value))
        self.outputs = _C.GraphOutputs(tensors)

    def __call__(self, given: list[Any]) -> list[Any]:
        made = self.outputs.renew()
        for i, static in self.copied.items():
            static.copy_(given[i])
        self.graph.replay()
        of: dict[str, Callable[[Any], Any]] = {"input": given.__getitem__, "made": made.__getitem__}
        return [of[kind](what) if kind in of else what for kind, what in self.results]


class Sizes:
    """The calls with inputs of some sizes, until they are captured and after."""

    def __init__(self) -> None:
        self.calls = 0
        self.addresses: list[int] = []
        self.moved: set[int] = set()  # inputs that lay elsewhere in the last call than in the one before
        self.copied: set[int] = set()
        self.captured: Captured | None = None

    def is_settled(self, addresses: list[int]) -> bool:
        """Notes a call. Whether the same inputs as in the call before have moved, and so are those to be copied."""
        moved = {i for i, pair in enumerate(zip(addresses, self.addresses, strict=False)) if pair[0] != pair[1]}
        settled = moved == self.moved and self.calls + 1 >= FEWEST_CALLS
        self.calls, self.addresses, self.moved = self.calls + 1, addresses, moved
        return settled or self.calls >= MOST_CALLS


class Replayed:
    """A compiled graph that is replayed. Inputs that lie where they lay are read and written there, others are copied
    to where the graph reads them. What it returns stays as it is when the graph is replayed again.
    """

    def __init__(self, module: GraphModule, compiler: Callable[[], Function]) -> None:
        self._boxed_call = True  # it takes one list, as AOTAutograd knows by this
        self.sizes: dict[tuple[Any, ...], Sizes] = {}
        inputs = [n for n in module.graph.nodes if n.op == "placeholder"]
        self.must_stay = {i for i, n in enumerate(inputs) if _is_written(n) or _is_on_host(n)}
        self.takes = all(not _is_on_host(n) or all(u.target is LIVE_ON_HOST for u in n.users) for n in inputs)
        self.run = compiler()  # which may rewrite the module

    def __call__(self, given: list[Any]) -> Sequence[Any]:
        sizes = self.sizes_of(given) if self.takes and not is_current_stream_capturing() else None
        if sizes is None:
            return self.run(given)
        addresses = [x.data_ptr() if isinstance(x, torch.Tensor) else 0 for x in given]
        if sizes.captured:
            moved = {i for i, pair in enumerate(zip(addresses, sizes.addresses, strict=True)) if pair[0] != pair[1]}
            if moved <= sizes.copied:
                return sizes.captured(given)
            if moved & self.must_stay or sizes.calls >= MOST_CALLS:
                return self.run(given)
            sizes.captured = None  # other inputs change than seemed to: captured once more, they are copied
        if not sizes.is_settled(addresses):
            return self.run(given)
        return self.capture(sizes, given)

    def sizes_of(self, given: list[Any]) -> Sizes | None:
        key = tuple(x for x in given if not isinstance(x, torch.Tensor))  # the sizes that are not the same in all calls
        if key not in self.sizes and len(self.sizes) == MOST_SIZES:
            return None
        return self.sizes.setdefault(key, Sizes())

    def capture(self, sizes: Sizes, given: list[Any]) -> Sequence[Any]:
        sizes.copied |= sizes.moved
        if sizes.copied & self.must_stay:
            self.takes = False
            return self.run(given)
        try:
            sizes.captured = Captured(self.run, given, sizes.copied)
        except RuntimeError as error:
            self.takes = False
            warnings.warn(f"a compiled graph is not replayed, because it cannot be captured: {error}", stacklevel=2)
            return self.run(given)
        return sizes.captured(given)


def _is_on_host(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.device.type != "ocl"


def _is_written(node: Node) -> bool:
    """Whether a call of the graph writes to the input."""
    for user in node.users:
        schema = getattr(user.target, "_schema", None)
        if schema is None:
            continue
        for argument, given in zip(schema.arguments, user.args, strict=False):
            if argument.alias_info and argument.alias_info.is_write and given is node:
                return True
    return False
