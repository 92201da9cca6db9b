"""benchmarks/settling.py: what it tells of calls, solvers and processor time, on small examples."""

import json
import sys
from pathlib import Path

import pytest
import torch
from fresh_process import run_python

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]
from benchmarks import settling, settling_cases, settling_worker  # noqa: E402


def test_a_problem_has_its_calls_solvers_and_final_time():
    case = settling_worker.find(settling_cases.problems(large=False), "product 64^3 f32")
    device = torch.device("ocl:0")
    found = settling_worker.follow_problem(case.build(device), device, 0.6, 0)
    assert found["number"] >= 10
    assert set(found["calls"]) == {"1", "2", "3", "10"}
    assert all(seconds > 0 for seconds in [*found["calls"].values(), found["points"]["0.5"], found["final"]])
    assert found["solvers"].keys() >= {"call 1", "call 10", "0.5 s", "final"}
    (solution,) = found["solvers"]["final"]
    assert solution.startswith("gemm ")
    assert settling.problem_line({"problem": case.name, **found}).startswith("product 64^3 f32 ")


@pytest.mark.parametrize("large", [False, True])
def test_names_are_different(large):
    for cases in (settling_cases.problems(large), settling_cases.networks(large)):
        assert len({case.name for case in cases}) == len(cases)


def test_all_problems_fit_together():
    for case in settling_cases.problems(large=False):
        case.build(torch.device("meta"))()


def test_a_call_that_runs_at_a_point_counts():
    starts, seconds = [0.0, 1.5, 1.59, 1.7], [1.5, 0.09, 0.11, 0.1]
    assert settling_worker.seconds_at(1.0, starts, seconds) == 1.5
    assert settling_worker.seconds_at(1.51, starts, seconds) == pytest.approx(0.1)
    assert settling_worker.seconds_at(2.0, starts, seconds) is None


def test_solvers_before_and_after():
    assert settling.way(["gemm a 1"], ["gemm a 1"]) == "a"
    assert settling.way(["gemm a 1"], ["gemm a 2"]) == "a, other configs before"
    assert settling.way(["conv_fwd r 0", "gemm a 1"], ["conv_fwd b 0", "gemm a 1"]) == "r+a -> b+a"
    assert settling.way([], []) == "-"


def test_shares_are_held_against_goals(capsys):
    rows = [
        {"problem": name, "calls": {"3": third}, "points": {"1": 2.0}, "final": 1.0}
        for name, third in (("fast", 5.0), ("slow", 7.0))
    ]
    settling.print_shares(rows)
    assert capsys.readouterr().out.splitlines() == [
        "3rd call within 6 of the final time: 50% of 2, goal 95% MISSED",
        "      7.00  slow",
        "at 1 s within 3 of the final time: 100% of 2, goal 95% met",
    ]


ORPHAN = """
import json, subprocess
from benchmarks.settling_worker import adopt_orphans, processor_seconds
adopt_orphans()
before = processor_seconds()
busy = "import time; end = time.process_time() + 0.5\\nwhile time.process_time() < end: pass"
subprocess.run(["sh", "-c", 'python3 -c "$0" > /dev/null & echo $!', busy], check=True, stdout=subprocess.DEVNULL)
import time
end = time.monotonic() + 60
while (spent := processor_seconds() - before) < 0.5 and time.monotonic() < end: time.sleep(0.05)
print(json.dumps(spent))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="orphans stay with their ancestors on Linux only")
def test_processor_time_of_orphans_counts():
    done = run_python("-c", ORPHAN, PYTHONPATH=":".join([str(ROOT), *sys.path]), DLBACKEND_AUTOLOAD="0")
    assert done.returncode == 0, done.stderr
    assert 0.5 <= json.loads(done.stdout) < 5


def test_steps_are_timed_up_to_the_last_mark():
    calls = []
    found = settling_worker.follow_network(lambda: calls.append(1), torch.device("cpu"), [1, 3])
    assert len(calls) == 3
    assert found["seconds"]["1"] <= found["seconds"]["3"]
    assert set(found["processor"]) == {"1", "3"}
