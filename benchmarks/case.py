"""A measured case. Built on a device, it returns a function of one iteration without synchronisation."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable
from typing import Any

Step = Callable[[], Any]


@dataclasses.dataclass(frozen=True)
class Case:
    """One measurement. `work` per iteration: bytes for unit "GB/s", operations for "GFLOP/s", 1 for times."""

    name: str
    suite: str
    build: Callable[[Any], Step]  # takes a torch.device
    work: float = 1.0
    unit: str = "ms"
    goal_cpu: float = 0.0  # least ratio to the peer: this rate over the peer's
    goal_cuda: float = 0.0
    pace: int = 0  # host-bound cases: iterations between synchronisations, timed without the wait


def torchvision() -> Any:
    """The module torchvision, made importable beside any torch."""
    tests = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests", "nets")
    if os.path.exists(os.path.join(tests, "tv_shim.py")) and tests not in sys.path:
        sys.path.insert(0, tests)
        import tv_shim  # noqa: F401  makes torchvision importable beside a CPU-only torch
    import torchvision

    return torchvision
