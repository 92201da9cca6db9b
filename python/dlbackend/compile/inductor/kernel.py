"""Kernels of Inductor's scheduler as OpenCL C.

A kernel is a sequence of segments: loops over what is reduced, and code between them. How these are run is decided once
they are all there (Form); body.py writes them so.
"""

from __future__ import annotations

import re
from typing import Any

import sympy
import torch
from torch._inductor.codegen.common import CSE, CSEVariable, DeferredLine, PythonPrinter, TensorArg, WorkspaceArg
from torch._inductor.codegen.cpp_utils import cexpr
from torch._inductor.codegen.simd import IterationRangesEntry, SIMDKernel
from torch._inductor.utils import IndentedBuffer
from torch._inductor.virtualized import V
from torch.utils._ordered_set import OrderedSet

from dlbackend import _C
from dlbackend.compile.inductor.body import Body
from dlbackend.compile.inductor.expressions import (
    TYPE_NAMES,
    compute_dtype,
    compute_type,
    is_real,
    loaded,
    storage_type,
    stored,
    to_opencl,
)
from dlbackend.compile.inductor.helpers import ERRORS, helpers_source
from dlbackend.compile.inductor.overrides import OpenCLOverrides, as_text
from dlbackend.compile.inductor.reductions import reduction_of
from dlbackend.compile.inductor.segments import LANES, Accumulator, Form, Segment, is_known, is_reduced

ERRORS_PARAMETER = f"volatile global int* {ERRORS}"
NAME = "KERNEL_NAME"  # stands for the kernel's name until it has one
GROUP = 256  # work-items of a GPU's work-group
FILLING = 2048  # work-items of a compute unit that keep its memory busy
SHORT = 64  # elements of a reduction that one work-item of a GPU takes
HELD = 4096  # elements of a reduction whose values one loop may keep for the next


class TypedCSE(CSE[Any, Any]):
    """Variables declared with the type of their dtype."""

    def generate(self, buffer: Any, expr: Any, **kwargs: Any) -> Any:
        """The variable for an expression, which is declared where it is new."""
        dtype = kwargs.get("dtype")
        if dtype is not None and dtype.is_floating_point:
            kwargs.pop("bounds", None)  # numbers that are one once they are rounded have different ones
        self.prefix = ""
        if kwargs.get("assignment", True) and isinstance(expr, str):
            self.prefix = f"{compute_type(dtype) if dtype is not None else 'float'} "
        made = super().generate(buffer, expr, **kwargs)
        if isinstance(expr, str) and made.dtype is None:
            made.dtype = torch.float32
        return made


