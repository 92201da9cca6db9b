"""Fuses a graph's elementwise calls: groups of them become expressions of rows, each computed in one launch, or behind
a product or convolution in the same launch with that.
"""

from __future__ import annotations

import heapq
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from dlbackend.compile.inplace import write_in_place
from dlbackend.compile.products import TURNS, Product, known, narrow_arguments, product_of, viewed, writes
from dlbackend.compile.rows import Call, row_of

MOST_OPERANDS = 16  # of an expression: inputs and results


def run_rows(
    expression: str, inputs: Sequence[torch.Tensor], layouts: Sequence[tuple[torch.dtype, list[int]]] | None
) -> list[torch.Tensor]:
    """Computes an expression. `layouts`: dtype and order of dimensions in memory of each result, where one is not
    contiguous.
    """
    if layouts is None:
        made: list[torch.Tensor] = torch.ops.dlbackend.rows.default(expression, inputs, [], None, False, [])
        return made
    shape: torch.Size = torch.broadcast_shapes(*(x.shape for x in inputs))  # type: ignore[no-untyped-call]
    device = next(x.device for x in inputs if x.device.type == "ocl")
    results = [torch.empty_permuted(shape, order, dtype=dtype, device=device) for dtype, order in layouts]
    torch.ops.dlbackend.rows_out.default(expression, inputs, [], None, False, results)
    return results


def shape_key(value: torch.Tensor) -> tuple[Any, ...]:
    """Equal for tensors of one shape, symbolic sizes included."""
    return tuple(s if isinstance(s, int) else s.node.expr for s in value.shape)


def order_of(value: torch.Tensor) -> list[int] | None:
    """The dimensions from the outermost in memory to the innermost, of a dense tensor; else None."""
    sizes, strides = [known(s) for s in value.shape], [known(s) for s in value.stride()]
    order = sorted(range(value.dim()), key=lambda d: (-strides[d], d))
    expected = 1
    for d in reversed(order):
        if sizes[d] != 1 and strides[d] != expected:
            return None
        expected *= max(sizes[d], 1)
    return order


class Group:
    """Calls of one shape that become an expression, in the graph's order; `product`: they do so behind it."""

    def __init__(self, shape: tuple[Any, ...]) -> None:
        self.shape = shape
        self.members: dict[Node, tuple[Call, str]] = {}
        self.product: Node | None = None
        self.view: Node | None = None  # of the product, where that is what the rows take

    def nodes(self) -> list[Node]:
        return [*(n for n in (self.product, self.view) if n is not None), *self.members]

    def head(self) -> Node | None:
        """The product as the rows take it."""
        return self.view or self.product

    def inputs(self) -> list[Node]:
        """Values from outside; a product's comes first."""
        head = self.head()
        found: dict[Node, None] = {head: None} if head else {}
        for call, _ in self.members.values():
            for argument in call.arguments:
                if isinstance(argument, Node) and argument not in self.members:
                    found[argument] = None
        return list(found)

    def results(self) -> list[Node]:
        """Values that others use; behind a product the first has its dtype."""
        head = self.head()
        nodes = [*([head] if head else []), *self.members]
        found = [n for n in nodes if any(user not in self.members for user in n.users) or n is self._asked_for()]
        if head:
            dtype = head.meta["val"].dtype
            found.sort(key=lambda n: (n.meta["val"].dtype != dtype, n is head))
        return found

    def _asked_for(self) -> Node | None:
        """The view of a product that others take as it is."""
        return self.view if self.view and self.product and len(self.product.users) > 1 else None

    def fits(self) -> bool:
        return len(self.inputs()) + len(self.results()) <= MOST_OPERANDS

    def join(self, node: Node, product: Node, how: Product) -> bool:
        """Lets the group's rows run behind the product, which they take as `node`; returns whether they can."""
        self.product, self.view = product, node if node is not product else None
        results = self.results()
        order = order_of(node.meta["val"])
        fits = (
            order is not None
            and (self.view is None or order == sorted(order))
            and len(results) <= how.MOST_RESULTS
            and len(self.inputs()) <= 1 + how.MOST_EXTRAS
            and results[0].meta["val"].dtype == node.meta["val"].dtype
            and all(order_of(n.meta["val"]) == order for n in results)
            and all(how.takes(node.meta["val"], n.meta["val"]) for n in self.inputs()[1:])
        )
        if not fits:
            self.part()
        return fits

    def part(self) -> None:
        """Gives the product up again."""
        self.product = self.view = None

    def expression(self, inputs: Sequence[Node] | None = None, results: Sequence[Node] | None = None) -> str:
        """The group as text (docs/template-api.md), with these inputs and results or those that it has in its graph."""
        inputs = self.inputs() if inputs is None else inputs
        results = self.results() if results is None else results
        names = {n: f"x{i}" for i, n in enumerate(inputs)} | {n: f"v{i}" for i, n in enumerate(self.members)}
        text = []
        for n, (call, kind) in self.members.items():
            arguments = ", ".join(names[a] if isinstance(a, Node) else number(a) for a in call.arguments)
            text.append(f"{names[n]} = {call.row}.{kind}({arguments})")
        text += [f"y{i} = {names[n]}" for i, n in enumerate(results)]
        return "; ".join(text)


