"""python -m dlbackend bench: training steps of networks on several devices side by side.

A step is the pictures' transfer, forward, backward and the optimizer, Adam, as published tables of OpenCL backends have
it. The devices take turns, round by round, and the ratio is the median over rounds: on shared machines the pace changes
within seconds, and all devices have to see the same. Where the first device is ocl, a step is held against its
roofline: the least time that the device's measured rates allow for what its ops move and compute (roofline.py).
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import dlbackend
from dlbackend import environment, outputs
from dlbackend.pictures import figure_class
from dlbackend.progress import worked_on
from dlbackend.tools import roofline, training_worker
from dlbackend.tools.training_worker import Times

NETS = ("alexnet", "resnet18", "resnet50", "vgg16", "mobilenet_v2")
OCL, OTHERS = "tab:green", ("tab:gray", "tab:blue", "tab:orange")


class Worker:
    """A process that measures on one device and answers requests by line, as training_worker.py does."""

    def __init__(self, *arguments: str) -> None:
        command, variables = [sys.executable, *arguments], environment.of_measuring_processes()
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables
        )

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """One measurement; an error when the process has ended."""
        assert self.process.stdin
        assert self.process.stdout
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        answer: dict[str, Any] = json.loads(line) if line else {"error": f"the process ended ({self.process.poll()})"}
        return answer

    def close(self) -> None:
        """Ends the process when it has answered."""
        if self.process.stdin:
            self.process.stdin.close()
        self.process.wait()


def alternate(workers: Mapping[str, Worker], request: Mapping[str, Any], rounds: int) -> dict[str, list[Times]]:
    """The times of each worker in each round, in which they take turns. RuntimeError with the error of one of them."""
    times: dict[str, list[Times]] = {name: [] for name in workers}
    for _ in range(rounds):
        for name, worker in workers.items():
            answer = asked(name, worker, request)
            times[name].append(Times(answer["seconds"], answer["host"]))
    return times


def asked(name: str, worker: Worker, request: Mapping[str, Any]) -> dict[str, Any]:
    """A worker's answer. RuntimeError with its error."""
    answer = worker.ask(request)
    if "error" in answer:
        raise RuntimeError(f"{name}: {answer['error']}")
    return answer


def examine(worker: Worker, request: Mapping[str, Any], seconds: float) -> roofline.Roofline:
    """The roofline of an ocl device in a step of so many seconds. RuntimeError with the worker's error."""
    return roofline.from_record(asked("roofline", worker, {**request, "examine": seconds})["roofline"])


def middle(times: list[Times]) -> Times:
    """The medians over rounds."""
    return Times(*(statistics.median(values) for values in zip(*times, strict=True)))


def ratio(times: list[Times], peer: list[Times]) -> float:
    """How many times as fast as its peer a device is: the median over rounds."""
    return statistics.median(p.seconds / own.seconds for own, p in zip(times, peer, strict=True))


def measure(net: str, workers: Mapping[str, Worker], args: argparse.Namespace) -> dict[str, Any]:
    """A row of the table: milliseconds, those of the host, the ratios of the other devices' times to the first one's,
    and the first one's roofline.
    """
    request = {"net": net, "batch": args.batch, "size": args.size, "seconds": args.seconds}
    try:
        times = alternate(workers, request, args.rounds)
        first, *others = times
        medians = {name: middle(seconds) for name, seconds in times.items()}
        is_ocl = first.startswith("ocl")
        found = examine(workers[first], request, medians[first].seconds) if is_ocl else None
    except RuntimeError as error:
        return {"net": net, "error": str(error)}
    return {
        "net": net,
        "milliseconds": {name: 1e3 * median.seconds for name, median in medians.items()},
        "host_milliseconds": {name: 1e3 * median.host for name, median in medians.items()},
        "ratio": {name: ratio(times[first], times[name]) for name in others},
        "roofline": found,
    }


def heads(devices: list[str]) -> str:
    """The table's first line."""
    cells = [f"{device + ' ms':>12}" for device in devices] + [f"{'/ ' + device:>12}" for device in devices[1:]]
    cells += [f"{'host ' + device:>12}" for device in devices]
    if devices[0].startswith("ocl"):
        cells += [f"{name:>10}" for name in ("launches", "GB", "GFLOP", "least ms", "least/ms")]
    return " ".join([f"{'network':24}", *cells])


