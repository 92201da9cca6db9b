"""Fuses a graph's elementwise calls: groups of them become expressions of rows, each computed in one launch, or behind
a product or convolution in the same launch with that.
"""

from __future__ import annotations

import heapq
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from dlbackend.compile.inplace import write_in_place
from dlbackend.compile.products import (
    TURNS,
    Product,
    as_matrix,
    known,
    narrow_arguments,
    product_of,
    viewed,
    writes,
)
from dlbackend.compile.rows import Call, row_of

aten = torch.ops.aten
_VIEWS = (
    *(aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.alias.default, aten.expand.default),
    *(aten.t.default, aten.permute.default, aten.transpose.int, aten.squeeze.dim, aten.unsqueeze.default),
    *(aten.slice.Tensor, aten.select.int, aten.as_strided.default),
)
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
    """Calls of one shape that become an expression, in the graph's order; with a `product` they run behind that."""

    def __init__(self, shape: tuple[Any, ...], product: Node | None = None, view: Node | None = None) -> None:
        self.shape = shape
        self.members: dict[Node, tuple[Call, str]] = {}
        self.product = product
        self.view = view  # of the product, where that is what the rows take

    def nodes(self) -> list[Node]:
        """All that the group computes."""
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
        """Values that others use; behind a product the first has its dtype. The product stands for its view."""
        inside = set(self.nodes())
        found = [n for n in self.members if not inside.issuperset(n.users)]
        if self.product is not None:
            if not inside.issuperset((*self.product.users, *(self.view.users if self.view else ()))):
                found.append(self.product)
            dtype = self.product.meta["val"].dtype
            found.sort(key=lambda n: (n.meta["val"].dtype != dtype, n is self.product))
        return found

    def fits(self) -> bool:
        """Whether the kernel of an expression has as many operands."""
        return len(self.inputs()) + len(self.results()) <= MOST_OPERANDS

    def runs_behind(self, how: Product) -> bool:
        """Whether the members can run behind the group's product."""
        head, results = self.head(), self.results()
        assert head is not None
        order = order_of(head.meta["val"])
        return (
            order is not None
            and (self.view is None or order == sorted(order))
            and len(results) <= how.MOST_RESULTS
            and len(self.inputs()) <= 1 + how.MOST_EXTRAS
            and results[0].meta["val"].dtype == head.meta["val"].dtype
            and all(order_of(n.meta["val"]) == order for n in results if n is not self.product)
            and all(how.takes(head.meta["val"], n.meta["val"]) for n in self.inputs()[1:])
        )

    def expression(self, inputs: Sequence[Node] | None = None, results: Sequence[Node] | None = None) -> str:
        """The group as text (docs/template-api.md), with these inputs and results or those that it has in its graph."""
        inputs = self.inputs() if inputs is None else inputs
        results = self.results() if results is None else results
        names = {n: f"x{i}" for i, n in enumerate(inputs)} | {n: f"v{i}" for i, n in enumerate(self.members)}
        if self.product is not None:
            names[self.product] = "x0"
        text = []
        for n, (call, kind) in self.members.items():
            arguments = ", ".join(names[a] if isinstance(a, Node) else number(a) for a in call.arguments)
            text.append(f"{names[n]} = {call.row}.{kind}({arguments})")
        text += [f"y{i} = {names[n]}" for i, n in enumerate(results)]
        return "; ".join(text)


def number(value: float) -> str:
    return repr(float(value)) if isinstance(value, float) else str(int(value))


