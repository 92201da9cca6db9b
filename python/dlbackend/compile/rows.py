"""Which row of the table of ops computes an ATen call: its id, the type that it runs in, its arguments."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

from dlbackend import _C

aten = torch.ops.aten

TYPES = {
    torch.bool: "bool",
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
}


@dataclass(frozen=True)
class Call:
    """A row's id and its arguments: tensors (fx nodes) and numbers, inputs first and then scalars."""

    row: str
    arguments: tuple[Any, ...]


def _alpha(row: str) -> Callable[..., Call]:
    return lambda a, b, alpha=1: Call(row, (a, b, alpha))


def _by_name(none: str, tanh: str) -> Callable[..., Call]:
    def call(*tensors: Any, approximate: str = "none") -> Call:
        return Call(tanh if approximate == "tanh" else none, tensors)

    return call


def _clamp(ending: str) -> Callable[..., Call | None]:
    def call(x: Any, low: Any = None, high: Any = None) -> Call | None:
        if low is None:
            return None if high is None else Call("clamp_max" + ending, (x, high))
        return Call("clamp_min" + ending, (x, low)) if high is None else Call("clamp" + ending, (x, low, high))

    return call


def _div(a: Any, b: Any, *, rounding_mode: str | None) -> Call:
    return Call({None: "div", "trunc": "div_trunc", "floor": "div_floor"}[rounding_mode], (a, b))


_POWERS = {2: "pow2", 3: "pow3", 0.5: "pow_half", -1: "pow_minus_1", -2: "pow_minus_2", -0.5: "pow_minus_half"}


def _pow(x: Any, exponent: Any) -> Call | None:
    row = _POWERS.get(exponent) if isinstance(exponent, (int, float)) else None
    return Call(row, (x,)) if row else None


def _to_copy(x: Any, *, dtype: Any = None, **others: Any) -> Call | None:
    device_only = {"layout", "device", "pin_memory", "non_blocking", "memory_format"}
    if dtype is None or any(others.get(name) for name in device_only):
        return None
    return Call("copy", (x,))


def _scaled(row: str) -> Callable[..., Call]:
    return lambda a, b, c, value=1: Call(row, (a, b, c, value))


def _first(row: str, count: int) -> Callable[..., Call | None]:
    """The row of the call's first `count` arguments, where the others have their defaults."""

    def call(*arguments: Any) -> Call | None:
        return Call(row, arguments) if len(arguments) == count else None

    return call


# Calls whose arguments are not simply the row's inputs in their order.
_CALLS: dict[Any, Callable[..., Call | None]] = {
    aten.add.Tensor: _alpha("add_alpha"),
    aten.add.Scalar: _alpha("add_alpha"),
    aten.sub.Tensor: _alpha("sub_alpha"),
    aten.sub.Scalar: _alpha("sub_alpha"),
    aten.rsub.Scalar: lambda a, b, alpha=1: Call("sub_alpha", (b, a, alpha)),
    aten.rsub.Tensor: lambda a, b, alpha=1: Call("sub_alpha", (b, a, alpha)),
    aten.div.Tensor_mode: _div,
    aten.div.Scalar_mode: _div,
    aten.gelu.default: _by_name("gelu", "gelu_tanh"),
    aten.gelu_backward.default: _by_name("gelu_backward", "gelu_tanh_backward"),
    aten.clamp.default: _clamp(""),
    aten.clamp_min.default: _first("clamp_min", 2),
    aten.clamp_max.default: _first("clamp_max", 2),
    aten.clamp_min.Tensor: _first("clamp_min_tensor", 2),
    aten.clamp_max.Tensor: _first("clamp_max_tensor", 2),
    aten.clamp.Tensor: _clamp("_tensor"),
    aten.pow.Tensor_Scalar: _pow,
    aten.pow.Tensor_Tensor: _first("pow", 2),
    aten._to_copy.default: _to_copy,
    torch.ops.prims.convert_element_type.default: lambda x, dtype: Call("copy", (x,)),
    aten.addcmul.default: _scaled("addcmul"),
    aten.addcdiv.default: _scaled("addcdiv"),
    aten.masked_fill.Scalar: lambda x, mask, value: Call("where", (mask, value, x)),
    aten.threshold_backward.default: _first("threshold_backward", 3),
    aten.leaky_relu.default: lambda x, slope=0.01: Call("leaky_relu", (x, slope)),
    aten.leaky_relu_backward.default: lambda g, x, slope, is_result: Call("leaky_relu_backward", (g, x, slope)),
    aten.hardtanh.default: lambda x, low=-1, high=1: Call("hardtanh", (x, low, high)),
    aten.hardtanh_backward.default: _first("hardtanh_backward", 4),
    aten.native_dropout_backward.default: _first("dropout_backward", 3),
}

