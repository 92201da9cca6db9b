"""What Inductor's ops are in OpenCL C. Where the table of ops has a row, the op is that row's function, so that
compiled graphs compute with the bodies of eager mode.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import sympy
import torch
from torch._inductor.codegen.common import CSEVariable, OpOverrides
from torch._inductor.utils import IndentedBuffer, generate_assert, get_bounds_index_expr, sympy_index_symbol
from torch._inductor.virtualized import OpsValue, V

from dlbackend.compile.inductor.expressions import (
    TYPE_NAMES,
    compute_dtype,
    convert,
    is_narrow_float,
    is_real,
    literal,
    rounded,
    storage_type,
    stored,
)
from dlbackend.compile.inductor.helpers import ERRORS
from dlbackend.compile.rows import table

Value = Any  # a CSEVariable, or a number of Python's

# Ops whose row has another name. The second is for integers, where they have their own.
_ROWS: dict[str, tuple[str, str]] = {
    "abs": ("abs", "abs"),
    "bitwise_left_shift": ("shift_left", "shift_left"),
    "bitwise_right_shift": ("shift_right", "shift_right"),
    "lshift": ("shift_left", "shift_left"),
    "rshift": ("shift_right", "shift_right"),
    "fmod": ("fmod", "fmod_int"),
    "remainder": ("remainder", "remainder_int"),
    "floordiv": ("div_floor", "div_floor_int"),
    "truncdiv": ("div_trunc", "div_trunc_int"),
    "gammainc": ("igamma", ""),
    "gammaincc": ("igammac", ""),
}
_SAME_NAME = """
acos acosh airy_ai asin asinh atan atan2 atanh bessel_j0 bessel_j1 bessel_y0 bessel_y1 ceil chebyshev_polynomial_t
chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w copysign cos cosh digamma erf erfc erfcx erfinv exp
exp2 expm1 floor hermite_polynomial_h hermite_polynomial_he hypot i0 i0e i1 i1e igamma igammac isinf isnan
laguerre_polynomial_l legendre_polynomial_p lgamma log log10 log1p log2 log_ndtr maximum minimum modified_bessel_i0
modified_bessel_i1 modified_bessel_k0 modified_bessel_k1 ndtri neg nextafter pow reciprocal relu round rsqrt
scaled_modified_bessel_k0 scaled_modified_bessel_k1 shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u
shifted_chebyshev_polynomial_v shifted_chebyshev_polynomial_w sigmoid sign signbit sin sinh spherical_bessel_j0 sqrt tan
tanh trunc zeta
"""
_OPERATORS = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "and_": "&",
    "or_": "|",
    "xor": "^",
    "bitwise_and": "&",
    "bitwise_or": "|",
    "bitwise_xor": "^",
    "logical_and": "&&",
    "logical_or": "||",
}
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "gt": ">", "le": "<=", "ge": ">="}


def dtype_of(value: Value) -> torch.dtype | None:
    """The dtype of a variable; None for a number."""
    if isinstance(value, OpsValue):
        value = value.value
    return value.dtype if isinstance(value, CSEVariable) else None


def common_dtype(*values: Value) -> torch.dtype:
    """What values of these are computed in together."""
    dtypes = [d for d in map(dtype_of, values) if d is not None]
    if not dtypes:
        return torch.float32 if any(isinstance(v, float) for v in values) else torch.int64
    found = functools.reduce(torch.promote_types, map(compute_dtype, dtypes))
    if not found.is_floating_point and any(isinstance(v, float) for v in values):
        return torch.float32
    if found == torch.bool and any(isinstance(v, int) and not isinstance(v, bool) for v in values):
        return torch.int64
    return found


def as_text(value: Value, dtype: torch.dtype) -> str:
    """A value as an operand of that dtype's compute type."""
    if isinstance(value, OpsValue):
        value = value.value
    if isinstance(value, CSEVariable):
        return convert(str(value), value.dtype or dtype, dtype)
    if isinstance(value, (bool, int, float)):
        return literal(value, dtype)
    return str(value)


def by_row(row: str, *values: Value, dtype: torch.dtype | None = None) -> str:
    """The call of a row's function, in the values' common dtype, or the default one where the row has no integers."""
    kind = dtype or common_dtype(*values)
    bodies = table()[row]["bodies"]
    cls = "bool" if kind == torch.bool else "float" if kind.is_floating_point else "int"
    if cls not in bodies:
        kind = torch.float32 if "int" not in bodies or cls == "int" else torch.int32
    V.kernel.rows.add((row, TYPE_NAMES[kind]))
    V.kernel.note(kind)
    return f"dlb_value_{row}_{TYPE_NAMES[kind]}({', '.join(as_text(v, kind) for v in values)})"


