"""What the tuner found out about a model on a device, as JSON, and making it happen again without tuning.

    tuning = dlbackend.load_tuning("tuning.json")    # solver choices hold for this process from here on
    model = tuning.apply(model)                      # the winner's precision, layout and folding

docs/tuning.md describes the JSON.
"""

import copy
import hashlib
import json
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dlbackend import _C, variant
from dlbackend.variant import Configuration

SCHEMA = "dlbackend-tuning"
VERSION = 1

Json = dict[str, Any]

_loaded: list["Tuning"] = []  # whose solver choices hold in this process


def describe_device(index: int) -> Json:
    """What a tuning holds for: the JSON's "device"."""
    p = _C.device_properties(index)
    return {
        "name": p.name,
        "platform": p.platform,
        "driver": p.driver_version,
        "version": p.version,
        "type": p.type,
        "compute_units": p.compute_units,
        "place": _C.find_place(index),
    }


def describe_model(model: nn.Module) -> Json:
    """Class and parameters of a model: the JSON's "model"."""
    shapes = [f"{name}:{tuple(p.shape)}" for name, p in model.named_parameters()]
    kind = type(model)
    return {
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "parameters": sum(p.numel() for p in model.parameters()),
        "fingerprint": hashlib.sha256("\n".join(shapes).encode()).hexdigest(),
    }


def configuration_of(entry: Json) -> Configuration:
    """The knobs of one entry of the JSON's "configurations"."""
    layers = tuple(sorted(entry["layer_layouts"].items()))
    return Configuration(entry["precision"], entry["layout"], entry["fusion"], entry["solvers"], layers)


@dataclass
class Tuning:
    """The result of tuning a model; `data` is the JSON. `winner` indexes data["configurations"]."""

    data: Json

    @property
    def winner(self) -> Json:
        """The fastest configuration that is accurate enough: an entry of data["configurations"]."""
        return next(entry for entry in self.data["configurations"] if entry["winner"])

    @property
    def slowest(self) -> Json:
        """The slowest of the configurations that were measured in turns with the winner."""
        return max(
            (entry for entry in self.measured() if entry["final"]), key=lambda entry: float(entry["milliseconds"])
        )

    def measured(self) -> list[Json]:
        """The configurations that ran, the fastest first."""
        ran = [entry for entry in self.data["configurations"] if entry["milliseconds"] is not None]
        return sorted(ran, key=lambda entry: float(entry["milliseconds"]))

    def apply(self, model: nn.Module, inplace: bool = False) -> nn.Module:
        """The model as the winner has it: its precision, layout and fusion. `model` itself is changed only with
        `inplace`. The result is called as the model is; it takes and gives float32. ValueError for a model other than
        the tuned one, or in the other mode: a tuning of inference wants eval(), one of training train().
        """
        known = self.data["model"]
        found = describe_model(model)
        if found["fingerprint"] != known["fingerprint"]:
            raise ValueError(
                f"this tuning is of {known['class']} with {known['parameters']} parameters; {found['class']} with "
                f"{found['parameters']} has others. Tune it: `python -m dlbackend tune`"
            )
        if model.training != self.data["training"]:
            mode = "training: call train()" if self.data["training"] else "inference: call eval()"
            raise ValueError(f"this tuning is of {mode} before apply()")
        return variant.make_variant(model if inplace else copy.deepcopy(model), configuration_of(self.winner))

    def load_solvers(self) -> None:
        """Makes this process take the winner's solvers for the problems that were tuned, before what its own store
        knows. Opens no driver; on other devices it has no effect.
        """
        _loaded.append(self)
        for key, text in self.data["records"].items():
            _C.load_find_record(self.data["device"]["place"], key, text)

    def save(self, path: str | Path) -> None:
        """Writes the JSON."""
        Path(path).write_text(json.dumps(self.data, indent=1) + "\n")

    def table(self) -> str:
        """The configurations with their times and errors, the fastest first; a line each. Times with ~ were not
        measured in turns with the winner's: the machine may have been slower or faster then.
        """
        lines = [f"{'ms':>10}  {'against':>7}  {'error':>8}  {'top-1':>5}  configuration"]
        slowest = self.slowest["milliseconds"]
        for entry in self.measured():
            accuracy, top1 = entry["accuracy"], entry["accuracy"]["top1_agreement"]
            error = f"{accuracy['relative_l2']:.1e}" if accuracy["finite"] else "not finite"
            note = "  <- winner" if entry["winner"] else f"  ({entry['rejected']})" if entry["rejected"] else ""
            lines.append(
                f"{'' if entry['final'] else '~'}{entry['milliseconds']:.2f}".rjust(10)
                + f"  {slowest / entry['milliseconds']:6.2f}x  {error:>8}  "
                f"{'-' if top1 is None else f'{top1:.0%}':>5}  {configuration_of(entry)}{note}"
            )
        lines += [
            f"{'-':>10}  {configuration_of(entry)}: {entry['rejected']}"
            for entry in self.data["configurations"]
            if entry["milliseconds"] is None
        ]
        lines += [f"not offered: {knob} {value}: {why}" for knob, value, why in self.not_offered()]
        return "\n".join(lines)

    def not_offered(self) -> list[tuple[str, str, str]]:
        """Knob, value and reason of what was not tried."""
        return [
            (knob, value, why)
            for knob, found in self.data["knobs"].items()
            for value, why in found["not_offered"].items()
        ]

    def picture(self, path: str | Path) -> None:
        """Draws whole-model and per-layer bars into a file. ImportError, saying what to install, without matplotlib."""
        from dlbackend import picture

        picture.draw(self, path)


