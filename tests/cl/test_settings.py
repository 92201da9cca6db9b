"""Numbers in environment variables: what is no number, as a whole, is ignored and reported."""

import pytest
from fresh_process import fresh_python

RUN = """
import torch, dlbackend
print(torch.ones(3, device="ocl:0").add(1).sum().item())
dlbackend._C.prefetch(0, [("", "")])  # asks how many processes compile
"""


@pytest.mark.parametrize(
    "wrong",
    [
        {
            "DLBACKEND_MAX_PROGRAMS": "12abc",
            "DLBACKEND_COMPILE_PROCESSES": "65",
            "DLBACKEND_VERBOSE": "1 ",
        },
        {"DLBACKEND_MAX_PROGRAMS": "99999999999999999999", "DLBACKEND_COMPILE_PROCESSES": "2x"},
    ],
    ids=["all", "others"],
)
def test_what_is_no_number_is_ignored(wrong, tmp_path):
    done = fresh_python(RUN, DLBACKEND_CACHE_DIR=str(tmp_path), **wrong)  # an empty cache: some ask when they compile
    assert done.stdout.strip() == "6.0", done.stderr
    ignored = {line.partition(" is ignored")[0] for line in done.stderr.splitlines() if " is ignored; it is " in line}
    assert ignored == {f"dlbackend: {name}={value}" for name, value in wrong.items()}


def test_numbers_are_taken(tmp_path):
    right = {"DLBACKEND_MAX_PROGRAMS": "12", "DLBACKEND_EMULATE": "cache=1000000,vector_floats=8"}
    right |= {"DLBACKEND_VERBOSE": "1", "LOCAL_WORLD_SIZE": "2", "DLBACKEND_COMPILE_PROCESSES": ""}
    done = fresh_python(RUN, DLBACKEND_CACHE_DIR=str(tmp_path), **right)
    assert done.stdout.strip() == "6.0", done.stderr
    assert "is ignored" not in done.stderr
    assert "compiled" in done.stderr  # DLBACKEND_VERBOSE=1


def test_parts_of_emulate():
    code = """
import torch, dlbackend
from dlbackend import _C
x = torch.ones(64, 64, device="ocl:0")
print(x.mm(x).sum().item(), torch.ocl.get_device_properties(0).vector_floats)
print(_C.explain_problem(dlbackend.solvers.problems()[0]))
"""
    done = fresh_python(code, DLBACKEND_EMULATE="class=gpu,cache=1e6,vector_floats=8,floats=4")
    sum_and_floats, problem = done.stdout.split("\n", 1)
    assert sum_and_floats.split() == ["262144.0", "8"], done.stderr
    assert "cpu_packed: for CPU-like devices" in problem
    ignored = [line.partition(" is ignored")[0] for line in done.stderr.splitlines() if " is ignored; it is " in line]
    assert sorted(ignored) == ["dlbackend: DLBACKEND_EMULATE: cache=1e6", "dlbackend: DLBACKEND_EMULATE=floats=4"]
