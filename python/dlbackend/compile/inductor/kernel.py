"""Kernels of Inductor's scheduler as OpenCL C.

A kernel is a sequence of segments: loops over what is reduced, and code between them. How these are run is decided once
they are all there (Form): on CPUs one work-item computes a run of results, in loops that LLVM makes vectors of; on GPUs
a result is a work-item's, or a work-group's where it is reduced over many elements that lie together.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch._inductor.codegen.common import CSE, CSEVariable, DeferredLine, PythonPrinter, TensorArg, WorkspaceArg
from torch._inductor.codegen.simd import IterationRangesEntry, IterationRangesRoot, SIMDKernel
from torch._inductor.utils import IndentedBuffer
from torch._inductor.virtualized import V
from torch.utils._ordered_set import OrderedSet
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from dlbackend import _C
from dlbackend.compile.inductor.expressions import (
    TYPE_NAMES,
    compute_dtype,
    compute_type,
    loaded,
    storage_type,
    stored,
    to_opencl,
)
from dlbackend.compile.inductor.helpers import helpers_source
from dlbackend.compile.inductor.overrides import OpenCLOverrides, as_text
from dlbackend.compile.inductor.reductions import Reduction, reduction_of

NAME = "KERNEL_NAME"  # stands for the kernel's name until it has one
LANES = 256  # results that a CPU computes side by side
GROUP = 256  # work-items of a GPU's work-group
SHORT = 64  # elements of a reduction that one work-item of a GPU takes
HELD = 4096  # elements of a reduction whose values one loop may keep for the next


class Form(enum.Enum):
    """How a kernel's segments are run."""

    RUNS = "a work-item computes a run of results one by one"
    LANES = "a work-item computes results side by side, in loops over them within the loop over what is reduced"
    ITEMS = "a work-item computes one result"
    GROUPS = "a work-group computes one result"


@dataclass
class Accumulator:
    """A reduction in a loop, and the names of its fields."""

    reduction: Reduction
    names: list[str]

    def text(self, statement: str, others: list[str] | None = None) -> str:
        """The statement with the names in it; `others` for a second accumulator."""
        names = {f"$a{i}": n for i, n in enumerate(self.names)} | {f"$b{i}": n for i, n in enumerate(others or [])}
        return re.sub(r"\$[ab]\d", lambda found: names[found[0]], statement)


@dataclass
class Segment:
    """Code that runs for each result, or in a loop for each element that is reduced into it."""

    is_loop: bool
    lines: list[str]
    accumulators: list[Accumulator] = field(default_factory=list)
    results: list[tuple[CSEVariable, str]] = field(default_factory=list)  # of the accumulators, behind the loop
    takes: list[str] = field(default_factory=list)  # variables of earlier loops that it reads from arrays
    gives: list[str] = field(default_factory=list)  # its own that later ones do

    def text(self) -> str:
        """All of it, to look for names."""
        steps = [s for a in self.accumulators for s in (a.text(a.reduction.step),)]
        return "\n".join(self.lines + steps)


class TypedCSE(CSE[Any, Any]):
    """Variables declared with the type of their dtype."""

    def generate(self, buffer: Any, expr: Any, **kwargs: Any) -> Any:
        """The variable for an expression, which is declared where it is new."""
        dtype = kwargs.get("dtype")
        self.prefix = ""
        if kwargs.get("assignment", True) and isinstance(expr, str):
            self.prefix = f"{compute_type(dtype) if dtype is not None else 'float'} "
        made = super().generate(buffer, expr, **kwargs)
        if isinstance(expr, str) and made.dtype is None:
            made.dtype = torch.float32
        return made


_DEFINITION = re.compile(r"(?:const )?(\w+) (tmp\w*)(?: (=)|(;))")


