"""Costs and gains of finding solvers: find modes in processes of their own, cold and warm, and changing sizes.

    python -m benchmarks.finding                      # resnet50, batch 4; long on a CPU
    python -m benchmarks.finding --net resnet18 --iterations 20
    python -m benchmarks.finding --losses 20          # also where estimates choose what measuring does not

Every figure is printed beside its goal; --json FILE keeps them.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from typing import Any

from benchmarks.fresh_caches import fresh_caches
from dlbackend import outputs

TURN, TURNS = 0.3, 36  # seconds, at least, of half a process's turn; turns of each mode, over all rounds

# It prints the times of so many iterations, then runs a turn for every line that it reads, and prints its counts. The
# first half of a turn does not count: a search for solvers then spends the time that it was granted while stopped.
TRAINING = """
import json, statistics, sys, time, torch, dlbackend
from benchmarks.networks import training_step
step = training_step(NET, BATCH, torch.device(DEVICE))
def timed():
    start = time.perf_counter(); step(); torch.ocl.synchronize()
    return time.perf_counter() - start
times = []
for i in range(ITERATIONS):
    times.append(timed())
    print(f"{i + 1} of {ITERATIONS}: {times[-1]:.4f} s", file=sys.stderr, flush=True)
print(json.dumps(times), flush=True)
for line in sys.stdin:
    begin = time.perf_counter(); timed()
    while time.perf_counter() < begin + TURN: timed()
    begin = time.perf_counter(); turn = [timed()]
    while time.perf_counter() < begin + TURN: turn.append(timed())
    print(statistics.median(turn), flush=True)
keys = dlbackend.solvers.problems() if LOSSES else []
solutions = {key: [(s.solver, ("s" if s.specialised else "") + s.config, s.microseconds, s.taken)
                   for s in dlbackend.solvers.solutions(key)] for key in keys}
print(json.dumps({"solutions": solutions, **dlbackend.solvers.stats(), **dlbackend.kernel_stats()}))
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


class _Process:
    """A process with caches of its own. Between turns it and what it started are stopped, so that nothing that they do
    in the background slows another's turn down.
    """

    def __init__(self, code: str, options: argparse.Namespace, cache: str, iterations: int, **variables: str) -> None:
        head = (
            f"DEVICE, NET, BATCH, ITERATIONS = {options.device!r}, {options.net!r}, {options.batch}, {iterations}\n"
            f"LOSSES, TURN = {options.losses}, {TURN}\n"
            "import torch, dlbackend\n"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", head + code],
            env={**os.environ, **fresh_caches(cache), **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # a group of its own, which is stopped as one, and which Ctrl-C does not reach
        )
        atexit.register(self.kill)

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)

    def read(self) -> Any:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"a process ended with exit status {self.process.wait()}")
        return json.loads(line)

    def stop(self) -> None:
        os.killpg(self.process.pid, signal.SIGSTOP)

    def turn(self) -> float:
        """Seconds of an iteration, of those of one turn."""
        assert self.process.stdin
        os.killpg(self.process.pid, signal.SIGCONT)
        print(file=self.process.stdin, flush=True)
        seconds = float(self.read())
        self.stop()
        return seconds

    def end(self) -> dict[str, Any]:
        """Ends the process, and returns what it counted."""
        assert self.process.stdin
        os.killpg(self.process.pid, signal.SIGCONT)
        self.process.stdin.close()
        result: dict[str, Any] = self.read()
        if status := self.process.wait():
            raise RuntimeError(f"a process ended with exit status {status}")
        return result


