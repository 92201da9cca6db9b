"""The picture of a validation: how much of what is allowed each network's errors are, and the time of a step."""

from collections.abc import Sequence
from pathlib import Path

from dlbackend.pictures import figure_class
from dlbackend.tools.validation.result import Result

RIGHT, WRONG, CPU = "tab:green", "tab:red", "tab:gray"
LEAST, MOST = 1e-3, 1e2  # shares of the allowed error that can be told apart in the picture


def _share(result: Result) -> float:
    """The largest share. A network that raised, or a NaN, has none and gets the longest bar."""
    worst = max((check.used if check.used == check.used else MOST for check in result.checks), default=MOST)
    return min(max(worst, LEAST), MOST) if not result.error else MOST


def draw(results: Sequence[Result], path: Path, device: str) -> None:
    """Writes the picture in the format of the path's ending. ImportError without matplotlib."""
    rows = range(len(results))
    figure = figure_class()(figsize=(12, 0.25 * len(results) + 2), layout="constrained")
    errors, times = figure.subplots(1, 2, sharey=True)
    figure.suptitle(f"{device} against float64 on the CPU")
    colours = [RIGHT if result.passed else WRONG for result in results]
    errors.barh(rows, [_share(result) for result in results], color=colours)
    errors.set_xscale("log")
    errors.set_xlim(LEAST, MOST)
    errors.axvline(1.0, color="black")
    errors.set_yticks(rows, [result.name for result in results], fontsize=8)
    errors.set_ylim(len(results) - 0.5, -0.5)  # the first on top, no empty rows
    errors.set_xlabel("largest error, as a share of what is allowed (red: failed)")
    steps = [result.stages.get("train") for result in results]
    for offset, label, colour, seconds in (
        (-0.2, "device", RIGHT, [step.seconds if step else 0.0 for step in steps]),
        (0.2, "PyTorch's CPU device", CPU, [step.cpu_seconds if step else 0.0 for step in steps]),
    ):
        times.barh([row + offset for row in rows], seconds, 0.4, color=colour, label=label)
    times.set_xscale("log")  # networks differ by a factor of a thousand
    times.set_xlabel("training step, s")
    times.legend()
    figure.savefig(path, dpi=110)
