"""The bodies of Inductor's kernels: segments as OpenCL C, in the form that suits the device.

On CPUs one work-item computes a run of results, in loops that LLVM makes vectors of; on GPUs a result is a work-item's,
or a work-group's where it is reduced over many elements that lie together.
"""

from __future__ import annotations

import re
from typing import Any

import sympy
import torch
from torch._inductor.codegen.simd import IterationRangesRoot
from torch._inductor.virtualized import V
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from dlbackend.compile.inductor.expressions import compute_type, to_opencl
from dlbackend.compile.inductor.held import Held
from dlbackend.compile.inductor.segments import (
    DEFINITION,
    LANES,
    Accumulator,
    Form,
    Segment,
    is_known,
    is_reduced,
    names_in,
)

MOST_TURNS = 16  # of a loop that is written out for GPUs
FIELDS = 8  # of accumulators, that a work-group combines at once


class Body:
    """The text of the body of an OpenCLKernel, by its form."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.kind = kernel.index_dtype
        self.results = next((t for t in kernel.range_trees if not is_reduced(t)), None)
        reduces = kernel.features.is_reduction()
        self.reduced = next((t for t in kernel.range_trees if is_reduced(t)), None) if reduces else None
        self.held = Held(kernel, self.reduced)
        used = names_in("\n".join(s.text() for s in kernel.segments))
        self.entries = {n: e for n, e in kernel.entries.items() if n in used}

    def text(self) -> list[str]:
        """Its lines."""
        return [*self.held.arrays(), *self._text()]

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
        return to_opencl(root.numel) if is_known(root.numel) else f"{root.prefix}numel"

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
        if is_known(length) and int(length) < 4:
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
        """On CPUs, tells compilers that iterations are independent, which they are, and where no load is behind a
        condition that its element's place may be read whatever the condition.
        """
        if self.kernel.has_atomics:
            return []
        if not self.kernel.on_cpu:
            return ["#pragma unroll 8"]  # loads of several iterations are on their way together
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
            found = DEFINITION.match(line.strip())
            if depth == 0 and found is not None and found[3] and not varying & names_in(line):
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
            held = [f"const {kind} {prefix}held = {prefix}index;"] if self.held.types else []
            body = [*held, *self.indices(root, names), *lines]
            return [
                *self.vector_hint(),
                f"for ({kind} {prefix}index = 0; {prefix}index < {count}; ++{prefix}index) {{",
                *body,
                "}",
            ]
        length, outer, inner = nest
        if self.held.types:
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
        body = self.held.around(segment, [*segment.lines, *steps])
        assert self.reduced is not None
        if self.kernel.form is Form.GROUPS:
            combined = [line for batch in self._batches(segment) for line in self._combined(batch)]
            return self._strided(names, body) + combined
        return self.over(self.reduced, names, body)

    # Forms.

    def _runs(self) -> list[str]:
        names, count, kind = set(self.entries), self.size(self.results), self.kind
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
        """One result for each work-item, or a few, a work-group's size apart, so that more loads are on their way."""
        names, count, kind, turns = set(self.entries), self.size(self.results), self.kind, self.kernel.turns()
        leave = "return" if turns == 1 else "break"
        lines = [] if self.kernel.in_whole_groups() else [f"if (xindex >= {count}) {leave};"]
        lines += self.indices(self.results, names)
        for segment in self.kernel.segments:
            lines += self._segment(segment, names)
        if turns == 1:
            return [f"const {kind} xindex = get_global_id(0);", *lines]
        group = self.kernel.group_size()
        return [
            f"const {kind} first = ({kind})get_group_id(0) * {turns * group} + get_local_id(0);",
            "#pragma unroll",
            f"for (int turn = 0; turn < {turns}; ++turn) {{",
            f"const {kind} xindex = first + turn * {group};",
            *lines,
            "}",
        ]

    def _groups(self) -> list[str]:
        names, kind = set(self.entries), self.kind
        types = {f.type for s in self.kernel.segments for a in s.accumulators for f in a.reduction.fields}
        batches = [batch for s in self.kernel.segments for batch in self._batches(s)]
        most = {t: max(sum(f.type == t for a in b for f in a.reduction.fields) for b in batches) for t in sorted(types)}
        size = self.kernel.group_size()
        lines = [f"local {t} shared_{t}_{i}[{size}];" for t, n in most.items() for i in range(n)]
        lines += ["const int item = get_local_id(0);", f"const {kind} xindex = get_group_id(0);"]
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
        group = self.kernel.group_size()
        held = [f"const {kind} {p}held = {p}index / {group};"] if self.held.types else []
        if is_known(root.numel) and int(root.numel) % group == 0 and int(root.numel) <= MOST_TURNS * group:
            turns = int(root.numel) // group  # a number that compilers know: their loads then go out together
            held = [f"const int {p}held = turn;"] if self.held.types else []
            index = f"const {kind} {p}index = item + turn * {group};"
            head = ["#pragma unroll", f"for (int turn = 0; turn < {turns}; ++turn) {{", index]
        else:
            loop = f"for ({kind} {p}index = item; {p}index < {self.size(root)}; {p}index += {group}) {{"
            head = ["#pragma unroll 4", loop]
        return [*head, *held, *self.indices(root, names), *body, "}"]

    @staticmethod
    def _batches(segment: Segment) -> list[list[Accumulator]]:
        """The accumulators in lists whose fields have space in local memory at once."""
        batches: list[list[Accumulator]] = []
        count = FIELDS
        for a in segment.accumulators:
            if count + len(a.names) > FIELDS:
                batches.append([])
                count = 0
            batches[-1].append(a)
            count += len(a.names)
        return batches

    def _combined(self, accumulators: list[Accumulator]) -> list[str]:
        """What each work-item has accumulated, combined in local memory, so that all of them have it: the first of them
        combine those that are so many apart, and then all combine what these have. A tree would have more barriers.
        """
        size = self.kernel.group_size()
        first = 1 << (size.bit_length() // 2)
        places, seen = [], dict[str, int]()
        for a in accumulators:
            own = []
            for f in a.reduction.fields:
                own.append(f"shared_{f.type}_{seen.setdefault(f.type, 0)}")
                seen[f.type] += 1
            places.append(own)
        pairs = list(zip(accumulators, places, strict=True))

        def everywhere(text: str) -> list[str]:
            return [text.format(n=n, p=p) for a, own in pairs for n, p in zip(a.names, own, strict=True)]

        def combine(begin: str, end: int, step: int) -> list[str]:
            lines = [f"for (int other = {begin}; other < {end}; other += {step}) {{"]
            for i, (a, own) in enumerate(pairs):
                there = [f"other{i}_{j}" for j in range(len(own))]
                fields = zip(a.reduction.fields, there, own, strict=True)
                lines += [f"const {f.type} {t} = {p}[other];" for f, t, p in fields]
                lines.append(a.text(a.reduction.combine, there))
            return [*lines, "}"]

        return [
            *everywhere("{p}[item] = {n};"),
            "barrier(CLK_LOCAL_MEM_FENCE);",
            f"if (item < {first}) {{",
            *combine(f"item + {first}", size, first),
            *everywhere("{p}[item] = {n};"),
            "}",
            "barrier(CLK_LOCAL_MEM_FENCE);",
            *everywhere("{n} = {p}[0];"),
            *combine("1", first, 1),
            "barrier(CLK_LOCAL_MEM_FENCE);",
        ]

    def _lanes(self) -> list[str]:
        """Results side by side: what outlives a segment is an array with an element for each lane."""
        root, kind, names = self.results, self.kind, set(self.entries)
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
        used = names_in(segment.text())
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
            *self.held.around(segment, [*segment.lines, *steps]),
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
            *([f"const {kind} {p}held = {p}index;"] if self.held.types else []),
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
        reads = [names_in(s.text()) for s in self.kernel.segments]
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
