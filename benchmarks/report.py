"""A figure beside its goal, as a line and as a row of the results."""

from __future__ import annotations

from typing import Any


def figure(suite: str, name: str, value: float, unit: str, goal: float, detail: str = "") -> dict[str, Any]:
    """Prints a figure that is to be at most `goal`; its row of the results."""
    verdict = "met" if value <= goal else "MISSED"
    print(f"{name:52s} {value:10.3f} {unit:8s} goal {goal} {verdict} {detail}", flush=True)
    return {"suite": suite, "case": name, "unit": unit, "ocl": value, "goal": goal}
