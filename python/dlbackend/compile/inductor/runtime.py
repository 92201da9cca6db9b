"""What the code of a compiled graph calls."""

from __future__ import annotations

import concurrent.futures
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dlbackend.ocl.kernels import compile_kernel

_empty_strided = torch.empty_strided
_DEVICES = [torch.device("ocl", index) for index in range(64)]
REPORT = "Please report it with this text and the output of `python -m dlbackend info`."


class KernelDoesNotBuild(RuntimeError):
    """A generated kernel that the device's compiler refuses."""


@functools.cache
def _builders() -> concurrent.futures.ThreadPoolExecutor:
    return concurrent.futures.ThreadPoolExecutor(min(os.cpu_count() or 1, 8), "dlbackend-inductor")


def _build(name: str, device: int, chain: str, source: str) -> Callable[..., None]:
    try:
        kernel = compile_kernel(source, name, device=device)
    except (RuntimeError, ValueError) as error:
        raise KernelDoesNotBuild(
            f"A kernel that torch.compile generated does not build on ocl:{device}. {REPORT}\n"
            f"It computes:\n{chain}\n{error}\nThe kernel:\n{source[source.rindex('kernel void') :]}"
        ) from error
    launch: Callable[..., None] = kernel._launch
    return launch


def start_building(name: str, device: int, chain: str, source: str) -> Any:
    """A future of the kernel's launch, a callable of arguments and sizes; `chain` says of which ops it is made."""
    if (torch._inductor.config.compile_threads or 1) <= 1:
        return _build(name, device, chain, source)
    return _builders().submit(_build, name, device, chain, source)


def empty_strided_ocl(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: int) -> torch.Tensor:
    """A tensor that is not initialised."""
    return _empty_strided(size, stride, dtype=dtype, device=_DEVICES[device])


def run_length(count: int, least: int, parts: int, step: int) -> int:
    """How many of `count` results a work-item computes: a multiple of `step`, at least `least`, so that there are about
    `parts` work-items.
    """
    length = max(least, -(-count // parts))
    return -(-length // step) * step
