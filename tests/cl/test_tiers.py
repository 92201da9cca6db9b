"""Programs are built without optimisation first, and other processes' optimised ones take their place."""

from pathlib import Path

from faulty_solvers import with_faulty_solvers
from fresh_process import emulating, forked_python
from stores import contents

FIRST = b" -cl-opt-disable\n"
PRELUDE = """
import threading, time, torch, dlbackend
from dlbackend import _C
def counts():
    stats = dlbackend.kernel_stats()
    return int(stats["compiled"]), int(stats["optimised"]), int(stats["loaded"])
x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
def right(y): return torch.allclose(y.cpu(), x.exp() * 2 + x.cumsum(0), rtol=1e-4, atol=1e-4)
def compute(a): return a.exp() * 2 + a.cumsum(0)
"""


def run(cache: Path, code: str, said: str = "", **variables: str) -> str:
    """What the code prints, in a process whose programs are built in tiers and that says so much on stderr."""
    caches = {"DLBACKEND_CACHE_DIR": str(cache), "POCL_CACHE_DIR": str(cache / "pocl"), "DLBACKEND_PACKS": ""}
    (cache / "pocl").mkdir(parents=True, exist_ok=True)
    done = forked_python(PRELUDE + code, **{**emulating(tiers="1"), **caches, **variables})
    assert done.returncode == 0, done.stderr
    assert said in done.stderr
    return done.stdout


def programs(cache: Path) -> dict[bool, int]:
    """How many programs of the store are optimised, and how many not."""
    keys = list(contents(cache / "programs"))
    return {tier: sum((FIRST not in key) == tier for key in keys) for tier in (True, False)}


def test_what_is_optimised_takes_over(tmp_path):
    out = run(
        tmp_path,
        """
a = x.to("ocl")
first = right(compute(a))
built = counts()[0]
dlbackend.solvers.wait()
print(first, right(compute(a)), built > 2, counts() == (built, built, 0))
""",
    )
    assert out.split() == ["True"] * 4
    stored = programs(tmp_path)
    assert stored[True] == stored[False] > 2


def test_a_second_process_finds_what_is_optimised(tmp_path):
    code = 'a = x.to("ocl")\nassert right(compute(a))\n'
    first = run(tmp_path, code + "dlbackend.solvers.wait(), print(*counts())")
    compiled, optimised, loaded = map(int, first.split())
    assert (optimised, loaded) == (compiled, 0)
    assert run(tmp_path, code + "dlbackend.solvers.wait(), print(*counts())").split() == ["0", "0", str(compiled)]


def test_machine_code_is_compiled_elsewhere(tmp_path):
    """The other process repeats launches, so that this one's driver finds the code of the optimised programs."""
    run(tmp_path, 'a = x.to("ocl")\ncompute(a), torch.ocl.synchronize(), dlbackend.solvers.wait()')
    before = set(tmp_path.rglob("*.so"))
    assert len(before) >= 2 * programs(tmp_path)[False]
    run(tmp_path, 'a = x.to("ocl")\nassert right(compute(a))')
    assert set(tmp_path.rglob("*.so")) == before


def test_a_process_ends_while_programs_are_optimised(tmp_path):
    out = run(tmp_path, 'assert right(compute(x.to("ocl")))\nprint(*counts())')
    stored = programs(tmp_path)
    compiled, optimised, _ = map(int, out.split())
    assert optimised <= stored[True] < compiled == stored[False]
    # Another goes on with what the first began: nothing is built twice in one tier.
    code = 'assert right(compute(x.to("ocl")))\nprint(*counts())\ndlbackend.solvers.wait()\nprint(*counts())'
    first, last = (line.split() for line in run(tmp_path, code).splitlines())
    assert first[0] == last[0] == "0"
    assert programs(tmp_path)[True] >= compiled


def test_results_are_right_while_programs_change(tmp_path):
    """Threads launch the same kernels, new ones and with new values while what is optimised takes over."""
    out = run(
        tmp_path,
        """
wrong, stop = [], threading.Event()
def work(number):
    a = x.to("ocl")
    while not stop.is_set():
        if not right(compute(a)): wrong.append(number)
        n = torch.randint(1, 500, ()).item()
        if not torch.equal((a[:n] * n).cpu(), x[:n] * n): wrong.append(n)
threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
[t.start() for t in threads]
while counts()[0] < 4: time.sleep(0.01)
while counts()[1] < counts()[0]: dlbackend.solvers.wait()
time.sleep(0.1)
stop.set(), [t.join() for t in threads]
print(wrong, counts()[1] > 2)
""",
    )
    assert out.split() == ["[]", "True"]


