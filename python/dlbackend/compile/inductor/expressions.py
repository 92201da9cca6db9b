"""Types, numbers and index expressions of Inductor as OpenCL C."""

from __future__ import annotations

import math

import sympy
import torch
from sympy.printing.precedence import PRECEDENCE, precedence
from torch.utils._sympy.functions import FloatPow, FloatTrueDiv, IntTrueDiv, ToFloat
from torch.utils._sympy.printers import ExprPrinter

# Element types by the names that the table of op rows has for them (docs/op-table.md).
TYPE_NAMES = {
    torch.bool: "bool",
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.uint16: "u16",
    torch.int32: "i32",
    torch.uint32: "u32",
    torch.int64: "i64",
    torch.uint64: "u64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float8_e4m3fn: "e4m3",
    torch.float8_e5m2: "e5m2",
    torch.float8_e4m3fnuz: "e4m3z",
    torch.float8_e5m2fnuz: "e5m2z",
    torch.float8_e8m0fnu: "e8m0",
}
_STORAGE = {
    torch.bool: "uchar",
    torch.uint8: "uchar",
    torch.int8: "char",
    torch.int16: "short",
    torch.uint16: "ushort",
    torch.int32: "int",
    torch.uint32: "uint",
    torch.int64: "long",
    torch.uint64: "ulong",
    torch.float16: "ushort",
    torch.bfloat16: "ushort",
    torch.float32: "float",
    torch.float64: "double",
}
_MASK = (1 << 63) - 1


def is_narrow_float(dtype: torch.dtype) -> bool:
    """Whether values of the dtype are kept as bits in memory and computed with in float."""
    return dtype.is_floating_point and dtype.itemsize < 4


def storage_type(dtype: torch.dtype) -> str:
    """The type of an element in memory. NotImplementedError for dtypes that no kernel is generated for."""
    if is_narrow_float(dtype) and dtype.itemsize == 1:
        return "uchar"
    if dtype not in _STORAGE:
        raise NotImplementedError(f"no kernels of {dtype} are generated for ocl")
    return _STORAGE[dtype]


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """What values of the dtype are computed in: float32 for narrower floats, else the dtype itself."""
    return torch.float32 if is_narrow_float(dtype) else dtype


def compute_type(dtype: torch.dtype) -> str:
    """The type of a variable: int for bool, float for narrower floats."""
    return "int" if dtype == torch.bool else storage_type(compute_dtype(dtype))


def convert(value: str, source: torch.dtype, target: torch.dtype) -> str:
    """A variable of the one dtype's compute type in that of the other, as PyTorch converts on x86."""
    source, target = compute_dtype(source), compute_dtype(target)
    if source == target:
        return value
    if target == torch.bool:
        return f"({value} != 0)"
    kind = compute_type(target)
    if source.is_floating_point and not target.is_floating_point:
        wide = target.itemsize == 8 or target in (torch.uint8, torch.uint32)
        return f"(({kind})dlb_{TYPE_NAMES[source]}_to_{'i64' if wide else 'i32'}({value}))"
    return f"(({kind})({value}))"


def loaded(element: str, dtype: torch.dtype) -> str:
    """An element in memory as a value of the dtype's compute type."""
    if dtype == torch.bool:
        return f"({element} != 0)"
    return f"dlb_from_{TYPE_NAMES[dtype]}({element})" if is_narrow_float(dtype) else element


def stored(value: str, source: torch.dtype, dtype: torch.dtype) -> str:
    """A variable as an element in memory, rounded to the dtype."""
    value = convert(value, source, dtype)
    if dtype == torch.bool:
        return f"(uchar)({value})"
    return f"dlb_to_{TYPE_NAMES[dtype]}({value})" if is_narrow_float(dtype) else value


def rounded(value: str, dtype: torch.dtype) -> str:
    """A float without the digits that a narrower dtype does not have."""
    return loaded(stored(value, torch.float32, dtype), dtype)


