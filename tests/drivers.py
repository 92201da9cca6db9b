"""The quick form of the suite, for OpenCL implementations other than the one that all tests run on: what meets the
driver, the compiler or a family of kernels, once. `scripts/test.sh --driver intel` runs it.

As a program it prints the files, so that pytest need not collect the others.
"""

import re
from pathlib import Path

TESTS = Path(__file__).parent

# File -> regular expression, which a test's name, parameters included, must match from its beginning.
QUICK_FORM = {
    "cl/test_devices.py": "test_(selection_and_order|wrong_index|properties)",
    "codegen/test_source.py": "",
    "runtime/test_allocator.py": "",
    "runtime/test_copy.py": r"test_(round_trip|strided.*float32|converting|float_to|broadcasting|pinned|self|item)",
    "runtime/test_events.py": "",
    "runtime/test_exit.py": "",
    "runtime/test_generator.py": "",
    "runtime/test_profiler.py": "test_kernels_have_names",
    "runtime/test_streams.py": "",
    "runtime/test_threads.py": "",
    "ops/test_pointwise.py": r"test_(samples\[\w*(a|exp|log\w*|pow|erf\w*)-float32|broadcast|nan_|integer_div|known)",
    "ops/test_narrow_types.py": "",
    "ops/test_math_accuracy.py": "",
    "ops/test_reduce.py": r"test_(samples\[(sum|var_mean|argmax|cumsum)-.*(float32|int64)|nan_wins|empty|sums_are)",
    "ops/test_index.py": r"test_((read|write|accumulate|masks|scatter_reduce)\[.*(float32|int64)|bad_index|counting)",
    "ops/test_sort.py": r"test_(stable_sort|topk)\[|test_(lengths\[torch.float32|special_numbers|kth_and_median)",
    "ops/test_fft.py": r"test_(lengths\[\d{1,3}\]|solvers|many_dimensions|layouts|gradients)",
    "ops/test_linalg.py": r"test_(cholesky|lu|solve_inverse\w*|qr|eigh|svd|ldl|triangular\w*)\[dtype0\]",
    "ops/test_random.py": "",
    "ops/test_norm.py": "",
    "ops/test_matmul.py": r"test_(products\[[01]-torch.(float|int64)|batched\[0|linear|half_accum|nan_and)",
    "ops/test_conv.py": r"test_(convolution|other_dtypes|transposed|nan_propagates)",
    "solver/test_solver.py": "test_(every_gemm_solver|every_conv_solver|every_config_is_right)",
    "solver/test_launch_problems.py": r"test_every_(solver\[(softmax|reduce|layer_norm|max_pool)|config)",
    "nets/test_nets.py": r"test_(net\[(resnet18|mlp|lstm)-|training_lowers_the_loss)",
    "test_custom_kernels.py": "",
    "test_rows.py": "",
    "upstream/test_cases.py": "test_sample",
}


def file_of(nodeid: str) -> str:
    """The test's file as in QUICK_FORM; ids are relative to the repository or to tests/."""
    return nodeid.partition("::")[0].removeprefix("tests/")


def is_chosen(nodeid: str) -> bool:
    """Whether the quick form has the test of this id."""
    pattern = QUICK_FORM.get(file_of(nodeid))
    return pattern is not None and re.match(pattern, nodeid.partition("::")[2]) is not None


if __name__ == "__main__":
    print("\n".join(str(TESTS / file) for file in QUICK_FORM))
