"""The text that the generators of pointwise and reduction kernels write; no device, and no driver."""

import re
from itertools import product

import pytest
import torch
from fresh_process import forked_python

from dlbackend.template import Reduction, source

STORAGE = {
    torch.bool: "uchar",
    torch.uint8: "uchar",
    torch.int8: "char",
    torch.int16: "short",
    torch.int32: "int",
    torch.int64: "long",
    torch.float16: "ushort",
    torch.bfloat16: "ushort",
    torch.float32: "float",
    torch.float64: "double",
    torch.complex64: "float2",
    torch.complex128: "double2",
}
WIDE = (torch.float64, torch.complex128)
ARITHMETIC = [dtype for dtype in STORAGE if dtype != torch.bool]


def pointwise_arguments(text: str) -> list[str]:
    found = re.search(r"#define DLB_ARGUMENTS (.*)", text)
    assert found, text
    return [argument.strip() for argument in found[1].split(",")]


def is_balanced(text: str) -> bool:
    closing = {")": "(", "]": "[", "}": "{"}
    opened: list[str] = []
    for character in re.sub(r"//.*", "", text):
        if character in "([{":
            opened.append(character)
        elif character in closing and (not opened or opened.pop() != closing[character]):
            return False
    return not opened


@pytest.mark.parametrize("device", ["cpu", "gpu"])
@pytest.mark.parametrize("dtype", STORAGE, ids=str)
def test_operands_are_of_their_storage_types(dtype, device):
    text = source("y0 = x0 + x1;", [dtype, torch.int32], compute=torch.float32, device=device)
    assert is_balanced(text)
    out, x0, x1, params = pointwise_arguments(text)
    assert out == "global float* b0"
    assert x0 == f"global const {STORAGE[dtype]}* b1"
    assert x1 == "global const int* b2"
    assert params == "const PointwiseParams p"
    assert ("cl_khr_fp64" in text) == (dtype in WIDE)


@pytest.mark.parametrize(("a", "b"), list(product(ARITHMETIC, ARITHMETIC)), ids=str)
def test_computes_in_what_inputs_promote_to(a, b):
    promoted = torch.promote_types(a, b)
    compute = torch.float32 if promoted in (torch.float16, torch.bfloat16) else promoted
    text = source("x0 + x1", [a, b])
    assert re.search(rf"(typedef {STORAGE[compute]} T;|#define T {STORAGE[compute]}\n)", text)
    assert pointwise_arguments(text)[0] == f"global {STORAGE[promoted]}* b0"


@pytest.mark.parametrize("dtype", [dtype for dtype in STORAGE if dtype not in WIDE], ids=str)
def test_doubles_are_only_where_they_are_asked_for(dtype):
    """Kernels that are not asked for doubles run on GPUs without float64."""
    how = [None, Reduction("0", "a"), "max" if not dtype.is_complex else "sum"]
    for text in (
        source("x0 * s0", [dtype], scalars=1),
        source("y0 = x0; y1 = x0; y2 = x0;", [dtype], reduce=how, finish="y1 = y2;"),
    ):
        assert not re.search(r"\bdouble\d?\b", text)


def test_scalars_are_arguments():
    once, twice = (source(f"x0 * s0 + {value}", [torch.float16], scalars=2) for value in ("s1", "s1 * s1"))
    assert pointwise_arguments(once)[-2:] == ["const float a0", "const float a1"]
    assert pointwise_arguments(twice)[-2:] == ["const float a0", "const float a1"]
    assert pointwise_arguments(source("x0 * s0", [torch.int16], scalars=1))[-1] == "const long a0"
    assert pointwise_arguments(source("x0 * s0", [torch.complex64], scalars=1))[-1] == "const float2 a0"


def test_classes_of_devices():
    """CPUs walk a run that the compiler vectorises, GPUs load vectors where their elements fit any device's loads."""
    cpu, gpu = (source("x0 + x1", [torch.float32] * 2, device=device) for device in ("cpu", "gpu"))
    assert "clang loop vectorize" in cpu
    assert "#define DLB_STREAMS" in cpu
    assert "float4" not in cpu[cpu.index("kernel void") :]
    assert "*(global const float4*)(b1 + (j))" in gpu
    assert "vectorize" not in gpu
    pairs = source("x0 + x1", [torch.complex64] * 2)
    assert "float24" not in pairs
    assert "float8" not in pairs


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_reductions(device):
    text = source("y0 = x0; y1 = x0 * x0; y2 = exp(x0);", [torch.bfloat16], reduce=["sum", "max", None], device=device)
    assert is_balanced(text)
    forms = re.findall(r"#define DLB_KERNEL dlb_reduce_(\w+)", text)
    ways = ["rows", "rows_strided", "columns", "columns_strided"] if device == "cpu" else ["group"]
    assert forms == [*ways, "combine"]  # the last for partial results, where a reduction is split
    arguments = re.search(r"#define DLB_ARGUMENTS (.*)", text)
    assert arguments
    operands = arguments[1].split(", ")[:4]  # two reduced, then the one that is not, then the input
    assert operands == [f"global ushort* b{k}" for k in range(3)] + ["global const ushort* b3"]
    vectors = source("x0", [torch.float32], reduce="sum")
    assert "#define DLB_KERNEL dlb_reduce_group_vector\n" in vectors


def test_one_text_for_one_expression():
    """Text is what programs are remembered by: it must not depend on what was written before."""
    first = source("x0 * 3", [torch.float32])
    source("x0 * 4", [torch.float32])
    assert source("x0 * 3", [torch.float32]) == first
    assert source("x0 * 3", [torch.float32], device="cpu") != first


def test_needs_no_driver():
    code = """
import torch, dlbackend
from dlbackend.template import source
print(len(source("y0 = x0; y1 = x0 * x0;", [torch.float16], reduce="sum", finish="y0 = y0 / n;")))
print(torch.ocl.device_count())
"""
    hidden = {"OCL_ICD_VENDORS": "/nonexistent", "DLBACKEND_OPENCL_LIBRARY": "/nonexistent/libOpenCL.so.1"}
    done = forked_python(code, **hidden)
    assert done.returncode == 0, done.stderr
    length, devices = (int(line) for line in done.stdout.split())
    assert length > 1000
    assert devices == 0


def test_errors():
    for arguments, options, message in [
        (("y0 = x0; y2 = x0;", [torch.float32]), {}, "y1"),
        (("x0", []), {}, "at least one input"),
        (("x0", [torch.float32] * 9), {}, "at most 8 inputs"),
        (("x0", [torch.float32]), {"scalars": 7}, "at most 6 scalars"),
        (("x0", [torch.float32]), {"device": "fpga"}, "cpu or gpu"),
        (("x0", [torch.float32]), {"reduce": ["sum", "sum"]}, "2 entries"),
        (("x0", [torch.float32]), {"reduce": "median"}, "unknown reduction"),
    ]:
        with pytest.raises(ValueError, match=message):
            source(*arguments, **options)