def _check_schema(data: object) -> Json:
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise ValueError(f'not a tuning: its "schema" is not {SCHEMA!r}')
    if data.get("version") != VERSION:
        raise ValueError(
            f"a tuning of schema version {data.get('version')}, but this dlbackend reads version {VERSION}: tune again"
        )
    needed = {"device", "model", "training", "configurations", "records", "knobs"}
    if missing := sorted(needed - data.keys()):
        raise ValueError(f"not a whole tuning: {', '.join(missing)} missing")
    if [entry.get("winner") for entry in data["configurations"]].count(True) != 1:
        raise ValueError("not a whole tuning: it needs one winner")
    return data


def _read(source: str | Path | Json) -> Tuning:
    try:
        data = source if isinstance(source, dict) else json.loads(Path(source).read_text())
        return Tuning(_check_schema(data))
    except ValueError as error:  # also what json finds wrong
        name = "" if isinstance(source, dict) else f"{source}: "
        raise ValueError(f"{name}{error}") from error


def load_tuning(source: str | Path | Json | None = None, device: str | torch.device | int = "ocl:0") -> Tuning:
    """Reads a tuning and makes this process take its solver choices; Tuning.apply() does the rest to a model.

    `source`: file, the JSON as a dictionary, or None for the file that DLBACKEND_TUNING names. ValueError for what is
    no tuning or of another schema version. RuntimeError when it was made on another device than `device`: nothing of
    it is loaded. Where only the driver differs, a warning: the solver choices are left out, since they were measured
    and found right on the other driver, and the rest of the tuning holds.
    """
    if source is None:
        source = os.environ.get("DLBACKEND_TUNING") or None
        if source is None:
            raise ValueError("load_tuning() needs a file, or DLBACKEND_TUNING to name one")
    tuning = _read(source)
    then, now = tuning.data["device"], describe_device(device_index(device))
    for what in ("name", "platform", "type", "compute_units"):
        if then[what] != now[what]:
            raise RuntimeError(
                f"this tuning is of another device: its {what} is {then[what]!r}, here it is {now[what]!r}. Tune again "
                "here: `python -m dlbackend tune`"
            )
    if then["place"] != now["place"]:
        warnings.warn(
            f"this tuning was made with driver {then['driver']} ({then['version']}), here it is {now['driver']} "
            f"({now['version']}): its precision, layout and fusion hold, its solver choices are found anew",
            stacklevel=2,
        )
        return tuning
    tuning.load_solvers()
    return tuning


def restore_solvers() -> None:
    """Puts the solver choices of all loaded tunings back in force, and no others."""
    _C.drop_find_records()
    for tuning in _loaded.copy():
        _loaded.remove(tuning)
        tuning.load_solvers()


def load_environment() -> None:
    """At import: the solver choices of the file that DLBACKEND_TUNING names. What is wrong with it is a warning, so
    that torch works on; a foreign device is noticed when a device is first used.
    """
    path = os.environ.get("DLBACKEND_TUNING")
    if not path:
        return
    try:
        _read(path).load_solvers()
    except (OSError, ValueError) as error:
        warnings.warn(f"DLBACKEND_TUNING is not used: {error}", stacklevel=2)


def device_index(device: str | torch.device | int) -> int:
    """Index of an ocl device. ValueError for a device of another kind."""
    if isinstance(device, int):
        return device
    device = torch.device(device)
    if device.type != "ocl":
        raise ValueError(f"tuning is for devices of type ocl, not {device}")
    return _C.current_device() if device.index is None else device.index
