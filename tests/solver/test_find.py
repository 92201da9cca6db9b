"""Find modes, the find store, the search between runs, determinism, preferences; each in processes of their own, whose
caches begin empty, where it matters."""

import json
import os
import shutil
import subprocess

import pytest
import torch
from faulty_solvers import with_faulty_solvers
from fresh_process import forked_python, fresh_python
from stores import cache_with_programs

import dlbackend

# Small, so that all is measured within a second; two solvers and more are applicable on every device.
PRELUDE = """
import json, torch, dlbackend
torch.manual_seed(0)
a, b = torch.randn(96, 80), torch.randn(80, 72)
x, y = a.to("ocl"), b.to("ocl")
def run(times=1):
    for _ in range(times):
        z = x @ y
        torch.ocl.synchronize()
    assert (z.cpu() - a @ b).abs().max() < 1e-4
    return z
def settle():  # until the problem has taken long enough to be looked at, and all is measured
    for _ in range(100):
        run(20)
        dlbackend.solvers.wait()
def state():
    problem, = dlbackend.solvers.problems()
    taken = [s for s in dlbackend.solvers.solutions(problem) if s.taken]
    return {**dlbackend.solvers.stats(), **dlbackend.kernel_stats(),
            "taken": taken[0].solver, "own": taken[0].specialised,
            "timed": sum(s.microseconds is not None for s in dlbackend.solvers.solutions(problem))}
"""


@pytest.fixture
def process(tmp_path):
    """Runs code in a fresh process on a cache folder where nothing is found yet, but programs are that the other tests
    compiled; returns what it prints as JSON. `faulty`: solvers of with_faulty_solvers().
    """
    cache = cache_with_programs(tmp_path / "cache")

    def run(code: str, faulty: str = "", **environment: str):
        settings = {"DLBACKEND_CACHE_DIR": cache, "DLBACKEND_FIND_SHARE": "1", **environment}
        code = PRELUDE + code
        result = forked_python(with_faulty_solvers(faulty, code) if faulty else code, **settings)
        assert result.returncode == 0, result.stderr
        run.stderr = result.stderr
        return json.loads(result.stdout.splitlines()[-1])

    return run


STATE = "print(json.dumps(state()))"


def check_is_a_miss(state):
    """The store's entry was not used for the only problem."""
    assert state["hits"] == 0
    assert state["misses"] == 1


def test_fast_measures_nothing(process):
    state = process("run(20); dlbackend.solvers.wait(); run()\n" + STATE, DLBACKEND_FIND_MODE="fast")
    assert state["misses"] == 1
    assert state["hits"] == 0
    assert state["measured"] == 0
    assert state["timed"] == 0


def test_normal_measures_before_the_first_run_and_remembers(process):
    first = process("run()\n" + STATE, DLBACKEND_FIND_MODE="normal")
    assert first["measured"] >= 1
    assert first["benchmark_seconds"] > 0
    assert first["misses"] == 1
    second = process("run()\n" + STATE, DLBACKEND_FIND_MODE="normal")
    assert second["hits"] == 1
    assert second["misses"] == 0
    assert second["measured"] == 0
    assert second["benchmark_seconds"] == 0
    assert second["taken"] == first["taken"]
    assert second["compiled"] == 0


def test_hybrid_never_waits_measures_between_runs_and_remembers(process):
    once = process("run(1)\n" + STATE)
    assert once["measured"] == 0
    assert once["benchmark_seconds"] == 0
    # Nothing compiled for the problem's sizes, which is measured whenever runs took long enough in all.
    code = 'dlbackend.solvers.force("-clblast")\ntorch.backends.ocl.prefer_reusable = True\nsettle()\n' + STATE
    first = process(code)
    assert first["benchmark_seconds"] == 0
    assert first["misses"] == 1
    assert first["verified"] >= 1
    second = process(code)
    assert second["hits"] == 1
    assert second["measured"] == second["verified"] == 0


def test_nothing_is_searched_for_what_is_seen_once_or_takes_no_time(process):
    code = """
for rows in range(20, 36):
    torch.ones(rows, 80, device="ocl") @ y
run(3)
few = dlbackend.solvers.stats()
settle()
print(json.dumps([few, dlbackend.solvers.stats()]))
"""
    few, many = process(code)
    assert few["misses"] + few["precedents"] == 17
    assert few["searches"] == 0
    assert many["searches"] == 1
    assert process(code, DLBACKEND_FIND_MODE="fast")[1]["searches"] == 0


