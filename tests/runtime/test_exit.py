"""Processes end with status 0 and without a word, whatever is queued or alive, but for errors found too late."""

import subprocess
from pathlib import Path

import pytest
from fresh_process import fresh_python

PROGRAMS = {
    "queued work": """
import torch, dlbackend
x = torch.ones(1 << 20, device="ocl:0")
for _ in range(300): x = x * 1.0001
""",
    "tensors alive in modules, globals, cycles and other streams": """
import torch, dlbackend, sys
keep = torch.ones(1000, device="ocl:0", requires_grad=True)
sys.keep = [keep * 2]
sys.keep.append(sys.keep)
torch.keep = keep
side = torch.ocl.Stream()
with torch.ocl.stream(side): torch.more = torch.ones(5, device="ocl:0") + 1
torch.more.record_stream(torch.ocl.current_stream())
event = torch.ocl.Event(enable_timing=True); event.record()
pinned = torch.ones(5).pin_memory().to("ocl:0", non_blocking=True)
""",
    "work in an atexit function and a finaliser": """
import torch, dlbackend, atexit
x = torch.ones(10, device="ocl:0")
atexit.register(lambda: print((x + 1).sum().item()))
class Late:
    def __del__(self): self.t = self.t + 1
late = Late(); late.t = x
""",
    # The thread ends after the package's own clean-up: one that Python ends itself aborts in torch, on the CPU as well.
    "sys.exit in a thread, and a daemon thread at work": """
import atexit, threading, sys, time
stop, workers = threading.Event(), []
atexit.register(lambda: (stop.set(), [w.join() for w in workers]))
import torch, dlbackend
x = torch.ones(1 << 16, device="ocl:0")
def leave():
    global x
    x = x + 1
    sys.exit(3)
t = threading.Thread(target=leave); t.start(); t.join()
def forever():
    y = x
    while not stop.is_set(): y = y * 1.0001
workers.append(threading.Thread(target=forever, daemon=True))
workers[0].start()
time.sleep(0.2)
""",
    "imported only": "import torch, dlbackend",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_exit(name):
    result = fresh_python(PROGRAMS[name])
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""


@pytest.mark.parametrize("thread", ["0", "1"])
def test_errors_that_nothing_waited_for_are_reported(thread):
    code = """
import torch, dlbackend
x = torch.arange(9, device="ocl:0")
y = x[x + 1]
"""
    result = fresh_python(code, DLBACKEND_ENQUEUE_THREAD=thread)
    assert result.returncode == 0, result.stderr
    assert result.stderr.startswith("dlbackend: ocl:0: found when the process ended: index: index 9 is out of bounds")


def test_exceptions_and_sys_exit_keep_their_status():
    code = "import torch, dlbackend, sys; x = torch.ones(9, device='ocl:0') + 1; sys.exit(7)"
    assert fresh_python(code).returncode == 7
    result = fresh_python("import torch, dlbackend; x = torch.ones(9, device='ocl:0'); raise KeyError('mine')")
    assert result.returncode == 1
    assert result.stderr.rstrip().endswith("KeyError: 'mine'")


# A script that ends right after backward(): the main thread goes on as soon as the device's autograd thread has woken
# it. That thread then drops the pass, and waits for Python's lock to drop the Python objects that it holds; a busy
# machine may let it have the lock only when Python is ending.
AFTER_BACKWARD = """
import ctypes, os, sys, time, types
import torch, dlbackend

class Late:
    def __del__(self, sleep=time.sleep): sleep(1.5)  # Python takes its time to end
sys.modules["late"] = types.ModuleType("late")
sys.modules["late"].late = Late()

slow = ctypes.PyDLL(os.environ["LD_PRELOAD"])
# The pass holds what its thread keeps so: an object that is never freed, as torch 2.11 gives back a reference too many.
torch._C._stash_obj_in_tls("some", ...)
x = torch.ones(4, device="ocl:0", requires_grad=True)
x.register_post_accumulate_grad_hook(lambda _: slow.slow_signals_here() and None)
sys.setswitchinterval(1000)  # this thread gives Python's lock away only where it waits
(x * 2).backward(torch.ones_like(x))
torch._C._stash_obj_in_tls("some", None)  # now only the pass holds the object
end = time.perf_counter() + 1
while time.perf_counter() < end: pass
"""


def test_right_after_backward(tmp_path):
    library = str(tmp_path / "slow_signal.so")
    source = Path(__file__).parents[1] / "slow_signal.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-Wall", source, "-o", library, "-ldl"], check=True)
    result = fresh_python(AFTER_BACKWARD, LD_PRELOAD=library)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
