"""dlbackend.tune(): tries a model's knobs on a device and keeps what is fastest.

Knobs are precision, memory layout (global, and of single layers where that was measured faster), fusion of batch norms
and activations into convolutions (and sums), and how solvers are chosen. docs/tuning.md says how it is measured.
"""

import dataclasses
import datetime
import time
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten

from dlbackend import ocl, quantization
from dlbackend._build import VERSION
from dlbackend.calibration import PERCENTILE, check_method
from dlbackend.inputs import Loss, squared
from dlbackend.tuning import result, variant
from dlbackend.tuning.measure import Entry
from dlbackend.tuning.result import Tuning
from dlbackend.tuning.search import KNOBS, Calibration, Search, Sweep, with_value
from dlbackend.tuning.sensitivity import Evaluate
from dlbackend.tuning.variant import Configuration, Json


def tune(
    model: nn.Module,
    inputs: Any,
    *,
    device: str | torch.device | int = "ocl:0",
    precision: str | Sequence[str] = "fp32",
    layout: str | Sequence[str] = "pick",
    fusion: str | Sequence[str] = "pick",
    solvers: str | Sequence[str] = "pick",
    search: str = "guided",
    budget: float = 300.0,
    training: bool = False,
    loss: Loss = squared,
    max_error: float = 0.2,
    max_drop: float = 0.01,
    calibration: Iterable[Any] | None = None,
    calibration_method: str = "minmax",
    percentile: float = PERCENTILE,
    evaluate: Evaluate | None = None,
    name: str = "",
) -> Tuning:
    """Measures configurations of `model`, called with `inputs`, and returns them with the fastest marked.

    `model` stays as it is. `inputs`: a tensor, a tuple of positional or a dictionary of keyword arguments, on any
    device. Each knob takes a value, several, or "pick" for all that the device offers; see docs/tuning.md. `search`:
    "exhaustive" measures every combination, "guided" varies one knob at a time from the best so far. After
    `budget` seconds no configuration is begun and the last turns are taken; the first one is always measured. With
    `training`, a run is a forward and a backward pass of `loss` of the results, without the optimizer. A configuration
    cannot win whose result (in training: with the gradients) is further from float32 on the CPU than `max_error`, as
    relative L2 norm.

    Quantized precisions are chosen layer by layer (docs/quantization.md). `calibration`: batches of inputs, such as a
    loader gives, which tell the ranges of activations for "int8", by `calibration_method`: "minmax", "percentile", of
    `percentile`, or "mse". Where a batch has more tensors than `inputs`, the further ones, labels, are left aside.
    Layers stay in float32 so that no more than `max_drop` is lost: the share of the batches' results whose class is
    another than float32's or, with `evaluate`, which is called with a model on the device, what that returns less.

    ValueError for knobs that are not known or not offered, for a `budget`, `max_error` or `max_drop` below 0, and, with
    the layer's name, for infinities and NaN in its weight or in what calibration gives it.
    """
    asked = {"precision": precision, "layout": layout, "fusion": fusion, "solvers": solvers}
    if search not in ("guided", "exhaustive"):
        raise ValueError(f'search must be "guided" or "exhaustive", not {search!r}')
    for limit, number in (("budget", budget), ("max_error", max_error), ("max_drop", max_drop)):
        if not number >= 0:  # which is true of NaN too
            raise ValueError(f"{limit} must be 0 or more, not {number}")
    index = result.device_index(device)
    check_method(calibration_method, percentile)
    batches = Calibration([] if calibration is None else list(calibration), calibration_method, percentile)
    if calibration is not None and not batches.batches:
        raise ValueError("calibration has no inputs")
    run = Search(model, inputs, index, training, loss, budget, max_error, search == "exhaustive")
    run.calibration, run.max_drop = batches, max_drop
    knobs = offered(run, {knob: _values(knob, value) for knob, value in asked.items()})
    with run.measuring():
        run.calibrate(knobs["precision"]["tried"], evaluate)
        (run.exhaustive if search == "exhaustive" else run.guided)(knobs)
        run.finals()
        return Tuning(_result(run, asked, knobs, name))


def _values(knob: str, asked: str | Sequence[str]) -> tuple[list[str], bool]:
    """The values that a knob's setting stands for, in the order in which they are tried, and whether it said "pick"
    for all. ValueError, naming those there are.
    """
    known = KNOBS[knob]
    named = asked.split(",") if isinstance(asked, str) else list(asked)
    if named == ["pick"]:
        return list(known), True
    if not named:
        raise ValueError(f"{knob} needs a value: pick, {', '.join(known)}")
    if wrong := [value for value in named if value not in known]:
        raise ValueError(f"{knob} {wrong[0]!r} does not exist; there are pick, {', '.join(known)}")
    return [value for value in known if value in named], False


def offered(search: Search, knobs: dict[str, tuple[list[str], bool]]) -> dict[str, Any]:
    """Per knob the values to try, and why others are not. ValueError when none is left of those named."""
    found = {}
    for knob, (values, picked) in knobs.items():
        reasons = {value: why for value in values if (why := _refused(search, knob, value))}
        tried = [value for value in values if value not in reasons]
        refused = [f"{knob} {value} is not offered: {why}" for value, why in reasons.items()]
        if refused and not (picked and tried):
            raise ValueError("; ".join(refused))
        found[knob] = {"tried": tried, "not_offered": reasons}
    return found


