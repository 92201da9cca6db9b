"""Programs that other processes compile: counted, the same results, nothing left behind, and no harm when they die."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from fresh_process import forked_python

from dlbackend import _C

COMPILER = "dlbackend-compiler"

# A net whose programs are compiled ahead, and its results.
NET = """
import torch, dlbackend
from dlbackend import _C
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(14, 5), torch.nn.ReLU(), torch.nn.Linear(5, 5), torch.nn.LogSoftmax(1)).eval()
x = torch.randn(4, 14)
with torch.no_grad():
    expected = net(x)
net.to("ocl:0"), dlbackend.precompile(net, x.to("ocl:0"))
before = dlbackend.kernel_stats()
with torch.no_grad():
    error = (net(x.to("ocl:0")).cpu() - expected).abs().max().item()
after = dlbackend.kernel_stats()
print(int(before["compiled"]), int(before["compiled_elsewhere"]), int(after["compiled"] - before["compiled"]), error)
"""


def run_net(cache: Path, processes: str, prelude: str = "", **variables: str) -> tuple[int, int, int]:
    """Programs compiled ahead, how many of them elsewhere, and how many later."""
    done = forked_python(
        prelude + NET,
        DLBACKEND_CACHE_DIR=str(cache),
        DLBACKEND_PACKS="",
        POCL_CACHE_DIR=str(cache / "pocl"),
        DLBACKEND_COMPILE_PROCESSES=processes,
        DLBACKEND_VERBOSE="0",
        **variables,
    )
    assert done.returncode == 0, done.stderr
    compiled, elsewhere, later, error = done.stdout.split()
    assert float(error) < 1e-5
    return int(compiled), int(elsewhere), int(later)


def compilers(cache: Path) -> list[int]:
    """Processes that compile for a process with this cache."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if (entry / "comm").read_text().strip() != COMPILER[:15]:
                continue
            if f"DLBACKEND_CACHE_DIR={cache}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:  # not a process, or it has ended
            continue
    return found


def test_they_compile_what_this_process_would(tmp_path):
    here, elsewhere, later = run_net(tmp_path / "here", "0")
    assert (elsewhere, later) == (0, 0)
    there, elsewhere, later = run_net(tmp_path / "there", "2")
    assert (there, elsewhere, later) == (here, here, 0)
    assert run_net(tmp_path / "there", "2") == (0, 0, 0)