@pytest.mark.parametrize("mode", ["fast", "hybrid", "normal"])
def test_a_size_that_is_like_another_is_chosen_for_when_it_comes_again(process, mode):
    code = """
c = torch.randn(80, 72)
def product(rows):
    z = torch.ones(rows, 80, device="ocl") @ y
    assert (z.cpu() - torch.ones(rows, 80) @ b).abs().max() < 1e-4
def counts():
    return [dlbackend.solvers.stats()[name] for name in ("hits", "misses", "precedents")]
known = []
for rows in (33, 35, 37, 39, 36, 40):  # multiples of four are not like others
    product(rows)
    known.append(counts())
for _ in range(4): product(39)
print(json.dumps([*known, counts()]))
"""
    if mode == "normal":  # every size is measured
        counts = process(code, DLBACKEND_FIND_MODE=mode)
        assert counts[-1] == [0, 6, 0]
        return
    counts = process(code, DLBACKEND_FIND_MODE=mode)
    assert counts == [[0, 1, 0], [0, 2, 0], [0, 2, 1], [0, 2, 2], [0, 3, 2], [0, 3, 3], [0, 4, 3]]


def test_what_the_store_knows_of_a_size_is_used_when_it_comes_again(process):
    code = """
for rows in (33, 35, 37): torch.ones(rows, 80, device="ocl") @ y
for _ in range(5):
    assert (torch.ones(39, 80, device="ocl") @ y - b.sum(0).to("ocl")).abs().max() < 1e-4
key, = (p for p in dlbackend.solvers.problems() if " m=39 " in p)
taken, = (s for s in dlbackend.solvers.solutions(key) if s.taken)
"""
    measured = process(
        code + "best, = (s for s in dlbackend.solvers.tune(key) if s.taken)\n"
        "print(json.dumps([best.solver, dlbackend.solvers.stats()['hits']]))"
    )
    again = process(code + "print(json.dumps([taken.solver, dlbackend.solvers.stats()['hits']]))")
    assert measured[1] == 0
    assert again == [measured[0], 1]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["normal", "hybrid"])
def test_solvers_that_were_not_worth_measuring_are_not_looked_at_again(process, mode):
    """The reference is too far behind by its estimate; the record has to say that it was there."""
    code = """
def run(times=1):
    for _ in range(times):
        torch.nn.functional.conv2d(image, filters)
        torch.ocl.synchronize()
image, filters = torch.randn(2, 32, 28, 28, device="ocl"), torch.randn(32, 32, 3, 3, device="ocl")
torch.backends.ocl.prefer_reusable = True
settle()
"""
    first = process(code + STATE, DLBACKEND_FIND_MODE=mode)
    assert first["measured"] >= 1
    second = process(code + STATE, DLBACKEND_FIND_MODE=mode)
    assert second["hits"] == 1
    assert second["measured"] == second["verified"] == 0
    assert second["timed"] == first["timed"]


def test_what_normal_measured_is_kept_when_its_search_ends(process):
    code = "run()\nbefore = state()\nsettle()\nprint(json.dumps([before, state()]))"
    before, after = process(code, DLBACKEND_FIND_MODE="normal")
    assert before["timed"] >= 2
    assert after["timed"] - before["timed"] == after["specialised"]
    assert after["verified"] - before["verified"] <= 2 * after["specialised"]
    stored = process("run()\n" + STATE)
    assert stored["hits"] == 1
    assert stored["timed"] == after["timed"]


def test_only_a_new_solver_is_measured_and_the_others_are_kept(process):
    # Nothing compiled for the problem's sizes, which is measured whenever runs took long enough in all.
    forbid = 'dlbackend.solvers.force("-clblast")\ntorch.backends.ocl.prefer_reusable = True\n'
    first = process(forbid + "run()\n" + STATE, DLBACKEND_FIND_MODE="normal")
    second = process(forbid + "settle()\n" + STATE, faulty="test_late")
    assert second["hits"] == 1
    assert second["rejected"] == 1
    assert second["verified"] <= 2  # the one in use and the new one
    assert second["timed"] == first["timed"]
    third = process(forbid + "settle()\n" + STATE, faulty="test_late")
    assert third["verified"] == 0
    assert third["taken"] == first["taken"]