def literal(value: float, dtype: torch.dtype) -> str:
    """A number as a constant of the dtype's compute type."""
    dtype = compute_dtype(dtype)
    if dtype == torch.bool:
        return "1" if value else "0"
    if not dtype.is_floating_point:
        number = int(value) if value == value else 0
        if dtype == torch.uint64:
            return f"{number & (2 * _MASK + 1)}UL"
        if number == -_MASK - 1:
            return f"(-{_MASK}L - 1)"
        text = f"{number}{'L' if dtype == torch.int64 else ''}"
        return f"({text})" if number < 0 else text
    exact = float(value)
    if math.isnan(exact):
        return "((double)NAN)" if dtype == torch.float64 else "NAN"
    if math.isinf(exact):
        return ("-" if exact < 0 else "") + ("((double)INFINITY)" if dtype == torch.float64 else "INFINITY")
    if dtype == torch.float32:
        exact = float(torch.tensor(exact, dtype=torch.float32))
        if math.isinf(exact):
            return "-INFINITY" if exact < 0 else "INFINITY"
        return f"{exact.hex()}f" if exact >= 0 and math.copysign(1, exact) > 0 else f"({exact.hex()}f)"
    return exact.hex() if math.copysign(1, exact) > 0 else f"({exact.hex()})"


def is_real(expr: sympy.Expr) -> bool:
    """Whether the value of an expression of sizes is a float. Of quotients and their sums sympy says neither."""
    if expr.is_integer is not None:
        return not expr.is_integer
    fractions = any(not number.is_Integer for number in expr.atoms(sympy.Number))
    return fractions or bool(expr.has(IntTrueDiv, FloatTrueDiv, FloatPow, ToFloat))


