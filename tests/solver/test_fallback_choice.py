"""Where a kernel's first launch compiles it, or other processes compile, a problem's first run takes a solution that is
built already, and the one with the lowest estimate takes over when it was built in the background.
"""

import json

import pytest
import torch
from faulty_solvers import with_faulty_solvers
from fresh_process import forked_python

pytestmark = pytest.mark.skipif(
    not torch.ocl.get_device_properties(0).late_code, reason="kernels are compiled when their programs are built"
)

# Two convolutions of a network: for the second one another solver has the lowest estimate than for the first.
CODE = """
import json, torch, dlbackend
import torch.nn.functional as F
torch.manual_seed(0)
dlbackend.solvers.force("conv_fwd:-cpu_bf16,conv_fwd:-cpu_direct")
inputs = [(torch.randn(4, c, 12, 12), torch.randn(32, c, 3, 3)) for c in (1, 32)]
on_device = [(x.to("ocl"), w.to("ocl")) for x, w in inputs]
def run():
    for (x, w), (x_ocl, w_ocl) in zip(inputs, on_device):
        exact = F.conv2d(x.double(), w.double(), padding=1)
        got = F.conv2d(x_ocl, w_ocl, padding=1).cpu()
        assert (got - exact).norm() < 1e-5 * exact.norm()
def taken():
    second, = (p for p in dlbackend.solvers.problems() if " c=32 " in p)
    solution, = (s for s in dlbackend.solvers.solutions(second) if s.taken)
    return solution.solver.split("@")[0]
def again():
    run()
    dlbackend.solvers.wait()
    return taken()
run()
"""
BUILT, LOWEST = "cpu_implicit", "cpu_winograd"


@pytest.fixture
def process(tmp_path):
    """Runs code behind two convolutions in a fresh process, whose caches begin empty; what it prints as JSON."""

    def run(code: str, before: str = "", cache: str = "cache", **environment: str):
        # With a thread that launches and processes that compile, the first run is the reference's.
        settings = {
            "DLBACKEND_CACHE_DIR": str(tmp_path / cache),
            "DLBACKEND_PACKS": "",
            "DLBACKEND_ENQUEUE_THREAD": "0",
        }
        settings |= environment
        result = forked_python(before + CODE + f"print(json.dumps({code}))", **settings)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout.splitlines()[-1])

    return run


def test_what_is_built_runs_until_the_lowest_estimate_is(process):
    # Nothing is built for what runs once.
    assert process("[dlbackend.solvers.wait(), taken(), again(), again()]") == [None, BUILT, LOWEST, LOWEST]
    # The store of programs now has what was built behind: to load it takes no time.
    assert process("[taken(), dlbackend.kernel_stats()['compiled']]") == [LOWEST, 0]


def test_choices_by_estimate_alone_wait_for_it(process):
    """Every process has to give the same bits."""
    fast, compiled = process("[taken(), dlbackend.kernel_stats()['compiled']]", DLBACKEND_FIND_MODE="fast")
    assert fast == LOWEST
    deterministic = "import torch, dlbackend\ntorch.backends.ocl.deterministic = True\n"
    assert process("dlbackend.kernel_stats()['compiled']", deterministic, "another") == compiled


def test_other_processes_compile_it_at_once(process):
    """They do not wait until the problem runs again; the second run then loads it."""
    code = "[dlbackend.solvers.wait(), stats(), again(), stats()]"
    stats = "def stats():\n    s = dlbackend.kernel_stats()\n    return [s['compiled'], s['compiled_elsewhere']]\n"
    _, before, second, after = process(code, stats, DLBACKEND_COMPILE_PROCESSES="1")
    assert second == LOWEST
    assert before[1] > 0
    assert before == after


# Sizes that never come again, with a solver of products whose estimate is the lowest and whose kernel does not build.
REFUSED = """
import json, warnings, torch, dlbackend
warnings.simplefilter("ignore")
taken = []
for n in range(300, 330):
    a = torch.randn(n, n)
    assert ((a.to("ocl") @ a.to("ocl")).cpu() - a @ a).norm() < 1e-5 * (a @ a).norm()
    dlbackend.solvers.wait()
    problem, = (p for p in dlbackend.solvers.problems() if f"m={n} n={n} " in p)
    taken += [s.solver.split("@")[0] for s in dlbackend.solvers.solutions(problem) if s.taken]
print(json.dumps(taken))
"""


def test_where_a_solver_does_not_build_the_reference_is_left_all_the_same(tmp_path):
    result = forked_python(
        with_faulty_solvers("test_fails", REFUSED),
        DLBACKEND_CACHE_DIR=str(tmp_path),
        DLBACKEND_PACKS="",
        DLBACKEND_ENQUEUE_THREAD="1",
        DLBACKEND_COMPILE_PROCESSES="2",
    )
    assert result.returncode == 0, result.stderr
    taken = json.loads(result.stdout.splitlines()[-1])
    assert "test_fails" not in taken
    assert taken.count("reference") <= 3


# A product and the gradients of a convolution, of which the reference would take long.
STANDING_IN = """
import json, torch, dlbackend
import torch.nn.functional as F
a, w = torch.randn(300, 300), torch.randn(20, 24, 3, 3)
x = torch.randn(2, 24, 40, 40)
want = F.conv2d(x, w, padding=1)
def run():
    assert ((a.to("ocl") @ a.to("ocl")).cpu() - a @ a).norm() < 1e-5 * (a @ a).norm()
    x_ocl, w_ocl = x.to("ocl").requires_grad_(), w.to("ocl").requires_grad_()
    y = F.conv2d(x_ocl, w_ocl, padding=1)
    y.sum().backward()
    assert (y.cpu() - want).norm() < 1e-5 * want.norm()
def taken():
    return [s.solver.split("@")[0] for p in dlbackend.solvers.problems() if p.startswith(("gemm:", "conv_"))
            for s in dlbackend.solvers.solutions(p) if s.taken]
run()
first = taken()
for _ in range(3):
    dlbackend.solvers.wait()
    run()
print(json.dumps([first, taken()]))
"""


def test_plain_tiles_stand_in_on_gpus(tmp_path):
    """In place of the reference until what the estimates say is built, which may be for the last of them already."""
    result = forked_python(
        STANDING_IN,
        DLBACKEND_CACHE_DIR=str(tmp_path),
        DLBACKEND_PACKS="",
        DLBACKEND_EMULATE="class=gpu",
        DLBACKEND_ENQUEUE_THREAD="1",
        DLBACKEND_COMPILE_PROCESSES="2",
    )
    assert result.returncode == 0, result.stderr
    first, then = json.loads(result.stdout.splitlines()[-1])
    assert "gpu_plain" in first
    assert "reference" not in first
    assert not {"gpu_plain", "reference"} & set(then)
