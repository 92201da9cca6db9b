#!/usr/bin/env python3
"""Draws docs/networks.svg from the table of networks in docs/performance.md: `python scripts/draw_networks.py`.

Run it after a change of the table. The bars are ratios to the peer device: above 1, ocl is faster.
"""

import re
import sys
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

DOCS = Path(__file__).parents[1] / "docs"
ROW = re.compile(r"^\| ([\w, -]+) \| (\d+) \| ([\d.]+) \| ([\d.]+) \|$", re.MULTILINE)
TITLE = "ocl against CUDA on an NVIDIA H100, 2026-11-27, version 0.2.0; float32 but where named"
TRAINING, INFERENCE = "tab:green", "tab:blue"
LABEL = {"facecolor": "white", "edgecolor": "none", "pad": 0.3}  # hides the line at 1


def networks(text: str) -> list[tuple[str, float, float]]:
    """The names, training ratios and inference ratios of the table under "Networks on an H100"."""
    section = text.split("\n## Networks on an H100\n")[1].split("\n## ")[0]
    return [(f"{name}, batch {batch}", float(training), float(inference))
            for name, batch, training, inference in ROW.findall(section)]  # fmt: skip


def draw(rows: list[tuple[str, float, float]], path: Path) -> None:
    """Writes two bars for each network, and a line where both devices take the same time."""
    figure = Figure(figsize=(9, 1 + 0.42 * len(rows)), layout="constrained")
    axis = figure.subplots()
    for offset, column, colour, label in ((-0.2, 1, TRAINING, "training"), (0.2, 2, INFERENCE, "inference")):
        places = [place + offset for place in range(len(rows))]
        bars = axis.barh(places, [row[column] for row in rows], 0.4, color=colour, label=label)
        axis.bar_label(bars, fmt="%.2f", fontsize=8, padding=3, bbox=LABEL)
    axis.axvline(1, color="black", linewidth=1, zorder=0)
    axis.set_yticks(range(len(rows)), [row[0] for row in rows])
    axis.invert_yaxis()
    axis.margins(x=0.08)
    axis.set_xlabel("ratio; above 1, ocl is faster")
    axis.set_title(TITLE, fontsize=10)
    axis.legend(loc="upper right")
    figure.savefig(path, metadata={"Date": None})


def main() -> int:
    """Draws the chart; 1 where the table has no rows."""
    matplotlib.rcParams["svg.hashsalt"] = "dlbackend"  # the same table gives the same file
    rows = networks((DOCS / "performance.md").read_text())
    if not rows:
        print("docs/performance.md: no row in the table of networks", file=sys.stderr)
        return 1
    draw(rows, DOCS / "networks.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
