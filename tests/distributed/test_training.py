"""Training by two processes: see training_program.py. One run of the program serves all tests."""

from pathlib import Path

import pytest
from ranks import report, run_ranks

PROGRAM = Path(__file__).with_name("training_program.py")


@pytest.fixture(scope="module")
def cases() -> dict[str, str]:
    return report(run_ranks(PROGRAM))


@pytest.mark.slow
def test_losses_are_those_of_one_process(cases: dict[str, str]) -> None:
    assert len(cases) > 15
    assert {case: problem for case, problem in cases.items() if problem} == {}
