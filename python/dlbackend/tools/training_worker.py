"""Times training steps on one device, in a process of its own: ocl and CUDA cannot both train in one process.

Runs as a program, `python training_worker.py DEVICE THREADS`, and imports the package for ocl alone, because a process
that has imported it cannot train on CUDA. Reads one JSON request a line ({"net", "batch", "size", "seconds"}) and
answers with one line of JSON: {"seconds": median time of a step, "host": how much of it the caller is busy} or
{"error": text}. A request {..., "examine": seconds of a step} of an ocl device is answered with its {"roofline": ...},
as roofline.py makes it. The repository's benchmarks are served in the same way, and take the functions here from the
file.
"""

import contextlib
import dataclasses
import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

Step = Callable[[], Any]


class Times(NamedTuple):
    """Seconds of an iteration, and those until its caller goes on, while the device still computes."""

    seconds: float
    host: float


Measure = Callable[[Step, torch.device, float], Times]


CLASSES = 1000
WHAT_SEARCHES_CHANGE = ("misses", "measured", "verified", "searches", "swapped", "compiled")


def synchronize(device: torch.device) -> None:
    """Waits for the device; nothing on the CPU."""
    if device.type != "cpu":
        getattr(torch, device.type).synchronize(device)


def measure(step: Step, device: torch.device, budget: float) -> Times:
    """Medians of iterations, over as many repeats as fit the budget in seconds (at least one)."""
    times: list[float] = []
    host: list[float] = []
    end = time.perf_counter() + budget
    while not times or (time.perf_counter() < end and len(times) < 200):
        synchronize(device)
        start = time.perf_counter()
        step()
        host.append(time.perf_counter() - start)
        synchronize(device)
        times.append(time.perf_counter() - start)
    return Times(statistics.median(times), statistics.median(host))


def search_counts() -> dict[str, float]:
    """What changes while something is compiled or measured in this process, which computes on ocl."""
    import dlbackend

    counts = {**dlbackend.solvers.stats(), "compiled": dlbackend.kernel_stats()["compiled"]}
    return {name: counts[name] for name in WHAT_SEARCHES_CHANGE}


def settle(step: Step, device: torch.device, longest: float = 20) -> None:
    """Runs an iteration until nothing more is compiled or measured for it, for so many seconds at most."""
    for _ in range(3):
        step()
    synchronize(device)
    if device.type != "ocl":
        return
    from dlbackend import backend, solvers

    end, quiet = time.perf_counter() + longest, 0
    before: dict[str, float] = {}
    with backend.flags(find_share=1.0):  # the same choices as with less, sooner
        while quiet < 3 and time.perf_counter() < end:
            pause, steps = time.perf_counter() + 0.2, 0
            while steps < 3 or time.perf_counter() < pause:
                step()
                synchronize(device)
                steps += 1
            solvers.wait()
            now = search_counts()
            quiet, before = 0 if now != before else quiet + 1, now


def training_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    x: Tensor,
    y: Tensor,
    forward: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
) -> Step:
    """A step of training a classifier. Pictures and labels that are on the CPU are transferred in every step; `forward`
    makes the context of the model and its loss, such as autocast's.
    """
    device = next(model.parameters()).device

    def step() -> None:
        optimizer.zero_grad()
        with forward():
            loss: Any = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()

    return step


def prepare_device(name: str, threads: int) -> torch.device:
    """The device, set to compute in float32 and to tune itself for networks whose sizes stay the same."""
    if name.startswith("ocl"):
        importlib.import_module("dlbackend")
    device = torch.device(name)
    torch.manual_seed(0)
    if device.type == "cpu":
        torch.set_num_threads(threads)
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = True
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
    return device


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answers requests with what `answer` measures, until the input ends."""
    for line in sys.stdin:
        try:
            reply = answer(json.loads(line))
        except (Exception, SystemExit) as error:  # reported in the table, so that one case does not end the run
            reply = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(reply), flush=True)


def answer_of(step: Step, device: torch.device, request: dict[str, Any], times: Measure = measure) -> dict[str, Any]:
    """The answer to a request for a step that runs as it always does by now."""
    if "examine" not in request:
        return times(step, device, request["seconds"])._asdict()
    from dlbackend.tools import roofline

    return {"roofline": dataclasses.asdict(roofline.examine(step, device, request["examine"]))}


def build(name: str) -> nn.Module:
    """A network of torchvision with random weights, or what `module:function` returns."""
    module, _, function = name.partition(":")
    if function:
        made = getattr(importlib.import_module(module), function)()
    else:
        try:
            made = importlib.import_module("torchvision").models.get_model(name, weights=None)
        except (ImportError, RuntimeError) as error:
            advice = "install torchvision for your torch (pip install --no-deps torchvision)"
            raise ImportError(f"{advice}: {error}") from error
    if not isinstance(made, nn.Module):
        raise TypeError(f"{name} is no network")
    return made


def main() -> None:
    """Keeps one network at a time, which is trained on with Adam from request to request."""
    device = prepare_device(sys.argv[1], int(sys.argv[2]))
    ready: dict[str, Step] = {}

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        name = request["net"]
        if name not in ready:
            ready.clear()
            model = build(name).to(device).train()
            shape = (request["batch"], 3, request["size"], request["size"])
            x, y = torch.randn(shape), torch.randint(CLASSES, shape[:1])
            step = training_step(model, torch.optim.Adam(model.parameters(), lr=1e-4), x, y)
            settle(step, device)
            ready[name] = step
        return answer_of(ready[name], device, request)

    serve(answer)


if __name__ == "__main__":
    sys.path[0] = os.getcwd()  # as `python -m` has it: not the folder of this file
    main()