def test_without_processes_there_is_one_tier(tmp_path):
    code = 'assert right(compute(x.to("ocl")))\nprint(counts()[1])'
    assert run(tmp_path, code, DLBACKEND_COMPILE_PROCESSES="0").split() == ["0"]
    assert programs(tmp_path)[False] == 0


def test_a_program_that_was_never_launched_begins_in_its_first_tier(tmp_path):
    """What a search had compiled and did not get to measure is in the store, but has no machine code."""
    code = 'assert right(compute(x.to("ocl")))\n'
    run(tmp_path, code, DLBACKEND_COMPILE_PROCESSES="0")
    stored = programs(tmp_path)[True]
    for machine_code in tmp_path.rglob("*.so"):
        machine_code.unlink()
    out = run(tmp_path, code + "dlbackend.solvers.wait()\nprint(*counts())")
    assert list(map(int, out.split())) == [stored, stored, 0]
    assert programs(tmp_path) == {True: stored, False: stored}
    assert run(tmp_path, code + "print(*counts())").split() == ["0", "0", str(stored)]


def test_programs_are_optimised_here_where_no_process_starts(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    out = run(
        tmp_path,
        f"""
_C.set_package_dir({str(package)!r})
a = x.to("ocl")
assert right(compute(a))
dlbackend.solvers.wait()
print(right(compute(a)), counts()[1] > 0)
""",
    )
    assert out.split() == ["True", "True"]


NET = """
a, b = torch.randn(96, 160), torch.randn(160, 80)
c, d = a.to("ocl"), b.to("ocl")
def check(): return torch.allclose((c @ d).cpu(), a @ b, atol=1e-3)
"""


def vouched(cache: Path) -> list[bytes]:
    return [key for key in contents(cache / "find", "find") if b"vouched gemm" in key]


def test_solvers_are_checked_again_when_they_are_optimised(tmp_path):
    """What was checked without optimisation tells later processes nothing."""
    run(tmp_path / "short", NET + "assert check()\nprint(flush=True)\nimport os; os._exit(0)")
    assert vouched(tmp_path / "short") == []
    run(tmp_path / "long", NET + "assert check()\ndlbackend.solvers.wait()\nassert check()")
    assert len(vouched(tmp_path / "long")) == 1


def test_what_runs_in_its_first_tier_counts_as_built(tmp_path):
    """A convolution that would begin with another solver takes the one that runs already, and waits for less."""
    run(
        tmp_path,
        """
x, narrow, wide = torch.randn(64, 1, 8, 8), torch.randn(32, 1, 3, 3), torch.randn(64, 32, 3, 3)
def net(*tensors):
    a, b, c = tensors
    return torch.conv2d(torch.conv2d(a, b, padding=1), c, padding=1)
y = net(x.to("ocl"), narrow.to("ocl"), wide.to("ocl")).cpu()
assert torch.allclose(y, net(x, narrow, wide), atol=1e-2)
""",
    )
    keys = [key for key in contents(tmp_path / "programs") if FIRST in key]
    assert any(b"conv_cpu_implicit" in key for key in keys)
    assert not any(b"conv_cpu_winograd" in key for key in keys)


def test_measurements_are_of_what_is_optimised(tmp_path):
    """Where all solutions are measured before the first run, none is built in the first tier."""
    run(tmp_path, NET + "assert check()", DLBACKEND_FIND_MODE="normal")
    keys = list(contents(tmp_path / "programs"))
    assert any(b"gemm_cpu_packed" in key for key in keys)
    assert not any(b"gemm_cpu_packed" in key and FIRST in key for key in keys)


def test_a_solver_that_is_wrong_when_it_is_optimised_never_runs_so(tmp_path):
    out = run(
        tmp_path,
        with_faulty_solvers(
            "test_miscompiled",
            NET
            + """
before = check()
dlbackend.solvers.wait()
e, f = torch.randn(96, 160), torch.randn(160, 81)
print(before, all(check() for _ in range(5)), torch.allclose((e.to("ocl") @ f.to("ocl")).cpu(), e @ f, atol=1e-3))
""",
        ),
        said="solver test_miscompiled gives wrong results",
    )
    assert out.split() == ["True"] * 3
    assert not any(b"test_miscompiled" in key for key in vouched(tmp_path))


def test_deterministic_programs_have_one_tier(tmp_path):
    """The tiers' results may differ by rounding."""
    code = """
torch.use_deterministic_algorithms(True)
a = x.to("ocl")
assert right(a.exp() * 2 + a.cumsum(0))
print(counts()[1])
"""
    assert run(tmp_path, code).split() == ["0"]
    assert programs(tmp_path)[False] == 0