class OpenCLPrinter(ExprPrinter):
    """Index expressions as OpenCL C. Their variables are signed integers."""

    def _print_Integer(self, expr: sympy.Expr) -> str:
        value = int(expr)
        if value == -_MASK - 1:
            return f"(-{_MASK}L - 1)"
        return f"{value}L" if abs(value) > 2**31 - 1 else str(value)

    def _atom(self, expr: sympy.Expr) -> str:
        text: str = self.parenthesize(expr, PRECEDENCE["Atom"] - 0.5)
        return text

    def _print_FloorDiv(self, expr: sympy.Expr) -> str:
        x, div = expr.args
        if x.is_nonnegative and div.is_positive:
            return f"({self._atom(x)} / {self._atom(div)})"
        return f"dlb_floor_div({self.doprint(x)}, {self.doprint(div)})"

    def _print_CleanDiv(self, expr: sympy.Expr) -> str:
        return self._print_FloorDiv(expr)

    def _print_ModularIndexing(self, expr: sympy.Expr) -> str:
        x, div, mod = expr.args
        text = self._atom(x)
        if div != 1:
            text = f"({text} / {self._atom(div)})"
        if x.is_nonnegative and div.is_positive:
            return f"({text} % {self._atom(mod)})"
        if div != 1:
            text = f"dlb_floor_div({self.doprint(x)}, {self.doprint(div)})"
        return f"dlb_floor_mod({text}, {self.doprint(mod)})"

    def _print_PythonMod(self, expr: sympy.Expr) -> str:
        x, mod = expr.args
        if x.is_nonnegative and mod.is_positive:
            return f"({self._atom(x)} % {self._atom(mod)})"
        return f"dlb_floor_mod({self.doprint(x)}, {self.doprint(mod)})"

    _print_Mod = _print_PythonMod

    def _print_Min(self, expr: sympy.Expr) -> str:
        return self._folded(expr, "min")

    def _print_Max(self, expr: sympy.Expr) -> str:
        return self._folded(expr, "max")

    def _folded(self, expr: sympy.Expr, function: str) -> str:
        kind = "long" if expr.is_integer else "float"
        parts = [f"({kind})({self.doprint(a)})" for a in expr.args]
        text = parts[0]
        for part in parts[1:]:
            text = f"{function}({text}, {part})"
        return text

    def _print_Abs(self, expr: sympy.Expr) -> str:
        x = self.doprint(expr.args[0])
        return f"(({x}) < 0 ? -({x}) : ({x}))"

    def _print_Where(self, expr: sympy.Expr) -> str:
        c, p, q = map(self._atom, expr.args)
        return f"({c} ? {p} : {q})"

    def _print_Or(self, expr: sympy.Expr) -> str:
        text: str = self.stringify(expr.args, " || ", precedence(expr))
        return text

    def _print_And(self, expr: sympy.Expr) -> str:
        text: str = self.stringify(expr.args, " && ", precedence(expr))
        return text

    def _print_Not(self, expr: sympy.Expr) -> str:
        return f"!({self.doprint(expr.args[0])})"

    def _print_Piecewise(self, expr: sympy.Expr) -> str:
        text = "0"
        for value, condition in reversed(expr.args):
            text = (
                self.doprint(value)
                if condition is sympy.true
                else (f"({self.doprint(condition)} ? {self.doprint(value)} : {text})")
            )
        return f"({text})"

    def _print_BooleanTrue(self, expr: sympy.Expr) -> str:
        return "1"

    def _print_BooleanFalse(self, expr: sympy.Expr) -> str:
        return "0"

    def _print_Float(self, expr: sympy.Expr) -> str:
        return f"{float(expr)!r}f"

    def _print_Rational(self, expr: sympy.Expr) -> str:
        return f"({expr.p}.0f / {expr.q}.0f)"

    _print_Half = _print_Rational

    def _print_Infinity(self, expr: sympy.Expr) -> str:
        return "INFINITY"

    def _print_NegativeInfinity(self, expr: sympy.Expr) -> str:
        return "-INFINITY"

    def _print_NaN(self, expr: sympy.Expr) -> str:
        return "NAN"

    def _print_ToFloat(self, expr: sympy.Expr) -> str:
        return f"((float)({self.doprint(expr.args[0])}))"

    def _print_IntTrueDiv(self, expr: sympy.Expr) -> str:
        a, b = map(self.doprint, expr.args)
        return f"((float)({a}) / (float)({b}))"

    def _print_FloatTrueDiv(self, expr: sympy.Expr) -> str:
        return self._print_IntTrueDiv(expr)

    def _print_PowByNatural(self, expr: sympy.Expr) -> str:
        base, exponent = expr.args
        if exponent.is_Integer and 0 < int(exponent) <= 8:
            return f"({' * '.join([self._atom(base)] * int(exponent))})"
        return f"((long)pow((float)({self.doprint(base)}), (float)({self.doprint(exponent)})))"

    def _print_FloatPow(self, expr: sympy.Expr) -> str:
        a, b = map(self.doprint, expr.args)
        return f"pow((float)({a}), (float)({b}))"

    def _integer(self, expr: sympy.Expr, function: str) -> str:
        return f"((long){function}((float)({self.doprint(expr.args[0])})))"

    def _print_FloorToInt(self, expr: sympy.Expr) -> str:
        return self._integer(expr, "floor")

    _print_floor = _print_FloorToInt

    def _print_CeilToInt(self, expr: sympy.Expr) -> str:
        return self._integer(expr, "ceil")

    _print_ceiling = _print_CeilToInt

    def _print_TruncToInt(self, expr: sympy.Expr) -> str:
        return self._integer(expr, "trunc")

    def _print_RoundToInt(self, expr: sympy.Expr) -> str:
        return self._integer(expr, "rint")

    def _print_TruncToFloat(self, expr: sympy.Expr) -> str:
        return f"trunc((float)({self.doprint(expr.args[0])}))"

    def _print_OpaqueUnaryFn_sqrt(self, expr: sympy.Expr) -> str:
        return f"sqrt((float)({self.doprint(expr.args[0])}))"

    def _print_OpaqueUnaryFn_log2(self, expr: sympy.Expr) -> str:
        return f"log2((float)({self.doprint(expr.args[0])}))"

    def _print_OpaqueUnaryFn_exp(self, expr: sympy.Expr) -> str:
        return f"exp((float)({self.doprint(expr.args[0])}))"

    def _print_Identity(self, expr: sympy.Expr) -> str:
        text: str = self.doprint(expr.args[0])
        return text


to_opencl = OpenCLPrinter().doprint
