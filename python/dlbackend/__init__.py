"""PyTorch's device `ocl`: tensors and networks on any OpenCL driver.

    import dlbackend            # or nothing: `import torch` alone brings the device
    model.to("ocl:0")

Importing registers the device and opens no driver; the first use does. See torch.ocl for streams, memory and random
state, and `python -m dlbackend doctor` when something is missing.
"""

import atexit
import importlib
import os
from typing import Any

import torch

from dlbackend import _load

_load.extension(torch)

from dlbackend import _C, backend, integrations, ocl, solvers, template  # noqa: E402
from dlbackend._build import VERSION as __version__  # noqa: E402
from dlbackend.precompiling import precompile  # noqa: E402
from dlbackend.tuning import Tuning, load_environment, load_tuning, tune  # noqa: E402

__all__ = [
    "Tuning",
    "__version__",
    "cmake_prefix_path",
    "fallback_report",
    "kernel_stats",
    "load_tuning",
    "ocl",
    "precompile",
    "prefer_reusable",
    "reset_fallback_report",
    "solvers",
    "template",
    "tune",
]

prefer_reusable = backend.prefer_reusable_here
cmake_prefix_path = os.path.dirname(__file__)  # for find_package(dlbackend) in a C++ program's CMakeLists.txt


def __getattr__(name: str) -> Any:
    """dlbackend.fusion and dlbackend.compile, which load torch's compiler, are imported when they are asked for."""
    if name in ("compile", "fusion"):
        return importlib.import_module(f"dlbackend.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def fallback_report() -> dict[str, int]:
    """Ops that ran on the CPU for want of a kernel, with the number of calls: {"aten::op.overload": calls}."""
    return _C.fallback_report()


def reset_fallback_report() -> None:
    """Empties fallback_report()."""
    _C.reset_fallback_report()


def kernel_stats() -> dict[str, float]:
    """Counts of kernels in this process: programs "compiled" from source (by other processes for it:
    "compiled_elsewhere"; first without optimisation and by now "optimised") and "loaded" from a disk cache or a pack
    ("loaded_from_pack"), "compile_seconds", kernel "launches", programs "specialised" for one problem, and programs and
    choices "evicted" from the bounded caches in memory.
    """
    return _C.kernel_stats()


_load.take_slot(torch, _C, ocl, backend)
load_environment()
integrations.install()
atexit.register(_C.shutdown)
