"""The command: which networks, what is printed and written, exit status. docs/validation.md describes the output."""

import argparse
import gc
import importlib.util
import platform
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

import dlbackend
from dlbackend import outputs
from dlbackend.progress import worked_on
from dlbackend.tools.host_memory import Peak
from dlbackend.tools.validation import language, picture, rule, vision
from dlbackend.tools.validation.result import HEAD, Result, as_json, line
from dlbackend.tools.validation.rule import Example
from dlbackend.torchvision_nets import calibrate

SEED = 0
LANGUAGE = "language"


@dataclass
class Net:
    """A network that can be validated."""

    name: str
    family: str
    make: Callable[[bool], Example]


def nets() -> list[Net]:
    """All networks that are validated where none are named; transformers' where it is installed."""
    found = [
        Net(name, family, vision.maker(family, name))
        for family, (names, _) in vision.FAMILIES.items()
        for name in names
    ]
    if importlib.util.find_spec("transformers"):
        found += [Net(name, LANGUAGE, make) for name, make in language.MAKERS.items()]
    return found


def chosen(names: list[str]) -> list[Net]:
    """The networks of these names; torchvision's others too. All where no names are given."""
    known = {net.name: net for net in nets()}
    if not names:
        return list(known.values())
    for name in set(names) - known.keys():
        if name in language.MAKERS:
            raise SystemExit(f"validate {name} needs transformers, which is not installed: pip install transformers")
        family = vision.family_of(name)
        if family is None:
            raise SystemExit(f"there is no network {name}; `validate --list` names those that are validated")
        known[name] = Net(name, family, vision.maker(family, name))
    return [known[name] for name in names]


def kernels_compiled() -> int:
    stats = dlbackend.kernel_stats()
    return int(stats["compiled"] + stats["compiled_elsewhere"])


def validate(net: Net, device: torch.device, quick: bool, compiles: bool = False) -> Result:
    """Runs all stages of a network, on the device by torch.compile if it `compiles`. What they raise is the network's
    failure.
    """
    result = Result(net.name, net.family)
    torch.manual_seed(SEED)
    dlbackend.reset_fallback_report()
    before, memory = kernels_compiled(), Peak()
    where = "build"
    try:
        example = net.make(quick)
        example.compiles = compiles
        if compiles:
            torch._dynamo.reset()
            torch._dynamo.utils.counters.clear()
        for name, stage in rule.stages(example).items():
            where = name
            if name == "eval":
                calibrate(example.model, partial(rule.call_training, example))
            result.stages[name] = rule.compare(stage, name, example, device)
    except Exception as error:  # the next network may be right
        result.error = f"{where}: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    result.fallbacks = dlbackend.fallback_report()
    result.graph_breaks = dict(torch._dynamo.utils.counters["graph_break"]) if compiles else {}
    result.compiled = kernels_compiled() - before
    result.peak_bytes = memory.bytes()
    gc.collect()
    return result


def device_name(device: torch.device) -> str:
    if device.type == "ocl":
        return str(torch.ocl.get_device_name(device))  # type: ignore[attr-defined]
    return str(device)


def main(args: argparse.Namespace) -> int:
    """Validates, prints and writes what the options ask for; 1 if a network failed."""
    if args.list:
        print("\n".join(f"{net.name:38} {net.family}" for net in nets()))
        return 0
    device = torch.device(args.device)
    selected = chosen([name for name in args.only.split(",") if name])
    if any(net.family != LANGUAGE for net in selected):
        vision.import_torchvision("validate")
    print(f"{device_name(device)} against float64 on the CPU; in brackets, how much of what the rule allows\n{HEAD}")
    results: list[Result] = []
    work = partial(validate, device=device, quick=args.quick, compiles=args.compile)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # ops on the CPU are in the table
            for result in worked_on(selected, "validate", work, lambda net: net.name):
                results.append(result)
                print(line(result), flush=True)
    finally:  # an interrupted run keeps what it has
        if args.json:
            outputs.write_json(args.json, record(args, results))
    failed = [result.name for result in results if not result.passed]
    print("; ".join([f"{len(results) - len(failed)} of {len(results)} passed", *(f"{name} failed" for name in failed)]))
    if args.picture:
        picture.draw(results, args.picture, device_name(device))
    return 1 if failed else 0


def record(args: argparse.Namespace, results: list[Result]) -> dict[str, Any]:
    """The JSON file."""
    return {
        "dlbackend": dlbackend.__version__, "torch": torch.__version__, "device": args.device,
        "device_name": device_name(torch.device(args.device)), "machine": platform.machine(), "quick": args.quick,
        "compile": args.compile, "nets": [as_json(result) for result in results],
    }  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `validate`; sets `run`."""
    parser.add_argument("--device", default="ocl:0")
    parser.add_argument("--quick", action="store_true", help="small pictures and widths: minutes instead of hours")
    parser.add_argument("--compile", action="store_true", help="the device runs torch.compile(network)")
    parser.add_argument(
        "--only", default="", metavar="NAME[,NAME]", help="these networks; any of torchvision's may be named"
    )
    parser.add_argument("--list", action="store_true", help="name the networks, run none")
    parser.add_argument("--json", type=outputs.file, metavar="FILE", help="file for all errors, limits and times")
    about = "file for a picture of errors and times; needs matplotlib"
    parser.add_argument("--picture", type=outputs.picture, metavar="FILE", help=about)
    parser.set_defaults(run=main)