def line(row: dict[str, Any]) -> str:
    if "error" in row:
        return f"{row['net']:24} {row['error']}"
    cells = [f"{value:12.2f}" for value in row["milliseconds"].values()]
    cells += [f"{value:11.2f}x" for value in row["ratio"].values()]
    cells += [f"{value:12.2f}" for value in row["host_milliseconds"].values()]
    if row["roofline"]:
        whole, step = row["roofline"].total(), next(iter(row["milliseconds"].values()))
        least = whole.least * 1e3
        cells += [f"{row['roofline'].launches:10}", f"{whole.bytes / 1e9:10.3f}", f"{whole.operations / 1e9:10.2f}"]
        cells += [f"{least:10.2f}", f"{least / step:10.0%}"]
    return " ".join([f"{row['net']:24}", *cells])


def draw(rows: list[dict[str, Any]], devices: list[str], path: Path) -> None:
    """Writes the picture in the format of the path's ending. ImportError without matplotlib."""
    measured = [row for row in rows if "error" not in row]
    figure = figure_class()(figsize=(10, 1 + 0.35 * len(devices) * max(len(measured), 1)), layout="constrained")
    axis = figure.subplots()
    height = 0.8 / len(devices)
    for i, (device, colour) in enumerate(zip(devices, (OCL, *OTHERS), strict=False)):
        places = [row + (i - (len(devices) - 1) / 2) * height for row in range(len(measured))]
        bars = axis.barh(places, [row["milliseconds"][device] for row in measured], height, color=colour, label=device)
        axis.bar_label(bars, fmt=" %.4g", fontsize=8)
        if i == 0 and measured and measured[0]["roofline"]:
            least = [1e3 * row["roofline"].total().least for row in measured]
            axis.barh(places, least, height, color="none", hatch="////", label="its roofline")
    axis.set_yticks(range(len(measured)), [row["net"] for row in measured])
    axis.invert_yaxis()
    axis.legend()
    axis.set_xlabel("training step, ms")
    figure.savefig(path, dpi=110)


def default_devices() -> str:
    return "ocl:0,cpu" + (",cuda" if torch.cuda.is_available() else "")


def main(args: argparse.Namespace) -> int:
    """Measures, prints and writes what the options ask for; 1 if a network could not be measured."""
    devices = (args.devices or default_devices()).split(",")
    nets = args.only.split(",")
    workers = {device: Worker(training_worker.__file__, device, str(args.threads)) for device in devices}
    print(f"training steps with Adam, batch {args.batch}, {args.size} x {args.size}, float32")
    print("a ratio above 1: the first device is faster; host: milliseconds until the caller goes on")
    print(heads(devices), flush=True)
    rows: list[dict[str, Any]] = []
    try:
        for row in worked_on(nets, "bench", lambda net: measure(net, workers, args), str):
            rows.append(row)
            print(line(row), flush=True)
            if args.breakdown and row.get("roofline"):
                print("\n".join(roofline.lines(row["roofline"])), flush=True)
    finally:  # an interrupted run keeps what it has
        if args.json:
            settings = {"batch": args.batch, "size": args.size, "rounds": args.rounds, "threads": args.threads}
            versions = {"dlbackend": dlbackend.__version__, "torch": torch.__version__, "machine": platform.machine()}
            outputs.write_json(args.json, {**versions, **settings, "devices": devices, "nets": rows})
    for worker in workers.values():
        worker.close()
    if args.picture:
        draw(rows, devices, args.picture)
    return 1 if any("error" in row for row in rows) else 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `bench`; sets `run`."""
    parser.add_argument(
        "--only", default=",".join(NETS), metavar="NAME[,NAME]",
        help="networks of torchvision, or module:function that returns one; default %(default)s",
    )  # fmt: skip
    about = "the first is compared with the others; default: ocl:0, cpu, and cuda where torch can use it"
    parser.add_argument("--devices", default="", metavar="DEVICE[,DEVICE]", help=about)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, default=224, help="height and width of the pictures")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="per network, device and round")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of PyTorch's CPU device")
    parser.add_argument("--breakdown", action="store_true", help="each op's part of a step on the first device, if ocl")
    parser.add_argument("--json", type=outputs.file, metavar="FILE", help="file for the results")
    about = "file for a picture of the times; needs matplotlib"
    parser.add_argument("--picture", type=outputs.picture, metavar="FILE", help=about)
    parser.set_defaults(run=main)