def _train(options: argparse.Namespace, cache: str, iterations: int, **variables: str) -> tuple[_Process, list[float]]:
    """A process that has trained for some iterations and waits for its turns, and their seconds."""
    process = _Process(TRAINING, options, cache, iterations, **variables)
    times: list[float] = process.read()
    process.stop()
    return process, times


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
    parser.add_argument("--rounds", type=int, default=3, help="of processes, those in hybrid mode with empty caches")
    parser.add_argument("--device", default="ocl:0")
    parser.add_argument("--gpu", action="store_true", help="show the goals for GPUs")
    parser.add_argument("--losses", type=int, default=0, metavar="N", help="show the N worst choices by estimate")
    parser.add_argument("--json", type=outputs.file, metavar="FILE", help="file for the results")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []

    def report(name: str, value: float, unit: str, goal: float, at_most: bool) -> None:
        met = value <= goal if at_most else value >= goal
        rows.append({"figure": name, "value": value, "unit": unit, "goal": goal, "met": met})
        sign = "<=" if at_most else ">="
        print(f"{name:62s} {value:9.3f} {unit:7s} goal {sign} {goal:g} {'met' if met else 'MISSED'}", flush=True)

    short = 8
    ratios: dict[str, list[float]] = {"fast": [], "hybrid": [], "reusable": []}  # normal's time over theirs
    first: dict[str, dict[str, Any]] = {}  # of each mode's first process: what it counted
    with tempfile.TemporaryDirectory() as a, tempfile.TemporaryDirectory() as b, tempfile.TemporaryDirectory() as c:
        for i in range(options.rounds):
            # New processes every round: one may have been given better memory than another.
            processes: dict[str, _Process] = {}
            with tempfile.TemporaryDirectory() as other:
                processes["fast"], fast_times = _train(options, a, short, DLBACKEND_FIND_MODE="fast")
                processes["normal"], _ = _train(options, c, short, DLBACKEND_FIND_MODE="normal")
                processes["reusable"], _ = _train(options, c, short, DLBACKEND_FIND_MODE="dynamic_hybrid")
                processes["hybrid"], hybrid_times = _train(options, other if i else b, options.iterations)
                order = list(processes)
                for _ in range(TURNS // options.rounds):  # in turns, because a machine's speed drifts
                    seconds = {name: processes[name].turn() for name in order}
                    order.append(order.pop(0))
                    for name, found in ratios.items():
                        found.append(seconds["normal"] / seconds[name])
                for name, process in processes.items():
                    counts = process.end()
                    first.setdefault(name, counts)
                first["fast"].setdefault("first", fast_times[0])
                first["hybrid"].setdefault("first", hybrid_times[0])
        fast, normal, hybrid = first["fast"], first["normal"], first["hybrid"]
        second_process, second_times = _train(options, b, short)
        second = second_process.end()
        sizes = _Process(SIZES, options, b, 0).end()
    speed = {name: statistics.median(found) for name, found in ratios.items()}
    if options.losses:
        _show_losses(fast, normal, options.losses)
    print(f"{options.net}, batch {options.batch}; steady speeds over normal's, the middle half of the turns:")
    for name, found in ratios.items():
        quarters = statistics.quantiles(found, n=4)
        print(f"  {name}: {speed[name]:.3f} ({quarters[0]:.3f} to {quarters[2]:.3f} of {len(found)})")
    for name, result in (("fast", fast), ("hybrid", hybrid), ("normal", normal)):
        counts = {key: value for key, value in result.items() if key not in ("first", "solutions")}
        print(f"{name}, first process: {counts}")
    report("first iteration, hybrid over fast, caches empty", hybrid["first"] / fast["first"], "x", 1.3, True)
    report(
        f"steady speed after {options.iterations} iterations of hybrid, over normal's",
        speed["hybrid"],
        "x",
        0.97,
        False,
    )
    report("second process: compiled from source", second["compiled"], "", 0, True)
    steady = statistics.median(second_times[-5:])
    report("second process: first iteration", second_times[0], "s", 1.5 * steady + 1, True)
    report("time measuring in normal, first run", normal["benchmark_seconds"], "s", 15 if options.gpu else 60, True)
    report("steady speed, fast over normal", speed["fast"], "x", 0.8, False)
    least = 0.85 if options.gpu else 0.9
    report("steady speed, reusable only over all", speed["reusable"], "x", least, False)
    report("50 new sizes: compiled", sizes["compiled"], "", 0, True)
    report("50 new sizes: time over that of a repeated one, median", sizes["ratio"], "x", 1.15, True)
    if options.json:
        outputs.write_json(options.json, rows)


if __name__ == "__main__":
    main()
