"""A pytest plugin for PyTorch's test files: a class for the CPU and CUDA, `only_for=("cpu", "cuda")`, is for the device
of the PrivateUse1 slot too; one for either of them is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.testing._internal import common_device_type

_filter: Any = common_device_type.filter_desired_device_types


def filter_desired_device_types(bases: list[Any], except_for: Any = None, only_for: Sequence[str] | None = None) -> Any:
    if only_for and not isinstance(only_for, str) and {"cpu", "cuda"} <= set(only_for):
        only_for = [*only_for, "privateuse1"]
    return _filter(bases, except_for, only_for)


common_device_type.filter_desired_device_types = filter_desired_device_types
