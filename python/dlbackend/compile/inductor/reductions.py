"""How each of Inductor's reductions accumulates, combines and ends, as OpenCL C."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch._inductor.virtualized import V

from dlbackend.compile.inductor.expressions import compute_dtype, compute_type, convert, literal
from dlbackend.compile.inductor.overrides import as_text, by_row


@dataclass
class Field:
    """A part of an accumulator: its type, and what it holds before the first element."""

    type: str
    start: str


@dataclass
class Reduction:
    """A reduction as statements on an accumulator's fields, `$a0` .. and those of a second one, `$b0` ..

    `step` takes an element into the fields, `combine` the second accumulator; `results` are what comes out, each an
    expression and its dtype.
    """

    fields: list[Field]
    step: str
    combine: str
    results: list[tuple[str, torch.dtype]]


def _limit(dtype: torch.dtype, greatest: bool) -> str:
    if dtype == torch.bool:
        return "1" if greatest else "0"
    if dtype.is_floating_point:
        return literal(float("inf") if greatest else float("-inf"), dtype)
    info = torch.iinfo(dtype)
    return literal(info.max if greatest else info.min, dtype)


def _added(field: str, value: str, operator: str, kind: str) -> str:
    """`field op= value`. Compilers may regroup sums and products of floats, and so compute several at once."""
    if kind not in ("float", "double"):
        return f"{field} = {field} {operator} {value};"
    V.kernel.helpers.add(f"regroup_{kind}")
    return f"{field} = dlb_{'sum' if operator == '+' else 'product'}_{kind}({field}, {value});"


def _total(kind: str, value: str, result: torch.dtype, wide: torch.dtype, product: bool = False) -> Reduction:
    operator = "*" if product else "+"
    return Reduction(
        [Field(kind, "1" if product else "0")],
        _added("$a0", value, operator, kind),
        f"$a0 = $a0 {operator} $b0;",
        [(convert("$a0", wide, result), result)],
    )


def _accumulates_in(dtype: torch.dtype) -> torch.dtype:
    """float64 for sums of floats where that costs little: on CPUs that have it."""
    wide = dtype == torch.float32 and V.kernel.on_cpu and V.kernel.has_fp64
    return torch.float64 if wide else dtype


def _extreme(value: str, dtype: torch.dtype, greatest: bool) -> Reduction:
    """The least or greatest value, NaN before all. On CPUs floats are compared as integers, which compilers make
    vectors of.
    """
    if V.kernel.on_cpu and dtype == torch.float32:
        V.kernel.helpers.add("ordered")
        nan = "0x7fffffff" if greatest else "(-0x7fffffff - 1)"
        start = "(int)0x807fffff" if greatest else "0x7f800000"
        function = "max" if greatest else "min"
        return Reduction(
            [Field("int", start)],
            f"$a0 = {function}($a0, dlb_ordered({value}, {nan}));",
            f"$a0 = {function}($a0, $b0);",
            [("dlb_from_ordered($a0)", dtype)],
        )
    sign = ">" if greatest else "<"

    def choose(v: str) -> str:
        return f"$a0 = {v} {sign} $a0{f' || {v} != {v}' if dtype.is_floating_point else ''} ? {v} : $a0;"

    return Reduction(
        [Field(compute_type(dtype), _limit(dtype, not greatest))], choose(value), choose("$b0"), [("$a0", dtype)]
    )


def _place(value: str, dtype: torch.dtype, index: str, greatest: bool, what: str) -> Reduction:
    """The first place of the extreme value; `what`: "place", "value" or "both"."""
    sign = ">" if greatest else "<"

    def step(v: str, i: str) -> str:
        takes = f"{v} {sign} $a0 || ({v} == $a0 && {i} < $a1)"
        if dtype.is_floating_point:
            takes += f" || ({v} != {v} && ($a0 == $a0 || {i} < $a1))"
        return f"if ({takes}) {{ $a0 = {v}; $a1 = {i}; }}"

    found = [("$a0", dtype), ("$a1", torch.int64)]
    return Reduction(
        [Field(compute_type(dtype), _limit(dtype, not greatest)), Field("long", literal(2**63 - 1, torch.int64))],
        step(value, index),
        step("$b0", "$b1"),
        {"place": found[1:], "value": found[:1], "both": found}[what],
    )


def _welford(values: tuple[str, ...], dtype: torch.dtype) -> Reduction:
    """Mean, sum of squared deviations and weight, of elements or of what other welford reductions made (Chan, Golub and
    LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979). On CPUs, sums in
    float64 of float32 values.
    """
    wide = _accumulates_in(dtype)
    kind = compute_type(wide)
    mean, m2, weight = values if len(values) > 1 else (values[0], "0", "1")
    if wide != dtype:
        v, w = f"(double)({mean})", f"(double)({weight})"
        squares = f"{v} * {v}" if len(values) == 1 else f"(double)({m2}) + {v} * {v} * {w}"
        parts = (v if len(values) == 1 else f"{v} * {w}", squares, w)
        step = " ".join(_added(f"$a{i}", part, "+", kind) for i, part in enumerate(parts))
        combine = " ".join(f"$a{i} = $a{i} + $b{i};" for i in range(3))
        at = "($a2 == 0 ? 0 : $a0 / $a2)"
        results = [at, f"(fmax($a1 - $a0 * {at}, 0.0))", "$a2"]
        return Reduction([Field(kind, "0")] * 3, step, combine, [(convert(r, wide, dtype), dtype) for r in results])
    combine = (
        f"{{ const {kind} total = $a2 + $b2, share = total == 0 ? 0 : $b2 / total, delta = $b0 - $a0; "
        "$a1 = $a1 + $b1 + delta * delta * $a2 * share; $a0 = $a0 + delta * share; $a2 = total; }"
    )
    step = combine.replace("$b0", mean).replace("$b1", m2).replace("$b2", weight)
    return Reduction([Field(kind, "0")] * 3, step, combine, [(f"$a{i}", dtype) for i in range(3)])


def _softmax(value: str, dtype: torch.dtype) -> Reduction:
    """The greatest value, and the sum of exp(x - greatest), in one pass (Milakov and Gimelshein, "Online normalizer
    calculation for softmax", 2018).
    """
    kind = compute_type(dtype)
    low = literal(float("-inf"), dtype)
    exp = by_row("exp", "$x", dtype=dtype)

    def merge(m: str, s: str) -> str:
        scaled, own = exp.replace("$x", "$a0 - m"), exp.replace("$x", f"{m} - m")
        return (
            f"{{ const {kind} m = {m} > $a0 || {m} != {m} ? {m} : $a0; "
            f"if (m != {low}) {{ $a1 = $a1 * {scaled} + {s} * {own}; $a0 = m; }} }}"
        )

    return Reduction(
        [Field(kind, low), Field(kind, "0")], merge(value, "1"), merge("$b0", "$b1"), [("$a0", dtype), ("$a1", dtype)]
    )


def reduction_of(kind: str, dtype: torch.dtype, source: torch.dtype, value: Any, index: str) -> Reduction:
    """The reduction of Inductor's that is called `kind`. NotImplementedError where there is none.

    Args:
        dtype: of the result.
        source: of the elements.
        value: the variable, or a tuple of them.
        index: of the element within the reduction, as text.
    """
    dtype, source = compute_dtype(dtype), compute_dtype(source)
    if kind in ("welford_reduce", "welford_combine"):
        values = value if isinstance(value, tuple) else (value,)
        return _welford(tuple(as_text(v, dtype) for v in values), dtype)
    if kind in ("sum", "prod"):
        wide = _accumulates_in(dtype)
        return _total(compute_type(wide), as_text(value, wide), dtype, wide, kind == "prod")
    text = as_text(value, source)
    if kind == "any":
        return Reduction([Field("int", "0")], f"$a0 |= ({text} != 0);", "$a0 |= $b0;", [("$a0", torch.bool)])
    if kind == "xor_sum":
        name = compute_type(source)
        return Reduction([Field(name, "0")], f"$a0 ^= {text};", "$a0 ^= $b0;", [("$a0", source)])
    if kind in ("max", "min"):
        return _extreme(text, source, kind == "max")
    if kind.startswith(("argmax", "argmin")):
        what = "both" if kind.endswith("with_value") else "value" if kind.endswith("value") else "place"
        return _place(text, source, index, kind.startswith("argmax"), what)
    if kind == "online_softmax_reduce":
        return _softmax(text, source)
    raise NotImplementedError(f"the reduction {kind} is not generated for ocl")
