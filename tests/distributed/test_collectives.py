"""Collectives of two processes: see collectives_program.py."""

from pathlib import Path

import pytest
from ranks import report, run_ranks


@pytest.mark.parametrize("hosts", [None, ["a", "b"]])
def test_all_collectives_agree_with_gloo(hosts: list[str] | None) -> None:
    """By shared memory, and by gloo alone."""
    cases = report(run_ranks(Path(__file__).with_name("collectives_program.py"), hosts=hosts))
    assert len(cases) > 100
    assert {case: problem for case, problem in cases.items() if problem} == {}
