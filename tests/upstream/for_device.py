"""A pytest plugin for PyTorch's test files.

A class for the CPU and CUDA, `only_for=("cpu", "cuda")`, is for the device of the PrivateUse1 slot too; one for either
of them is not. Of classes that no device was given to nothing runs, and CUDA is hidden: its tests would run beside the
device's, which its backward pass cannot. A test ends when the device has done its work, so that errors which kernels
report late are its own. `freeze_rng_state` knows the device's generator in PyTorch 2.11 too.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import pytest
import torch

torch.cuda.is_available = lambda: False  # before PyTorch's testing modules ask

from torch.testing._internal import common_device_type, common_utils  # noqa: E402

# PyTorch names the classes of a file by the slot and, once making one has set the device up, by the device.
OURS = ("PRIVATEUSE1", "OCL")
# Ops whose gradients GPUs add up in any order, and PyTorch's own devices do not, or skip the test of. The tolerance of
# gradient checks for two calls is then PyTorch's own for such ops: a few float64 terms differ by some 1e-15.
SUMMED = ("grid_sampler_3d", "index_reduce")

_filter: Any = common_device_type.filter_desired_device_types
_freeze: Any = common_utils.freeze_rng_state


def filter_desired_device_types(bases: list[Any], except_for: Any = None, only_for: Sequence[str] | None = None) -> Any:
    if only_for and not isinstance(only_for, str) and {"cpu", "cuda"} <= set(only_for):
        only_for = [*only_for, "privateuse1"]
    return _filter(bases, except_for, only_for)


@contextlib.contextmanager
def freeze_rng_state() -> Iterator[None]:
    with torch.utils._mode_utils.no_dispatch(), torch._C._DisableFuncTorch():
        state = torch.ocl.get_rng_state()
    try:
        with _freeze():
            yield
    finally:
        with torch.utils._mode_utils.no_dispatch(), torch._C._DisableFuncTorch():
            torch.ocl.set_rng_state(state)


common_device_type.filter_desired_device_types = filter_desired_device_types
common_utils.freeze_rng_state = freeze_rng_state


def _is_ours(item: pytest.Item) -> bool:
    return getattr(getattr(item, "cls", None), "__name__", "").endswith(OURS)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    config.hook.pytest_deselected(items=[item for item in items if not _is_ours(item)])
    items[:] = filter(_is_ours, items)
    database = sys.modules.get("torch.testing._internal.common_methods_invocations")
    for op in database.op_db if database else ():
        if op.name in SUMMED:
            op.gradcheck_nondet_tol = common_utils.GRADCHECK_NONDET_TOL


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    try:
        return (yield)
    finally:
        if torch.ocl.is_initialized():
            torch.ocl.synchronize()