def _refused(search: Search, knob: str, value: str) -> str:
    tensor_cores = ocl.get_device_properties(search.index).has_tensor_cores
    why = variant.refusal(with_value(Configuration(), knob, value), search.training, tensor_cores)
    if why:
        return why
    if knob == "fusion" and value == "on":
        try:
            none = "there is no batch norm or activation to fuse right after a convolution or a sum"
            return "" if variant.fusible(search.base) else none
        except ValueError as error:
            return str(error)
    if value in quantization.PRECISIONS and not quantization.quantizable(search.base, value):
        kind = "convolution or linear layer" if value == "int8" else "linear layer"
        inputs = f" of a multiple of {quantization.GROUP} inputs" if value == "int4-weights" else ""
        return f"the model has no {kind}{inputs}"
    if value == "int8" and not search.calibration.batches:
        return "it needs calibration, batches like those to come; int8-dynamic does without"
    if knob == "layout" and value != "nchw" and not variant.layered(search.base):
        return "the model has no convolution of two or three dimensions"
    return ""


def _result(search: Search, asked: Json, knobs: dict[str, Any], name: str) -> Json:
    ran = [entry for entry in search.entries.values() if entry.final and not entry.rejected]
    winner = min(ran, key=lambda entry: entry.milliseconds)
    for knob, value in asked.items():
        knobs[knob]["asked"] = value if isinstance(value, str) else ",".join(value)
    args, kwargs = search.inputs
    flat, _ = tree_flatten((args, kwargs))
    found: Json = result.without_infinities(
        {
            "schema": result.SCHEMA,
            "version": result.VERSION,
            "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "library": VERSION,
            "torch": torch.__version__,
            "device": result.describe_device(search.index),
            "model": {"name": name or type(search.base).__name__, **search.described},
            "inputs": [
                {"shape": list(x.shape), "dtype": str(x.dtype).removeprefix("torch.")}
                for x in flat
                if isinstance(x, torch.Tensor)
            ],
            "training": search.training,
            "knobs": knobs,
            "search": {
                "method": "exhaustive" if search.thorough else "guided",
                "budget_seconds": search.budget,
                "seconds": round(time.monotonic() - search.start, 1),
                "complete": not search.cut,
                "max_error": search.max_error,
                "notes": list(dict.fromkeys(search.notes)),
            },
            "timing": {
                "whole": "tenth percentile of single runs, each waited for; "
                "of configurations with `final`, which took turns, the median over the rounds, at one pace",
                "layers": "median of 5 forward passes, between events before and after each layer",
                "reference": "float32 on the CPU",
            },
            "configurations": [_json(entry, entry is winner) for entry in search.entries.values()],
            "quantization": _quantization(search, winner.configuration),
            "records": winner.records,
        }
    )
    return found


def _quantization(search: Search, winner: Configuration) -> Json:
    """The JSON's "quantization": for each precision its layers, with what decided for them."""
    found: Json = {}
    for precision, sweep in search.quantized.items():
        found[precision] = [
            {
                "name": name,
                "type": sweep.types[name],
                "error": sweep.errors.get(name),
                "milliseconds": sweep.times[name][1] if name in sweep.times else None,
                "float32_milliseconds": sweep.times[name][0] if name in sweep.times else None,
                "float32": _why_float32(search, sweep, name),
                "winner": winner.precision == precision and name in dict(winner.quantized),
            }
            for name in sweep.layers
        ]
    calibration = search.calibration
    return {
        "batches": len(calibration.batches),
        "method": calibration.method,
        "percentile": calibration.percentile,
        "max_drop": search.max_drop,
        "layers": found,
    }


def _why_float32(search: Search, sweep: Sweep, name: str) -> str | None:
    """Why a layer stays in float32; None where it is better off without."""
    if not sweep.done:
        return "not tried"
    if name not in sweep.chosen:
        return f"the drop would be above {search.max_drop}"
    return "float32 is as fast" if name in sweep.times and not sweep.saves(name) else None


def _json(entry: Entry, winner: bool) -> Json:
    c = entry.configuration
    return {
        "precision": c.precision,
        "layout": c.layout,
        "layer_layouts": dict(c.layers),
        "layer_precisions": {name: dataclasses.asdict(how) for name, how in c.quantized},
        "fusion": c.fusion,
        "solvers": c.solvers,
        "milliseconds": round(entry.milliseconds, 4) if entry.samples else None,
        "runs": len(entry.samples),
        "final": entry.final,
        "accuracy": entry.accuracy,
        "layers": entry.layers,
        "solutions": entry.solutions,
        "rejected": entry.rejected or None,
        "winner": winner,
    }


def replay(found: Tuning, model: nn.Module, inputs: Any, device: str | torch.device | int, loss: Loss) -> list[float]:
    """Milliseconds of the winner and of the slowest configuration of a tuning, measured in turns, as made from the
    JSON: what a process gets that loads it. With another driver that means solvers found anew. ValueError for another
    model than the tuned one.
    """
    data = found.data
    found.check_model(model)
    again = Search(model, inputs, result.device_index(device), data["training"], loss)
    winner = Entry(variant.configuration_of(found.winner), records=data["records"])
    slowest = Entry(variant.configuration_of(found.slowest))
    with again.measuring():
        again.choose_solvers(slowest)
        if data["device"]["place"] != again.place:
            winner.records = {}
            again.choose_solvers(winner)
        again.take_turns((winner, slowest))
    return [winner.milliseconds, slowest.milliseconds]
