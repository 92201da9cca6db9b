"""Products and convolutions of a graph that rows can run behind, in the same launch where a solver does that."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, cast

import torch
from torch.fx import Node

from dlbackend import _C

aten = torch.ops.aten


def as_matrix(operand: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """An operand that broadcasts to a linear layer's result as one that does to its matrix."""
    leading = operand.shape[: max(operand.dim() - 1, 0)]
    if all(size == 1 for size in leading):
        return operand.reshape(operand.shape[-1:]) if operand.dim() else operand
    return operand.expand((*shape[:-1], operand.shape[-1])).reshape(-1, operand.shape[-1])


class Product:
    """How a call of the graph, with `count` positional arguments, runs with rows behind it.

    `op(*arguments(node, rows, extras))` computes it. `channels`: an operand of the rows may have one element for each
    channel, the result's second dimension, else for each of its last.
    """

    MOST_EXTRAS: ClassVar[int] = 4
    MOST_RESULTS: ClassVar[int] = 2

    def __init__(
        self,
        op: torch._ops.OpOverload[Any, Any],
        arguments: Callable[[Node, str, list[Any]], tuple[Any, ...]],
        count: int,
        channels: bool = False,
    ) -> None:
        self.op = op
        self.arguments = arguments
        self.count = count
        self.channels = channels

    def takes(self, result: torch.Tensor, extra: torch.Tensor) -> bool:
        """Whether an operand lies where kernels find it without a copy: like the result, one element for each column or
        channel, or one for all.
        """
        sizes = [1] * (result.dim() - extra.dim()) + [known(s) for s in extra.shape]
        full, strides = [known(s) for s in result.shape], [known(s) for s in result.stride()]
        along = [d for d, size in enumerate(sizes) if size != 1]
        if not along:
            return True
        if along == [1 if self.channels else result.dim() - 1]:
            return (
                known(extra.stride(along[0] - (result.dim() - extra.dim()))) == 1 and sizes[along[0]] == full[along[0]]
            )
        if sizes != full or extra.dim() != result.dim():
            return False
        return all(size == 1 or known(extra.stride(d)) == strides[d] for d, size in enumerate(sizes))


def known(size: Any) -> int:
    """A size as it is in the example, without a guard for it where it is symbolic."""
    return size if isinstance(size, int) else int(size.node.hint)


def _of_addmm(node: Node, rows: str, extras: list[Any]) -> tuple[Any, ...]:
    add, a, b = node.args
    return (rows, a, b, add, node.kwargs.get("beta", 1), node.kwargs.get("alpha", 1), extras)


_OPS = torch.ops.dlbackend
_MM = Product(_OPS.product_rows.default, lambda node, rows, extras: (rows, *node.args, None, 0, 1, extras), 2)
_ADDMM = Product(_OPS.product_rows.default, _of_addmm, 3)
_CONVOLUTION = Product(
    _OPS.convolution_rows.default,
    lambda node, rows, extras: (rows, *node.args[:6], node.args[8], extras),
    9,
    channels=True,
)

_PRODUCTS: dict[Any, Product] = {
    aten.mm.default: _MM,
    aten.bmm.default: _MM,
    aten.addmm.default: _ADDMM,
    aten.baddbmm.default: _ADDMM,
    aten.convolution.default: _CONVOLUTION,
}
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
NARROW = (torch.int8, torch.uint8)
_VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
_CONVERSIONS = (aten._to_copy.default, torch.ops.prims.convert_element_type.default)
TURNS = (aten.t.default, aten.permute.default, aten.transpose.int)
_PLACES: dict[Any, tuple[int, int]] = {
    aten.mm.default: (0, 1),
    aten.bmm.default: (0, 1),
    aten.addmm.default: (1, 2),
    aten.baddbmm.default: (1, 2),
}


def viewed(node: Node) -> Node | None:
    """The matrix product that the node is a view of, with its rows in several dimensions; None for other nodes."""
    product = node.args[0] if node.target in _VIEWS else None
    if not isinstance(product, Node):
        return None
    matrix, value = product.meta.get("val"), node.meta.get("val")
    if not isinstance(matrix, torch.Tensor) or matrix.dim() != 2 or product_of(product) is None:
        return None
    assert isinstance(value, torch.Tensor)
    width = matrix.shape[-1]
    return product if value.dim() > 1 and isinstance(width, int) and value.shape[-1] == width else None


