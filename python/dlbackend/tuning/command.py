"""python -m dlbackend tune: the tuner for torchvision's networks and for functions that return a model."""

import argparse
import importlib
import os
import subprocess
import sys
from typing import Any

import torch
from torch import nn

from dlbackend import outputs
from dlbackend.calibration import METHODS, PERCENTILE
from dlbackend.inputs import Loss, squared
from dlbackend.torchvision_nets import calibrate, import_torchvision
from dlbackend.tuning import result, tuner, variant
from dlbackend.tuning.result import Tuning

SEED = 0
CALIBRATION = 4  # batches of random images
ENDS = ("winner", "slowest")


def torchvision_net(name: str, batch: int, size: int, weights: str | None) -> tuple[nn.Module, Any]:
    """A network of torchvision with random images, (batch, 3, size, size). Without weights, batch norms get the
    statistics of random images: a net whose numbers grow from layer to layer says nothing about float16.
    """
    torchvision = import_torchvision(f"tune {name}", ", or name a function: module:function")
    try:
        model: nn.Module = torchvision.models.get_model(name, weights=weights)
    except ValueError as error:
        known = ", ".join(torchvision.models.list_models(module=torchvision.models))
        raise SystemExit(f"torchvision has no {name} with these weights ({error}); there are {known}") from error
    if weights is None:
        images = torch.randn(max(4, batch), 3, size, size)
        calibrate(model, lambda training: training(images))
    return model, torch.randn(batch, 3, size, size)


def call_function(name: str) -> Any:
    """What `module:function`, without arguments, returns; the module may lie in the working directory."""
    module, _, function = name.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError) as error:
        raise SystemExit(f"tune {name}: {error}") from error
    finally:
        sys.path.remove(os.getcwd())


def load_function(name: str) -> tuple[nn.Module, Any, Loss]:
    """Calls `module:function`, which returns (model, inputs) or (model, inputs, loss)."""
    made = call_function(name)
    if not isinstance(made, tuple) or len(made) not in (2, 3) or not isinstance(made[0], nn.Module):
        raise SystemExit(f"{name}() must return (model, inputs) or (model, inputs, loss)")
    return made[0], made[1], made[2] if len(made) == 3 else squared


def calibration_of(args: argparse.Namespace) -> Any:
    """Batches from the function that --calibration names; random images for a network of torchvision without it."""
    if args.calibration:
        return call_function(args.calibration)
    if ":" in args.net:
        return None
    batch, size = max(4, args.batch), args.input_size
    return [torch.randn(batch, 3, size, size) for _ in range(CALIBRATION)]


def replay(args: argparse.Namespace, model: nn.Module, inputs: Any, loss: Loss) -> int:
    """Measures the winner of a tuning again, from its JSON, in turns with the slowest; says how far that is from the
    times that a new process had after tuning, if the file has those, else from the tuner's.
    """
    found = result.load_tuning(args.replay, args.device)
    model.train(found.data["training"])
    now = tuner.replay(found, model, inputs, args.device, loss)
    tuned = {
        what: float(entry["milliseconds"]) for what, entry in zip(ENDS, (found.winner, found.slowest), strict=True)
    }
    before: dict[str, float] = found.data.get("replayed", tuned)
    when = "tuned" if before is tuned else "before"
    for what, then, again in zip(ENDS, (before["winner"], before["slowest"]), now, strict=True):
        print(f"{what:<8} {then:9.2f} ms {when}, {again:9.2f} ms now ({again / then - 1:+.1%})")
    # Both were measured in turns, so what slows the whole process down, or the machine, is not in their ratio.
    ratio, again = before["slowest"] / before["winner"], now[1] / now[0]
    print(f"slowest / winner: {ratio:.2f}x {when}, {again:.2f}x now ({again / ratio - 1:+.1%})")
    if args.keep:
        found.data["replayed"] = {what: round(again, 4) for what, again in zip(ENDS, now, strict=True)}
        found.save(args.replay)
    return 0