# Rows of calls that give them their tensors or numbers in order, and nothing else: add to these by overload name.
_PLAIN = (
    "abs acos acosh asin asinh atan atanh ceil cos cosh erf erfc exp exp2 expm1 floor frac log log10 log1p log2 neg "
    "reciprocal relu round rsqrt sigmoid sign silu sin sinh sqrt tan tanh trunc hardswish hardsigmoid mish logical_not "
    "bitwise_not isnan isinf mul div maximum minimum fmod remainder atan2 eq ne lt le gt ge logical_and logical_or "
    "logical_xor bitwise_and bitwise_or bitwise_xor where silu_backward sigmoid_backward tanh_backward "
    "hardswish_backward hardsigmoid_backward mish_backward"
)


@functools.cache
def table() -> dict[str, dict[str, Any]]:
    """The pointwise rows by id."""
    return {row["id"]: row for row in _C.op_table() if row["kind"] == "pointwise"}


@functools.cache
def calls() -> dict[Any, Callable[..., Call | None]]:
    """How each overload becomes a row."""
    made = dict(_CALLS)
    for row in _PLAIN.split():
        count = table()[row]["inputs"]
        for name in ("default", "Tensor", "Scalar", "self"):
            overload = getattr(getattr(aten, row), name, None)
            if overload is not None and len(overload._schema.arguments) == count:
                made.setdefault(overload, _first(row, count))
    return made


def is_number(value: object) -> bool:
    """Whether the text of an expression of floats holds the number as it is."""
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**53)


def _constant(argument: Any, value: torch.Tensor) -> Any:
    """Of an argument of a call that gives `value`: the number that a call of full() without dimensions has in each
    place, where the value's dtype holds it as it is; any other argument as it is.
    """
    if not isinstance(argument, torch.fx.Node) or argument.target is not aten.full.default or value.dim() == 0:
        return argument
    size, number = argument.args
    if len(size) != 0 or not is_number(number) or argument.meta["val"].dtype != value.dtype:  # type: ignore[arg-type]
        return argument
    return number if torch.tensor(number, dtype=value.dtype).item() == number else argument


def row_of(node: torch.fx.Node) -> tuple[Call, str] | None:
    """The row that gives the node's value, and the row's type; None where there is none."""
    call_of = calls().get(node.target)
    value = node.meta.get("val")
    if call_of is None or not isinstance(value, torch.Tensor) or value.device.type != "ocl":
        return None
    try:
        inspect.signature(call_of).bind(*node.args, **node.kwargs)
    except TypeError:
        return None
    call = call_of(*(_constant(a, value) for a in node.args), **node.kwargs)
    if call is None or not all(isinstance(a, torch.fx.Node) or is_number(a) for a in call.arguments):
        return None
    tensors = [a.meta.get("val") if isinstance(a, torch.fx.Node) else a for a in call.arguments]
    if not all(isinstance(t, torch.Tensor) or is_number(t) for t in tensors):
        return None  # a number that is known at run time
    row = table()[call.row]
    dtype = value.dtype
    if row["bool_result"]:
        kind = ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
        dtype = elementwise_dtypes(*tensors[: row["inputs"]], type_promotion_kind=kind)[0]
    types_fit = all(t.dtype in TYPES for t in tensors if isinstance(t, torch.Tensor)) and dtype in TYPES
    if not types_fit or (torch.bool if row["bool_result"] else dtype) != value.dtype:
        return None
    cls = "bool" if dtype == torch.bool else "float" if dtype.is_floating_point else "int"
    if cls != "float" and any(isinstance(a, float) and not a.is_integer() for a in call.arguments):
        return None  # PyTorch makes an integer of it
    return (call, TYPES[dtype]) if cls in row["bodies"] else None
