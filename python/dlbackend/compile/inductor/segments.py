"""What a kernel of Inductor's is made of before it is text: segments, and what they accumulate."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field
from typing import Any

import sympy
from torch._inductor.codegen.common import CSEVariable

from dlbackend.compile.inductor.reductions import Reduction

LANES = 256  # results that a CPU computes side by side

# The type and the name that a line declares, and whether it gives a value.
DEFINITION = re.compile(r"(?:const )?(\w+) (tmp\w*)(?: (=)|(;))")


def names_in(text: str) -> set[str]:
    """The names that stand in a kernel's text."""
    return set(re.findall(r"[A-Za-z_]\w*", text))


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


def is_reduced(tree: Any) -> bool:
    """Whether an index, or a root of indices, is of what is reduced."""
    return bool(tree.is_reduction)


def is_known(size: Any) -> bool:
    """Whether a size is a number, not an argument of the kernel."""
    return isinstance(size, (int, sympy.Integer))
