"""Runs cases on one device in a process of its own: ocl and CUDA cannot both train in one process.

Reads one JSON request a line ({"suite": ..., "case": ..., "seconds": ...}) and answers with one line of JSON:
{"seconds": median time of an iteration} or {"error": text}.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch

from benchmarks.cases import Case, Step, cases
from benchmarks.steps import measure, prepare_device, serve, settle, synchronize


def _measure_paced(case: Case, step: Step, device: torch.device) -> float:
    times = []
    for _ in range(15):
        synchronize(device)
        start = time.perf_counter()
        for _ in range(case.pace):
            step()
        times.append((time.perf_counter() - start) / case.pace)
    return min(times)


def main() -> None:
    """Serves requests until the input ends."""
    device = prepare_device(sys.argv[1], int(sys.argv[2]))
    ready: dict[str, tuple[Case, Step]] = {}

    def answer(request: dict[str, Any]) -> float:
        key = request["case"]
        trains = request["suite"].startswith(("nets", "language"))
        with torch.enable_grad() if trains else torch.no_grad():
            if key not in ready:
                ready.clear()  # one case at a time holds memory
                case = next(c for c in cases(request["suite"]) if c.name == key)
                step = case.build(device)
                settle(step, device)
                ready[key] = (case, step)
            case, step = ready[key]
            return _measure_paced(case, step, device) if case.pace else measure(step, device, request["seconds"])

    serve(answer)


if __name__ == "__main__":
    main()
