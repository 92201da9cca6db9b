"""Device discovery: selection and order by DLBACKEND_DEVICES, no driver, wrong indices."""

import ast

import pytest
import torch
from fresh_process import forked_python, run_python

from dlbackend.tools import opencl_probe

DEVICE = "ocl:0"


def names(**variables):
    code = (
        "import torch, dlbackend; n = torch.ocl.device_count()\n"
        "print([torch.ocl.get_device_properties(i).name for i in range(n)])"
    )
    result = forked_python(code, **variables)
    assert result.returncode == 0, result.stderr
    return ast.literal_eval(result.stdout)


def test_selection_and_order():
    every = names()
    assert every
    last = len(every) - 1
    assert names(DLBACKEND_DEVICES=str(last)) == [every[last]]
    reversed_order = ",".join(str(i) for i in reversed(range(len(every))))
    assert names(DLBACKEND_DEVICES=reversed_order) == every[::-1]
    assert names(DLBACKEND_DEVICES="0,0,99") == [every[0]]  # each once, unknown ones skipped
    assert names(DLBACKEND_DEVICES=" 0 , ,") == [every[0]]
    two = {"POCL_DEVICES": "pthread pthread"}
    assert len(names(DLBACKEND_DEVICES="1, 0", **two)) == min(2, len(names(**two)))
    platform = torch.ocl.get_device_properties(0).platform
    assert every[0] in names(DLBACKEND_DEVICES=platform.split()[0].upper())


def test_a_word_that_is_no_device_is_warned_of():
    result = forked_python("import torch, dlbackend; torch.ocl.device_count()", DLBACKEND_DEVICES="0,0, nobodys ,99")
    lines = [line for line in result.stderr.splitlines() if line.startswith("dlbackend: ")]
    assert [line.rsplit('"', 2)[1] for line in lines] == ["nobodys", "99"]


def test_nothing_selected():
    code = """
import os, torch, dlbackend
assert torch.ocl.device_count() == 0 and not torch.ocl.is_available()
assert (torch.ones(2) + 1).sum().item() == 4
for use in (lambda: torch.ones(2, device="ocl"), lambda: torch.ones(2).to("ocl:0"), torch.ocl.synchronize):
    try:
        use()
    except RuntimeError as error:
        assert "DLBACKEND_DEVICES=" + os.environ["DLBACKEND_DEVICES"] in str(error), error
    else:
        raise AssertionError("no error")
"""
    for variables in ({"DLBACKEND_DEVICES": "no such device"}, {"DLBACKEND_DEVICES": ""}):
        result = forked_python(code, **variables)
        assert result.returncode == 0, result.stderr


def test_connections_of_nvidias_driver(monkeypatch):
    """Two, where the user has not said otherwise, from before the driver is loaded on."""
    code = """
import ctypes, torch, dlbackend
getenv = ctypes.CDLL(None).getenv  # os.environ is a copy of what there was at the start
getenv.restype = ctypes.c_char_p
before = getenv(b"CUDA_DEVICE_MAX_CONNECTIONS")
torch.ones(1, device="ocl")
print(before, getenv(b"CUDA_DEVICE_MAX_CONNECTIONS"))
"""
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    assert forked_python(code).stdout == "None b'2'\n"
    assert forked_python(code, CUDA_DEVICE_MAX_CONNECTIONS="8").stdout == "b'8' b'8'\n"


@pytest.mark.skipif(
    torch.ocl.get_device_properties(0).platform != "Portable Computing Language",
    reason="of PoCL's threads",
)
def test_no_more_threads_than_cores_that_may_be_used(monkeypatch):
    code = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import torch, dlbackend
print(torch.ocl.get_device_properties(0).compute_units)
"""
    monkeypatch.delenv("POCL_MAX_PTHREAD_COUNT", raising=False)
    assert forked_python(code).stdout == "1\n"


def test_no_opencl_library():
    code = """
import torch, dlbackend
assert torch.ocl.device_count() == 0 and not torch.ocl.is_available()
torch.manual_seed(0)
assert (torch.ones(2) + 1).sum().item() == 4
try:
    torch.ones(2, device="ocl")
except RuntimeError as error:
    assert "OpenCL" in str(error) and ("doctor" in str(error) or "pip install" in str(error)), error
else:
    raise AssertionError("no error")
"""
    result = forked_python(code, DLBACKEND_OPENCL_LIBRARY="/nonexistent/libOpenCL.so")
    assert result.returncode == 0, result.stderr


def test_no_platform():
    hidden = {"OCL_ICD_VENDORS": "/nonexistent"}
    if run_python(opencl_probe.__file__, **hidden).returncode == 0:
        pytest.skip("this OpenCL loader takes no OCL_ICD_VENDORS")
    code = "import torch, dlbackend; assert torch.ocl.device_count() == 0; print('ok')"
    result = forked_python(code, **hidden)
    assert result.returncode == 0, result.stderr


def test_wrong_index():
    count = torch.ocl.device_count()
    for use in (
        lambda: torch.ones(2, device=f"ocl:{count}"),
        lambda: torch.ones(2).to(f"ocl:{count}"),
        lambda: torch.ocl.set_device(count),
        lambda: torch.ocl.get_device_properties(count),
        lambda: torch.ocl.synchronize(count),
        lambda: torch.ocl.Stream(count),
        lambda: torch.ocl.set_device(256),
        lambda: torch.ocl.set_device(-2),
        lambda: torch.ocl.current_stream(100),
        lambda: torch.ocl.default_stream(100),
        lambda: torch.accelerator.current_stream(100),
        lambda: torch.ocl.memory_stats(127),
        lambda: torch.empty(0, device=f"ocl:{count}"),
        lambda: torch.ocl.memory_stats(count),
        lambda: torch.ones(2, device=DEVICE).to(f"ocl:{count}"),
    ):
        with pytest.raises(RuntimeError, match=r"does not exist|invalid device"):
            use()
    assert (torch.ones(2, device=DEVICE) + 1).sum().item() == 4
    assert torch.ocl.current_device() == 0


def test_properties():
    p = torch.ocl.get_device_properties(DEVICE)
    assert p.name
    assert p.total_memory >= p.max_alloc > 0
    assert p.compute_units >= 1
    assert p.type in ("cpu", "gpu", "accelerator")
    assert torch.ocl.get_device_name(0) == p.name
    assert torch.accelerator.current_accelerator().type == "ocl"
    assert torch.accelerator.device_count() == torch.ocl.device_count()
