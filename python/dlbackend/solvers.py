"""The solvers: several ways to compute each GEMM, convolution, softmax ..., and which is taken for which problem.

    dlbackend.solvers.names("conv_fwd")              # ["cpu_direct", "gemm_1x1", ...]
    dlbackend.solvers.force("conv_fwd:reference")    # also DLBACKEND_SOLVER; "-name" forbids
    for problem in dlbackend.solvers.problems():     # what this process computed
        print(dlbackend.solvers.explain(problem))
        for solution in dlbackend.solvers.solutions(problem, sort_by="time"):
            print(solution)

A problem is named by its key, a line of text that is the same on every machine: op, dtype, sizes and strides.
"""

from dataclasses import dataclass
from math import inf

from dlbackend import _C


@dataclass(frozen=True)
class Solution:
    """One way to solve a problem: a solver with one of its configs."""

    solver: str  # "name@revision"
    config: str  # the solver's own numbers, such as tile sizes
    specialised: bool  # whether the kernel is compiled for the problem's sizes and not for any
    estimate: float  # microseconds of the solver's first config; 0 where it is no longer applicable
    microseconds: float | None  # measured on this device; None where it never was
    workspace: int  # bytes
    error: float | None  # the largest, relative to the largest result; measured with the time
    taken: bool  # whether this solution runs now


def names(op: str | None = None) -> list[str]:
    """Names of an op's solvers ("gemm", "conv_fwd", "softmax", ...), or "op:name" of all."""
    if op is None:
        return _C.solver_names()
    found = [name.split(":")[1] for name in _C.solver_names() if name.split(":")[0] == op]
    if not found:
        raise ValueError(f"there is no op {op!r}; ops: {', '.join(sorted({n.split(':')[0] for n in names()}))}")
    return found


def force(specification: str) -> None:
    """Forces and forbids solvers: "name", "-name", "op:name", "op:-name", several by comma; "" gives the choice back.

    RuntimeError, naming those there are, for a name that no solver has.
    """
    _C.force_solver(specification)


def problems() -> list[str]:
    """Keys of the problems that this process computed and remembers."""
    return _C.solved_problems()


def explain(problem: str, device: int = 0) -> str:
    """The solver taken for a problem, and for each solver "applicable" or why it is not. ValueError for a bad key."""
    return _C.explain_problem(problem, device)


def solutions(problem: str, device: int = 0, sort_by: str = "time") -> list[Solution]:
    """The problem's solutions, sorted by "time" (those never measured last) or "workspace". Runs nothing."""
    if sort_by not in ("time", "workspace"):
        raise ValueError(f'sort_by must be "time" or "workspace", not {sort_by!r}')
    found = []
    for line in _C.solutions(problem, device).splitlines():
        solver, config, kind, estimate, time, workspace, error, state = line.split("\t")
        found.append(
            Solution(
                solver,
                config.lstrip("s"),
                kind == "specialised",
                float(estimate),
                None if time == "-" else float(time),
                int(workspace),
                None if error == "-" else float(error),
                state == "taken",
            )
        )
    by_time = sorted(found, key=lambda s: inf if s.microseconds is None else s.microseconds)
    return by_time if sort_by == "time" else sorted(by_time, key=lambda s: s.workspace)


def tune(problem: str, device: int = 0) -> list[Solution]:
    """Measures all of a problem's solutions now on synthetic data, takes the fastest that is right, and stores it."""
    _C.tune_problem(problem, device)
    return solutions(problem, device)


def stats() -> dict[str, float]:
    """Counts of finding in this process: problems that the store knew ("hits") or not ("misses"), new sizes that
    ran what a similar one runs ("precedents"; when they come again, they are hits or misses), "searches" for something
    faster behind a problem's runs, solutions "measured", "verified" against the reference and "rejected" as
    wrong or failing, times a faster one was "swapped" in, and the seconds that callers waited for measuring
    ("benchmark_seconds").
    """
    return _C.find_stats()


def wait() -> None:
    """Waits until nothing is being built or checked in the background."""
    _C.wait_for_background()
