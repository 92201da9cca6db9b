"""Shared by the tests of `gpu_wgmma`: whether there is a Hopper GPU, precisions, and the errors that these allow."""

from collections.abc import Iterator

import pytest
import torch

import dlbackend
from dlbackend import _C

_PROBE = "gemm:float32 b=1 m=256 n=256 k=256 sa=0,256,1 sb=0,256,1 sc=0,256,1 sd=0,0,0 add=0"
HOPPER = torch.ocl.is_available() and "gpu_wgmma: applicable" in _C.explain_problem(_PROBE)
MARKS = [pytest.mark.gpu, pytest.mark.skipif(not HOPPER, reason="needs a GPU of compute capability 9.0")]

# TF32 cuts off what it does not hold, up to 2^-10 of each factor; results of 16 bits are rounded when they are stored
TOLERANCE = {"tf32": 1.2e-3, "float32": 1e-6, "float16": 6e-4, "bfloat16": 4e-3}


def dtype_of(precision: str) -> torch.dtype:
    return torch.float32 if precision == "tf32" else getattr(torch, precision)


@pytest.fixture(autouse=True)
def settings(request: pytest.FixtureRequest) -> Iterator[None]:
    """The same numbers each time, the test's parameter `precision`, and afterwards no solver forced."""
    torch.manual_seed(0)
    precision = request.node.callspec.params.get("precision") if hasattr(request.node, "callspec") else None
    with torch.backends.ocl.flags(fp32_precision="tf32" if precision == "tf32" else "ieee"):
        yield
    dlbackend.solvers.force("")
