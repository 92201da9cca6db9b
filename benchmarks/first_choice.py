"""How good the choice by estimate is, before anything was measured: its time over that of the best solution.

    python -m benchmarks.first_choice                    # estimates by measured rates, as in a second process
    python -m benchmarks.first_choice --rates derived    # as in the first process on an unknown device
    python -m benchmarks.first_choice --quick            # a third of the problems

Products of matrices, the convolutions of resnet18, resnet50 and mobilenet_v2 in all directions, softmax, reductions,
normalisations and pooling, with empty caches and no packs. Each problem's solutions are all measured on synthetic
operands; the table says how the one with the lowest estimate does among them. --json FILE keeps everything.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from benchmarks.fresh_caches import fresh_caches
from dlbackend import outputs

GOAL, GOAL_SHARE = 1.3, 0.9  # times the best; of the problems

# Channels in and out, filter, stride, size of the image, groups; each shape of a network once.
RESNET_STAGES = ((64, 56), (128, 28), (256, 14), (512, 7))  # channels of the 3x3 filters, size of the image
RESNET18 = [
    (3, 64, 7, 2, 224, 1),
    *(
        layer
        for c, size in RESNET_STAGES
        for layer in ((c, c, 3, 1, size, 1), (c, 2 * c, 3, 2, size, 1), (c, 2 * c, 1, 2, size, 1))
    ),
][:-2]  # no stage follows the last
RESNET50 = [
    (64, 64, 1, 1, 56, 1),
    *(
        layer
        for c, size in RESNET_STAGES
        for layer in (
            (c, 4 * c, 1, 1, size, 1),
            (4 * c, c, 1, 1, size, 1),
            (4 * c, 2 * c, 1, 1, size, 1),
            (2 * c, 2 * c, 3, 2, size, 1),
        )
    ),
][:-2]
MOBILENET = [
    (3, 32, 3, 2, 224, 1),
    (32, 32, 3, 1, 112, 32),
    (32, 16, 1, 1, 112, 1),
    (16, 96, 1, 1, 112, 1),
    (96, 96, 3, 2, 112, 96),
    (144, 144, 3, 1, 56, 144),
    (144, 24, 1, 1, 56, 1),
    (192, 192, 3, 2, 28, 192),
    (384, 384, 3, 1, 14, 384),
    (384, 96, 1, 1, 14, 1),
    (576, 160, 1, 1, 7, 1),
    (960, 960, 3, 1, 7, 960),
    (320, 1280, 1, 1, 7, 1),
]
# Rows, columns and depth.
SQUARE = [(n, n, n) for n in (64, 96, 128, 192, 256, 384, 512, 768, 1024)]
PRODUCTS = [
    (1, 1000, 2048),
    (4, 1000, 512),
    (32, 10, 784),
    (33, 77, 129),
    (512, 768, 768),
    (197, 3072, 768),
    (1000, 64, 3),
    (64, 64, 4096),
    (3136, 64, 147),
    (17, 1023, 65),
]


def _calls(batch: int, device: Any, quick: bool) -> Iterator[Callable[[], Any]]:
    """Calls that between them pose the problems; those of a network's layers with their gradients."""
    import torch
    import torch.nn.functional as F

    step = 3 if quick else 1

    def tensor(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> torch.Tensor:
        return torch.randn(shape).to(device, dtype).requires_grad_(grad)

    def gradients(result: torch.Tensor) -> None:
        torch.autograd.backward(result.sum())

    def multiply(m: int, n: int, k: int, dtype: torch.dtype) -> None:
        tensor(m, k, dtype=dtype) @ tensor(k, n, dtype=dtype)

    def linear(m: int, n: int, k: int) -> None:
        gradients(F.linear(tensor(m, k, grad=True), tensor(n, k, grad=True)))

    for m, n, k in (SQUARE + PRODUCTS)[::step]:
        yield partial(multiply, m, n, k, torch.float32)
        yield partial(linear, m, n, k)
    for n in (128, 512, 1024)[::step]:
        yield partial(multiply, n, n, n, torch.bfloat16)
    yield lambda: tensor(12, 197, 64) @ tensor(12, 64, 197)
    yield lambda: tensor(64, 16, 16) @ tensor(64, 16, 16)

    def convolve(c: int, k: int, size: int, stride: int, image: int, groups: int) -> None:
        x, w = tensor(batch, c, image, image, grad=c > 3), tensor(k, c // groups, size, size, grad=True)
        gradients(F.conv2d(x, w, None, stride, size // 2, 1, groups))

    for c, k, size, stride, image, groups in (RESNET18 + RESNET50 + MOBILENET)[::step]:
        yield partial(convolve, c, k, size, stride, image, groups)

    def train(f: Callable[[torch.Tensor], torch.Tensor], *shape: int) -> Callable[[], None]:
        return lambda: gradients(f(tensor(*shape, grad=True)))

    memory_bound = [
        train(lambda x: torch.softmax(x, 1), 1024, 1024),
        train(lambda x: torch.softmax(x, -1), 8, 12, 197, 197),
        train(lambda x: torch.log_softmax(x, 1), 256, 1000),
        train(lambda x: torch.log_softmax(x, 1), 8, 21, 128, 128),
        lambda: tensor(1 << 22).sum(),
        lambda: tensor(4096, 1024).sum(1),
        lambda: tensor(4096, 1024).sum(0),
        lambda: tensor(16, 64, 64, 64).sum((0, 2, 3)),
        lambda: tensor(64, 65536).amax(1),
        lambda: tensor(1 << 18, 16).mean(1),
        lambda: tensor(32, 512, 7, 7).mean((2, 3)),
        train(lambda x: F.batch_norm(x, None, None, training=True), 8, 64, 56, 56),
        train(lambda x: F.batch_norm(x, None, None, training=True), 32, 512, 7, 7),
        train(lambda x: F.batch_norm(x, None, None, training=True), 512, 1024),
        train(lambda x: F.layer_norm(x, (768,)), 1576, 768),
        train(lambda x: F.layer_norm(x, (4096,)), 256, 4096),
        train(lambda x: F.group_norm(x, 32), 8, 128, 56, 56),
        train(lambda x: F.max_pool2d(x, 3, 2, 1), 8, 64, 112, 112),
        train(lambda x: F.max_pool2d(x, 2), 8, 64, 112, 112),
        train(lambda x: F.avg_pool2d(x, 2), 8, 128, 56, 56),
        train(lambda x: F.adaptive_avg_pool2d(x, 1), 8, 2048, 7, 7),
    ]
    yield from memory_bound[::step]


def _times(key: str, index: int, exhaustive: bool) -> dict[str, float]:
    """Measures a problem's solutions, all or those that are not hopeless; microseconds by solver and config."""
    from dlbackend import _C

    _C.tune_problem(key, index, exhaustive)
    rows = (line.split("\t") for line in _C.solutions(key, index).splitlines())
    return {f"{row[0]} {row[1]}": float(row[4]) for row in rows if row[4] != "-"}


def _judge(key: str, index: int, repeats: int) -> dict[str, Any] | None:
    """How the first choice does; None where there is nothing to choose."""
    from dlbackend import _C

    rows = [line.split("\t") for line in _C.solutions(key, index).splitlines()]
    if len(rows) < 2:
        return None
    first = f"{rows[0][0]} {rows[0][1]}"
    times = _times(key, index, True)
    # Other work of the machine makes measurements longer, so the shortest of several counts, of all solutions alike.
    # All problems get as many, whatever the first said: measuring again only what looks bad would improve the share.
    for _ in range(repeats):
        again = _times(key, index, False)
        times = {name: min(times.get(name, time), time) for name, time in {**times, **again}.items()}
    best = min(times, key=lambda name: times[name])
    ratio = times[first] / times[best] if first in times else float("inf")
    estimate = float(rows[0][3])
    return {"key": key, "first": first, "best": best, "ratio": ratio, "times": times, "estimate": estimate}


def judge_all(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Poses the problems in this process and judges each one's first choice."""
    import torch

    import dlbackend

    device = torch.device(options.device)
    index = device.index or 0
    dlbackend.solvers.wait()
    torch.manual_seed(0)
    for call in _calls(options.batch, device, options.quick):
        call()
    torch.accelerator.synchronize(device)
    keys = dlbackend.solvers.problems()
    found = []
    for i, key in enumerate(keys):
        if sys.stderr.isatty():
            print(f"\r{i + 1} of {len(keys)} problems", end="", file=sys.stderr, flush=True)
        if (row := _judge(key, index, options.repeats)) is not None:
            found.append(row)
    return found


def _print_table(found: list[dict[str, Any]], worst: int) -> None:
    ops: dict[str, list[float]] = {}
    for row in found:
        ops.setdefault(row["key"].split(":")[0], []).append(row["ratio"])
    print(f"{'op':24s} {'problems':>8s} {'within 1.3':>10s} {'median':>7s} {'worst':>7s}")
    for name, ratios in [*sorted(ops.items()), ("all", [row["ratio"] for row in found])]:
        share = sum(ratio <= GOAL for ratio in ratios) / len(ratios)
        print(f"{name:24s} {len(ratios):8d} {share:10.2f} {statistics.median(ratios):7.2f} {max(ratios):7.2f}")
    for row in sorted(found, key=lambda row: -row["ratio"])[:worst]:
        time, best = row["times"].get(row["first"], float("inf")), row["times"][row["best"]]
        print(f"  {row['ratio']:5.2f}x {time:9.1f} us {row['first']} (estimate {row['estimate']:.1f}), not")
        print(f"         {best:9.1f} us {row['best']}: {row['key']}")
    share = sum(row["ratio"] <= GOAL for row in found) / len(found)
    print(f"within {GOAL} of the best: {share:.3f}, goal {GOAL_SHARE} {'met' if share >= GOAL_SHARE else 'MISSED'}")


def main() -> None:
    """Judges in a process with empty caches, after one that measures the rates if they are asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_choice", description=__doc__)
    parser.add_argument("--rates", choices=("measured", "derived"), default="measured", help="what estimates go by")
    parser.add_argument("--device", default="ocl:0")
    parser.add_argument("--batch", type=int, default=2, help="of the convolutions")
    parser.add_argument("--quick", action="store_true", help="a third of the problems")
    parser.add_argument("--repeats", type=int, default=4, help="measurements more of each problem")
    parser.add_argument("--worst", type=int, default=10, help="how many of the worst choices to show")
    parser.add_argument("--json", type=outputs.file, metavar="FILE", help="file for the results")
    parser.add_argument("--here", default="", help=argparse.SUPPRESS)  # the file for what this process finds
    options = parser.parse_args()
    if options.here:
        with open(options.here, "w") as out:
            json.dump(judge_all(options), out)
        return
    with tempfile.TemporaryDirectory() as cache:
        own = {"DLBACKEND_FIND_MODE": "fast", "DLBACKEND_RATES": options.rates}
        environment = {**os.environ, **fresh_caches(cache), **own}
        index = options.device.partition(":")[2] or "0"
        if options.rates == "measured":
            code = f"import time, torch, dlbackend; t = time.time(); r = dlbackend._C.measure_rates({index})"
            code += "; print(f'rates, measured in {time.time() - t:.2f} s:', r)"
        else:
            code = f"import torch, dlbackend; print('rates:', dlbackend._C.device_rates({index}))"
        subprocess.run([sys.executable, "-c", code], env=environment, check=True)
        file = cache + "/found.json"
        subprocess.run(
            [sys.executable, "-m", "benchmarks.first_choice", *sys.argv[1:], "--here", file],
            env=environment,
            check=True,
        )
        with open(file) as text:
            found = json.load(text)
    _print_table(found, options.worst)
    if options.json:
        outputs.write_json(options.json, found)


if __name__ == "__main__":
    main()
