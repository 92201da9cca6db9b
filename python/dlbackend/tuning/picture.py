"""The picture of a tuning: whole-model bars of every configuration, per-layer bars of the fastest and the slowest."""

from pathlib import Path
from typing import TYPE_CHECKING

from dlbackend.pictures import figure_class
from dlbackend.tuning.variant import Json, configuration_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LAYERS = 40  # at most so many layers are drawn, those that take longest
WINNER, SLOWEST, OTHER = "tab:green", "tab:red", "tab:gray"


def draw(title: str, measured: list[Json], winner: Json, slowest: Json, path: Path) -> None:
    """Draws the times of configurations, which are entries of a tuning's JSON, and of the layers of two of them. The
    path's ending names the format. ImportError without matplotlib.
    """
    layers = _layers(winner, slowest)
    heights = [0.3 * len(measured) + 1, 0.35 * len(layers) + 1]
    figure = figure_class()(figsize=(11, sum(heights) + 1), layout="constrained")
    whole, each = figure.subplots(2, 1, height_ratios=heights)
    figure.suptitle(title)
    _draw_whole(whole, measured, slowest)
    _draw_layers(each, layers)
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