class Fuser:
    """Finds the groups of a graph and builds the graph anew with them. `is_free` says which calls cost nothing more
    where they take a value that a product's rows could give: what they are computed by computes the rows as well.
    """

    def __init__(self, graph: Graph, is_free: Callable[[Node], bool] = lambda node: False) -> None:
        self.nodes = list(graph.nodes)
        self.place = {n: i for i, n in enumerate(self.nodes)}
        self.before = self._dependencies()
        self.is_free = is_free
        self.rows = {n: row for n in self.nodes if (row := self._row_of(n)) is not None}
        self.group_of: dict[Node, Group] = {}

    @staticmethod
    def _row_of(node: Node) -> tuple[Call, str] | None:
        row = row_of(node) if node.op == "call_function" else None
        return None if row is None or order_of(node.meta["val"]) is None else row

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

    def _candidates(self, node: Node, groups: set[int]) -> Iterator[Group]:
        """Groups with these ids of which the node takes values, the latest first."""
        found: dict[int, Group] = {}
        for need in self.before[node]:
            group = self.group_of.get(need)
            if group is not None and id(group) in groups:
                found[id(group)] = group
        yield from sorted(found.values(), key=lambda g: -max(self.place[n] for n in g.nodes()))

    def _join(self, node: Node, groups: set[int]) -> bool:
        """Makes the node a member of one of the groups with these ids, if it can be."""
        shape = shape_key(node.meta["val"])
        for group in self._candidates(node, groups):
            if group.shape != shape or self._reaches(group, self.before[node]):
                continue
            group.members[node] = self.rows[node]
            if group.product is not None or group.fits():
                self.group_of[node] = group
                return True
            del group.members[node]
        return False

    def find_groups(self) -> list[Group]:
        """Groups of elementwise calls, behind products where they can be."""
        groups, open_ones = self.find_products(), set[int]()
        for node in self.rows:
            if node in self.group_of or self._join(node, open_ones):
                continue
            group = Group(shape_key(node.meta["val"]))
            group.members[node] = self.rows[node]
            self.group_of[node] = group
            groups.append(group)
            open_ones.add(id(group))
        return [g for g in groups if len(g.nodes()) > 1 or g.product is not None or self._forget(g)]

    def _forget(self, group: Group) -> bool:
        for node in group.nodes():
            del self.group_of[node]
        return False

    def find_products(self) -> list[Group]:
        """Groups of products and what runs behind them, and of products with matrices of 8 bits."""
        groups = []
        for node in self.nodes:
            if product_of(node) is None:
                continue
            view = next((user for user in node.users if viewed(user) is node), None)
            group = Group(shape_key((view or node).meta["val"]), node, view)
            for n in group.nodes():
                self.group_of[n] = group
            groups.append(group)
        all_of_them = {id(g) for g in groups}
        for node in self.rows:
            self._join(node, all_of_them)
        # Later groups first: whether they take a value decides whether an earlier one gives it.
        return [g for g in reversed(groups) if self._settle(g)]

    def _settle(self, group: Group) -> bool:
        """Leaves the group those of its members that something takes from it, and what these need, from the first on as
        far as they run behind the product. Returns whether the product is computed by the group at all.
        """
        assert group.product is not None
        how = product_of(group.product)
        assert how is not None
        known_to_be = dict(group.members)
        wanted = [n for n in known_to_be if any(n2 not in known_to_be and self._takes(n2) for n2 in n.users)]
        for node in known_to_be:
            del self.group_of[node]
        while wanted:
            group.members = self._needed(group, wanted, known_to_be)
            if group.runs_behind(how):
                self.group_of |= dict.fromkeys(group.members, group)
                return True
            wanted.pop()
        group.members = {}
        if group.view is not None:
            del self.group_of[group.view]
            group.view = None
        if not narrow_arguments(group.product):
            del self.group_of[group.product]
            return False
        return True

    def _takes(self, user: Node) -> bool:
        """Whether the call, or what takes a view that it is, wants the value in memory."""
        if user in self.group_of:
            return True
        if user.target in _VIEWS:
            return any(self._takes(n) for n in user.users)
        return user.op == "output" or not self.is_free(user)

    def _needed(self, group: Group, wanted: Sequence[Node], members: dict[Node, Any]) -> dict[Node, tuple[Call, str]]:
        """The wanted members, what of the members these need, and calls that are made for them alone."""
        found = set(wanted)
        pending = list(wanted)
        while pending:
            for need in pending.pop().all_input_nodes:
                alone = need in self.rows and need not in self.group_of and found.issuperset(need.users)
                if need in found or not (need in members or (alone and shape_key(need.meta["val"]) == group.shape)):
                    continue
                found.add(need)
                pending.append(need)
        return {n: self.rows[n] for n in sorted(found, key=self.place.__getitem__)}

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

    def _narrowed(self, graph: Graph, values: dict[Node, Node], product: Node) -> dict[Node, Node]:
        """The values, with matrices of the product that are converted from 8 bits as they were."""
        instead = dict(values)
        for argument, (source, *turns) in narrow_arguments(product).items():
            value = values[source]
            for turn in turns:
                value = call(graph, turn.target, (value, *turn.args[1:]), turn.kwargs)
            instead[argument] = value
        return instead

    def _run_product(self, graph: Graph, values: dict[Node, Node], group: Group, how: Product) -> None:
        """The call of a product with the rows behind it, in which a linear layer's is a matrix."""
        product, view = group.product, group.view
        assert product is not None
        shape = map_arg(view.args[1], values.__getitem__) if view is not None else None
        extras = []
        for n in group.inputs()[1:]:
            extras.append(values[n])
            if view is not None and n.meta["val"].dim() > 1:
                matrix = as_matrix(n.meta["val"], view.meta["val"].shape)
                sizes = [-1, matrix.shape[-1]] if matrix.dim() > 1 else [-1]
                extras[-1] = call(graph, aten.reshape.default, (values[n], sizes))
        results = group.results()
        arguments = map_arg(
            how.arguments(product, group.expression(), []), self._narrowed(graph, values, product).__getitem__
        )
        made = graph.call_function(how.op, (*arguments[:-1], extras))
        width = product.meta["val"].shape[-1]
        flat = [n.meta["val"].reshape(-1, width) if view is not None else n.meta["val"] for n in results]
        made.meta["val"] = flat
        for i, n in enumerate(results):
            value = graph.call_function(operator.getitem, (made, i))
            value.meta = {**n.meta, "val": flat[i]}
            if n is product and view is not None:
                values[view] = call(graph, view.target, (value, shape))
            elif view is not None:
                value = graph.call_function(aten.view.default, (value, shape))
                value.meta = n.meta
            values[n] = value

    def _run_rows(self, graph: Graph, values: dict[Node, Node], group: Group) -> None:
        """The call of an expression."""
        results = group.results()
        layouts = [(n.meta["val"].dtype, order_of(n.meta["val"])) for n in results]
        plain = all(order == sorted(order) for _, order in layouts if order is not None)
        inputs = [values[n] for n in group.inputs()]
        made = graph.call_function(run_rows, (group.expression(), inputs, None if plain else layouts))
        for i, n in enumerate(results):
            values[n] = graph.call_function(operator.getitem, (made, i))
            values[n].meta = n.meta

    def rebuild(self) -> Graph:
        """The graph with a call for each group."""
        graph, values = Graph(), dict[Node, Node]()
        for unit in self._in_order():
            group = self.group_of.get(unit[0])
            how = product_of(group.product) if group is not None and group.product is not None else None
            if group is None:
                values[unit[0]] = graph.node_copy(unit[0], values.__getitem__)
            elif how is not None:
                self._run_product(graph, values, group, how)
            else:
                self._run_rows(graph, values, group)
        for node in self.nodes:
            for argument in narrow_arguments(node):
                drop_unused(graph, values.get(argument))
        graph.lint()
        return graph


def call(graph: Graph, target: Any, arguments: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Node:
    """A new call of an op in the graph, with its value for tracing."""
    kwargs = kwargs or {}
    node = graph.call_function(target, arguments, kwargs)
    values = map_arg((arguments, kwargs), lambda n: n.meta["val"])
    node.meta["val"] = target(*values[0], **values[1])
    return node


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
    if fuser.find_groups():
        return GraphModule(module, fuser.rebuild())
    if changed:
        module.recompile()
    return module


def fuse_behind_products(module: GraphModule, is_free: Callable[[Node], bool]) -> None:
    """Lets elementwise calls of a graph run behind its products and convolutions, and leaves the others as they are.
    Nodes carry their values' fake tensors in meta["val"]. `is_free`: as Fuser has it.
    """
    fuser = Fuser(module.graph, is_free)
    if fuser.find_products():
        module.graph = fuser.rebuild()
