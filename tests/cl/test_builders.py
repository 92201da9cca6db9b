"""Where launches have a thread and other processes compile, callers do not wait for programs of what they launch."""

import stat
from pathlib import Path

import pytest
from fresh_process import forked_python
from runtime.test_faulty_drivers import layer, library  # noqa: F401

import dlbackend

REAL = Path(dlbackend.__file__).parent / "dlbackend-compiler"
PRELUDE = """
import json, os, torch, dlbackend
from pathlib import Path
from dlbackend import _C
"""
DEFERRED = {"DLBACKEND_ENQUEUE_THREAD": "1", "DLBACKEND_COMPILE_PROCESSES": "2", "DLBACKEND_PACKS": ""}


@pytest.fixture
def process(tmp_path):
    """Runs code in a process with empty caches whose compilers wait until the file `go` exists."""
    package, go = tmp_path / "package", tmp_path / "go"
    package.mkdir()
    compiler = package / REAL.name
    compiler.write_text(f"""#!/bin/sh
program=$PPID
exec 3<&0  # a shell gives what goes on behind it no input
(while [ ! -e "{go}" ]; do kill -0 $program || exit; sleep 0.01; done; exec "{REAL}" "$@") <&3 3<&- &
""")
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    prelude = PRELUDE + f"_C.set_package_dir({str(package)!r})\ngo = Path({str(go)!r})\n"

    def run(code: str, **variables: str) -> str:
        caches = {"DLBACKEND_CACHE_DIR": str(tmp_path / "cache"), "POCL_CACHE_DIR": str(tmp_path / "pocl")}
        done = forked_python(prelude + code, **DEFERRED, **caches, **variables)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_callers_go_on(process):
    out = process("""
x = torch.arange(1000.0).to("ocl")
y = x.sin() * 2 + x[::3].sum()
at_work = not torch.ocl.current_stream().query()
go.touch()
right = torch.allclose(y.cpu(), torch.arange(1000.0).sin() * 2 + torch.arange(1000.0)[::3].sum())
stats = dlbackend.kernel_stats()
print(at_work, right, stats["compiled"] >= 4, stats["compiled_elsewhere"] >= 2)  # the rest by the launching thread
""")
    assert out.split() == ["True"] * 4


def test_launches_of_made_kernels_do_not_wait_for_those_before(process, tmp_path):
    process('go.touch()\ntorch.arange(1000.0).to("ocl").exp().cpu()')
    (tmp_path / "go").unlink()
    out = process("""
x = torch.arange(1000.0).to("ocl")
x.exp()
dlbackend.kernel_stats()  # exp's program, which is stored, is loaded
y = x.sin()
z = x.exp()
at_work = not torch.ocl.current_stream().query()
go.touch()
print(at_work, torch.allclose(y.cpu(), torch.arange(1000.0).sin()), torch.equal(z.cpu(), x.exp().cpu()))
""")
    assert out.split() == ["True"] * 3


def test_the_end_of_a_process_waits_for_no_compiler(process):
    """The process itself compiles what was not compiled elsewhere by then, since its launches are not lost."""
    assert process('x = torch.arange(1000.0).to("ocl")\ny = x.exp() + x.sin()\nprint("end")') == "end\n"


def test_counts_wait_for_what_is_under_way(process):
    out = process("""
go.touch()
x = torch.arange(1000.0).to("ocl")
x.exp(), x.sin(), x.exp()
stats = dlbackend.kernel_stats()
print(int(stats["compiled"]), int(stats["launches"]))
""")
    assert out.split() == ["2", "3"]


def test_a_training_step(process):
    out = process("""
go.touch()
import torch.nn as nn
torch.manual_seed(0)
def make(): return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
                                 nn.Conv2d(8, 8, 3, stride=2), nn.Flatten(), nn.Linear(72, 5))
ours, theirs = make(), make()
theirs.load_state_dict(ours.state_dict())
ours.to("ocl"), theirs.double()
x, target = torch.randn(4, 3, 15, 15), torch.arange(4)
optimizers = [torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9) for net in (ours, theirs)]
for _ in range(3):
    for net, optimizer, inputs in zip((ours, theirs), optimizers, (x.to("ocl"), x.double())):
        loss = nn.functional.cross_entropy(net(inputs), target.to(inputs.device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
dlbackend.solvers.wait()
print(max((a.cpu() - b).abs().max().item() for a, b in zip(ours.parameters(), theirs.parameters())))
""")
    assert float(out) < 1e-5


def test_convolutions_and_products_run_the_reference_until_others_are_built(process):
    out = process("""
import torch.nn.functional as F
torch.manual_seed(0)
x, w = torch.randn(4, 8, 12, 12), torch.randn(8, 8, 3, 3)
def step(device):
    a, b = (t.to(device, torch.float64 if device == "cpu" else None).requires_grad_() for t in (x, w))
    y = F.conv2d(a, b, padding=1)
    ((y.flatten(1) @ y.flatten(1).t()) * y.flatten(1).sum() * 1e-3).sum().backward()
    return y, a.grad, b.grad
def right(got): return all((g.cpu() - e).norm() < 1e-5 * e.norm() for g, e in zip(got, step("cpu")))
def solvers(): return {s.solver.split("@")[0] for p in dlbackend.solvers.problems() if p.startswith(("conv", "gemm"))
                       for s in dlbackend.solvers.solutions(p) if s.taken}
first = step("ocl")
at_work = not torch.ocl.current_stream().query()
go.touch()
print(at_work, solvers() == {"reference"}, right(first))
for _ in range(2): again = step("ocl")
dlbackend.solvers.wait()
print("reference" in solvers(), right(again), right(step("ocl")))
""")
    assert out.split() == ["True", "True", "True", "False", "True", "True"]


def test_the_text_of_a_template_fails_at_once(process):
    out = process("""
go.touch()
from dlbackend.template import pointwise
try:
    pointwise("y0 = no_such_function(x0);", torch.ones(5, device="ocl"))
except RuntimeError as error:
    print("no_such_function" in str(error))
print((torch.ones(5, device="ocl") + 1).sum().item())
""")
    assert out.split() == ["True", "10.0"]


def test_a_build_that_fails_is_reported_late_and_then_at_once(layer, tmp_path):  # noqa: F811
    late, at_once, other = layer(
        """
def error_of(action):
    try:
        action()
    except RuntimeError as error:
        return str(error)
    return ""
os.environ["FAULTY_CALL"] = "clBuildProgram:0:-11"
y = x.exp()
late = error_of(torch.ocl.synchronize)
del os.environ["FAULTY_CALL"]
print(json.dumps([late, error_of(lambda: x.exp()), error_of(lambda: x.sin().cpu())]))
""",
        DLBACKEND_CACHE_DIR=str(tmp_path / "cache"),
        POCL_CACHE_DIR=str(tmp_path / "pocl"),
        **DEFERRED,
    )
    assert "kernel pointwise_exp" in late
    assert "CL_BUILD_PROGRAM_FAILURE" in at_once
    assert other == ""