def test_trust_verify_measures_again(process):
    process("run()\n" + STATE, DLBACKEND_FIND_MODE="normal")
    trusted = process("run()\n" + STATE)
    verified = process('dlbackend.solvers.force("-clblast")\nsettle()\n' + STATE, DLBACKEND_FIND_MODE="trust_verify")
    assert trusted["verified"] == 0
    assert verified["hits"] == 1
    assert verified["verified"] >= 1


def test_record_of_another_version_is_used_and_measured_again(process, tmp_path):
    code = 'problem = "gemm:float32 b=1 m=96 n=72 k=80 sa=0,80,1 sb=0,72,1 sc=0,72,1 sd=0,0,0 add=0"\n'
    process("run()\n" + STATE, DLBACKEND_FIND_MODE="normal")
    process(
        code
        + """
from dlbackend import _C
text = _C.find_record(problem)
assert text.startswith("dlbackend-find 1 "), text
lines = text.split("\\n")
lines[0] = "dlbackend-find 1 0.0.0-other"
_C.store_find_record(problem, "\\n".join(lines))
print("{}")
"""
    )
    state = process('dlbackend.solvers.force("-clblast")\nsettle()\n' + STATE)
    assert state["hits"] == 1
    assert state["verified"] >= 1


@pytest.mark.parametrize("record", ["", "garbage", "dlbackend-find 1 1\nconsidered x@1\nx@1 0,0 1 2 3\n"])
def test_unusable_record_is_a_miss(process, record):
    code = f"""
from dlbackend import _C
problem = "gemm:float32 b=1 m=96 n=72 k=80 sa=0,80,1 sb=0,72,1 sc=0,72,1 sd=0,0,0 add=0"
_C.store_find_record(problem, {record!r})
run(3)
"""
    check_is_a_miss(process(code + STATE))


def test_record_of_a_solver_that_is_gone_is_a_miss(process):
    code = """
from dlbackend import _C
problem = "gemm:float32 b=1 m=96 n=72 k=80 sa=0,80,1 sb=0,72,1 sc=0,72,1 sd=0,0,0 add=0"
_C.store_find_record(problem, "dlbackend-find 1 1\\nconsidered gone@3\\ngone@3 0,0,0,0,0,0 1.5 0 0\\n")
run(3)
"""
    check_is_a_miss(process(code + STATE))


@pytest.mark.parametrize("mode", ["fast", "hybrid"])
def test_record_whose_best_solver_is_gone_is_a_miss(process, mode):
    """The next one that it knows may be far slower than what an estimate chooses."""
    first = process("run()\nkey, = dlbackend.solvers.problems()\nprint(json.dumps([state(), key]))")
    code = """
from dlbackend import _C
place = "gone@3 0,0,0,0,0,0 1.5 0 0\\nreference@1 0,0,0,0,0,0 900 0 0\\n"
_C.store_find_record(PROBLEM, f"dlbackend-find 1 {dlbackend._build.VERSION}\\nconsidered gone@3 reference@1\\n" + place)
run(2)
"""
    state = process(f"PROBLEM = {first[1]!r}\n" + code + STATE, DLBACKEND_FIND_MODE=mode)
    assert state["hits"] == 0
    assert state["misses"] == 1
    assert state["taken"] == first[0]["taken"]
    assert not state["taken"].startswith("reference")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fast", "normal", "hybrid", "dynamic_hybrid", "trust_verify"])
def test_a_faster_solver_takes_over(process, mode):
    """The first by its estimate is right, and slow: what measures finds out, before the first run or between runs.
    Compiled for the problem it would not be slow, and may be taken.
    """
    code = """
dlbackend.solvers.force("-clblast")
torch.backends.ocl.prefer_reusable = True
run()
first = state()
settle()
print(json.dumps([first, state()]))
"""
    first, last = process(code, faulty="test_slow", DLBACKEND_FIND_MODE=mode)
    assert first["taken"].startswith("test_slow") == (mode != "normal")
    assert last["taken"].startswith("test_slow") == (mode == "fast")
    assert last["swapped"] >= (mode not in ("fast", "normal"))
    if mode != "fast":
        again = process("run()\n" + STATE, faulty="test_slow", DLBACKEND_FIND_MODE="fast")
        assert again["hits"] == 1
        assert not again["taken"].startswith("test_slow")


