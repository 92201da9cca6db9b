"""What finding solvers costs and gains: find modes in processes of their own, cold and warm, and changing sizes.

    python -m benchmarks.finding                      # resnet50, batch 4; long on a CPU
    python -m benchmarks.finding --net resnet18 --iterations 20
    python -m benchmarks.finding --losses 20          # also where estimates choose what measuring does not

Every figure is printed beside its goal; --json FILE keeps them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from typing import Any

TRAINING = """
import json, sys, time, torch, dlbackend
from benchmarks.cases import training_step
step = training_step(NET, BATCH, torch.device(DEVICE))
times = []
for i in range(ITERATIONS):
    start = time.perf_counter(); step(); torch.ocl.synchronize(); times.append(time.perf_counter() - start)
    print(f"{i + 1} of {ITERATIONS}: {times[-1]:.4f} s", file=sys.stderr, flush=True)
keys = dlbackend.solvers.problems() if LOSSES else []
solutions = {key: [(s.solver, ("s" if s.specialised else "") + s.config, s.microseconds, s.taken)
                   for s in dlbackend.solvers.solutions(key)] for key in keys}
print(json.dumps({"times": times, "solutions": solutions, **dlbackend.solvers.stats(), **dlbackend.kernel_stats()}))
"""

# A backbone, a feature pyramid and heads, as in RetinaNet and Mask R-CNN; every image has a size of its own.
SIZES = """
import json, statistics, time, torch, dlbackend
from torch import nn
import torch.nn.functional as F
class Detector(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        block = lambda i, o: nn.Sequential(nn.Conv2d(i, o, 3, 2, 1), nn.BatchNorm2d(o), nn.ReLU(),
                                           nn.Conv2d(o, o, 3, 1, 1), nn.BatchNorm2d(o), nn.ReLU())
        self.stages = nn.ModuleList([block(3, width), block(width, 2 * width), block(2 * width, 4 * width)])
        self.lateral = nn.ModuleList([nn.Conv2d(c * width, 2 * width, 1) for c in (1, 2, 4)])
        self.head = nn.Sequential(nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.ReLU(),
                                  nn.Conv2d(2 * width, 9 * 5, 3, padding=1))
    def forward(self, x):
        features = []
        for stage in self.stages: x = stage(x); features.append(x)
        top, out = None, []
        for feature, lateral in zip(reversed(features), reversed(self.lateral)):
            top = lateral(feature) + (0 if top is None else F.interpolate(top, size=feature.shape[-2:]))
            out.append(self.head(top).flatten(1))
        return torch.cat(out, 1)
torch.manual_seed(0)
net = Detector().to(DEVICE)
def run(size):
    image = torch.randn(1, 3, *size).to(DEVICE)
    torch.ocl.synchronize(); start = time.perf_counter()
    net(image).sum().backward(); torch.ocl.synchronize()
    return time.perf_counter() - start
for i in range(3): run((160 + 8 * i, 200))
before = dlbackend.kernel_stats()["compiled"]
sizes = [(120 + (i * 13) % 97, 120 + (i * 29) % 101) for i in range(50)]
# In turns, each new size beside one that ran once before: the machine's speed drifts.
new, again = [], []
for i, size in enumerate(sizes):
    new.append(run(size))
    if i: again.append(run(sizes[i - 1]))
again.append(run(sizes[-1]))
print(json.dumps({"compiled": dlbackend.kernel_stats()["compiled"] - before,
                  "ratio": statistics.median(n / a for n, a in zip(new, again))}))
"""


def _run(code: str, options: argparse.Namespace, cache: str, iterations: int, **variables: str) -> dict[str, Any]:
    drivers = {"POCL_CACHE_DIR": cache + "/pocl", "CUDA_CACHE_PATH": cache + "/nvidia"}
    for folder in drivers.values():
        os.makedirs(folder, exist_ok=True)
    head = (
        f"DEVICE, NET, BATCH, ITERATIONS = {options.device!r}, {options.net!r}, {options.batch}, {iterations}\n"
        f"LOSSES = {options.losses}\n"
        "import torch, dlbackend\n"
    )
    environment = {**os.environ, "DLBACKEND_CACHE_DIR": cache, "DLBACKEND_PACKS": "", **drivers, **variables}
    done = subprocess.run([sys.executable, "-c", head + code], env=environment, stdout=subprocess.PIPE, check=True)
    result: dict[str, Any] = json.loads(done.stdout.decode().splitlines()[-1])
    return result


def _steady(result: dict[str, Any]) -> float:
    return statistics.median(result["times"][-5:])


def _show_losses(fast: dict[str, Any], normal: dict[str, Any], most: int) -> None:
    """The problems whose solution by estimate was measured slower than another, the largest loss of a run first."""
    losses = []
    for key, found in normal["solutions"].items():
        measured = {(solver, config): time for solver, config, time, _ in found if time is not None}
        taken = [(solver, config) for solver, config, _, taken in fast["solutions"].get(key, []) if taken]
        if taken and taken[0] in measured:
            best = min(measured, key=lambda solution: measured[solution])
            losses.append((measured[taken[0]] - measured[best], measured[taken[0]], taken[0], best, key))
    total, lost = sum(loss[1] for loss in losses), sum(loss[0] for loss in losses)
    print(f"each problem once: {total:.0f} us by estimate, {lost:.0f} more than by measuring")
    for loss, time, estimated, best, key in sorted(losses, reverse=True)[:most]:
        print(f"  {loss:7.1f} of {time:7.1f} us: {' '.join(estimated)}, not {' '.join(best)}: {key}")


def main() -> None:
    """Runs the processes and prints the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.finding", description=__doc__)
    parser.add_argument("--net", default="resnet50", help="a torchvision classification net")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=32, help="of a training loop in hybrid mode")
    parser.add_argument("--rounds", type=int, default=3, help="of modes in turns")
    parser.add_argument("--device", default="ocl:0")
    parser.add_argument("--gpu", action="store_true", help="show the goals for GPUs")
    parser.add_argument("--losses", type=int, default=0, metavar="N", help="show the N worst choices by estimate")
    parser.add_argument("--json", default="", help="file for the results")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []

    def report(name: str, value: float, unit: str, goal: float, at_most: bool) -> None:
        met = value <= goal if at_most else value >= goal
        rows.append({"figure": name, "value": value, "unit": unit, "goal": goal, "met": met})
        sign = "<=" if at_most else ">="
        print(f"{name:62s} {value:9.3f} {unit:7s} goal {sign} {goal:g} {'met' if met else 'MISSED'}", flush=True)

    short = 8
    hybrids: list[dict[str, Any]] = []  # processes with empty caches
    speeds: dict[str, list[float]] = {"fast": [], "normal": [], "reusable": []}
    late: list[float] = []  # of hybrid after so many iterations, over normal's
    with tempfile.TemporaryDirectory() as a, tempfile.TemporaryDirectory() as b, tempfile.TemporaryDirectory() as c:
        fast = _run(TRAINING, options, a, short, DLBACKEND_FIND_MODE="fast")
        normal = _run(TRAINING, options, c, short, DLBACKEND_FIND_MODE="normal")
        # In turns, each time with what was found before: a machine's speed drifts from minute to minute.
        for i in range(options.rounds):
            with tempfile.TemporaryDirectory() as other:
                hybrids.append(_run(TRAINING, options, other if i else b, options.iterations))
            speeds["normal"].append(_steady(_run(TRAINING, options, c, short, DLBACKEND_FIND_MODE="normal")))
            late.append(speeds["normal"][-1] / _steady(hybrids[-1]))
            speeds["fast"].append(_steady(_run(TRAINING, options, a, short, DLBACKEND_FIND_MODE="fast")))
            reusable = {"DLBACKEND_FIND_MODE": "dynamic_hybrid"}
            speeds["reusable"].append(_steady(_run(TRAINING, options, c, short, **reusable)))
        second = _run(TRAINING, options, b, short)
        sizes = _run(SIZES, options, b, 0)
    hybrid = hybrids[0]
    steady = {name: statistics.median(times) for name, times in speeds.items()}
    if options.losses:
        _show_losses(fast, normal, options.losses)
    print(f"{options.net}, batch {options.batch}; steady seconds an iteration: {steady}")
    for name, result in (("fast", fast), ("hybrid", hybrid), ("normal", normal)):
        counts = {key: value for key, value in result.items() if key not in ("times", "solutions")}
        print(f"{name}, first process: {counts}")
    report("first iteration, hybrid over fast, caches empty", hybrid["times"][0] / fast["times"][0], "x", 1.3, True)
    report(
        f"steady speed after {options.iterations} iterations of hybrid, over normal's",
        statistics.median(late),
        "x",
        0.97,
        False,
    )
    report("second process: compiled from source", second["compiled"], "", 0, True)
    report("second process: first iteration", second["times"][0], "s", 1.5 * _steady(second) + 1, True)
    report("time measuring in normal, first run", normal["benchmark_seconds"], "s", 15 if options.gpu else 60, True)
    report("steady speed, fast over normal", steady["normal"] / steady["fast"], "x", 0.8, False)
    least = 0.85 if options.gpu else 0.9
    report("steady speed, reusable only over all", steady["normal"] / steady["reusable"], "x", least, False)
    report("50 new sizes: compiled", sizes["compiled"], "", 0, True)
    report("50 new sizes: time over that of a repeated one, median", sizes["ratio"], "x", 1.15, True)
    if options.json:
        with open(options.json, "w") as out:
            json.dump(rows, out, indent=1)


if __name__ == "__main__":
    main()