def replay_in_new_process(args: argparse.Namespace) -> None:
    """Has a process of its own replay what was just saved and keep its times in the file. Runs that are mostly
    the host's work tend to be a few percent slower in a process that has tuned than in one that loads the result.
    """
    options = ["--batch", str(args.batch), "--input-size", str(args.input_size), "--device", args.device]
    options += ["--weights", args.weights] if args.weights else []
    command = [sys.executable, "-m", "dlbackend", "tune", args.net, *options, "--replay", str(args.out), "--keep"]
    print("in a process that loads it:", flush=True)
    if subprocess.run(command, check=False).returncode:
        print("that failed; the times are the tuner's alone", file=sys.stderr)


def main(args: argparse.Namespace) -> int:
    torch.manual_seed(SEED)
    try:
        if ":" in args.net:
            model, inputs, loss = load_function(args.net)
        else:
            model, inputs = torchvision_net(args.net, args.batch, args.input_size, args.weights)
            loss = squared
        if args.replay:
            return replay(args, model, inputs, loss)
        found = tuner.tune(
            model,
            inputs,
            device=args.device,
            precision=args.precision,
            layout=args.layout,
            fusion=args.fusion,
            solvers=args.solvers,
            search=args.search,
            budget=args.budget,
            training=args.train,
            loss=loss,
            max_error=args.max_error,
            max_drop=args.max_drop,
            calibration=calibration_of(args),
            calibration_method=args.calibration_method,
            percentile=args.percentile,
            name=args.net,
        )
        return report(found, args)
    except (ValueError, RuntimeError, OSError) as error:
        print(f"dlbackend tune: {error}", file=sys.stderr)
        return 1


def report(found: Tuning, args: argparse.Namespace) -> int:
    print(found.table())
    ratio = found.slowest["milliseconds"] / found.winner["milliseconds"]
    print(f"the winner is {ratio:.2f}x as fast as the slowest")
    if args.out:
        found.save(args.out)
        print(f"{args.out}: dlbackend.load_tuning({str(args.out)!r}).apply(model)")
        replay_in_new_process(args)
    if args.picture:
        found.picture(args.picture)
    return 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `tune`; sets `run`."""
    parser.add_argument("net", metavar="NET", help="a network of torchvision, or module:function (see docs/tuning.md)")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--input-size", type=int, default=224, help="height and width of the images")
    parser.add_argument("--weights", help="torchvision's name of weights, as DEFAULT; otherwise random")
    for knob, default, values in (
        ("precision", "fp32", variant.PRECISIONS),
        ("layout", "pick", variant.LAYOUTS),
        ("fusion", "pick", variant.FUSIONS),
        ("solvers", "pick", variant.SOLVERS),
    ):
        about = f"pick, or of {', '.join(values)} (several by comma); default {default}"
        parser.add_argument(f"--{knob}", default=default, metavar="VALUES", help=about)
    parser.add_argument("--search", choices=("guided", "exhaustive"), default="guided")
    parser.add_argument(
        "--budget", type=float, default=300, metavar="SECONDS", help="begin no measurement after so long"
    )
    parser.add_argument("--max-error", type=float, default=0.2, help="relative L2 error with which none may win")
    about = "share of classes that quantized layers may change against float32, of the calibration's batches"
    parser.add_argument("--max-drop", type=float, default=0.01, help=about)
    about = "function that returns batches of inputs, for int8; without it, a network of torchvision gets random images"
    parser.add_argument("--calibration", metavar="MODULE:FUNCTION", help=about)
    parser.add_argument("--calibration-method", choices=METHODS, default=METHODS[0])
    parser.add_argument("--percentile", type=float, default=PERCENTILE, help="of that method")
    parser.add_argument("--train", action="store_true", help="forward and backward instead of forward")
    parser.add_argument("--device", default="ocl:0")
    parser.add_argument("--out", type=outputs.file, metavar="JSON", help="file for the result")
    about = "file for bars of whole-model and per-layer times; needs matplotlib"
    parser.add_argument("--picture", type=outputs.picture, metavar="PNG", help=about)
    parser.add_argument("--replay", metavar="JSON", help="tune nothing: measure this tuning's winner again")
    parser.add_argument(
        "--keep",
        action="store_true",
        help="with --replay: keep the times in the file, for later replays to compare with",
    )
    parser.set_defaults(run=main)