ONLY_SLOW = {"faulty": "test_slow", "DLBACKEND_SOLVER": "gemm:test_slow"}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fast", "normal", "hybrid", "dynamic_hybrid"])
def test_programs_of_one_problem(process, mode):
    """The only solver is slow unless made for the problem, which not every mode does; where reusable kernels are
    preferred, those run."""
    code = """
import sys
def labelled(label):
    run()
    print(label, file=sys.stderr, flush=True)
settle()
labelled("plain")
with dlbackend.prefer_reusable(): labelled("here")
torch.backends.ocl.prefer_reusable = "gemm",
labelled("op")
torch.backends.ocl.prefer_reusable = "conv_fwd",
labelled("other op")
torch.backends.ocl.prefer_reusable = True
labelled("all")
"""
    process(code + STATE, DLBACKEND_FIND_MODE=mode, DLBACKEND_VERBOSE="2", **ONLY_SLOW)
    builds = mode in ("normal", "hybrid")
    specialised, config = {}, ""
    for line in process.stderr.splitlines():
        if line.startswith("dlbackend,run,"):
            config = line.split(",")[4]
        elif not line.startswith("dlbackend,"):
            specialised[line] = config.startswith("s")
    measured = [line for line in process.stderr.splitlines() if line.startswith("dlbackend,measured,")]
    wanted = {"plain": builds, "here": False, "op": False, "other op": builds, "all": False}
    assert specialised == wanted, "\n".join(measured)


@pytest.mark.slow
@pytest.mark.parametrize(("others", "builds"), [(1, True), (7, False)])
def test_where_sizes_change_nothing_is_made_for_one(process, others, builds):
    code = f"""
for columns in range(40, 40 + {others}): x @ y[:, :columns]
settle()
print("{{}}")
"""
    process(code, DLBACKEND_FIND_MODE="normal", DLBACKEND_VERBOSE="2", **ONLY_SLOW)
    runs = [line for line in process.stderr.splitlines() if line.startswith("dlbackend,run,")]
    assert runs[-1].split(",")[4].startswith("s") == builds


def test_two_programs_made_for_a_problem_in_vain_are_the_last(process):
    """A program that is slower when made for a problem is not taken, and soon none is tried any more."""
    code = """
for rows in range(30, 80, 10):
    for _ in range(8):
        for _ in range(10): torch.ones(rows, 16, device="ocl") @ y[:16, :8]; torch.ocl.synchronize()
        dlbackend.solvers.wait()
print(json.dumps(dlbackend.solvers.stats()))
"""
    only = {"faulty": "test_vain", "DLBACKEND_SOLVER": "gemm:test_vain"}
    stats = process(code, DLBACKEND_FIND_MODE="normal", DLBACKEND_VERBOSE="2", **only)
    configs = [line.split(",")[4] for line in process.stderr.splitlines() if line.startswith("dlbackend,run,")]
    assert len(configs) > 300
    assert not any(config.startswith("s") for config in configs)
    assert stats["swapped"] == 0
    assert stats["misses"] == 5
    tried = [line for line in process.stderr.splitlines() if "test_vain,s" in line]
    assert len(tried) == 2


@pytest.mark.slow
def test_of_programs_of_single_problems_the_least_recently_run_are_given_up(process):
    code = """
def product(rows): return torch.ones(rows, rows, device="ocl") @ torch.ones(rows, 8, device="ocl")  # all sizes differ
def swapped(): return dlbackend.solvers.stats()["swapped"]
def settle(rows):
    for _ in range(10):
        for _ in range(10): product(rows); torch.ocl.synchronize()
        dlbackend.solvers.wait()
        if swapped() > len(made): return made.append(rows)
made = []
for rows in range(16, 296):
    settle(rows)
    if made: product(made[0])
evicted = dlbackend.kernel_stats()["evicted"]
import sys
print("now", file=sys.stderr, flush=True)
for rows in (made[0], made[1], made[-1]): assert (product(rows) == rows).all()
print(json.dumps([len(made), evicted]))
"""
    made, evicted = process(code, DLBACKEND_FIND_MODE="normal", DLBACKEND_VERBOSE="2", **ONLY_SLOW)
    assert made > 256
    assert evicted == made - 256
    last = process.stderr[process.stderr.index("\nnow\n") :].splitlines()
    runs = [line.split(",")[4].startswith("s") for line in last if line.startswith("dlbackend,run,")]
    assert runs == [True, False, True]


