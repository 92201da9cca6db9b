"""Kernels from expressions that the caller writes: pointwise, broadcast and reduced, several outputs in one pass.

    mean, var = template.pointwise_reduce(
        "y0 = x0; y1 = x0 * x0;", x, dims=(0, 2, 3), reduce="sum", finish="y0 = y0 / n; y1 = y1 / n - y0 * y0;")

Expressions are OpenCL C statements that set y0, y1 .. from the inputs x0, x1 .. and the scalars s0, s1 .., all of one
type T: the dtype that the inputs promote to (float for half and bfloat16), or `compute`. A kernel is compiled once for
each text and combination of dtypes, never for a shape. See docs/template-api.md.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Reduction", "pointwise", "pointwise_reduce", "rows", "source"]

Number = bool | int | float | complex


@dataclass(frozen=True)
class Reduction:
    """A reduction of one's own: `init` is the neutral value, `combine` an expression of a and b, both of type T.

    Values combine in any order and grouping: Reduction("0", "hypot(a, b)").
    """

    init: str
    combine: str


_NAMED = {
    "sum": Reduction("0", "a + b"),
    "prod": Reduction("1", "a * b"),
    "max": Reduction("T_LOWEST", "b > a || b != b ? b : a"),
    "min": Reduction("T_HIGHEST", "b < a || b != b ? b : a"),
}
_COMPLEX = {"sum": _NAMED["sum"], "prod": Reduction("1, 0", "dlb_cmul(a, b)")}

How = str | Reduction | None
Dims = int | Sequence[int] | None


def pointwise(
    expression: str,
    *inputs: Tensor,
    scalars: Sequence[Number] = (),
    compute: torch.dtype | None = None,
    dtypes: Sequence[torch.dtype] = (),
    out: Sequence[Tensor] | Tensor | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """Every element of y0, y1 .. from the elements of the broadcast inputs at the same place.

    Args:
        expression: "y0 = x0 * s0 + x1;", or just the value of y0: "x0 * s0 + x1".
        inputs: ocl tensors that broadcast with each other, any dtypes and strides; CPU tensors of no dimension too.
        scalars: numbers s0, s1 ..; new values compile nothing.
        compute: the dtype to calculate in.
        dtypes: dtype of each output; the computing dtype for those missing.
        out: tensor, or one for each output, of the broadcast shape.

    Returns: a tensor, or a tuple of tensors where the expression sets more than y0.

    Raises:
        RuntimeError, ValueError: as pointwise_reduce.
    """
    text, count = _statements(expression)
    given = _as_list(out)
    _check_counts(count, dtypes, given)
    results = _run(text, inputs, scalars, [None] * count, None, False, "", compute, dtypes, given)
    return _one_or_all(results)


def pointwise_reduce(
    expression: str,
    *inputs: Tensor,
    scalars: Sequence[Number] = (),
    dims: Dims | Sequence[Dims] = None,
    reduce: How | Sequence[How] = "sum",
    finish: str = "",
    keepdim: bool = False,
    compute: torch.dtype | None = None,
    dtypes: Sequence[torch.dtype] = (),
    out: Sequence[Tensor] | Tensor | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """As `pointwise`, with outputs reduced over dimensions of the broadcast shape.

    Args:
        dims: what to reduce: dimensions, None for all, or a list with one of these for each output ([(0, 2), (1,)]).
            Outputs that share their dimensions are computed in one pass over the inputs.
        reduce: "sum", "prod", "max", "min" (NaN wins), a `Reduction`, or None for an output that is not reduced; one
            for all outputs or a list with one for each.
        finish: statements that run once for each result, over the reduced y0, y1 .. and n, the number of elements
            reduced into each. Needs all reduced outputs to share their dimensions.
        keepdim: reduced dimensions stay, with size 1.

    Raises:
        RuntimeError: the text does not compile; the message holds the build log and names a file with the source.
        ValueError: numbers of outputs, reductions or dimensions that do not fit together.
    """
    text, count = _statements(expression)
    how = _reductions_of_outputs(reduce, count)
    over = _dims_of_outputs(dims, count)
    given = _as_list(out)
    _check_counts(count, dtypes, given)
    results: dict[int, Tensor] = {}
    groups = list(_groups(how, over))
    if finish and len(groups) > 1:
        raise ValueError("finish needs all reduced outputs to share their dims")
    for group, axes in groups:
        chosen = [how[k] for k in group]
        part = text if len(group) == count else _renumber(text, group, count)
        targets = [given[k] for k in group] if given is not None else None
        types = [dtypes[k] for k in group if k < len(dtypes)]
        values = _run(part, inputs, scalars, chosen, axes, keepdim, finish, compute, types, targets)
        results.update(zip(group, values, strict=True))
    return _one_or_all([results[k] for k in range(count)])


def rows(
    expression: str,
    *inputs: Tensor,
    scalars: Sequence[Number] = (),
    dims: Dims = None,
    keepdim: bool = False,
    dtypes: Sequence[torch.dtype] = (),
    out: Sequence[Tensor] | Tensor | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """Computes an expression of the library's own rows in one launch, with the values that its ops give one by one.

        y = template.rows("v = add_alpha.bf16(x0, x1, 1); y0 = gelu_tanh.bf16(v)", x, bias)
        norm = template.rows("v = mul.f32(x0, x0); r = sum.f32(v); y0 = sqrt.f32(r)", x, dims=-1)

    Args:
        expression: statements "names = row.type(arguments)" or "name = value", separated by semicolons. Rows and their
            types are those of docs/op-table.md ("f32", "bf16", "i64", "bool"); a row promotes its inputs to its type
            and rounds its results to it. Arguments are the row's inputs and then its scalars: inputs x0, x1 ..,
            scalars s0, s1 .., names, and numbers. The results are what is called y0, y1 .. at the end. One row may be
            a reduction; what takes its results then takes nothing else but scalars and numbers.
        inputs: ocl tensors that broadcast with each other, any dtypes and strides; CPU tensors of no dimension too.
            With the results at most 16.
        dims: the dimensions of the broadcast shape that the reduction is over, all by default.
        keepdim: reduced dimensions stay, with size 1.
        scalars: numbers s0, s1 .., at most 6; new values compile nothing, while a number in the text is compiled in.
        dtypes: dtype of each result; that of its row for those missing.
        out: tensor, or one for each result, of the broadcast shape.

    Returns: a tensor, or a tuple of tensors where the expression has more than y0.

    Raises:
        ValueError: text that is no expression, a row that there is not or that has no body for its type, or other
            numbers of inputs, scalars or results.
        NotImplementedError: a row of float64 on a device that does not compute in it.
    """
    given = _as_list(out)
    axes = [dims] if isinstance(dims, int) else dims
    if given is not None:
        torch.ops.dlbackend.rows_out(expression, inputs, scalars, axes, keepdim, given)
        return _one_or_all(given)
    made: list[Tensor] = torch.ops.dlbackend.rows(expression, inputs, scalars, axes, keepdim, list(dtypes))
    return _one_or_all(made)


def source(
    expression: str,
    inputs: Sequence[torch.dtype],
    *,
    reduce: How | Sequence[How] = None,
    finish: str = "",
    scalars: int = 0,
    compute: torch.dtype | None = None,
    dtypes: Sequence[torch.dtype] = (),
    device: str = "gpu",
) -> str:
    """The OpenCL C source that `pointwise`, or with `reduce` `pointwise_reduce`, compiles. Needs no OpenCL device.

    Operands are taken to be contiguous: for other layouts the source differs in how elements are addressed.

    Args:
        inputs: the inputs' dtypes.
        reduce: as for `pointwise_reduce`, of outputs that share their dimensions.
        finish: as for `pointwise_reduce`.
        scalars: how many there are.
        compute: as for `pointwise_reduce`.
        dtypes: as for `pointwise_reduce`.
        device: the class of device that the kernel is for, "cpu" or "gpu".
    """
    if device not in ("cpu", "gpu"):
        raise ValueError(f"unknown class of devices {device!r}: use cpu or gpu")
    text, count = _statements(expression)
    is_complex = any(dtype.is_complex for dtype in (inputs if compute is None else [compute]))
    reductions = [_reduction(how, is_complex) for how in _reductions_of_outputs(reduce, count)]
    inits, combines = [r.init for r in reductions], [r.combine for r in reductions]
    made: str = torch.ops.dlbackend.template_source(
        text, list(inputs), scalars, inits, combines, finish, compute, list(dtypes), device == "cpu"
    )
    return made


def _statements(expression: str) -> tuple[str, int]:
    """The text as statements, and how many outputs it sets."""
    set_outputs = {int(k) for k in re.findall(r"\by(\d+)\s*[-+*/&|^]?=(?!=)", expression)}
    if not set_outputs:
        return f"y0 = ({expression.rstrip().rstrip(';')});", 1
    count = max(set_outputs) + 1
    if len(set_outputs) < count:
        missing = next(k for k in range(count) if k not in set_outputs)
        raise ValueError(f"the expression sets y{count - 1} but not y{missing}")
    return expression, count


def _reductions_of_outputs(reduce: How | Sequence[How], count: int) -> list[How]:
    how: list[How] = [reduce] * count if reduce is None or isinstance(reduce, (str, Reduction)) else list(reduce)
    if len(how) != count:
        raise ValueError(f"the expression sets {count} outputs, but reduce has {len(how)} entries")
    return how


def _dims_of_outputs(dims: Dims | Sequence[Dims], count: int) -> list[Dims]:
    if isinstance(dims, Sequence) and any(d is None or isinstance(d, Sequence) for d in dims):
        if len(dims) != count:
            raise ValueError(f"the expression sets {count} outputs, but dims has {len(dims)} entries")
        return list(dims)
    return [dims] * count  # type: ignore[list-item]


def _groups(how: list[How], dims: list[Dims]) -> Iterator[tuple[list[int], Dims]]:
    """Outputs that one pass computes; those that are not reduced go with the first."""
    groups: dict[tuple[int, ...] | None, list[int]] = {}
    for k, (reduction, axes) in enumerate(zip(how, dims, strict=True)):
        if reduction is not None:
            key = None if axes is None else (axes,) if isinstance(axes, int) else tuple(axes)
            groups.setdefault(key, []).append(k)
    mapped = [k for k, reduction in enumerate(how) if reduction is None]
    if not groups:
        yield mapped, None
    for number, (axes, group) in enumerate(groups.items()):
        yield sorted(group + mapped) if number == 0 else group, axes


def _renumber(text: str, group: list[int], count: int) -> str:
    """The statements with the outputs of `group` as y0, y1 .. and the others as local variables."""
    names = {k: f"y{group.index(k)}" if k in group else f"unused{k}" for k in range(count)}
    declared = "".join(f"T {names[k]}; " for k in range(count) if k not in group)
    return declared + re.sub(r"\by(\d+)\b", lambda found: names.get(int(found[1]), found[0]), text)


def _reduction(how: How, is_complex: bool) -> Reduction:
    if how is None:
        return Reduction("", "")
    if isinstance(how, Reduction):
        return how
    named = _COMPLEX if is_complex else _NAMED
    if how not in named:
        raise ValueError(f"unknown reduction {how!r}: use one of {', '.join(named)}, or a Reduction")
    return named[how]


def _run(
    text: str,
    inputs: Sequence[Tensor],
    scalars: Sequence[Number],
    how: Sequence[How],
    dims: Dims,
    keepdim: bool,
    finish: str,
    compute: torch.dtype | None,
    dtypes: Sequence[torch.dtype],
    out: list[Tensor] | None,
) -> list[Tensor]:
    if not inputs:
        raise ValueError("at least one input is needed")
    is_complex = any(t.is_complex() for t in inputs) if compute is None else compute.is_complex
    reductions = [_reduction(h, is_complex) for h in how]
    inits, combines = [r.init for r in reductions], [r.combine for r in reductions]
    axes = [] if dims is None else [dims] if isinstance(dims, int) else list(dims)
    if dims is not None and not axes:
        raise ValueError("dims is empty: nothing would be reduced; use None to reduce all dimensions")
    if out is None:
        made: list[Tensor] = torch.ops.dlbackend.template(
            text, inputs, scalars, inits, combines, axes, keepdim, finish, compute, list(dtypes)
        )
        return made
    torch.ops.dlbackend.template_out(text, inputs, scalars, inits, combines, axes, keepdim, finish, compute, out)
    return out


def _check_counts(count: int, dtypes: Sequence[torch.dtype], out: list[Tensor] | None) -> None:
    if len(dtypes) > count:
        raise ValueError(f"the expression sets {count} outputs, but dtypes has {len(dtypes)} entries")
    if out is not None and len(out) != count:
        raise ValueError(f"the expression sets {count} outputs, but out has {len(out)} entries")


def _as_list(out: Sequence[Tensor] | Tensor | None) -> list[Tensor] | None:
    return out if out is None else [out] if isinstance(out, Tensor) else list(out)


def _one_or_all(results: list[Tensor]) -> Tensor | tuple[Tensor, ...]:
    return results[0] if len(results) == 1 else tuple(results)
