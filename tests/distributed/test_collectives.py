"""Collectives of two processes: see collectives_program.py. One run of the program serves all tests."""

from pathlib import Path

import pytest
from ranks import report, run_ranks


@pytest.fixture(scope="module")
def cases() -> dict[str, str]:
    return report(run_ranks(Path(__file__).with_name("collectives_program.py")))


def test_all_collectives_agree_with_gloo(cases: dict[str, str]) -> None:
    assert len(cases) > 100
    assert {case: problem for case, problem in cases.items() if problem} == {}