@pytest.mark.parametrize("mode", ["fast", "normal", "hybrid", "dynamic_hybrid"])
def test_wrong_solver_is_never_taken(process, mode):
    """It is the fastest, and its estimate the lowest."""
    state = process(
        'dlbackend.solvers.force("-clblast")\nrun(); settle()\n' + STATE,
        faulty="test_wrong",
        DLBACKEND_FIND_MODE=mode,
    )
    assert state["rejected"] >= 1
    assert not state["taken"].startswith("test_")
    if mode != "normal":  # which measures, and rejects, before it would choose by estimate
        assert "solver test_wrong gives wrong results" in process.stderr


@pytest.mark.parametrize("mode", ["normal", "hybrid"])
def test_wrong_and_unbuildable_solvers_lose_also_behind_the_estimate(process, mode):
    state = process(
        'dlbackend.solvers.force("-clblast")\nrun(); settle()\n' + STATE,
        faulty="test_late,test_fails",
        DLBACKEND_FIND_MODE=mode,
    )
    assert not state["taken"].startswith("test_")


def test_deterministic_ignores_store_and_measurements(process):
    code = """
torch.use_deterministic_algorithms(True)
run(3)
print(json.dumps({**dlbackend.solvers.stats(), "problems": dlbackend.solvers.problems()}))
"""
    process("run()\n" + STATE, DLBACKEND_FIND_MODE="normal")
    state = process(code, DLBACKEND_FIND_MODE="normal")
    assert state["hits"] == state["misses"] == state["measured"] == 0
    assert state["problems"] == []


def test_find_share_bounds_what_is_measured(process):
    code = 'dlbackend.solvers.force("-clblast")\nsettle()\n' + STATE
    assert process(code, DLBACKEND_FIND_SHARE="1e-9")["measured"] == 0
    assert process(code)["measured"] >= 1


@pytest.mark.parametrize("share", ["0", "-0.1", "1.5", "nan", "much"])
def test_bad_find_share(share):
    code = "import torch, dlbackend; print(torch.backends.ocl.find_share)"
    result = forked_python(code, DLBACKEND_FIND_SHARE=share)
    assert "ValueError: DLBACKEND_FIND_SHARE=" + share in result.stderr
    with pytest.raises(ValueError, match="above 0 and at most 1"):
        torch.backends.ocl.find_share = 0 if share == "much" else float(share)


def test_unknown_mode_in_the_environment():
    result = forked_python(
        "import torch, dlbackend; torch.ones(2, 2, device='ocl') @ torch.ones(2, 2, device='ocl')",
        DLBACKEND_FIND_MODE="fastest",
    )
    assert "ValueError" in result.stderr
    assert "dynamic_hybrid" in result.stderr


def test_backends_settings():
    ocl = torch.backends.ocl
    before = ocl.find_mode
    share = ocl.find_share
    with ocl.flags(find_mode="fast", find_share=0.5, deterministic=True, prefer_reusable=("gemm",)):
        assert ocl.find_mode == "fast"
        assert ocl.find_share == 0.5
        assert ocl.benchmark is False
        assert ocl.deterministic is True
        assert ocl.prefer_reusable == ("gemm",)
    assert ocl.find_mode == before
    assert ocl.find_share == share
    assert ocl.deterministic is False
    assert ocl.prefer_reusable is False
    with ocl.flags(benchmark=True):
        assert ocl.find_mode == "normal"
    with pytest.raises(ValueError, match="there are normal, fast"):
        ocl.find_mode = "best"
    with pytest.raises(ValueError, match="no op 'pooling'"):
        ocl.prefer_reusable = ("pooling",)
    for wrong in ("gemm", None, 1, ("gemm", 3)):
        with pytest.raises(ValueError, match=r'a tuple of ops as \("conv_fwd", "gemm"\)'):
            ocl.prefer_reusable = wrong
    assert ocl.prefer_reusable is False
    with pytest.raises(ValueError, match="there are none, ieee, tf32"):
        ocl.fp32_precision = "tf16"
    assert ocl.find_mode == before