def number(value: float) -> str:
    return repr(float(value)) if isinstance(value, float) else str(int(value))


class Fuser:
    """Finds the groups of a graph and builds the graph anew with them."""

    def __init__(self, graph: Graph) -> None:
        self.nodes = list(graph.nodes)
        self.place = {n: i for i, n in enumerate(self.nodes)}
        self.before = self._dependencies()
        self.group_of: dict[Node, Group] = {}

    def _dependencies(self) -> dict[Node, list[Node]]:
        """What has to be computed before each node. What draws random numbers or writes keeps its order, and what reads
        a tensor stays on its side of a write to it.
        """
        before = {n: list(n.all_input_nodes) for n in self.nodes}
        last: Node | None = None
        for n in self.nodes:
            if n.op != "call_function" or not is_ordered(n):
                continue
            if last is not None:
                before[n].append(last)
            last = n
            for user in {user for written in n.all_input_nodes for user in written.users} if writes(n) else ():
                if self.place[user] < self.place[n]:
                    before[n].append(user)
                elif user is not n:
                    before[user].append(n)
        return before

    def _unit(self, node: Node) -> list[Node]:
        group = self.group_of.get(node)
        return group.nodes() if group else [node]

    def _reaches(self, group: Group, starts: Sequence[Node]) -> bool:
        """Whether a node that is not in the group, nor computed from it directly, needs one of its members."""
        inside = set(group.nodes())
        first = min(self.place[n] for n in inside)
        pending, seen = [n for n in starts if n not in inside], set[Node]()
        while pending:
            node = pending.pop()
            if node in seen:
                continue
            seen.add(node)
            for member in self._unit(node):
                seen.add(member)
                for need in self.before[member]:
                    if need in inside:
                        return True
                    if need not in seen and max(self.place[m] for m in self._unit(need)) > first:
                        pending.append(need)
        return False

    def _candidates(self, node: Node) -> Iterator[Group]:
        """Groups that the node may join: those that it takes values of, the latest first."""
        groups: dict[int, Group] = {}
        for need in self.before[node]:
            group = self.group_of.get(need)
            if group is not None:
                groups[id(group)] = group
        yield from sorted(groups.values(), key=lambda g: -max(self.place[n] for n in g.members))

    def find_groups(self) -> list[Group]:
        groups: list[Group] = []
        for node in self.nodes:
            row = row_of(node) if node.op == "call_function" else None
            if row is None or order_of(node.meta["val"]) is None:
                continue
            shape = shape_key(node.meta["val"])
            for group in self._candidates(node):
                if group.shape != shape or self._reaches(group, self.before[node]):
                    continue
                group.members[node] = row
                if group.fits():
                    self.group_of[node] = group
                    break
                del group.members[node]
            if node not in self.group_of:
                group = Group(shape)
                group.members[node] = row
                self.group_of[node] = group
                groups.append(group)
        for group in groups:
            self._put_behind_product(group)
            if len(group.nodes()) < 2:
                for node in group.members:
                    del self.group_of[node]
        return [g for g in groups if len(g.nodes()) > 1]

    def _put_behind_product(self, group: Group) -> None:
        """Joins the group to a product that it takes, if there is one that it can run behind."""
        for node in group.inputs():
            product = viewed(node) or node
            how = product_of(product)
            if how is None or product in self.group_of or shape_key(node.meta["val"]) != group.shape:
                continue
            if not group.join(node, product, how):
                continue
            if not self._reaches(group, [need for n in group.members for need in self.before[n]]):
                self.group_of[product] = self.group_of[node] = group
                return
            group.part()

    def _in_order(self) -> Iterator[list[Node]]:
        """Groups and single nodes, each behind what it needs, else in the graph's order."""
        units = {id(u[0]): u for u in (self._unit(n) for n in self.nodes)}
        unit_of = {n: key for key, unit in units.items() for n in unit}
        needs = {key: {unit_of[b] for n in unit for b in self.before[n]} - {key} for key, unit in units.items()}
        users: dict[int, list[int]] = {key: [] for key in units}
        for key, wanted in needs.items():
            for other in wanted:
                users[other].append(key)
        rank = {key: max(self.place[n] for n in unit) for key, unit in units.items()}
        missing = {key: len(wanted) for key, wanted in needs.items()}
        ready = [(rank[key], key) for key, count in missing.items() if count == 0]
        heapq.heapify(ready)
        while ready:
            _, key = heapq.heappop(ready)
            yield units[key]
            for user in users[key]:
                missing[user] -= 1
                if missing[user] == 0:
                    heapq.heappush(ready, (rank[user], user))

    def _run_product(
        self, graph: Graph, values: dict[Node, Node], product: Product, node: Node, rows: list[Any]
    ) -> Node:
        """The call of the product with rows behind it: their text, their operands, and the shape in which they see it
        where that is not its own. It takes matrices converted from 8 bits as they were.
        """
        instead = dict(values)
        for argument, (source, *turns) in narrow_arguments(node).items():
            value = values[source]
            for turn in turns:
                value = graph.call_function(turn.target, (value, *turn.args[1:]), turn.kwargs)  # type: ignore[arg-type]
            instead[argument] = value
        run = product.run_viewed if len(rows) > 2 else product.run
        assert run is not None
        return graph.call_function(run, (*rows, *map_arg(product.arguments(node), instead.__getitem__)))

    def rebuild(self, owner: GraphModule) -> GraphModule:
        """The graph with a call for each group."""
        graph, values = Graph(), dict[Node, Node]()
        for unit in self._in_order():
            group = self.group_of.get(unit[0])
            if group is None:
                node = unit[0]
                product = product_of(node) if narrow_arguments(node) else None
                if product is not None:
                    call = self._run_product(graph, values, product, node, ["y0 = x0", []])
                    values[node] = graph.call_function(operator.getitem, (call, 0))
                    values[node].meta = node.meta
                else:
                    values[node] = graph.node_copy(node, values.__getitem__)
                continue
            results, inputs = group.results(), group.inputs()
            product = product_of(group.product) if group.product else None
            if product is not None and group.product is not None:
                rows: list[Any] = [group.expression(), [values[n] for n in inputs[1:]]]
                if group.view is not None:
                    rows.append(map_arg(group.view.args[1], values.__getitem__))
                call = self._run_product(graph, values, product, group.product, rows)
            else:
                layouts = [(n.meta["val"].dtype, order_of(n.meta["val"])) for n in results]
                plain = all(order == sorted(order) for _, order in layouts if order is not None)
                call = graph.call_function(
                    run_rows, (group.expression(), [values[n] for n in inputs], None if plain else layouts)
                )
            for i, n in enumerate(results):
                values[n] = graph.call_function(operator.getitem, (call, i))
                values[n].meta = n.meta
            if group.view is not None and group.product is not None and group.view in results:
                matrix = (values[group.view], [-1, group.product.meta["val"].shape[-1]])
                values[group.product] = graph.call_function(torch.ops.aten.view.default, matrix)
                values[group.product].meta = group.product.meta
        for node in self.nodes:
            for argument in narrow_arguments(node):
                drop_unused(graph, values.get(argument))
        graph.lint()
        return GraphModule(owner, graph)


def drop_unused(graph: Graph, node: Node | None) -> None:
    """Takes a conversion that nobody uses out of the graph, with the turns behind it."""
    while node is not None and not node.users and node.op == "call_function":
        source = next(iter(node.all_input_nodes), None)
        graph.erase_node(node)
        node = source if node.target in TURNS else None


def is_ordered(node: Node) -> bool:
    """Whether the call writes, draws random numbers or begins a collective."""
    target = node.target
    if writes(node) or not isinstance(target, torch._ops.OpOverload):
        return writes(node)
    return torch.Tag.nondeterministic_seeded in target.tags or target.namespace == "_c10d_functional"


def fuse(module: GraphModule) -> GraphModule:
    """The module with its elementwise calls in groups. Nodes carry their values' fake tensors in meta["val"]."""
    changed = write_in_place(module.graph)
    fuser = Fuser(module.graph)
    if fuser.find_groups() or any(product_of(n) and narrow_arguments(n) for n in fuser.nodes):
        return fuser.rebuild(module)
    if changed:
        module.recompile()
    return module
