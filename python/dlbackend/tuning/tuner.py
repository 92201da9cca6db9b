"""dlbackend.tune(): tries a model's knobs on a device and keeps what is fastest.

Knobs are precision, memory layout (global, and of single layers where that was measured faster), fusion of batch norms
and activations into convolutions (and sums), and how solvers are chosen. docs/tuning.md says how it is measured.
"""

import datetime
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten

from dlbackend import ocl, quantization
from dlbackend._build import VERSION
from dlbackend.tuning import result, variant
from dlbackend.tuning.inputs import Loss, squared
from dlbackend.tuning.measure import Entry
from dlbackend.tuning.result import Tuning
from dlbackend.tuning.search import KNOBS, Search, with_value
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
    ValueError for knobs that are not known or not offered, and for a `budget` or `max_error` below 0.
    """
    asked = {"precision": precision, "layout": layout, "fusion": fusion, "solvers": solvers}
    if search not in ("guided", "exhaustive"):
        raise ValueError(f'search must be "guided" or "exhaustive", not {search!r}')
    for limit, number in (("budget", budget), ("max_error", max_error)):
        if not number >= 0:  # which is true of NaN too
            raise ValueError(f"{limit} must be 0 or more, not {number}")
    index = result.device_index(device)
    run = Search(model, inputs, index, training, loss, budget, max_error, search == "exhaustive")
    knobs = offered(run, {knob: _values(knob, value) for knob, value in asked.items()})
    with run.measuring():
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
    if value in variant.WEIGHT_BITS and not quantization.quantizable(search.base):
        return "the model has no linear layer"
    if value == "int4-weights" and not quantization.quantizable(search.base, quantization.GROUP):
        return f"the model has no linear layer of a multiple of {quantization.GROUP} inputs"
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
            "records": winner.records,
        }
    )
    return found


def _json(entry: Entry, winner: bool) -> Json:
    c = entry.configuration
    return {
        "precision": c.precision,
        "layout": c.layout,
        "layer_layouts": dict(c.layers),
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
