"""Runs cases on one device in a process of its own: ocl and CUDA cannot both train in one process.

Reads one JSON request a line ({"suite": ..., "case": ..., "seconds": ...}) and answers with one line of JSON:
{"seconds": median time of an iteration, "host": the caller's part of it} or {"error": text}. A request with "examine"
is answered with the "roofline", as training_worker.py does.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import Any

import torch

from benchmarks.case import Case, Step
from benchmarks.cases import cases
from benchmarks.steps import Times, answer_of, measure, prepare_device, serve, settle, synchronize


def _measure_paced(pace: int, step: Step, device: torch.device, _: float) -> Times:
    """The time of so many iterations in a row, without the wait at their end: all of it is the host's."""
    times = []
    for _ in range(15):
        synchronize(device)
        start = time.perf_counter()
        for _ in range(pace):
            step()
        times.append((time.perf_counter() - start) / pace)
    return Times(min(times), min(times))


def main() -> None:
    """Serves requests until the input ends."""
    device = prepare_device(sys.argv[1], int(sys.argv[2]))
    ready: dict[str, tuple[Case, Step]] = {}

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        key = request["case"]
        trains = request["suite"].startswith(("nets", "language", "compiled"))
        with torch.enable_grad() if trains else torch.no_grad():
            if key not in ready:
                ready.clear()  # one case at a time holds memory
                case = next(c for c in cases(request["suite"]) if c.name == key)
                step = case.build(device)
                settle(step, device)
                ready[key] = (case, step)
            case, step = ready[key]
            paced = partial(_measure_paced, case.pace)
            return answer_of(step, device, request, paced if case.pace else measure)

    serve(answer)


if __name__ == "__main__":
    main()
