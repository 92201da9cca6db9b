"""The picture of a tuning: whole-model bars of every configuration, per-layer bars of the fastest and the slowest, and
for quantized precisions each layer's time and the error that it makes by itself.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from dlbackend.pictures import figure_class
from dlbackend.tuning.variant import Json, configuration_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LAYERS = 40  # at most so many layers are drawn, those that take longest
WINNER, SLOWEST, OTHER = "tab:green", "tab:red", "tab:gray"


def draw(title: str, measured: list[Json], winner: Json, slowest: Json, quantized: Json, path: Path) -> None:
    """Draws the times of configurations, which are entries of a tuning's JSON, and of the layers of two of them, and of
    quantized layers, by precision. The path's ending names the format. ImportError without matplotlib.
    """
    layers, names = _layers(winner, slowest), _quantized_names(quantized)
    heights = [0.3 * len(measured) + 1, 0.35 * len(layers) + 1]
    if names:
        heights.append(0.2 * len(names) * (len(quantized) + 1) + 1)
    figure = figure_class()(figsize=(11, sum(heights) + 1), layout="constrained")
    parts = list(figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights).flat)
    figure.suptitle(title)
    _draw_whole(parts[0].subplots(), measured, slowest)
    _draw_layers(parts[1].subplots(), layers)
    if names:
        times, errors = parts[2].subplots(1, 2, sharey=True, squeeze=False).flat
        _draw_quantized(times, errors, names, quantized)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def _draw_whole(axis: "Axes", measured: list[Json], slowest: Json) -> None:
    colours = [WINNER if e["winner"] else SLOWEST if e is slowest else OTHER for e in measured]
    names = [str(configuration_of(e)) + (f" ({e['rejected']})" if e["rejected"] else "") for e in measured]
    bars = axis.barh(range(len(measured)), [e["milliseconds"] for e in measured], color=colours)
    axis.bar_label(bars, [f" {e['milliseconds']:.3g}" for e in measured], fontsize=8)
    axis.set_yticks(range(len(measured)), names, fontsize=8)
    axis.margins(y=0.01)
    axis.invert_yaxis()
    axis.set_xlabel("whole model, ms")


def _layers(winner: Json, slowest: Json) -> list[tuple[str, float, float]]:
    """For each layer that is drawn its name, and its milliseconds in the winner and in the slowest."""
    now = {x["name"]: x["milliseconds"] for x in winner["layers"]}
    both = [
        (f"{x['name']} {x['type']}", now.get(x["name"], 0.0), x["milliseconds"])
        for x in slowest["layers"]
        if x["type"] != "Identity"
    ]
    longest = sorted(both, key=lambda layer: -max(layer[1:]))[:LAYERS]
    return [layer for layer in both if layer in longest]


def _draw_layers(axis: "Axes", layers: list[tuple[str, float, float]]) -> None:
    rows = range(len(layers))
    axis.barh([row - 0.2 for row in rows], [x[1] for x in layers], 0.4, color=WINNER, label="winner")
    axis.barh([row + 0.2 for row in rows], [x[2] for x in layers], 0.4, color=SLOWEST, label="slowest")
    axis.set_yticks(rows, [x[0] for x in layers], fontsize=8)
    axis.margins(y=0.01)
    axis.invert_yaxis()
    axis.legend()
    axis.set_xlabel("forward pass of a layer, ms" + (f" (the {LAYERS} longest)" if len(layers) == LAYERS else ""))


def _quantized_names(quantized: Json) -> list[str]:
    """Those of layers that were tried in some precision, at most LAYERS: where that makes the largest errors."""
    errors: dict[str, float] = {}
    for layers in quantized.values():
        for layer in layers:
            if layer["error"] is not None:
                errors[layer["name"]] = max(errors.get(layer["name"], 0.0), layer["error"])
    largest = sorted(errors, key=lambda name: -errors[name])[:LAYERS]
    return [name for name in errors if name in largest]


def _draw_quantized(times: "Axes", errors: "Axes", names: list[str], quantized: Json) -> None:
    thick = 0.8 / (len(quantized) + 1)
    float32: dict[str, float] = {}
    for number, (precision, layers) in enumerate(quantized.items()):
        known = {layer["name"]: layer for layer in layers if layer["name"] in names}
        for axis, what in ((times, "milliseconds"), (errors, "error")):
            found = {name: layer[what] for name, layer in known.items() if layer[what] is not None}
            rows = [names.index(name) + (number + 1) * thick for name in found]
            axis.barh(rows, list(found.values()), thick, color=f"C{number}", label=precision)
        in_float = {name: layer["float32_milliseconds"] for name, layer in known.items()}
        float32 |= {name: time for name, time in in_float.items() if time is not None}
    times.barh([names.index(name) for name in float32], list(float32.values()), thick, color=OTHER, label="float32")
    times.set_yticks([row + 0.4 - thick / 2 for row in range(len(names))], names, fontsize=8)
    times.margins(y=0.01)
    times.invert_yaxis()
    times.legend()
    times.set_xlabel("a layer, ms")
    errors.set_xscale("log")
    errors.set_xlabel("error of the results by the layer alone, relative L2")