def test_solutions_are_listed_and_sorted():
    a = torch.randn(40, 50, device="ocl")
    a @ a.T
    problem = next(p for p in reversed(dlbackend.solvers.problems()) if " m=40 n=40 k=50 " in p)
    for order in ("time", "workspace"):
        found = dlbackend.solvers.solutions(problem, sort_by=order)
        assert sum(s.taken for s in found) == 1
        assert any(s.solver.startswith("reference@") for s in found)
    assert [s.workspace for s in found] == sorted(s.workspace for s in found)
    with pytest.raises(ValueError, match="sort_by"):
        dlbackend.solvers.solutions(problem, sort_by="size")
    with pytest.raises(ValueError, match="problem key"):
        dlbackend.solvers.solutions("gemm:float32")


def test_forbidding_a_solver():
    key = "gemm:float32 b=1 m=64 n=64 k=64 sa=0,64,1 sb=0,64,1 sc=0,64,1 sd=0,0,0 add=0"
    try:
        first = dlbackend.solvers.explain(key).split()[0]
        dlbackend.solvers.force(f"gemm:-{first}")
        assert dlbackend.solvers.explain(key).split()[0] != first
    finally:
        dlbackend.solvers.force("")


def test_verbose_says_what_was_found(process, tmp_path):
    # Without other processes, so that the first run waits for what has the lowest estimate.
    variables = {"DLBACKEND_CACHE_DIR": str(tmp_path / "empty"), "DLBACKEND_COMPILE_PROCESSES": "0"}
    process("run(2)\n" + STATE, DLBACKEND_VERBOSE="2", **variables)
    assert "dlbackend,compiled,ocl:0," in process.stderr
    lines = process.stderr.splitlines()
    found = [line for line in lines if line.startswith("dlbackend,find,ocl:0,miss,")]
    assert len(found) == 1
    assert "gemm:float32 b=1 m=96" in found[0]
    assert "cpu_gemv: " in found[0]  # why others are not taken
    assert sum(line.startswith("dlbackend,run,ocl:0,") and line.endswith(" us") for line in lines) == 2


def test_what_is_remembered_of_sizes_is_bounded(process):
    code = """
rows, columns = torch.ones(120, 8, device="ocl"), torch.ones(8, 72, device="ocl")
for m in range(1, 121):
    for n in range(1, 73): z = rows[:m] @ columns[:, :n]
known = dlbackend.solvers.problems()
again = rows[:1] @ columns[:, :1], rows[:17] @ columns[:, :23], z
assert all((t == 8).all() for t in again)
print(json.dumps([len(known), len(set(known)), dlbackend.kernel_stats()["evicted"]]))
"""
    known, different, evicted = process(code)
    assert known == different < 120 * 72
    assert known + evicted == 120 * 72


def test_many_threads_meet_a_new_problem(process):
    code = """
import threading
start = threading.Barrier(8)
wrong = []
def work():
    start.wait()
    z = x @ y
    torch.ocl.synchronize()
    if (z.cpu() - a @ b).abs().max() > 1e-4: wrong.append(1)
threads = [threading.Thread(target=work) for _ in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
assert not wrong
"""
    state = process(code + STATE, DLBACKEND_FIND_MODE="normal")
    assert state["misses"] == 1


def test_exit_while_the_background_works():
    code = """
import torch, dlbackend, torch.nn.functional as F
x, w = torch.randn(2, 16, 20, 20, device="ocl"), torch.randn(32, 16, 3, 3, device="ocl")
for _ in range(3): F.conv2d(x, w)
print("done")
"""
    for _ in range(3):
        result = fresh_python(code)
        assert result.returncode == 0, result.stderr
        assert "done" in result.stdout


WRONG = {"faulty": "test_wrong"}


@pytest.mark.parametrize("mode", ["fast", "hybrid"])
def test_wrong_solver_is_found_out_by_a_problem_of_any_depth(process, mode):
    """The reference's cost for one result is no reason to believe a solver, for this problem or others."""
    code = """
a, b = torch.randn(16, 200000), torch.randn(200000, 16)
x, y = a.to("ocl"), b.to("ocl")
z = (x @ y).cpu().double()
want = a.double() @ b.double()
print(json.dumps([(z - want).abs().max().item() / want.abs().max().item(), dlbackend.solvers.stats()["rejected"]]))
"""
    error, rejected = process(code, DLBACKEND_FIND_MODE=mode, **WRONG)
    assert error < 1e-4
    assert rejected == 1


