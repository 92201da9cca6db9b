"""The command: which networks, their table, JSON, exit status. docs/validation.md says how to read the table."""

import argparse
import gc
import importlib.util
import json
import platform
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch

import dlbackend
from dlbackend.progress import worked_on
from dlbackend.tools.validation import language, rule, vision
from dlbackend.tools.validation.rule import Check, Comparison, Example
from dlbackend.torchvision_nets import calibrate

SEED = 0
LANGUAGE = "language"


@dataclass
class Net:
    """A network that can be validated."""

    name: str
    family: str
    make: Callable[[bool], Example]


@dataclass
class Result:
    """What became of a network. It passes where every check does, no op ran on the CPU and nothing was raised."""

    name: str
    family: str
    stages: dict[str, Comparison] = field(default_factory=dict)
    fallbacks: dict[str, int] = field(default_factory=dict)
    compiled: int = 0
    error: str = ""

    @property
    def checks(self) -> list[Check]:
        return [check for stage in self.stages.values() for check in stage.checks]

    @property
    def passed(self) -> bool:
        return not (self.error or self.fallbacks) and all(check.passed for check in self.checks)

    def worst(self, *what: str) -> Check | None:
        """Of the checks of these quantities the one that uses most of what it is allowed; a NaN is worse than all."""
        checks = [check for check in self.checks if check.what in what]
        return max(checks, key=lambda check: (not check.passed, check.used), default=None)


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


def validate(net: Net, device: torch.device, quick: bool) -> Result:
    """Runs all stages of a network. What they raise is the network's failure."""
    result = Result(net.name, net.family)
    torch.manual_seed(SEED)
    dlbackend.reset_fallback_report()
    before = kernels_compiled()
    where = "build"
    try:
        example = net.make(quick)
        for name, stage in rule.stages(example).items():
            where = name
            if name == "eval":
                calibrate(example.model, partial(rule.call_training, example))
            result.stages[name] = rule.compare(stage, name, example, device)
    except Exception as error:  # the next network may be right
        result.error = f"{where}: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    result.fallbacks = dlbackend.fallback_report()
    result.compiled = kernels_compiled() - before
    gc.collect()
    return result


HEAD = f"{'network':38} {'outputs':>16} {'input grad':>16} {'param grads':>16} {'eval':>9} {'step':>9} {'compiled':>8}"


def _error(check: Check | None) -> str:
    return f"{check.error:8.1e} ({check.used:4.0%})" if check else "-"


def _seconds(stage: Comparison | None) -> str:
    return f"{stage.seconds:7.3f} s" if stage else "-"


def line(result: Result) -> str:
    """A row of the table, with a line for everything that is wrong."""
    errors = [_error(result.worst(*what)) for what in (("outputs",), ("input gradient",), ("gradients",))]
    times = [_seconds(result.stages.get(stage)) for stage in ("eval", "train")]
    row = f"{result.name:38} " + " ".join(f"{x:>16}" for x in errors) + " " + " ".join(f"{x:>9}" for x in times)
    lines = [f"{row} {result.compiled:8}  {'ok' if result.passed else 'FAIL'}"]
    lines += [f"{result.error}"] if result.error else []
    lines += [f"on the CPU: {op}, {calls} calls" for op, calls in sorted(result.fallbacks.items())]
    lines += [
        f"{x.stage}, {x.what}: error {x.error:.2e}, allowed {x.allowed:.2e}, PyTorch's CPU device {x.cpu_error:.2e}"
        for x in result.checks
        if not x.passed
    ]
    return "\n    ".join(lines)


def as_json(result: Result) -> dict[str, Any]:
    """One network of the JSON file."""
    stages = {
        name: {
            "seconds": stage.seconds,
            "first_seconds": stage.first_seconds,
            "cpu_seconds": stage.cpu_seconds,
            "checks": [{**asdict(check), "passed": check.passed} for check in stage.checks],
        }
        for name, stage in result.stages.items()
    }
    return {
        "name": result.name, "family": result.family, "passed": result.passed, "error": result.error,
        "fallbacks": result.fallbacks, "kernels_compiled": result.compiled, "stages": stages,
    }  # fmt: skip


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
    results = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ops on the CPU are in the table
        work = partial(validate, device=device, quick=args.quick)
        for result in worked_on(selected, "validate", work, lambda net: net.name):
            results.append(result)
            print(line(result), flush=True)
    failed = [result.name for result in results if not result.passed]
    print("; ".join([f"{len(results) - len(failed)} of {len(results)} passed", *(f"{name} failed" for name in failed)]))
    write(args, results)
    return 1 if failed else 0


def write(args: argparse.Namespace, results: list[Result]) -> None:
    """The files that the options ask for."""
    if args.json:
        record = {
            "dlbackend": dlbackend.__version__, "torch": torch.__version__, "device": args.device,
            "device_name": device_name(torch.device(args.device)), "machine": platform.machine(), "quick": args.quick,
            "nets": [as_json(result) for result in results],
        }  # fmt: skip
        with open(args.json, "w") as out:
            json.dump(record, out, indent=1)
    if args.picture:
        from dlbackend.tools.validation import picture

        picture.draw(results, args.picture, device_name(torch.device(args.device)))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `validate`; sets `run`."""
    parser.add_argument("--device", default="ocl:0")
    parser.add_argument("--quick", action="store_true", help="small pictures and widths: minutes instead of hours")
    parser.add_argument(
        "--only", default="", metavar="NAME[,NAME]", help="these networks; any of torchvision's may be named"
    )
    parser.add_argument("--list", action="store_true", help="name the networks, run none")
    parser.add_argument("--json", metavar="FILE", help="file for all errors, limits and times")
    parser.add_argument("--picture", metavar="FILE", help="file for a picture of errors and times; needs matplotlib")
    parser.set_defaults(run=main)
