"""Two devices in one process: copies between them, guards, and errors about mixing them."""

from pathlib import Path

import mixed_devices
import pytest
import torch
from fresh_process import forked_python

PROGRAM = """
import re, sys, threading, torch, dlbackend
sys.path.insert(0, "FOLDER")
import mixed_devices
assert torch.ocl.device_count() >= 2
x = torch.arange(24, dtype=torch.float32).reshape(4, 6)
a = x.to("ocl:0")
for wanted in (x, x.t(), x[:, ::2], x[:0], x[1, 1]):
    there = wanted.to("ocl:0").to("ocl:1")
    assert there.device == torch.device("ocl:1") and there.cpu().equal(wanted)
for form in ("to_sparse", "to_sparse_csr"):
    for there in (getattr(a, form)().to("ocl:1"), getattr(a.to("ocl:1"), form)()):
        assert there.device == there.values().device == torch.device("ocl:1"), there
        assert torch.zeros_like(there).device == torch.device("ocl:1")
        assert there.to_dense().cpu().equal(x) and (there + there).to("ocl:0").to_dense().cpu().equal(x + x)
strided = torch.zeros(6, 4, device="ocl:1").t()
strided.copy_(a.double())
assert strided.cpu().equal(x)
b = a.to("ocl:1", non_blocking=True) * 2
assert b.to("ocl:0").sub(a * 2).abs().sum().item() == 0

assert torch.ocl.current_device() == 0
with torch.ocl.device(1):
    assert torch.empty(3, device="ocl").device.index == 1
    assert (a + 1).device.index == 0  # ops follow their operands, not the current device
assert torch.ocl.current_device() == 0
try:
    a + b
except RuntimeError as error:
    assert "same device" in str(error), error
else:
    raise AssertionError

for name, call in mixed_devices.CALLS.items():
    for here, there in (("ocl:0", "ocl:1"), ("ocl:1", "ocl:0"), ("ocl:1", "cpu")):
        try:
            call(here, there)
        except RuntimeError as error:
            assert re.search(mixed_devices.WORDS, str(error)), (name, error)
        else:
            raise AssertionError(name)

w = torch.ones(6, 2, device="ocl:1", requires_grad=True)
(a.to("ocl:1") @ w).to("ocl:0").sum().backward()
assert w.grad.device.index == 1 and w.grad.cpu().equal(x.sum(0)[:, None].expand(6, 2))

torch.ocl.manual_seed_all(5)
first = torch.rand(9, device="ocl:0").cpu(), torch.rand(9, device="ocl:1").cpu()
assert first[0].equal(first[1])  # the same seed, generators of their own
for generator in (torch.Generator("ocl:1"), torch.ocl.default_generators[1]):
    assert torch.rand(3, device="ocl:1", generator=generator).device.index == 1
    try:
        torch.rand(3, device="ocl:0", generator=generator)
    except RuntimeError as error:
        assert "Expected a 'ocl:0' generator device but found 'ocl:1'" in str(error), error
    else:
        raise AssertionError
w = torch.ones(1000, device="ocl:1")
with torch.ocl.device(0):
    assert w.bernoulli_(0.5).sum().item() > 0 and torch.nn.functional.dropout(w).device.index == 1
event = torch.ocl.Event()
with torch.ocl.device(1):
    event.record()
event.wait(torch.ocl.current_stream(0))
torch.ocl.synchronize(0), torch.ocl.synchronize(1)
assert torch.ocl.memory_allocated(1) > 0
print("fine")
"""


def test_two_devices():
    """Where there is one device only, PoCL can be asked to show it twice."""
    variables = {} if torch.ocl.device_count() > 1 else {"POCL_DEVICES": "pthread pthread"}
    done = forked_python("import torch, dlbackend; print(torch.ocl.device_count())", **variables)
    if int(done.stdout) < 2:
        pytest.skip("one device, and no PoCL to show it twice")
    done = forked_python(PROGRAM.replace("FOLDER", str(Path(mixed_devices.__file__).parent)), **variables)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "fine\n"