class OpenCLOverrides(OpOverrides):
    """Ops as text. Values are variables of their dtype's compute type (expressions.compute_type)."""

    @staticmethod
    def to_dtype(
        x: Value, dtype: torch.dtype, src_dtype: torch.dtype | None = None, use_compute_types: bool = True
    ) -> str:
        """A conversion. Floats narrower than float32 stay floats, without the digits that they would lose."""
        source = dtype_of(x) or src_dtype or dtype
        V.kernel.note(source, dtype)
        text = as_text(x, dtype)
        if is_narrow_float(dtype) and not (src_dtype == dtype and source == torch.float32):
            return rounded(text, dtype)
        return f"({text})" if isinstance(x, CSEVariable) else text

    @staticmethod
    def to_dtype_bitcast(x: Value, dtype: torch.dtype, src_dtype: torch.dtype) -> str:
        """The bits of a value as another dtype of the same size."""
        V.kernel.note(src_dtype, dtype)
        bits = stored(str(x), dtype_of(x) or src_dtype, src_dtype)
        source, target = storage_type(src_dtype), storage_type(dtype)
        text = bits if source == target else f"as_{target}(({source})({bits}))"
        if is_narrow_float(dtype):
            return f"dlb_from_{TYPE_NAMES[dtype]}({text})"
        return f"({text} != 0)" if dtype == torch.bool else f"({text})"

    @staticmethod
    def constant(value: float, dtype: torch.dtype) -> str:
        """A number."""
        V.kernel.note(dtype)
        return literal(value, dtype)

    @staticmethod
    def index_expr(expr: sympy.Expr, dtype: torch.dtype) -> Any:
        """The value of an index."""
        text = V.kernel.index_to_str(V.kernel.prepare_indexing(expr))
        source = torch.float32 if is_real(expr) else torch.int64
        variable = V.kernel.cse.generate(
            V.kernel.compute, f"({text})", bounds=get_bounds_index_expr(expr), dtype=source, shape=()
        )
        V.kernel.note(source, dtype)
        return f"({convert(str(variable), source, dtype)})"

    value_expr = index_expr

    @staticmethod
    def masked(mask: CSEVariable, body: Callable[[], Any], other: Any) -> CSEVariable:
        """The body where the mask is true, which is where its loads are within bounds."""
        kernel = V.kernel
        kernel.has_masks = True
        inner = IndentedBuffer()
        with kernel.swap_buffers(inner), inner.indent():
            result = body()
        result = result.value if isinstance(result, OpsValue) else result
        dtype = dtype_of(result) or torch.float32
        variable: CSEVariable = kernel.cse.newvar(dtype=dtype, shape=())
        kernel.compute.writeline(f"{kernel.declared(variable)};")
        kernel.compute.writeline(f"if ({mask}) {{")
        with kernel.compute.indent():
            kernel.compute.splice(inner)
            kernel.compute.writeline(f"{variable} = {as_text(result, dtype)};")
        kernel.compute.writeline(f"}} else {variable} = {as_text(other, dtype)};")
        return variable

    @staticmethod
    def where(condition: Value, a: Value, b: Value) -> str:
        """A choice."""
        kind = common_dtype(a, b)
        return f"({as_text(condition, torch.bool)} ? {as_text(a, kind)} : {as_text(b, kind)})"

    @staticmethod
    def logical_not(x: Value) -> str:
        """Whether the value is 0."""
        return f"({x} == 0)"

    @staticmethod
    def logical_xor(a: Value, b: Value) -> str:
        """Whether one of both is 0."""
        return f"(({a} != 0) != ({b} != 0))"

    @staticmethod
    def bitwise_not(x: Value) -> str:
        """All bits turned, of a bool its only one."""
        return f"(!{x})" if dtype_of(x) == torch.bool else f"(~{x})"

    @staticmethod
    def truediv(a: Value, b: Value) -> str:
        """A quotient of floats."""
        kind = common_dtype(a, b)
        kind = kind if kind.is_floating_point else torch.float32
        return f"({as_text(a, kind)} / {as_text(b, kind)})"

    int_truediv = div_rn = truediv  # type: ignore[assignment]

    @staticmethod
    def mul_rn(a: Value, b: Value) -> str:
        """A product that is rounded, as all are."""
        kind = common_dtype(a, b)
        return f"({as_text(a, kind)} * {as_text(b, kind)})"

    @staticmethod
    def mod(a: Value, b: Value) -> str:
        """The remainder with the sign of the dividend."""
        return by_row("fmod" if common_dtype(a, b).is_floating_point else "fmod_int", a, b)

    @staticmethod
    def square(x: Value) -> str:
        """A square."""
        return f"({x} * {x})"

    @staticmethod
    def fma(a: Value, b: Value, c: Value) -> str:
        """a * b + c, rounded once."""
        kind = common_dtype(a, b, c)
        return f"fma({as_text(a, kind)}, {as_text(b, kind)}, {as_text(c, kind)})"

    @staticmethod
    def identity(x: Value) -> Value:
        """The value itself."""
        return x

    @staticmethod
    def ldexp(x: Value, n: Value) -> str:
        """x * 2^n"""
        return by_row("ldexp", x, n)

    @staticmethod
    def frexp(x: CSEVariable) -> tuple[Any, Any]:
        """Mantissa and exponent."""
        kernel = V.kernel
        kind = common_dtype(x)
        kernel.rows.add(("frexp", TYPE_NAMES[kind]))
        mantissa = kernel.cse.newvar(dtype=kind, shape=())
        raw = kernel.cse.newvar(dtype=kind, shape=())
        kernel.compute.writeline(f"{kernel.declared(mantissa)};")
        kernel.compute.writeline(f"{kernel.declared(raw)};")
        kernel.compute.writeline(f"dlb_op_frexp_{TYPE_NAMES[kind]}({x}, &{mantissa}, &{raw});")
        exponent = kernel.cse.generate(kernel.compute, f"((int){raw})", dtype=torch.int32, shape=())
        return mantissa, exponent

    @staticmethod
    def polygamma(x: Value, y: Value) -> str:
        """The x-th derivative of digamma at y."""
        kind = common_dtype(x, y)
        kind = kind if kind.is_floating_point else torch.float32
        V.kernel.helpers.add("polygamma_" + TYPE_NAMES[kind])
        V.kernel.rows |= {(row, TYPE_NAMES[kind]) for row in ("digamma", "zeta", "lgamma", "exp")}
        return f"dlb_polygamma_{TYPE_NAMES[kind]}({as_text(x, kind)}, {as_text(y, kind)})"

    @staticmethod
    def load_seed(name: str, offset: Any) -> Any:
        """A seed of the graph's."""
        return V.kernel.load(name, sympy.sympify(offset))

    @staticmethod
    def rand(seed: Value, offset: Value) -> str:
        """Uniform in [0, 1): Philox 4x32-10 with the seed as key and the offset as counter, as Inductor on GPUs."""
        V.kernel.helpers.add("random")
        return f"dlb_rand({as_text(seed, torch.int64)}, {as_text(offset, torch.int64)})"

    @staticmethod
    def randn(seed: Value, offset: Value) -> str:
        """Normal, by Box and Muller from two numbers of one Philox block."""
        V.kernel.helpers |= {"random", "random_normal"}
        V.kernel.rows |= {("log", "f32"), ("cos", "f32")}
        return f"dlb_randn({as_text(seed, torch.int64)}, {as_text(offset, torch.int64)})"

    @staticmethod
    def randint64(seed: Value, offset: Value, low: Value, high: Value) -> str:
        """Whole numbers in [low, high)."""
        V.kernel.helpers.add("random")
        return f"dlb_randint64({', '.join(as_text(v, torch.int64) for v in (seed, offset, low, high))})"

    def indirect_indexing(self, var: Any, size: Any, check: bool = True, wrap_neg: bool = True) -> sympy.Symbol:
        """The symbol of an index that was read. One beyond its dimension is reported, and becomes 0."""
        inside = var.bounds.lower >= 0 and isinstance(size, sympy.Number) and var.bounds.upper < size
        if inside or not generate_assert(check):
            return sympy_index_symbol(str(var))
        V.kernel.helpers.add("checked")
        text = f"dlb_checked({as_text(var, torch.int64)}, {V.kernel.index_to_str(size)}, {ERRORS})"
        return sympy_index_symbol(str(V.kernel.cse.generate(V.kernel.compute, text, dtype=torch.int64, shape=())))

    def inline_asm_elementwise(self, *_: Any, **__: Any) -> Any:
        """Refused: OpenCL C has no portable assembly."""
        raise NotImplementedError("inline_asm_elementwise has no counterpart in OpenCL C")


def _add_methods() -> None:
    def of_row(names: tuple[str, str]) -> Callable[..., str]:
        def op(*values: Value) -> str:
            own = names[1] if not common_dtype(*values).is_floating_point and names[1] else names[0]
            return by_row(own, *values)

        return op

    def operator(symbol: str, boolean: str | None) -> Callable[..., str]:
        def op(a: Value, b: Value) -> str:
            kind = torch.bool if symbol in ("&&", "||") else common_dtype(a, b)
            sign = boolean if boolean and kind == torch.bool else symbol
            return f"({as_text(a, kind)} {sign} {as_text(b, kind)})"

        return op

    made: dict[str, Callable[..., str]] = {name: of_row(names) for name, names in _ROWS.items()}
    made |= {name: of_row((name, name)) for name in _SAME_NAME.split()}
    made |= {name: operator(symbol, {"+": "|", "*": "&", "-": "^"}.get(symbol)) for name, symbol in _OPERATORS.items()}
    made |= {name: operator(symbol, None) for name, symbol in _COMPARISONS.items()}
    for name, op in made.items():
        op.__name__ = name
        setattr(OpenCLOverrides, name, staticmethod(op))


_add_methods()
