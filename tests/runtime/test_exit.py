"""Processes end with status 0 and without a word, whatever is queued or alive."""

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


def test_exceptions_and_sys_exit_keep_their_status():
    code = "import torch, dlbackend, sys; x = torch.ones(9, device='ocl:0') + 1; sys.exit(7)"
    assert fresh_python(code).returncode == 7
    result = fresh_python("import torch, dlbackend; x = torch.ones(9, device='ocl:0'); raise KeyError('mine')")
    assert result.returncode == 1
    assert result.stderr.rstrip().endswith("KeyError: 'mine'")
