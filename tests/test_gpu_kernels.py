"""The kernels that only GPUs choose, on whatever device there is: op tests again, as if the device were a GPU."""

import pytest
import torch
from fresh_process import emulating, run_python_for

import dlbackend  # noqa: F401

CHOSEN = {
    "ops/test_reduce.py": "(test_samples and float32) or test_variance",
    "ops/test_scan.py": "test",
    "ops/test_sort.py": "test",
    "ops/test_index.py": "mask or unique or accumulat or many",
    "ops/test_norm.py": "test_batch_norm or running or large_mean or launches",
    "ops/test_softmax.py": "test_softmax or test_special_values",
    "ops/test_matmul.py": "test_products and float32",
    "ops/test_attention.py": "values or narrow or grouped or masks or lowest or bias or dropout or special",
    "ops/test_fft.py": "(powers_of_two and complex64) or (test_solvers and four_step)",
    "ops/test_linalg.py": "eigh or svd or finite or lu or cholesky or triangular or inverse or pivots or few",
    "ops/test_conv.py": "test_convolution or test_transposed or test_nan_propagates",
    "solver/test_attention_solvers.py": "test",
    "solver/test_bounds.py": "test",
    "solver/test_depthwise_windows.py": "test",
    "solver/test_gpu_solvers.py": "test",
    "solver/test_launch_problems.py": "right and (norm or pool)",
}
EMULATED_TENSOR_CORES = ("solver/test_attention_mma.py", "solver/test_gpu_mma.py")


@pytest.mark.skipif(
    torch.ocl.get_device_properties(0).type == "gpu", reason="the device is a GPU: the tests themselves run them"
)
@pytest.mark.slow
@pytest.mark.timeout(1300)  # emulated, a file takes minutes
@pytest.mark.parametrize("file", [*CHOSEN, *EMULATED_TENSOR_CORES])
def test_gpu_kernels(file: str, request: pytest.FixtureRequest) -> None:
    tests = request.path.parent
    options = ["-q", "-p", "no:cacheprovider", "-k", CHOSEN.get(file, "test")]
    cores = {"tensor_cores": "emulated"} if file in EMULATED_TENSOR_CORES else {}
    variables = emulating(**{"class": "gpu"}, **cores)
    done = run_python_for(1200, "-m", "pytest", str(tests / file), *options, **variables)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