def test_wrong_solver_is_found_out_where_memory_does_not_suffice_for_the_problem(process):
    """By a smaller problem of the same kind; PoCL gives this process 4 GiB of memory."""
    code = """
a, b = torch.randn(8000, 16), torch.randn(16, 8000)
z = a.to("ocl") @ b.to("ocl")
error = (z[-3:, -3:].cpu() - a[-3:] @ b[:, -3:]).abs().max().item()
problem, = dlbackend.solvers.problems()
taken = dlbackend.solvers.explain(problem).split()[0]
memory = torch.ocl.get_device_properties(0).total_memory
print(json.dumps([error, dlbackend.solvers.stats()["rejected"], taken, memory]))
"""
    error, rejected, taken, memory = process(code, POCL_MEMORY_LIMIT="4", DLBACKEND_VERBOSE="1", **WRONG)
    if memory > 5 << 30:
        pytest.skip("the driver does not know PoCL's limit of memory")
    assert "not checked," in process.stderr
    assert error < 1e-4
    assert rejected == 1
    assert taken not in ("test_wrong", "reference")


def test_wrong_solver_is_not_taken_for_want_of_memory(process):
    code = """
dlbackend.solvers.force("gemm:-clblast,gemm:-gpu_gemv")
a, b = torch.randn(24, 20000), torch.randn(20000, 24)
x, y, out = a.to("ocl"), b.to("ocl"), torch.empty(24, 24, device="ocl")
torch.mm(x, y, out=out)
key, = dlbackend.solvers.problems()
workspace, = (s.workspace for s in dlbackend.solvers.solutions(key) if s.taken)
out.zero_()
torch.ocl.empty_cache()
torch.ocl.set_per_process_memory_fraction(1e-9)  # no new segment
held = []
for size in (64 << 20, 1 << 20, 1 << 16, 512):
    try:
        while True: held.append(torch.empty(size, dtype=torch.uint8, device="ocl"))
    except torch.OutOfMemoryError: pass
torch.mm(x, y, out=out)
torch.ocl.synchronize()
del held
want = a.double() @ b.double()
print(json.dumps([workspace, (out.cpu() - want).abs().max().item() / want.abs().max().item()]))
"""
    workspace, error = process(code, DLBACKEND_EMULATE="class=gpu", **WRONG)
    assert workspace > 0
    assert error < 1e-4


def test_a_choice_that_was_begun_before_a_setting_changed_is_not_kept(process, tmp_path):
    code = """
import threading, time
torch.ocl.synchronize()
thread = threading.Thread(target=lambda: x @ y)
thread.start()
time.sleep(0.02)  # its solver's kernel takes longer to compile
dlbackend.solvers.force("gemm:reference")
thread.join()
run()
"""
    state = process(code + STATE, DLBACKEND_CACHE_DIR=str(tmp_path / "empty"))
    assert state["taken"].startswith("reference@")


@pytest.mark.parametrize("mode", ["fast", "normal"])
def test_what_one_forced_solver_showed_does_not_stand_for_others(process, mode):
    process('dlbackend.solvers.force("gemm:reference")\nrun()\n' + STATE, DLBACKEND_FIND_MODE="normal")
    state = process("run()\n" + STATE, DLBACKEND_FIND_MODE=mode)
    assert state["misses"] == 1
    assert not state["taken"].startswith("reference@")


def test_forcing_a_solver_loses_nothing_that_is_known(process):
    first = process("run()\n" + STATE, DLBACKEND_FIND_MODE="normal")
    process('dlbackend.solvers.force("gemm:reference")\nrun()\n' + STATE, DLBACKEND_FIND_MODE="normal")
    again = process("run()\n" + STATE, DLBACKEND_FIND_MODE="normal")
    assert again["hits"] == 1
    assert again["taken"] == first["taken"]


def test_what_a_short_process_could_not_try_a_later_one_does(process):
    """A program of the problem's own, of which the record of the short process says nothing."""
    short = process("run(3)\n" + STATE, DLBACKEND_FIND_MODE="normal", **ONLY_SLOW)
    assert not short["own"]
    long = process("settle()\n" + STATE, **ONLY_SLOW)
    assert long["hits"] == 1
    assert long["own"]
    assert long["timed"] == short["timed"] + 1
    again = process("settle()\n" + STATE, **ONLY_SLOW)
    assert again["timed"] == long["timed"]


