"""The result of tuning a model on a device, as JSON; applying it makes the winner again without tuning.

    tuning = dlbackend.load_tuning("tuning.json")    # solver choices hold for this process from here on
    model = tuning.apply(model)                      # the winner's precision, layout and folding

docs/tuning.md describes the JSON.
"""

import copy
import hashlib
import json
import math
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dlbackend import _C, environment, quantization
from dlbackend.tuning import picture, variant
from dlbackend.tuning.variant import Json, configuration_of

SCHEMA = "dlbackend-tuning"
VERSION = 1

_loaded: list["Tuning"] = []  # the tunings whose solver choices hold in this process


def describe_device(index: int) -> Json:
    """The device that a tuning is for: the JSON's "device"."""
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
        `inplace`. The result is called as the model is; it takes and gives float32. ValueError as check_model()'s.
        """
        self.check_model(model)
        return variant.make_variant(model if inplace else copy.deepcopy(model), configuration_of(self.winner))

    def check_model(self, model: nn.Module) -> None:
        """ValueError for a model other than the tuned one, or in the other mode: a tuning of inference wants eval(),
        one of training train().
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

    def load_solvers(self) -> None:
        """Makes this process take the winner's solvers for the problems that were tuned, before what its own store
        knows. Opens no driver; on other devices it has no effect. ValueError where one is no record; then none of them
        holds.
        """
        try:
            for key, text in self.data["records"].items():
                _C.load_find_record(self.data["device"]["place"], key, text)
        except ValueError:
            restore_solvers()
            raise
        _loaded.append(self)

    def save(self, path: str | Path) -> None:
        """Writes the JSON, making folders that are missing. Numbers that JSON does not have are null in it."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(json.dumps(without_infinities(self.data), indent=1, allow_nan=False) + "\n")

    def table(self) -> str:
        """The configurations with their times and errors, the fastest first; a line each. Times with ~ were not
        measured in turns with the winner's: the machine may have been slower or faster then.
        """
        lines = [f"{'ms':>10}  {'against':>7}  {'error':>10}  {'top-1':>5}  configuration"]
        slowest = self.slowest["milliseconds"]
        for entry in self.measured():
            accuracy, top1 = entry["accuracy"], entry["accuracy"]["top1_agreement"]
            norm = accuracy["relative_l2"]
            error = "not finite" if not accuracy["finite"] else "infinite" if norm is None else f"{norm:.1e}"
            note = "  <- winner" if entry["winner"] else f"  ({entry['rejected']})" if entry["rejected"] else ""
            lines.append(
                f"{'' if entry['final'] else '~'}{entry['milliseconds']:.2f}".rjust(10)
                + f"  {slowest / entry['milliseconds']:6.2f}x  {error:>10}  "
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
        """Knob, value and reason of all that was not tried."""
        return [
            (knob, value, why)
            for knob, found in self.data["knobs"].items()
            for value, why in found["not_offered"].items()
        ]

    def picture(self, path: str | Path) -> None:
        """Draws bars of whole models, of layers and, where they are quantized, of their errors into a file.
        ImportError, saying what to install, without matplotlib.
        """
        data = self.data
        kind = "training step" if data["training"] else "inference"
        title = f"{data['model']['name']}, {kind}, on {data['device']['name']}"
        quantized = data.get("quantization", {}).get("layers", {})
        picture.draw(title, self.measured(), self.winner, self.slowest, quantized, Path(path))


def without_infinities(value: Any) -> Any:
    """A copy of JSON data in which floats that are not finite, for which JSON has no notation, are None."""
    if isinstance(value, dict):
        return {key: without_infinities(x) for key, x in value.items()}
    if isinstance(value, list):
        return [without_infinities(x) for x in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclass(frozen=True)
class _Mapping:
    """An object with any keys, whose values are all of one shape."""

    values: object


@dataclass(frozen=True)
class _Nullable:
    shape: object


@dataclass(frozen=True)
class _Optional:
    """A field that older files lack."""

    shape: object


class _Positive:
    """A finite number above 0."""


_NAMES = {str: "a string", int: "an integer", float: "a number", bool: "true or false", dict: "an object"}

# Shapes of fields for _check(): a type, a tuple of the strings that it may be, a list of one shape for an array, a
# dictionary of shapes for an object with at least these fields.
_CONFIGURATION = {
    "precision": variant.PRECISIONS,
    "layout": variant.LAYOUTS,
    "layer_layouts": _Mapping(variant.LAYOUTS[:2]),
    "layer_precisions": _Optional(
        _Mapping({"precision": quantization.PRECISIONS, "input_scale": float, "unsigned": bool})
    ),
    "fusion": variant.FUSIONS,
    "solvers": variant.SOLVERS,
    "milliseconds": _Nullable(_Positive),
    "final": bool,
    "accuracy": _Nullable(
        {
            "finite": bool,
            "max_relative": _Nullable(float),
            "relative_l2": _Nullable(float),
            "top1_agreement": _Nullable(float),
            "drop": _Optional(_Nullable(float)),
        }
    ),
    "layers": [{"name": str, "type": str, "milliseconds": float}],
    "solutions": _Mapping({"solver": str, "config": str}),
    "rejected": _Nullable(str),
    "winner": bool,
}
_LAYER = {
    "name": str,
    "type": str,
    "error": _Nullable(float),
    "milliseconds": _Nullable(float),
    "float32_milliseconds": _Nullable(float),
    "float32": _Nullable(str),
    "winner": bool,
}
_TUNING = {
    "device": {
        "name": str,
        "platform": str,
        "driver": str,
        "version": str,
        "type": str,
        "compute_units": int,
        "place": str,
    },
    "model": {"name": str, "class": str, "parameters": int, "fingerprint": str},
    "training": bool,
    "knobs": _Mapping({"not_offered": _Mapping(str)}),
    "configurations": [_CONFIGURATION],
    "quantization": _Optional(
        {
            "batches": int,
            "method": str,
            "percentile": float,
            "max_drop": _Nullable(float),
            "layers": _Mapping([_LAYER]),
        }
    ),
    "records": _Mapping(str),
}
_REPLAYED = {"winner": _Positive, "slowest": _Positive}


def _check(value: object, shape: object, where: str) -> None:
    """Raises ValueError, which names the field, where `value` does not have the shape."""
    if isinstance(shape, _Nullable):
        if value is not None:
            _check(value, shape.shape, where)
    elif isinstance(shape, list):
        if not isinstance(value, list):
            raise _wrong(where, "an array", value)
        for index, item in enumerate(value):
            _check(item, shape[0], f"{where}[{index}]")
    elif isinstance(shape, (dict, _Mapping)):
        _check_object(value, shape, where)
    elif isinstance(shape, tuple):
        if value not in shape:
            raise _wrong(where, f"one of {', '.join(shape)}", value)
    elif shape is _Positive:
        number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else 0
        if not 0 < number <= sys.float_info.max:
            raise _wrong(where, "a number above 0", value)
    elif isinstance(shape, type) and not _is_a(value, shape):
        raise _wrong(where, _NAMES[shape], value)


def _check_object(value: object, shape: "dict[str, object] | _Mapping", where: str) -> None:
    if not isinstance(value, dict):
        raise _wrong(where, _NAMES[dict], value)
    prefix = f"{where}." if where else ""
    if isinstance(shape, _Mapping):
        for key, item in value.items():
            _check(key, str, f"a key of {where}")
            _check(item, shape.values, f"{prefix}{key}")
        return
    optional = {key for key, wanted in shape.items() if isinstance(wanted, _Optional)}
    if missing := [prefix + key for key in sorted(shape.keys() - optional) if key not in value]:
        raise ValueError(f"not a whole tuning: {', '.join(missing)} missing")
    for key, wanted in shape.items():
        if key in value:
            _check(value[key], wanted.shape if isinstance(wanted, _Optional) else wanted, prefix + key)


def _is_a(value: object, kind: type) -> bool:
    """isinstance() as JSON sees it: integers are numbers, true and false are not. Strings must have a UTF-8 form;
    half a surrogate pair has none.
    """
    if kind is str:
        return isinstance(value, str) and value == value.encode(errors="ignore").decode()
    if kind in (int, float):
        return isinstance(value, (int, kind)) and not isinstance(value, bool)
    return isinstance(value, kind)


def _wrong(where: str, wanted: str, value: object) -> ValueError:
    shown = repr(value)
    shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
    return ValueError(f"not a whole tuning: {where} must be {wanted}, not {shown}")


def _check_schema(data: object) -> Json:
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise ValueError(f'not a tuning: its "schema" is not {SCHEMA!r}')
    if data.get("version") != VERSION:
        raise ValueError(
            f"a tuning of schema version {data.get('version')}, but this dlbackend reads version {VERSION}: tune again"
        )
    _check(data, _TUNING, "")
    if "replayed" in data:
        _check(data["replayed"], _REPLAYED, "replayed")
    winners = []
    for index, entry in enumerate(data["configurations"]):
        if entry["milliseconds"] is not None and entry["accuracy"] is None:
            raise ValueError(f"not a whole tuning: configurations[{index}] has milliseconds but no accuracy")
        if entry["winner"]:
            winners.append(entry)
    if len(winners) != 1:
        raise ValueError("not a whole tuning: it needs one winner")
    if winners[0]["milliseconds"] is None or not winners[0]["final"]:
        raise ValueError("not a whole tuning: its winner has no final time")
    return data


def _read(source: str | Path | Json) -> Tuning:
    try:
        # Older files may contain NaN, which is no JSON.
        data = (
            source if isinstance(source, dict) else json.loads(Path(source).read_text(), parse_constant=lambda _: None)
        )
        return Tuning(_check_schema(data))
    except (ValueError, RecursionError) as error:  # of the schema, or of the JSON itself
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
        source = environment.tuning()
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
    """Loads at import the solver choices of the file that DLBACKEND_TUNING names. A fault in it is a warning, so
    that torch works on; a foreign device is noticed when a device is first used.
    """
    path = environment.tuning()
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
