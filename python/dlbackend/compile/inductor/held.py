"""Values of a reduction's loops that later ones take from arrays, or compute anew where that is cheap."""

from __future__ import annotations

import re
from typing import Any

from torch._inductor.codegen.simd import IterationRangesRoot

from dlbackend.compile.inductor.segments import DEFINITION, LANES, Form, Segment, names_in


class Held:
    """What the loops of a kernel hand on; it writes that into the kernel's segments."""

    def __init__(self, kernel: Any, reduced: IterationRangesRoot | None) -> None:
        self.kernel, self.reduced = kernel, reduced
        self.types: dict[str, str] = {}  # of the values in arrays, by name
        if kernel.holds:
            self._carry()

    def _blocks(self, segment: Segment) -> dict[str, list[str]]:
        """The lines that define each variable of a segment; those of a masked one are several."""
        blocks: dict[str, list[str]] = {}
        lines = iter(segment.lines)
        for line in lines:
            found = DEFINITION.match(line.strip())
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
            pending = [n for n in sorted(names_in(segment.text())) if n in defined and n not in own]
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
                    pending += [n for n in names_in(text) if n in defined and n not in own]
            copies = [line for n, block in defined.items() if n in again for line in block]
            self.types |= {n: DEFINITION.match(defined[n][0].strip())[1] for n in takes}  # type: ignore[index]
            segment.takes, segment.lines = sorted(takes), copies + segment.lines
            if segment.is_loop:
                defined |= {n: block for n, block in own.items() if n not in defined}
                overwritten |= set(re.findall(r"\b(\w*out_ptr\d+)\[[^=\n]*\] = ", "\n".join(segment.lines)))
            else:
                outside |= again | set(own)
        for segment in self.kernel.segments:
            segment.gives = sorted(n for n in self._blocks(segment) if n in self.types and n not in segment.takes)

    def _place(self, name: str) -> str:
        assert self.reduced is not None
        index = f"{self.reduced.prefix}held"
        if self.kernel.form is Form.LANES:
            index = f"{index} * {LANES} + lane"
        return f"{name}_held[{index}]"

    def around(self, segment: Segment, lines: list[str]) -> list[str]:
        """A loop's lines, with values taken from arrays in front and put into them behind."""
        takes = [f"const {self.types[n]} {n} = {self._place(n)};" for n in segment.takes]
        gives = [f"{self._place(n)} = {n};" for n in segment.gives]
        return [*takes, *lines, *gives]

    def arrays(self) -> list[str]:
        """Declarations of the arrays."""
        if not self.types:
            return []
        assert self.reduced is not None
        count = int(self.reduced.numel)
        if self.kernel.form is Form.GROUPS:
            count = -(-count // self.kernel.group_size())
        if self.kernel.form is Form.LANES:
            count *= LANES
        return [f"{t} {n}_held[{count}];" for n, t in self.types.items()]