class OpenCLKernel(SIMDKernel[CSEVariable]):
    """A kernel of the scheduler's nodes."""

    overrides = OpenCLOverrides
    suffix = ";"
    newvar_prefix = ""
    sexpr = staticmethod(to_opencl)
    kexpr = staticmethod(to_opencl)
    pexpr = staticmethod(PythonPrinter().doprint)

    def __init__(self, tiling: dict[str, sympy.Expr], **kwargs: Any) -> None:
        super().__init__(tiling, **kwargs)
        self.cse = TypedCSE(self.newvar_prefix, self.suffix)
        properties = _C.device_properties(V.graph.get_current_device_or_throw().index or 0)
        self.on_cpu = properties.kernel_class == "cpu"
        self.has_fp64 = bool(properties.has_fp64)
        self.units = int(properties.compute_units)
        self.rows: set[tuple[str, str]] = set()
        self.helpers: set[str] = set()
        self.types: set[str] = set()
        self.has_masks = False
        self.has_atomics = False
        self.body_lines: list[str] = []  # once the text exists
        self.segments: list[Segment] = []
        self.accumulators: list[Accumulator] = []
        self.results: list[tuple[CSEVariable, str]] = []
        self.kept: OrderedSet[CSEVariable] = OrderedSet()  # variables that outlive their loop
        self.entries: dict[str, tuple[IterationRangesEntry, sympy.Expr]] = {}
        self.places: list[sympy.Expr] = []  # that are read or written in loops
        self.count_of_accumulators = 0
        self.after: list[Any] = []  # lines that stand behind the loop that is being made
        reduced = [t.numel for t in self.range_trees if is_reduced(t)]
        # Whether a loop may take values from those before it, by Body._carried(), in place of computing them anew.
        self.holds = len(reduced) == 1 and is_known(reduced[0]) and int(reduced[0]) <= HELD

    def dtype_to_str(self, dtype: torch.dtype) -> str:
        """The type of a variable."""
        return compute_type(dtype)

    def note(self, *dtypes: torch.dtype) -> None:
        """Keeps in mind that the kernel has values of these dtypes."""
        self.types |= {TYPE_NAMES[d] for d in dtypes if d in TYPE_NAMES}

    def declared(self, variable: CSEVariable) -> str:
        """The declaration of a variable."""
        return f"{compute_type(variable.dtype or torch.float32)} {variable}"

    # What the scheduler's nodes call.

    def codegen_iteration_ranges_entry(self, entry: IterationRangesEntry) -> None:
        """Notes an index variable; it is defined where a segment reads it."""
        self.entries[entry.name] = (entry, self.rename_indexing(entry.expr))

    def _place(self, index: sympy.Expr) -> str:
        index = self.prepare_indexing(index)
        if self.inside_reduction:
            self.places.append(index)
        return self.index_to_str(index)

    def load(self, name: str, index: sympy.Expr) -> CSEVariable:
        """An element of a buffer."""
        array, dtype = self.args.input(name), V.graph.get_dtype(name)
        self.note(dtype)
        if is_number_on_cpu(name):
            return self.cse.generate(
                self.loads, f"({compute_type(dtype)})({array})", dtype=compute_dtype(dtype), shape=()
            )
        place = self._place(index)
        element = loaded(f"{array}[{place}]", dtype)
        return self.cse.generate(self.loads, element, dtype=compute_dtype(dtype), shape=())

    def store(self, name: str, index: sympy.Expr, value: CSEVariable, mode: Any = None) -> None:
        """Writes an element of a buffer, or adds to it."""
        array, place, dtype = self.args.output(name), self._place(index), V.graph.get_dtype(name)
        self.note(dtype, value.dtype or dtype)
        if mode is None:
            line = f"{array}[{place}] = {stored(str(value), value.dtype or dtype, dtype)};"
        elif mode == "atomic_add":
            self.has_atomics = True
            self.helpers.add(f"atomic_{TYPE_NAMES[dtype]}")
            line = f"dlb_atomic_add_{TYPE_NAMES[dtype]}({array}, {place}, {as_text(value, dtype)});"
        else:
            raise NotImplementedError(f"a store with mode {mode} is not generated for ocl")
        self.stores.writeline(DeferredLine(name, line))

    def store_reduction(self, name: str, index: sympy.Expr, value: CSEVariable) -> None:
        """Writes a reduction's result, behind its loop."""
        prior, self.inside_reduction = self.inside_reduction, False
        stores, self.stores = self.stores, IndentedBuffer()
        try:
            self.store(name, index, value)
            self.after.extend(self.stores._lines)
        finally:
            self.inside_reduction, self.stores = prior, stores

    def reduction(self, dtype: torch.dtype, src_dtype: torch.dtype, reduction_type: Any, value: Any) -> Any:
        """Adds a reduction to the loop; its results are there behind it."""
        key = (src_dtype, reduction_type, value)
        if key in self.cse.reduction_cache:
            return self.cse.reduction_cache[key]
        self.note(dtype, src_dtype, compute_dtype(src_dtype), *([torch.float64] if self.has_fp64 else []))
        root = next(t for t in self.range_trees if is_reduced(t))
        index = root.lookup(sympy.S.One, root.numel)
        index.codegen()
        made = reduction_of(str(reduction_type), dtype, src_dtype, value, index.name)
        number = self.count_of_accumulators
        self.count_of_accumulators += 1
        accumulator = Accumulator(made, [f"acc{number}_{i}" for i in range(len(made.fields))])
        self.accumulators.append(accumulator)
        found = []
        for text, kind in made.results:
            variable = self.cse.newvar(dtype=compute_dtype(kind), shape=())
            self.results.append((variable, accumulator.text(text)))
            self.kept.add(variable)
            found.append(variable)
        result = tuple(found) if len(found) > 1 else found[0]
        self.cse.reduction_cache[key] = result  # type: ignore[assignment]
        return result

    def device_assert_async(self, cond: CSEVariable, msg: str) -> None:
        """Nothing: messages cannot be handed to the device."""

    def check_bounds(self, expr: sympy.Expr, size: sympy.Expr, lower: bool, upper: bool) -> None:
        """Nothing: OpenCLOverrides.indirect_indexing() has checked the index."""

    def codegen_body(self) -> None:
        """Ends a segment."""
        lines: list[Any] = [line for b in (self.loads, self.compute, self.stores) for line in b._lines]
        if self.inside_reduction:
            if lines or self.accumulators:
                self.segments.append(Segment(True, lines, self.accumulators, self.results))
            if not self.holds:
                self.cse.invalidate(self.kept)
            if self.after:
                self.segments.append(Segment(False, list(self.after)))
                self.after.clear()
            self.accumulators, self.results = [], []
        elif lines:
            self.segments.append(Segment(False, lines))
            self.kept |= OrderedSet(self.cse._cache.values())
        for buffer in (self.loads, self.compute, self.stores):
            buffer.clear()

    # What becomes of it.

    def finish(self) -> None:
        """Decides how the kernel runs, and makes the lines of its body."""
        self.codegen_body()
        for segment in self.segments:
            buffer = IndentedBuffer()
            buffer._lines = list(segment.lines)
            segment.lines = buffer.getvalue().splitlines()
        self.form = self._choose_form()
        self.body_lines = [
            f"global {given[1] or ''}ushort* restrict {given[2]} = (global {given[1] or ''}ushort*){given[2]}_half;"
            for p in self.parameters()
            if (given := re.match(r"global (const )?half\* restrict (\w+)_half$", p)) is not None
        ] + Body(self).text()

    def codegen_kernel(self, name: str = NAME) -> str:
        """The program's text."""
        self.finish()
        return self.program(name)

    def program(self, name: str = NAME) -> str:
        """The same of a kernel that is finished."""
        return program_of([self], name, self.parameters(), self.body_lines)

    def parameters(self) -> list[str]:
        """Declarations of the kernel's parameters."""
        names, _, arguments, _ = self.args.python_argdefs()
        found = [self._parameter(n.full_name(), a) for n, a in zip(names, arguments, strict=True)]
        found += [f"const {self.index_dtype} {t.prefix}numel" for t in self.range_trees if not is_known(t.numel)]
        return found + ([f"const {self.index_dtype} per_item"] if self.form in (Form.RUNS, Form.LANES) else [])

    def _parameter(self, name: str, argument: Any) -> str:
        if isinstance(argument, TensorArg) and is_number_on_cpu(argument.buffer):
            number = "double" if argument.dtype == torch.float64 and self.has_fp64 else "float"
            return f"const {number if argument.dtype.is_floating_point else 'long'} {name}"
        if isinstance(argument, (TensorArg, WorkspaceArg)):
            constant = "const " if name.startswith("in_ptr") else ""
            # Halves are read as bits, but a tensor of them is given for a pointer to halves only.
            kind, end = ("half", "_half") if argument.dtype == torch.float16 else (storage_type(argument.dtype), "")
            return f"global {constant}{kind}* restrict {name}{end}"
        return f"const {'float' if is_real(argument.expr) else self.index_dtype} {name}"

    def group_size(self) -> int:
        """Work-items of a work-group."""
        return {Form.GROUPS: self._group_of_reduction(), Form.ITEMS: GROUP}.get(self.form, 1)

    def turns(self) -> int:
        """How many results a GPU's work-item computes: several where there are enough of them for the whole device."""
        if self.features.is_reduction():
            return 1
        count = V.graph.sizevars.optimization_hint(self.result_count(), fallback=1)
        return next((n for n in (4, 2) if int(count) >= n * FILLING * self.units), 1)

    def in_whole_groups(self) -> bool:
        """Whether every work-item of a GPU's kernel has results to compute."""
        count = self.result_count()
        return is_known(count) and int(count) % (self.turns() * self.group_size()) == 0

    def _group_of_reduction(self) -> int:
        root = next((t for t in self.range_trees if is_reduced(t)), None)
        hint = V.graph.sizevars.optimization_hint(root.numel, fallback=GROUP * 4) if root else GROUP
        size = 64
        while size < GROUP and size * 4 < hint:
            size *= 2
        return size

    def _choose_form(self) -> Form:
        if not self.features.is_reduction():
            return Form.RUNS if self.on_cpu else Form.ITEMS
        outer = self._reduces_over_rows()
        root = next(t for t in self.range_trees if is_reduced(t))
        if self.on_cpu:
            hint = V.graph.sizevars.optimization_hint(self.result_count(), fallback=LANES)
            return Form.LANES if outer and hint >= 8 and not self.has_atomics else Form.RUNS
        length = V.graph.sizevars.optimization_hint(root.numel, fallback=GROUP)
        return Form.ITEMS if outer or length <= SHORT else Form.GROUPS

    def result_count(self) -> sympy.Expr:
        """How many results the kernel computes."""
        count = sympy.S.One
        for tree in self.range_trees:
            if not is_reduced(tree):
                count = count * tree.numel
        return count

    def _reduces_over_rows(self) -> bool:
        """Whether elements beside each other in memory mostly belong to different results."""
        score = 0
        for place in self.places:
            along_results, along_reduced = (self._distance(place, reduced) for reduced in (False, True))
            if along_results and along_reduced:  # else it is the same element that is read again
                entries = (e for s in place.free_symbols if (e := self.range_tree_nodes.get(s)) is not None)
                count = V.graph.sizevars.optimization_hint(sympy.Mul(*(e.length for e in entries)), fallback=1)
                score += int(count) if along_results < along_reduced else -int(count)
        return score > 0

    def _distance(self, place: sympy.Expr, reduced: bool) -> int:
        """How far a place lies from that of the next result, or of the next element of the reduction."""
        entries = {s: e for s in place.free_symbols if (e := self.range_tree_nodes.get(s)) is not None}

        def at(step: int) -> sympy.Expr:
            """The place of the element so many steps behind the middle one, which is no window's or padding's edge."""
            return place.subs(
                {
                    s: e.expr.subs(e.root.index_sym(), e.root.numel // 2 + (step if is_reduced(e) == reduced else 0))
                    for s, e in entries.items()
                }
            )

        distance = at(1) - at(0)
        if distance.is_Integer:
            return abs(int(distance))
        return abs(int(V.graph.sizevars.optimization_hint(distance, fallback=1))) if distance.free_symbols else 1

    def call_kernel(self, name: str, node: Any = None, deallocate_ws: bool = True) -> None:
        """Writes the launch into the graph's code."""
        wrapper = V.graph.wrapper_code
        for size in self.args.sizevars:
            wrapper.ensure_size_computed(size)
        for workspace in self.args.workspace_args:
            wrapper.generate_workspace_allocation(workspace)
        size, group, per_item = self.sizes(wrapper)
        write_launch(name, self.arguments() + ([_number(per_item)] if per_item is not None else []), size, group)
        if deallocate_ws:
            self.deallocate_workspaces()  # type: ignore[no-untyped-call]

    def arguments(self) -> list[str]:
        """The arguments of a launch in a graph's code, but for how many results a CPU's work-item computes."""
        _, values, _, _ = self.args.python_argdefs()
        sizes = [t.numel for t in self.range_trees if not is_known(t.numel)]
        if V.graph.cpp_wrapper:
            return [_cpp_argument(v) for v in [*values, *sizes]]
        texts = [f"{v}.item()" if is_number_on_cpu(v) else v if isinstance(v, str) else self.pexpr(v) for v in values]
        return texts + [_size_text(V.graph.wrapper_code, size) for size in sizes]

    def sizes(self, wrapper: Any) -> tuple[str, int, str | None]:
        """The number of work-items, how many form a group, and for CPUs how many results each computes."""
        count = self.result_count()
        group = self.group_size()
        text = _size_text(wrapper, V.graph.sizevars.simplify(count))
        if self.form is Form.GROUPS:
            return f"{group} * ({text})" if not is_known(count) else str(group * int(count)), group, None
        if self.form is Form.ITEMS:
            whole = group * self.turns()
            size = str(-(-int(count) // whole) * group) if is_known(count) else f"{_parts(text, whole)} * {group}"
            return size, group, None
        work = V.graph.sizevars.optimization_hint(
            sympy.Mul(*(t.numel for t in self.range_trees if is_reduced(t))), fallback=256
        )
        least = max(1, 8192 // max(1, int(work)))
        if self.form is Form.LANES:
            least = -(-least // LANES) * LANES
        if is_known(count):
            per = max(least, -(-int(count) // (4 * self.units)))
            if self.form is Form.LANES:
                per = -(-per // LANES) * LANES
            return str(-(-int(count) // per)), 1, str(per)
        step = LANES if self.form is Form.LANES else 1
        scope = "dlb::aoti::" if V.graph.cpp_wrapper else ""
        per_text = f"{scope}run_length({text}, {least}, {4 * self.units}, {step})"
        return _parts(text, per_text), 1, per_text


def program_of(
    kernels: list[OpenCLKernel], name: str, parameters: list[str], body: list[str], functions: str = ""
) -> str:
    """The text of a program of one kernel, made of kernels of one form, with functions in front."""
    helpers, rows, types = (set[Any]().union(*(getattr(k, n) for k in kernels)) for n in ("helpers", "rows", "types"))
    head: str = _C.op_functions(sorted(rows), sorted(types), kernels[0].on_cpu)
    group = kernels[0].group_size()
    if "checked" in helpers:
        parameters = [*parameters, ERRORS_PARAMETER]
    attribute = f"__attribute__((reqd_work_group_size({group}, 1, 1)))\n" if group > 1 else ""
    made = IndentedBuffer()
    made.splice(f"{functions}{attribute}kernel void {name}({', '.join(parameters)}) {{")
    with made.indent():
        made.splice("\n".join(body))
    made.writeline("}")
    return head + helpers_source(helpers) + made.getvalue()


def write_launch(name: str, arguments: list[str], size: str, group: int) -> None:
    """Writes the launch of a kernel into the graph's code."""
    if V.graph.cpp_wrapper:
        launch = [", ".join(arguments), size, str(group)]
    else:
        launch = [f"({', '.join(arguments)},)", size, str(group), "None"]
    device = V.graph.get_current_device_or_throw()
    V.graph.wrapper_code.generate_kernel_call(name, launch, device=device, triton=False, arg_types=[None] * len(launch))


def _number(text: str) -> str:
    """An integer as an argument of a launch."""
    return f"dlb::aoti::integer({text})" if V.graph.cpp_wrapper else text


def _size_text(wrapper: Any, size: sympy.Expr) -> str:
    """A size in a graph's code."""
    text: str = wrapper.codegen_sizevar(size) if V.graph.cpp_wrapper else wrapper.codegen_python_sizevar(size)
    return text


def _parts(count: str, size: Any) -> str:
    """In a graph's code, into how many parts of a size something goes."""
    return f"dlb::aoti::parts({count}, {size})" if V.graph.cpp_wrapper else f"-(-({count}) // {size})"


def _cpp_argument(value: Any) -> str:
    """An argument of a launch in C++."""
    if isinstance(value, str):
        return f"dlb::aoti::tensor({value})"
    kind = "real" if isinstance(value, sympy.Expr) and is_real(value) else "integer"
    return f"dlb::aoti::{kind}({cexpr(value)})"


def is_number_on_cpu(name: Any) -> bool:
    """Whether a buffer is a tensor of the CPU that kernels of the device take as a number."""
    buffer = V.graph.try_get_buffer(name) if isinstance(name, str) else None
    device = buffer.get_device() if buffer is not None else None
    return buffer is not None and device is not None and device.type == "cpu" and not buffer.get_size()
