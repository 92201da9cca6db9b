"""Runs cases on one device in a process of its own: ocl and CUDA cannot both train in one process.

Reads one JSON request a line ({"suite": ..., "case": ..., "seconds": ...}) and answers with one line of JSON:
{"seconds": median time of an iteration} or {"error": text}.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

import torch

if sys.argv[1].startswith("ocl"):
    import dlbackend
from benchmarks.cases import Case, Step, cases

WHAT_SEARCHES_CHANGE = ("misses", "measured", "verified", "searches", "swapped", "compiled")


def synchronize(device: torch.device) -> None:
    """Waits for the device; nothing on the CPU."""
    if device.type != "cpu":
        getattr(torch, device.type).synchronize()


def measure(case: Case, step: Step, device: torch.device, budget: float) -> float:
    """Median seconds of an iteration over as many repeats as fit the budget (at least one)."""
    if case.pace:
        return _measure_paced(case, step, device)
    times: list[float] = []
    end = time.perf_counter() + budget
    while not times or (time.perf_counter() < end and len(times) < 200):
        synchronize(device)
        start = time.perf_counter()
        step()
        synchronize(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _measure_paced(case: Case, step: Step, device: torch.device) -> float:
    times = []
    for _ in range(15):
        synchronize(device)
        start = time.perf_counter()
        for _ in range(case.pace):
            step()
        times.append((time.perf_counter() - start) / case.pace)
    return min(times)


def settle(step: Step, device: torch.device, longest: float = 20) -> None:
    """Runs an iteration until nothing more is compiled or measured for it, for so many seconds at most."""
    for _ in range(3):
        step()
    synchronize(device)
    if device.type != "ocl":
        return
    end, quiet = time.perf_counter() + longest, 0
    before: dict[str, float] = {}
    with dlbackend.backend.flags(find_share=1.0):  # the same choices as with less, sooner
        while quiet < 3 and time.perf_counter() < end:
            pause, steps = time.perf_counter() + 0.2, 0
            while steps < 3 or time.perf_counter() < pause:
                step()
                synchronize(device)
                steps += 1
            dlbackend.solvers.wait()
            now = {**dlbackend.solvers.stats(), "compiled": dlbackend.kernel_stats()["compiled"]}
            changed = [name for name in WHAT_SEARCHES_CHANGE if now[name] != before.get(name)]
            quiet, before = 0 if changed else quiet + 1, now


def main() -> None:
    """Serves requests until the input ends."""
    device = torch.device(sys.argv[1])
    torch.manual_seed(0)
    if device.type == "cpu":
        torch.set_num_threads(int(sys.argv[2]) if len(sys.argv) > 2 else torch.get_num_threads())
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = True
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
    ready: dict[str, tuple[Case, Step]] = {}
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        key = request["case"]
        try:
            with torch.no_grad() if request["suite"] != "nets" else torch.enable_grad():
                if key not in ready:
                    ready.clear()  # one case at a time holds memory
                    case = next(c for c in cases(request["suite"]) if c.name == key)
                    step = case.build(device)
                    settle(step, device)
                    ready[key] = (case, step)
                case, step = ready[key]
                answer: dict[str, Any] = {"seconds": measure(case, step, device, request["seconds"])}
        except Exception as error:  # reported in the table, so that one case does not end the run
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
