"""The result of a network, as a row of the table and as an entry of the JSON. docs/validation.md describes both."""

from dataclasses import asdict, dataclass, field
from typing import Any

from dlbackend.tools.validation.rule import Check, Comparison


@dataclass
class Result:
    """The result of a network. It passes where every check does, no op ran on the CPU and nothing was raised."""

    name: str
    family: str
    stages: dict[str, Comparison] = field(default_factory=dict)
    fallbacks: dict[str, int] = field(default_factory=dict)
    graph_breaks: dict[str, int] = field(default_factory=dict)  # of torch.compile: why, and how often
    compiled: int = 0
    peak_bytes: int | None = None  # of the host's memory, the whole process; None where the system does not tell
    error: str = ""

    @property
    def checks(self) -> list[Check]:
        return [check for stage in self.stages.values() for check in stage.checks]

    @property
    def passed(self) -> bool:
        return not (self.error or self.fallbacks) and all(check.passed for check in self.checks)

    def worst(self, *what: str) -> Check | None:
        """The check of these quantities that uses most of what it is allowed; a NaN is worse than all."""
        checks = [check for check in self.checks if check.what in what]
        return max(checks, key=lambda check: (not check.passed, check.used), default=None)


ERRORS, COSTS = ("outputs", "input grad", "param grads"), ("eval", "step", "memory")
HEAD = " ".join([f"{'network':38}", *(f"{x:>16}" for x in ERRORS), *(f"{x:>9}" for x in COSTS), "compiled"])


def _error(check: Check | None) -> str:
    return f"{check.error:8.1e} ({check.used:4.0%})" if check else "-"


def _seconds(stage: Comparison | None) -> str:
    return f"{stage.seconds:7.3f} s" if stage else "-"


def _memory(size: int | None) -> str:
    return "-" if size is None else f"{size / 1e9:6.2f} GB"


def line(result: Result) -> str:
    """A row of the table, with a line for everything that is wrong."""
    errors = [_error(result.worst(*what)) for what in (("outputs",), ("input gradient",), ("gradients",))]
    costs = [_seconds(result.stages.get(stage)) for stage in ("eval", "train")] + [_memory(result.peak_bytes)]
    row = " ".join([f"{result.name:38}", *(f"{x:>16}" for x in errors), *(f"{x:>9}" for x in costs)])
    lines = [f"{row} {result.compiled:8}  {'ok' if result.passed else 'FAIL'}"]
    lines += [f"{result.error}"] if result.error else []
    lines += [f"on the CPU: {op}, {calls} calls" for op, calls in sorted(result.fallbacks.items())]
    lines += [f"graph break: {why.partition(chr(10))[0]}, {times} times" for why, times in result.graph_breaks.items()]
    lines += [
        f"{x.stage}, {x.what}: error {x.error:.2e}, allowed {x.allowed:.2e}, PyTorch's CPU device {x.cpu_error:.2e}"
        for x in result.checks
        if not x.passed
    ]
    return "\n    ".join(lines)


def as_json(result: Result) -> dict[str, Any]:
    """One network of the JSON file."""
    stages = {
        name: {
            "seconds": stage.seconds,
            "first_seconds": stage.first_seconds,
            "cpu_seconds": stage.cpu_seconds,
            "checks": [{**asdict(check), "passed": check.passed} for check in stage.checks],
        }
        for name, stage in result.stages.items()
    }
    return {
        "name": result.name, "family": result.family, "passed": result.passed, "error": result.error,
        "fallbacks": result.fallbacks, "graph_breaks": result.graph_breaks, "kernels_compiled": result.compiled,
        "peak_host_bytes": result.peak_bytes, "stages": stages,
    }  # fmt: skip