def test_they_end_with_the_program(tmp_path):
    compiled, elsewhere, _ = run_net(tmp_path, "2")
    assert compiled == elsewhere
    deadline = time.monotonic() + 10
    while compilers(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert compilers(tmp_path) == []


@pytest.mark.slow
def test_they_end_when_the_program_is_killed(tmp_path):
    code = "import os; os.set_inheritable(os.open('/dev/zero', os.O_RDONLY), True)\n" + NET
    code += "print('ready', flush=True); import time; time.sleep(60)"
    variables = {"DLBACKEND_CACHE_DIR": str(tmp_path), "DLBACKEND_PACKS": "", "POCL_CACHE_DIR": str(tmp_path / "pocl")}
    environment = {**os.environ, **variables, "DLBACKEND_COMPILE_PROCESSES": "1"}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        while "ready" not in process.stdout.readline():
            pass
        (compiler,) = compilers(tmp_path)
        open_there = [os.readlink(fd) for fd in Path(f"/proc/{compiler}/fd").iterdir()]
        assert "/dev/zero" not in open_there  # nor anything else that the program had open
        process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while compilers(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert compilers(tmp_path) == []


@pytest.mark.slow
def test_the_program_compiles_when_they_are_killed(tmp_path):
    """Each time one appears it is killed, whatever it does."""
    killer = f"""
import os, signal, threading, time
from pathlib import Path
def kill():
    while True:
        for entry in Path("/proc").iterdir():
            try:
                if (entry / "comm").read_text().strip() == {COMPILER[:15]!r} and {str(tmp_path)!r} in (
                    entry / "environ").read_text():
                    os.kill(int(entry.name), signal.SIGKILL)
            except OSError:
                pass
        time.sleep(0.01)
threading.Thread(target=kill, daemon=True).start()
"""
    compiled, elsewhere, later = run_net(tmp_path, "2", prelude=killer)
    assert compiled > elsewhere
    assert later == 0


@pytest.mark.parametrize("broken", ["missing", "not executable", "ends at once"])
def test_the_program_compiles_when_they_cannot_start(tmp_path, broken):
    package = tmp_path / "package"
    package.mkdir()
    if broken != "missing":
        (package / COMPILER).write_text("#!/bin/sh\nexit 1\n")
        (package / COMPILER).chmod(0o755 if broken == "ends at once" else 0o644)
    prelude = f"import dlbackend; from dlbackend import _C; _C.set_package_dir({str(package)!r})\n"
    compiled, elsewhere, later = run_net(tmp_path / "cache", "2", prelude=prelude)
    assert compiled > 0
    assert (elsewhere, later) == (0, 0)


def test_errors_of_programs_come_from_this_process(tmp_path):
    code = """
import dlbackend, torch
from dlbackend import _C
torch.zeros(1, device="ocl:0")
print(_C.prefetch(0, [("kernel void broken(", ""), ("kernel void sound(global int* x) { *x = 1; }", "")], 2))
stats = dlbackend.kernel_stats()
print(int(stats["compiled_elsewhere"]))
print(torch.arange(3, device="ocl:0").sum().item())
"""
    done = forked_python(
        code,
        DLBACKEND_CACHE_DIR=str(tmp_path),
        DLBACKEND_PACKS="",
        DLBACKEND_COMPILE_PROCESSES="1",
        DLBACKEND_ENQUEUE_THREAD="0",  # else what is launched is compiled there too
        TMPDIR=str(tmp_path),
    )
    assert done.stdout.split() == ["1", "1", "3"], done.stderr


@pytest.mark.slow
def test_a_search_compiles_elsewhere(tmp_path):
    """GPUs' candidates in the background and, measured before the first run, by several at once."""
    code = """
import torch, dlbackend
x, w = torch.randn(2, 32, 14, 14), torch.randn(32, 32, 3, 3)
a, b = x.to("ocl:0"), w.to("ocl:0")
torch.backends.ocl.find_mode = MODE
for _ in range(300):
    y = torch.conv2d(a, b)
    torch.ocl.synchronize()
dlbackend.solvers.wait()
assert torch.allclose(y.cpu(), torch.conv2d(x, w), atol=1e-3)
stats = dlbackend.kernel_stats()
print(int(stats["compiled"]), int(stats["compiled_elsewhere"]), dlbackend.solvers.stats()["rejected"])
"""
    for mode in ("hybrid", "normal"):
        done = forked_python(
            code.replace("MODE", repr(mode)),
            DLBACKEND_CACHE_DIR=str(tmp_path / mode),
            DLBACKEND_PACKS="",
            DLBACKEND_EMULATE="class=gpu",
            DLBACKEND_FIND_SHARE="1",
            DLBACKEND_COMPILE_PROCESSES="2",
        )
        assert done.returncode == 0, done.stderr
        compiled, elsewhere, rejected = map(int, done.stdout.split())
        assert 2 <= elsewhere <= compiled
        assert rejected == 0


def test_a_bad_number_is_ignored(tmp_path):
    done = forked_python(
        "import torch, dlbackend; torch.zeros(1, device='ocl:0'); from dlbackend import _C; _C.prefetch(0, [('', '')])",
        DLBACKEND_COMPILE_PROCESSES="many",
        DLBACKEND_CACHE_DIR=str(tmp_path),
    )
    assert done.returncode == 0
    assert "DLBACKEND_COMPILE_PROCESSES=many is ignored" in done.stderr


def test_without_a_cache_there_is_none():
    done = forked_python(
        "import torch, dlbackend; from dlbackend import _C; torch.zeros(1, device='ocl:0');"
        "_C.prefetch(0, [('kernel void alone(global int* x) { *x = 2; }', '')]);"
        "print(int(dlbackend.kernel_stats()['compiled_elsewhere']))",
        DLBACKEND_COMPILE_PROCESSES="1",
        DLBACKEND_CACHE_DIR="",
    )
    assert done.stdout.split() == ["0"], done.stderr


def test_the_program_is_in_the_package():
    assert os.access(Path(_C.__file__).parent / COMPILER, os.X_OK)


def test_they_are_started_early_where_nothing_was_ever_compiled(tmp_path):
    """A first tensor compiles nothing, but an iteration is about to; where the store has programs it may not be."""
    variables = {
        "DLBACKEND_CACHE_DIR": str(tmp_path),
        "DLBACKEND_PACKS": "",
        "POCL_CACHE_DIR": str(tmp_path / "pocl"),
        "DLBACKEND_ENQUEUE_THREAD": "1",
        "DLBACKEND_COMPILE_PROCESSES": "2",
    }
    code = """
    import torch, dlbackend
    a = torch.zeros(4).to("ocl:0")
    print("ready", flush=True), input()
    print((a + a).sum().item(), dlbackend.kernel_stats()["compiled_elsewhere"])
    """
    started = []
    for _ in range(2):
        command = [sys.executable, "-c", textwrap.dedent(code)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(command, env={**os.environ, **variables}, text=True, **pipes) as process:
            assert process.stdout
            assert process.stdout.readline().strip() == "ready"
            started.append(len(compilers(tmp_path)))
            printed, _ = process.communicate("\n")
            compiled = printed.split()[-1]
        assert process.returncode == 0
        assert (int(compiled) > 0) == (len(started) == 1)
    assert started == [2, 0]
