"""Times a problem's or a network's first calls in a process of its own, for benchmarks/settling.py.

`python -m benchmarks.settling_worker DEVICE THREADS` reads one JSON request a line and answers with one line of JSON:
{"about": true} with the device's "name" and whether it takes "large" sizes; {"problem": name, "large": ..., "seconds":
at most, "search": seconds at most} as follow_problem() says; {"network": name, "large": ..., "marks": steps} as
follow_network() says; or {"error": text}.
"""

from __future__ import annotations

import ctypes
import os
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.case import Case, Step
from benchmarks.settling_cases import networks, problems
from benchmarks.steps import measure, prepare_device, search_counts, serve, settle, synchronize

CALLS = (1, 2, 3, 10)  # calls whose time is told
POINTS = (0.5, 1.0, 2.0, 3.0, 5.0, 10.0)  # seconds after the first call began, likewise
WINDOW = 0.1  # seconds from a point, over which the median is taken
LOOKS = 0.1  # seconds between looks at the counts
LEAST, QUIET = 6.0, 3.0  # seconds until a problem may count as settled, and without a change of the counts before
PR_SET_CHILD_SUBREAPER = 36


def taken(device: torch.device, others: set[str]) -> list[str]:
    """Op, solver and config of what runs now, of the problems that are not among the others."""
    from dlbackend import solvers

    return [
        f"{key.partition(':')[0]} {solution.solver.partition('@')[0]} {solution.config}"
        for key in sorted(set(solvers.problems()) - others)
        for solution in solvers.solutions(key, device.index or 0)
        if solution.taken
    ]


def seconds_at(point: float, starts: list[float], seconds: list[float]) -> float | None:
    """The median of the calls that ran at a point or within WINDOW from it, by when each began and what it took. None
    where there is none.
    """
    ran = [s for start, s in zip(starts, seconds, strict=True) if start < point + WINDOW and start + s > point]
    return statistics.median(ran) if ran else None


def follow_problem(step: Step, device: torch.device, longest: float, search: float) -> dict[str, Any]:
    """Calls a problem, ten times at least, until nothing has changed for a while or `longest` seconds have passed. A
    search that goes on then has all of the time, for `search` seconds at most. All times are seconds, of calls that are
    waited for: "calls" by number; "points" by seconds since the first call began, of the call that was running then and
    those just after; "final", when all that was begun has ended; "settled", when the last change was seen, None where
    changes went on. "solvers" are those at the same calls and points, "number" is that of the calls on the way.
    """
    from dlbackend import kernel_stats, solvers

    others = set(solvers.problems())
    before = kernel_stats()
    starts: list[float] = []
    seconds: list[float] = []
    ran: dict[str, list[str]] = {}
    due = list(POINTS)
    changed = look = now = 0.0
    counts: dict[str, float] = {}
    begin = time.perf_counter()
    while len(seconds) < CALLS[-1] or (now < longest and not (now >= LEAST and now - changed >= QUIET)):
        start = time.perf_counter()
        step()
        synchronize(device)
        end = time.perf_counter()
        starts.append(start - begin)
        seconds.append(end - start)
        now = end - begin
        points = [f"{point:g} s" for point in due if now >= point]
        due = due[len(points) :]
        if len(seconds) in CALLS:
            points.append(f"call {len(seconds)}")
        if points:
            ran.update(dict.fromkeys(points, taken(device, others)))
        if now >= look:
            found = search_counts()
            changed, counts, look = changed if found == counts else now, found, now + LOOKS
    settled = now - changed >= QUIET
    settle(step, device, search)
    solvers.wait()
    final = measure(step, device, 0.5).seconds
    after = kernel_stats()
    at = {f"{point:g}": seconds_at(point, starts, seconds) for point in POINTS if point < now}
    return {
        "calls": {str(n): seconds[n - 1] for n in CALLS},
        "points": at,
        "final": final,
        "settled": changed if settled else None,
        "solvers": {**ran, "final": taken(device, others)},
        "compiled": after["compiled"] - before["compiled"],
        "compile_seconds": after["compile_seconds"] - before["compile_seconds"],
        "number": len(seconds),
    }


def adopt_orphans() -> None:
    """Makes this process the parent of what its children leave behind, as compile processes are left, so that their
    times can be counted.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def processor_seconds() -> float:
    """Seconds of processors that this process, its threads, and all that it started have used."""
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):  # children that have ended
        usage = resource.getrusage(who)
        total += usage.ru_utime + usage.ru_stime
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = file.read_text().rpartition(")")[2].split()  # behind the name: state, parent, ...
        except OSError:  # it has ended
            continue
        if int(fields[1]) == os.getpid():
            total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")  # its own, and of its ended children
    return total


def follow_network(step: Step, device: torch.device, marks: list[int]) -> dict[str, Any]:
    """Trains up to the last of the marks, which are numbers of steps. "seconds" and "processor" seconds, by mark, since
    the first step began; of an ocl device also what its process compiled, with the "compile_seconds" of all threads.
    """
    before = processor_seconds()
    seconds: dict[str, float] = {}
    processor: dict[str, float] = {}
    begin = time.perf_counter()
    for number in range(1, max(marks) + 1):
        step()
        if number in marks:
            synchronize(device)
            seconds[str(number)] = time.perf_counter() - begin
            processor[str(number)] = processor_seconds() - before
    found: dict[str, Any] = {"seconds": seconds, "processor": processor}
    if device.type == "ocl":
        from dlbackend import kernel_stats

        stats = kernel_stats()
        found |= {name: stats[name] for name in ("compiled", "compiled_elsewhere", "compile_seconds", "loaded")}
    return found


def about(device: torch.device) -> dict[str, Any]:
    """The name of an ocl device, and whether it takes large sizes: not one that runs the kernels of CPUs."""
    from dlbackend import ocl

    properties = ocl.get_device_properties(device)
    return {"name": properties.name, "driver": properties.driver_version, "large": properties.kernel_class == "gpu"}


def find(cases: list[Case], name: str) -> Case:
    """The case of this name."""
    return next(case for case in cases if case.name == name)


def main() -> None:
    """Serves requests until the input ends."""
    adopt_orphans()
    device = prepare_device(sys.argv[1], int(sys.argv[2]))

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if "about" in request:
            return about(device)
        if "problem" in request:
            step = find(problems(request["large"]), request["problem"]).build(device)
            return follow_problem(step, device, request["seconds"], request["search"])
        step = find(networks(request["large"]), request["network"]).build(device)
        return follow_network(step, device, request["marks"])

    serve(answer)


if __name__ == "__main__":
    main()
