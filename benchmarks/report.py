"""A figure beside its goal, as a line and as a row of the results."""

from __future__ import annotations

from typing import Any


def figure(suite: str, name: str, value: float, unit: str, goal: float | None, detail: str = "") -> dict[str, Any]:
    """Prints a figure that is to be at most `goal`, where there is one; its row of the results."""
    verdict = "" if goal is None else f"goal {goal} " + ("met" if value <= goal else "MISSED")
    print(f"{name:52s} {value:10.3f} {unit:8s} {verdict} {detail}", flush=True)
    return {"suite": suite, "case": name, "unit": unit, "ocl": value, "goal": goal}