def test_a_process_that_ends_amid_a_trial_does_not_speak_against_it(process):
    """Twice in vain would be the last time."""
    code = """
import os
for _ in range(40): run()  # measured in `normal`: now its own program is begun
print("{}", flush=True)
os._exit(0)
"""
    for _ in range(3):
        process(code, DLBACKEND_FIND_MODE="normal", **ONLY_SLOW)
    assert process("settle()\n" + STATE, DLBACKEND_FIND_MODE="normal", **ONLY_SLOW)["own"]


def test_nothing_is_made_for_a_problem_where_reusable_kernels_are_preferred(process):
    code = """
import sys
with dlbackend.prefer_reusable(): settle()
inside = state()
print("inside", file=sys.stderr, flush=True)
settle()
print(json.dumps([inside, state()]))
"""
    inside, outside = process(code, DLBACKEND_FIND_MODE="normal", DLBACKEND_VERBOSE="1", **ONLY_SLOW)
    assert "test_slow,s0," not in process.stderr.split("inside\n")[0]
    assert not inside["own"]
    assert outside["own"]


@pytest.mark.parametrize("order", ["rows", "columns", "depth"])
def test_changing_sizes_of_a_linear_layer_are_learnt(process, order):
    """There may be more rows than features, and the gradient of the weight sums over the rows."""
    code = """
w, g = torch.ones(80, 72, device="ocl"), torch.ones(160, 72, device="ocl")
for rows in range(100, 160):
    x = torch.ones(rows, 80, device="ocl")
    if ORDER == "rows": x @ w
    if ORDER == "columns": torch.ones(160, 80, device="ocl") @ torch.ones(80, rows, device="ocl")
    if ORDER == "depth": x.t() @ g[:rows]
print(json.dumps(dlbackend.solvers.stats()))
"""
    stats = process(f"ORDER = {order!r}\n" + code)
    assert stats["misses"] + stats["precedents"] == 60
    assert stats["misses"] <= 12


@pytest.mark.parametrize("config", ["7,3,5,2,9,1", "-1,-1,-1,-1,-1,-1", "100000,1,1,0,0,0"])
def test_a_config_that_a_solver_does_not_have_is_not_run(process, config):
    first = process("run()\nkey, = dlbackend.solvers.problems()\nprint(json.dumps([state(), key]))")
    code = f"""
from dlbackend import _C
taken = {first[0]["taken"]!r}
_C.store_find_record({first[1]!r}, f"dlbackend-find 1 {{dlbackend._build.VERSION}}\\nconsidered {{taken}}\\n"
                     f"{{taken}} {config} 1.5 0 0\\n{{taken}} s{config} 0.5 0 0\\n")
run(2)
"""
    check_is_a_miss(process(code + STATE))


def test_what_was_measured_is_kept_where_a_faster_program_is_fetched(process):
    code = """
settle()
key, = dlbackend.solvers.problems()
print(json.dumps(dlbackend._C.find_record(key).splitlines()))
"""
    only = {**ONLY_SLOW, "DLBACKEND_SOLVER": "", "DLBACKEND_FIND_MODE": "normal"}
    first = process('dlbackend.solvers.force("-clblast")\n' + code, **only)
    again = process('dlbackend.solvers.force("-clblast")\n' + code, **{**only, "DLBACKEND_FIND_MODE": "hybrid"})
    assert {line.split()[0] for line in again[2:]} >= {line.split()[0] for line in first[2:]}
    assert len(again) >= len(first)


def test_records_are_the_same_in_every_locale(process, tmp_path):
    """C's printf writes a decimal comma where the program has set a locale that has one."""
    if not shutil.which("localedef") or not os.path.exists("/usr/share/i18n/locales/de_DE"):
        pytest.skip("localedef and the sources of locales are needed to make one")
    subprocess.run(["localedef", "-i", "de_DE", "-f", "UTF-8", str(tmp_path / "de_DE.UTF-8")], check=False)
    code = """
import locale
locale.setlocale(locale.LC_ALL, "de_DE.UTF-8")
assert locale.localeconv()["decimal_point"] == ","
run()
"""
    settings = {"DLBACKEND_FIND_MODE": "normal", "LOCPATH": str(tmp_path), "DLBACKEND_FIND_SHARE": "0.5"}
    first = process(code + STATE, **settings)
    second = process(code + STATE, **settings)
    assert first["misses"] == 1
    assert second["hits"] == 1
    assert second["measured"] == 0