def _reads(text: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*", text))


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
        self.segments: list[Segment] = []
        self.accumulators: list[Accumulator] = []
        self.results: list[tuple[CSEVariable, str]] = []
        self.kept: OrderedSet[CSEVariable] = OrderedSet()  # variables that outlive their loop
        self.entries: dict[str, tuple[IterationRangesEntry, sympy.Expr]] = {}
        self.places: list[sympy.Expr] = []  # that are read or written in loops
        self.count_of_accumulators = 0
        reduced = [t.numel for t in self.range_trees if is_reduced(t)]
        # Whether a loop may take values from those before it, by Body._carried(), in place of computing them anew.
        self.holds = len(reduced) == 1 and _is_known(reduced[0]) and int(reduced[0]) <= HELD

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

    @property
    def after(self) -> list[Any]:
        """Lines that stand behind the loop that is being made."""
        if not hasattr(self, "_after"):
            self._after: list[Any] = []
        return self._after

    def reduction(self, dtype: torch.dtype, src_dtype: torch.dtype, reduction_type: Any, value: Any) -> Any:
        """Adds a reduction to the loop; its results are there behind it."""
        key = (src_dtype, reduction_type, value)
        if key in self.cse.reduction_cache:
            return self.cse.reduction_cache[key]
        self.note(dtype, src_dtype, compute_dtype(src_dtype), *([torch.float64] if self.has_fp64 else []))
        root = next(t for t in self.range_trees if is_reduced(t))
        index = root.full_range()
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
        """Nothing: the device reports indices beyond a tensor where eager mode checks them."""

    def check_bounds(self, expr: sympy.Expr, size: sympy.Expr, lower: bool, upper: bool) -> None:
        """Nothing, as device_assert_async()."""

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

    def codegen_kernel(self, name: str = NAME) -> str:
        """The program's text."""
        self.codegen_body()
        for segment in self.segments:
            buffer = IndentedBuffer()
            buffer._lines = list(segment.lines)
            segment.lines = buffer.getvalue().splitlines()
        self.form = self._choose_form()
        body = Body(self).text()
        names, _, arguments, _ = self.args.python_argdefs()
        parameters = [
            self._parameter(str(n), a) for n, a in zip([n.full_name() for n in names], arguments, strict=True)
        ]
        kind = self.index_dtype
        parameters += [f"const {kind} {t.prefix}numel" for t in self.range_trees if not _is_known(t.numel)]
        if self.form in (Form.RUNS, Form.LANES):
            parameters.append(f"const {kind} per_item")
        group = self.group_size()
        attribute = f"__attribute__((reqd_work_group_size({group}, 1, 1)))\n" if group > 1 else ""
        head = _C.op_functions(sorted(self.rows), sorted(self.types), self.on_cpu)
        made = IndentedBuffer()
        made.splice(f"{attribute}kernel void {name}({', '.join(parameters)}) {{")
        with made.indent():
            for parameter in parameters:
                if (given := re.match(r"global (const )?half\* restrict (\w+)_half$", parameter)) is not None:
                    kind = f"global {given[1] or ''}ushort*"
                    made.writeline(f"{kind} restrict {given[2]} = ({kind}){given[2]}_half;")
            made.splice("\n".join(body))
        made.writeline("}")
        text: str = head + helpers_source(self.helpers) + made.getvalue()
        return text

    def _parameter(self, name: str, argument: Any) -> str:
        if isinstance(argument, TensorArg) and is_number_on_cpu(argument.buffer):
            number = "double" if argument.dtype == torch.float64 and self.has_fp64 else "float"
            return f"const {number if argument.dtype.is_floating_point else 'long'} {name}"
        if isinstance(argument, (TensorArg, WorkspaceArg)):
            constant = "const " if name.startswith("in_ptr") else ""
            # Halves are read as bits, but a tensor of them is given for a pointer to halves only.
            kind, end = ("half", "_half") if argument.dtype == torch.float16 else (storage_type(argument.dtype), "")
            return f"global {constant}{kind}* restrict {name}{end}"
        return f"const {'float' if argument.expr.is_integer is False else self.index_dtype} {name}"

    def group_size(self) -> int:
        """Work-items of a work-group."""
        return {Form.GROUPS: self._group_of_reduction(), Form.ITEMS: GROUP}.get(self.form, 1)

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
            for symbol in place.free_symbols:
                entry = self.range_tree_nodes.get(symbol)
                if entry is None or place.coeff(symbol) != 1:
                    continue
                score += -1 if is_reduced(entry) else 1
        return score > 0

    def call_kernel(self, name: str, node: Any = None, deallocate_ws: bool = True) -> None:
        """Writes the launch into the graph's code."""
        wrapper = V.graph.wrapper_code
        for size in self.args.sizevars:
            wrapper.ensure_size_computed(size)
        for workspace in self.args.workspace_args:
            wrapper.generate_workspace_allocation(workspace)
        _, values, _, _ = self.args.python_argdefs()
        arguments = [
            f"{v}.item()" if is_number_on_cpu(v) else v if isinstance(v, str) else self.pexpr(v) for v in values
        ]
        arguments += [wrapper.codegen_python_sizevar(t.numel) for t in self.range_trees if not _is_known(t.numel)]
        size, group, per_item = self._sizes(wrapper)
        arguments += [per_item] if per_item is not None else []
        launch = [f"({', '.join(arguments)},)", size, str(group), "None"]
        device = V.graph.get_current_device_or_throw()
        wrapper.generate_kernel_call(name, launch, device=device, triton=False, arg_types=[None] * 4)
        if deallocate_ws:
            self.deallocate_workspaces()  # type: ignore[no-untyped-call]

    def _sizes(self, wrapper: Any) -> tuple[str, int, str | None]:
        """The number of work-items, how many form a group, and for CPUs how many results each computes."""
        count = self.result_count()
        group = self.group_size()
        text = wrapper.codegen_python_sizevar(V.graph.sizevars.simplify(count))
        if self.form is Form.GROUPS:
            return f"{group} * ({text})" if not _is_known(count) else str(group * int(count)), group, None
        if self.form is Form.ITEMS:
            return (
                f"-(-({text}) // {group}) * {group}" if not _is_known(count) else str(-(-int(count) // group) * group),
                group,
                None,
            )
        work = V.graph.sizevars.optimization_hint(
            sympy.Mul(*(t.numel for t in self.range_trees if is_reduced(t))), fallback=256
        )
        least = max(1, 8192 // max(1, int(work)))
        if self.form is Form.LANES:
            least = -(-least // LANES) * LANES
        if _is_known(count):
            per = max(least, -(-int(count) // (4 * self.units)))
            if self.form is Form.LANES:
                per = -(-per // LANES) * LANES
            return str(-(-int(count) // per)), 1, str(per)
        step = LANES if self.form is Form.LANES else 1
        per_text = f"run_length({text}, {least}, {4 * self.units}, {step})"
        return f"-(-({text}) // {per_text})", 1, per_text


def is_number_on_cpu(name: Any) -> bool:
    """Whether a buffer is a tensor of the CPU that kernels of the device take as a number."""
    buffer = V.graph.try_get_buffer(name) if isinstance(name, str) else None
    device = buffer.get_device() if buffer is not None else None
    return buffer is not None and device is not None and device.type == "cpu" and not buffer.get_size()


def is_reduced(tree: Any) -> bool:
    """Whether an index, or a root of indices, is of what is reduced."""
    return bool(tree.is_reduction)


def _is_known(size: Any) -> bool:
    return isinstance(size, (int, sympy.Integer))


class Body:
    """The text of a kernel's body, by its form."""

    def __init__(self, kernel: OpenCLKernel) -> None:
        self.kernel = kernel
        self.kind = kernel.index_dtype
        self.results = next((t for t in kernel.range_trees if not is_reduced(t)), None)
        reduces = kernel.features.is_reduction()
        self.reduced = next((t for t in kernel.range_trees if is_reduced(t)), None) if reduces else None
        self.held: dict[str, str] = {}  # values of loops that later ones take from arrays, and their types
        if kernel.holds:
            self._carry()
        used = _reads("\n".join(s.text() for s in kernel.segments))
        self.entries = {n: e for n, e in kernel.entries.items() if n in used}

    # Values that outlive their loop.

    def _blocks(self, segment: Segment) -> dict[str, list[str]]:
        """The lines that define each variable of a segment; those of a masked one are several."""
        blocks: dict[str, list[str]] = {}
        lines = iter(segment.lines)
        for line in lines:
            found = _DEFINITION.match(line.strip())
            if found is None:
                continue
            block = [line]
            if found[4]:  # a masked one, up to the line that ends it
                for more in lines:
                    block.append(more)
                    if more.strip().startswith(f"}} else {found[2]} ="):
                        break
            blocks[found[2]] = block
        return blocks

    def _carry(self) -> None:
        """Gives loops what they read of earlier ones: cheap values are computed anew, the others come from arrays."""
        defined: dict[str, list[str]] = {}  # by loops, in their order
        outside, overwritten = set[str](), set[str]()
        arrays = self.kernel.form in (Form.RUNS, Form.GROUPS)
        for segment in self.kernel.segments:
            own = self._blocks(segment)
            pending = [n for n in sorted(_reads(segment.text())) if n in defined and n not in own]
            takes, again = set[str](), set[str]()
            while pending:
                name = pending.pop()
                if name in again or name in takes or name in outside:
                    continue
                text = "\n".join(defined[name])
                dear = arrays and ("dlb_value_" in text or "dlb_r" in text or len(defined[name]) > 1)
                if segment.is_loop and (dear or any(f"{array}[" in text for array in overwritten)):
                    takes.add(name)
                else:
                    again.add(name)
                    pending += [n for n in _reads(text) if n in defined and n not in own]
            copies = [line for n, block in defined.items() if n in again for line in block]
            self.held |= {n: _DEFINITION.match(defined[n][0].strip())[1] for n in takes}  # type: ignore[index]
            segment.takes, segment.lines = sorted(takes), copies + segment.lines
            if segment.is_loop:
                defined |= {n: block for n, block in own.items() if n not in defined}
                overwritten |= set(re.findall(r"\b(\w*out_ptr\d+)\[[^=\n]*\] = ", "\n".join(segment.lines)))
            else:
                outside |= again | set(own)
        for segment in self.kernel.segments:
            segment.gives = sorted(n for n in self._blocks(segment) if n in self.held and n not in segment.takes)

    def _place_of_held(self, name: str) -> str:
        assert self.reduced is not None
        index = f"{self.reduced.prefix}held"
        if self.kernel.form is Form.LANES:
            index = f"{index} * {LANES} + lane"
        return f"{name}_held[{index}]"

    def _with_held(self, segment: Segment, lines: list[str]) -> list[str]:
        """A loop's lines, with values taken from arrays in front and put into them behind."""
        takes = [f"const {self.held[n]} {n} = {self._place_of_held(n)};" for n in segment.takes]
        gives = [f"{self._place_of_held(n)} = {n};" for n in segment.gives]
        return [*takes, *lines, *gives]

    def arrays(self) -> list[str]:
        """Declarations of the arrays."""
        if not self.held:
            return []
        assert self.reduced is not None
        count = int(self.reduced.numel)
        if self.kernel.form is Form.GROUPS:
            count = -(-count // self.kernel.group_size())
        if self.kernel.form is Form.LANES:
            count *= LANES
        return [f"{t} {n}_held[{count}];" for n, t in self.held.items()]

    def text(self) -> list[str]:
        """Its lines."""
        return [*self.arrays(), *self._text()]

    def _text(self) -> list[str]:
        return {
            Form.RUNS: self._runs,
            Form.LANES: self._lanes,
            Form.ITEMS: self._items,
            Form.GROUPS: self._groups,
        }[self.kernel.form]()

    # Sizes and indices.

    def size(self, root: IterationRangesRoot | None) -> str:
        """How many indices a root has."""
        if root is None:
            return "1"
        return to_opencl(root.numel) if _is_known(root.numel) else f"{root.prefix}numel"

    def indices(self, root: IterationRangesRoot | None, names: set[str]) -> list[str]:
        """Definitions of those of the root's index variables, from its index."""
        return [
            f"const {self.kind} {n} = {to_opencl(expr)};"
            for n, (entry, expr) in self.entries.items()
            if entry.root is root and n in names
        ]

    def nest(self, root: IterationRangesRoot, names: set[str]) -> tuple[str, list[str], list[str]] | None:
        """The root's index as rows of an inner variable, so that nothing is divided in the inner loop and compilers see
        which elements lie beside each other: the length of a row, definitions for a row, and for an element. None where
        the index is best counted as it is.
        """
        own = {n: e for n, e in self.entries.items() if e[0].root is root and n in names}
        sizes = V.graph.sizevars
        entries = [e for e, _ in own.values()]
        # Where one variable begins anew, or the next one moves.
        inner = [
            e.length for e in entries if e.divisor == 1 and not sizes.statically_known_equals(e.length, root.numel)
        ]
        inner += [e.divisor for e in entries if e.divisor != 1]
        if not inner:
            return None
        length = min(inner, key=lambda s: sizes.optimization_hint(s, fallback=2**30))
        if _is_known(length) and int(length) < 4:
            return None
        row = sympy.Symbol(f"{root.prefix}row", integer=True, nonnegative=True)
        inside = sympy.Symbol(f"{root.prefix}inside", integer=True, nonnegative=True)
        outer_lines, inner_lines = [], []
        for name, (entry, _) in own.items():
            head = f"const {self.kind} {name} = "
            if entry.divisor == 1:
                if sizes.statically_known_equals(entry.length, length):
                    value = inside
                elif sizes.statically_known_multiple_of(entry.length, length):
                    whole = sizes.statically_known_equals(entry.length, root.numel)
                    turns = FloorDiv(entry.length, length)
                    value = (row if whole else ModularIndexing(row, 1, turns)) * length + inside
                else:
                    return None
                inner_lines.append(head + self.kernel.index_to_str(value) + ";")
                continue
            if not sizes.statically_known_multiple_of(entry.divisor, length):
                return None
            divisor = FloorDiv(entry.divisor, length)
            last = sizes.statically_known_equals(entry.divisor * entry.length, root.numel)
            value = FloorDiv(row, divisor) if last else ModularIndexing(row, divisor, entry.length)
            outer_lines.append(head + self.kernel.index_to_str(value) + ";")
        return self.kernel.index_to_str(length), outer_lines, inner_lines

    # Loops.

    def vector_hint(self) -> list[str]:
        """Tells compilers that iterations are independent, which they are, and where no load is behind a condition that
        its element's place may be read whatever the condition.
        """
        if not self.kernel.on_cpu or self.kernel.has_atomics:
            return []
        return [f"#pragma clang loop vectorize({'enable' if self.kernel.has_masks else 'assume_safety'})"]

    @staticmethod
    def _split(lines: list[str], inside: list[str]) -> tuple[list[str], list[str]]:
        """Definitions that are the same for all of an inner loop, whose own are `inside`, and the other lines."""
        varying = {found[1] for line in inside if (found := re.match(r"const \w+ (\w+) =", line))}
        varying |= {"xinside", "xindex"} | {f"{p}{w}" for p in ("r0_", "r1_") for w in ("inside", "index", "held")}
        fixed: list[str] = []
        others: list[str] = []
        depth = 0
        for line in lines:
            found = _DEFINITION.match(line.strip())
            if depth == 0 and found is not None and found[3] and not varying & _reads(line):
                fixed.append(line)
            else:
                others.append(line)
                varying |= {found[2]} if found is not None else set()
            depth += line.count("{") - line.count("}")
        return fixed, others

    def over(self, root: IterationRangesRoot, names: set[str], lines: list[str]) -> list[str]:
        """A loop over all of a root's indices."""
        kind, prefix, count = self.kind, root.prefix, self.size(root)
        nest = self.nest(root, names)
        if nest is None:
            held = [f"const {kind} {prefix}held = {prefix}index;"] if self.held else []
            body = [*held, *self.indices(root, names), *lines]
            return [
                *self.vector_hint(),
                f"for ({kind} {prefix}index = 0; {prefix}index < {count}; ++{prefix}index) {{",
                *body,
                "}",
            ]
        length, outer, inner = nest
        if self.held:
            inner = [f"const {kind} {prefix}held = {prefix}row * ({length}) + {prefix}inside;", *inner]
        fixed, lines = self._split(lines, inner)
        return [
            f"for ({kind} {prefix}row = 0; {prefix}row < {count} / ({length}); ++{prefix}row) {{",
            *outer,
            *fixed,
            *self.vector_hint(),
            f"for ({kind} {prefix}inside = 0; {prefix}inside < {length}; ++{prefix}inside) {{",
            *inner,
            *lines,
            "}",
            "}",
        ]

    def _segment(self, segment: Segment, names: set[str]) -> list[str]:
        """A segment for one result, whose index variables are there."""
        if not segment.is_loop:
            return segment.lines
        assert self.reduced is not None
        lines = []
        for a in segment.accumulators:
            lines += [f"{f.type} {n} = {f.start};" for n, f in zip(a.names, a.reduction.fields, strict=True)]
        lines += self._loop(segment, names)
        lines += [f"const {self.kernel.declared(v)} = {text};" for v, text in segment.results]
        return lines

    def _loop(self, segment: Segment, names: set[str]) -> list[str]:
        steps = [a.text(a.reduction.step) for a in segment.accumulators]
        body = self._with_held(segment, [*segment.lines, *steps])
        assert self.reduced is not None
        if self.kernel.form is Form.GROUPS:
            return self._strided(names, body) + self._combined(segment)
        return self.over(self.reduced, names, body)

    # Forms.

    def _names(self) -> set[str]:
        return set(self.entries)

    def _runs(self) -> list[str]:
        names, count, kind = self._names(), self.size(self.results), self.kind
        bounds = [
            f"const {kind} first = ({kind})get_global_id(0) * per_item;",
            f"const {kind} last = first + per_item < {count} ? first + per_item : {count};",
        ]
        root = self.results
        assert root is not None
        if self.reduced is not None or len(self.kernel.segments) != 1:
            lines = [*self.indices(root, names)]
            for segment in self.kernel.segments:
                lines += self._segment(segment, names)
            return [*bounds, f"for ({kind} xindex = first; xindex < last; ++xindex) {{", *lines, "}"]
        lines = self.kernel.segments[0].lines
        nest = self.nest(root, names)
        if nest is None:
            body = [*self.indices(root, names), *lines]
            return [
                *bounds,
                *self.vector_hint(),
                f"for ({kind} xindex = first; xindex < last; ++xindex) {{",
                *body,
                "}",
            ]
        length, outer, inner = nest
        fixed, lines = self._split(lines, inner)
        return [
            *bounds,
            f"for ({kind} xindex = first; xindex < last;) {{",
            f"const {kind} xrow = xindex / ({length}), from = xindex - xrow * ({length});",
            f"const {kind} rest = last - xindex, until = rest < {length} - from ? from + rest : {length};",
            *outer,
            *fixed,
            *self.vector_hint(),
            f"for ({kind} xinside = from; xinside < until; ++xinside) {{",
            *inner,
            *lines,
            "}",
            "xindex += until - from;",
            "}",
        ]

    def _items(self) -> list[str]:
        names, count, kind = self._names(), self.size(self.results), self.kind
        lines = [f"const {kind} xindex = get_global_id(0);", f"if (xindex >= {count}) return;"]
        lines += self.indices(self.results, names)
        for segment in self.kernel.segments:
            lines += self._segment(segment, names)
        return lines

    def _groups(self) -> list[str]:
        names, kind = self._names(), self.kind
        types = {f.type for s in self.kernel.segments for a in s.accumulators for f in a.reduction.fields}
        most = {t: 0 for t in sorted(types)}
        for s in self.kernel.segments:
            for a in s.accumulators:
                for t in most:
                    most[t] = max(most[t], sum(f.type == t for f in a.reduction.fields))
        size = self.kernel.group_size()
        lines = [f"local {t} shared_{t}_{i}[{size}];" for t, n in most.items() for i in range(n)]
        lines += [f"const int item = get_local_id(0);", f"const {kind} xindex = get_group_id(0);"]  # noqa: F541
        lines += self.indices(self.results, names)
        for segment in self.kernel.segments:
            own = self._segment(segment, names)
            lines += own if segment.is_loop else self._by_first(own)
        return lines

    @staticmethod
    def _by_first(lines: list[str]) -> list[str]:
        """Lines with their stores by the group's first work-item."""
        return [
            f"if (item == 0) {{ {line.strip()} }}" if re.match(r"\s*(in_)?out_ptr\d+\[|\s*dlb_atomic", line) else line
            for line in lines
        ]

    def _strided(self, names: set[str], body: list[str]) -> list[str]:
        root, kind = self.reduced, self.kind
        assert root is not None
        p = root.prefix
        head = f"for ({kind} {p}index = item; {p}index < {self.size(root)}; {p}index += {self.kernel.group_size()}) {{"
        held = [f"const {kind} {p}held = {p}index / {self.kernel.group_size()};"] if self.held else []
        return [head, *held, *self.indices(root, names), *body, "}"]

    def _combined(self, segment: Segment) -> list[str]:
        """What each work-item has accumulated, combined in local memory, so that all of them have it."""
        lines = []
        for a in segment.accumulators:
            places, seen = [], dict[str, int]()
            for f in a.reduction.fields:
                places.append(f"shared_{f.type}_{seen.setdefault(f.type, 0)}")
                seen[f.type] += 1
            here = [f"{p}[item]" for p in places]
            there = [f"other_{i}" for i in range(len(places))]
            lines += [f"{p} = {n};" for p, n in zip(here, a.names, strict=True)]
            lines += [
                "barrier(CLK_LOCAL_MEM_FENCE);",
                f"for (int step = {self.kernel.group_size() // 2}; step > 0; step >>= 1) {{",
                "if (item < step) {",
                *[
                    f"const {f.type} {t} = {p}[item + step];"
                    for f, t, p in zip(a.reduction.fields, there, places, strict=True)
                ],
                a.text(a.reduction.combine, there),
                *[f"{p} = {n};" for p, n in zip(here, a.names, strict=True)],
                "}",
                "barrier(CLK_LOCAL_MEM_FENCE);",
                "}",
                *[f"{n} = {p}[0];" for n, p in zip(a.names, places, strict=True)],
                "barrier(CLK_LOCAL_MEM_FENCE);",
            ]
        return lines

    def _lanes(self) -> list[str]:
        """Results side by side: what outlives a segment is an array with an element for each lane."""
        root, kind, names = self.results, self.kind, self._names()
        assert root is not None
        nest = self.nest(root, names)
        count = self.size(root)
        length, outer, inner = nest or (count, [], [])
        lines = [
            f"const {kind} first = ({kind})get_global_id(0) * per_item;",
            f"const {kind} end = first + per_item < {count} ? first + per_item : {count};",
        ]
        kept = self._crossing()
        fields = [
            (n, f)
            for s in self.kernel.segments
            for a in s.accumulators
            for n, f in zip(a.names, a.reduction.fields, strict=True)
        ]
        lines += [f"{t} {n}_of[{LANES}];" for n, t in kept.items()] + [f"{f.type} {n}_of[{LANES}];" for n, f in fields]
        index = [f"const {kind} xindex = start + lane;", *self.indices(root, names)]
        if nest is not None:
            index = [f"const {kind} xinside = from + lane;", *inner]
        lines += [f"for ({kind} start = first; start < end;) {{"]
        if nest is not None:
            lines += [
                f"const {kind} xrow = start / ({length}), from = start - xrow * ({length}), left = {length} - from;",
                *outer,
            ]
            lines += [f"const {kind} most = end - start < left ? end - start : left;"]
        else:
            lines += [f"const {kind} most = end - start;"]
        lines += [f"const int lanes = most < {LANES} ? (int)most : {LANES};"]
        for segment in self.kernel.segments:
            lines += self._segment_of_lanes(segment, names, index, kept)
        return [*lines, "start += lanes;", "}"]

    def _per_lane(self, lines: list[str]) -> list[str]:
        return [*self.vector_hint(), "for (int lane = 0; lane < lanes; ++lane) {", *lines, "}"]

    def _segment_of_lanes(self, segment: Segment, names: set[str], index: list[str], kept: dict[str, str]) -> list[str]:
        used = _reads(segment.text())
        defined = self._defined(segment)
        before = [f"const {t} {n} = {n}_of[lane];" for n, t in kept.items() if n in used and n not in defined]
        if not segment.is_loop:
            after = [f"{n}_of[lane] = {n};" for n in kept if n in defined]
            return self._per_lane([*index, *before, *segment.lines, *after])
        fields = [(n, f) for a in segment.accumulators for n, f in zip(a.names, a.reduction.fields, strict=True)]
        lines = self._per_lane([f"{n}_of[lane] = {f.start};" for n, f in fields]) if fields else []
        steps = [a.text(a.reduction.step) for a in segment.accumulators]
        body = [
            *index,
            *before,
            *[f"{f.type} {n} = {n}_of[lane];" for n, f in fields],
            *self._with_held(segment, [*segment.lines, *steps]),
            *[f"{n}_of[lane] = {n};" for n, _ in fields],
        ]
        lines += self._over_rows(names, self._per_lane(body))
        ends = [f"const {f.type} {n} = {n}_of[lane];" for n, f in fields]
        ends += [f"{v}_of[lane] = {text};" for v, text in segment.results if str(v) in kept]
        return lines + (self._per_lane(ends) if segment.results else [])

    def _over_rows(self, names: set[str], lines: list[str]) -> list[str]:
        """The loop over what is reduced, around loops over lanes."""
        root, kind = self.reduced, self.kind
        assert root is not None
        p = root.prefix
        return [
            f"for ({kind} {p}index = 0; {p}index < {self.size(root)}; ++{p}index) {{",
            *([f"const {kind} {p}held = {p}index;"] if self.held else []),
            *self.indices(root, names),
            *lines,
            "}",
        ]

    @staticmethod
    def _defined(segment: Segment) -> set[str]:
        return set(re.findall(r"^(?:const )?\w+ (\w+)(?: =|;)", "\n".join(segment.lines), re.MULTILINE))

    def _crossing(self) -> dict[str, str]:
        """Variables that one segment defines and another reads, and their types."""
        found: dict[str, str] = {}
        reads = [_reads(s.text()) for s in self.kernel.segments]
        for i, segment in enumerate(self.kernel.segments):
            later = set[str]().union(*reads[i + 1 :])
            for variable, _ in segment.results:
                if str(variable) in later:
                    found[str(variable)] = compute_type(variable.dtype or torch.float32)
            if segment.is_loop:
                continue
            for match in re.finditer(r"^(?:const )?(\w+) (\w+)(?: =|;)", "\n".join(segment.lines), re.MULTILINE):
                if match[2] in later:
                    found[match[2]] = match[1]
        return found
