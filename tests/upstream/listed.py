"""The list of PyTorch's tests that are known to fail on the device, tests/upstream/expected.txt, and what a run says of
it. The list only shrinks: a listed test that no longer fails is an error until its row is removed, but for one whose
reason is of one class of devices, "on CPUs ..." or "on GPUs ...".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

LIST = Path(__file__).with_name("expected.txt")
FAILED = "failed"
OF_A_CLASS = ("on CPUs", "on GPUs")


@dataclass(frozen=True)
class Verdict:
    """Ids of tests. `new` failed and are not listed, `known` failed and are; `stale` did not fail and are listed, with
    a reason that is not of one class of devices.
    """

    new: list[str]
    known: list[str]
    stale: list[str]

    @property
    def good(self) -> bool:
        return not self.new and not self.stale


def read_list(path: Path = LIST) -> dict[str, str]:
    """Each listed id with its reason; ValueError for a row without a reason, or that stands there twice."""
    found: dict[str, str] = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, reason = line.strip().partition(" ")
        if not reason.strip():
            raise ValueError(f"{path}:{number}: no reason for {name}")
        if name in found:
            raise ValueError(f"{path}:{number}: {name} is listed twice")
        found[name] = reason.strip()
    return found


def judge(outcomes: Mapping[str, str], listed: Mapping[str, str], everything_of: str = "") -> Verdict:
    """Judges the list by a run with these outcomes by id. Where all tests whose ids begin with `everything_of`
    ran, so that one without an outcome does not exist, listed ones must be among them.
    """
    failed = [name for name, outcome in outcomes.items() if outcome == FAILED]
    ran = set(outcomes)
    if everything_of:
        ran |= {name for name in listed if name.startswith(everything_of)}
    ran -= {name for name in ran if listed.get(name, "").startswith(OF_A_CLASS)}
    return Verdict(
        new=sorted(name for name in failed if name not in listed),
        known=sorted(name for name in failed if name in listed),
        stale=sorted(name for name in ran if name in listed and outcomes.get(name) != FAILED),
    )


def complaints(verdict: Verdict) -> list[str]:
    """A line for each thing that somebody has to do."""
    return [f"new failure: {name}" for name in verdict.new] + [
        f"remove it from {LIST.name}, for it does not fail: {name}" for name in verdict.stale
    ]