def writes(node: Node) -> bool:
    """Whether the call writes to one of its arguments, or may do so."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return isinstance(target, torch._ops.OperatorBase)  # of graphs; what else is called computes with sizes
    return target._schema.is_mutable


def narrow_source(product: Node, argument: Any) -> list[Node] | None:
    """Of a matrix of a product that is converted from int8 or uint8, which solvers do while they load it: the tensor of
    8 bits, and the calls that turn it. None for other arguments.
    """
    turns: list[Node] = []
    while isinstance(argument, Node) and argument.target in TURNS:
        turns.insert(0, argument)
        argument = argument.args[0]
    if not isinstance(argument, Node) or argument.target not in _CONVERSIONS:
        return None
    source = argument.args[0]
    value = source.meta.get("val") if isinstance(source, Node) else None
    if not isinstance(value, torch.Tensor) or value.dtype not in NARROW or value.device.type != "ocl":
        return None
    if argument.meta["val"].dtype != product.meta["val"].dtype or argument.kwargs.get("memory_format") is not None:
        return None
    assert isinstance(source, Node)
    if any(writes(user) for user in source.users):
        return None  # the product would read what is written after the conversion
    return [source, *turns]


def narrow_arguments(product: Node) -> dict[Node, list[Node]]:
    """The product's matrices for which there is a narrow_source(); one of both stays as it is."""
    found: dict[Node, list[Node]] = {}
    for place in _PLACES.get(product.target, ()):
        argument = product.args[place]
        if isinstance(argument, Node) and not found and (source := narrow_source(product, argument)):
            found[argument] = source
    return found


@functools.cache
def _on_cpu_class(device: int) -> bool:
    return _C.device_properties(device).kernel_class == "cpu"


def _gains(node: Node, product: Product) -> bool:
    """Whether one launch is faster than two. On CPUs the second finds its operands in the caches, and mostly is as fast
    (docs/compile.md has figures): only depthwise convolutions, which do little for each result, gain, and products with
    matrices of 8 bits, which are not converted in memory.
    """
    value, arguments = node.meta["val"], cast("tuple[Any, ...]", node.args)
    if not _on_cpu_class(value.device.index or 0) or narrow_arguments(node):
        return True
    return product is _CONVOLUTION and arguments[8] > 1 and known(arguments[1].meta["val"].shape[1]) == 1


def product_of(node: Node) -> Product | None:
    """How the node's call runs with rows behind it; None where it cannot, or gains nothing."""
    product = _PRODUCTS.get(node.target) if node.op == "call_function" else None
    if product is not None and len(node.args) != product.count:
        return None
    value = node.meta.get("val")
    if (
        product is None
        or not isinstance(value, torch.Tensor)
        or value.device.type != "ocl"
        or value.dtype not in _DTYPES
    ):
        return None
    transposed = product is _CONVOLUTION and node.args[6]
    return None if transposed or not _gains(node, product) else product


def join_biases(graph: torch.fx.Graph) -> None:
    """Makes addmm() of a matrix product and a bias that is added to it, which rounds once."""
    for node in list(graph.nodes):
        if node.target is not aten.add.Tensor or node.kwargs:
            continue
        for bias, product in (node.args, node.args[::-1]):
            if _is_bias(bias, product, node):
                node.target, node.args = aten.addmm.default, (bias, *product.args)
                graph.erase_node(product)
                break


def _is_bias(bias: Any, product: Any, result: Node) -> bool:
    if not isinstance(bias, Node) or not isinstance(product, Node) or product.target is not aten.mm.default:
        return False
    added, value, sum_ = bias.meta["val"], product.meta["val"], result.meta["val"]
    return (
        len(product.users) == 1
        and value.device.type == "ocl"
        and added.dim() == 1
        and added.shape[0] == value.shape[1]
        and added.dtype == value.dtype == sum_.dtype
        and sum_.dim() == 2
        and value.dtype in _DTYPES
    )
