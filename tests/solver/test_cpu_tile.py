"""The register tile of products and convolutions on CPUs has a width for each width of vectors: solver tests again, as
if the vectors were of the other one.
"""

import pytest
import torch
from fresh_process import emulating, run_python

import dlbackend  # noqa: F401

PROPERTIES = torch.ocl.get_device_properties(0) if torch.ocl.is_available() else None
CHOSEN = {
    "test_solver.py": "cpu_packed or cpu_small or cpu_implicit or cpu_winograd or gemm_1x1 or unfold",
    "test_bounds.py": "cpu_packed or cpu_small or cpu_implicit or cpu_winograd or gemm_1x1",
    "../ops/test_conv.py": "test_convolution",
    "../ops/test_matmul.py": "test_large_products_of_other_dtypes",
}


@pytest.mark.slow
@pytest.mark.skipif(PROPERTIES is None or PROPERTIES.type != "cpu", reason="GPUs have other kernels")
@pytest.mark.parametrize("file", CHOSEN)
def test_tile_of_other_vectors(file: str, request: pytest.FixtureRequest) -> None:
    assert PROPERTIES
    other = 8 if PROPERTIES.vector_floats >= 16 else 16
    options = ["-q", "-p", "no:cacheprovider", "-k", CHOSEN[file]]
    tests = str(request.path.parent / file)
    done = run_python("-m", "pytest", tests, *options, **emulating(vector_floats=str(other)))
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
