"""torch.backends.ocl: what this build of the device can do, and how it finds its kernels.

    torch.backends.ocl.find_mode = "normal"      # also DLBACKEND_FIND_MODE
    torch.backends.ocl.benchmark = True          # as torch.backends.cudnn.benchmark: the same as "normal"
    torch.backends.ocl.deterministic = True      # the same solvers, so the same bits, in every process
    torch.backends.ocl.find_share = 0.03         # of the time, for searching while a program runs; 1: no limit
    torch.backends.ocl.prefer_reusable = True    # or ("conv_fwd", "gemm"): nothing compiled for single shapes
    torch.backends.ocl.fp32_precision = "tf32"   # or "ieee"; "none": as PyTorch's own settings say

Find modes say what happens to a problem (a GEMM or convolution with its sizes) that neither this process nor the find
store on disk knows: "normal" measures every solver before the first run; "fast" takes the lowest estimate; "hybrid",
the default, begins as "fast" does and measures in later runs of the program, without ever waiting; "dynamic_hybrid" is
that without kernels compiled for single shapes; "trust_verify" also measures what the store knows once more.

TF32 rounds float32 operands of products, attention and convolutions to 10 bits of mantissa, for the sake of a GPU's
tensor cores. By default that happens only where a program allows it by PyTorch's own settings: for products and
attention where the one for CUDA's products is "tf32", as torch.set_float32_matmul_precision("high") and
torch.backends.cuda.matmul.allow_tf32 make it, for convolutions where torch.backends.fp32_precision is.
"""

import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager

from dlbackend import _C, ocl


def is_built() -> bool:
    """True: this module exists only with the extension loaded."""
    return True


def is_available() -> bool:
    """Whether a device can be used; the same as torch.ocl.is_available()."""
    return ocl.is_available()


@contextmanager
def prefer_reusable_here() -> Iterator[None]:
    """While it lasts, this thread runs kernels that take sizes as arguments, also where one compiled for the
    problem is faster: for code whose shapes are known to change.
    """
    previous = _C.exchange_thread_prefers_reusable(True)
    try:
        yield
    finally:
        _C.exchange_thread_prefers_reusable(previous)


@contextmanager
def fp32_precision_here(name: str) -> Iterator[None]:
    """While it lasts, this thread's products, attention and convolutions have this fp32_precision, whatever the
    process's is.
    """
    previous = _C.exchange_thread_fp32_precision(name)
    try:
        yield
    finally:
        _C.exchange_thread_fp32_precision(previous)


@contextmanager
def flags(
    find_mode: str | None = None,
    find_share: float | None = None,
    benchmark: bool | None = None,
    deterministic: bool | None = None,
    prefer_reusable: bool | tuple[str, ...] | None = None,
    fp32_precision: str | None = None,
) -> Iterator[None]:
    """Sets what is not None, and puts it back at the end; as torch.backends.cudnn.flags."""
    module = sys.modules[__name__]
    wanted = {
        "find_mode": find_mode,
        "find_share": find_share,
        "benchmark": benchmark,
        "deterministic": deterministic,
        "prefer_reusable": prefer_reusable,
        "fp32_precision": fp32_precision,
    }
    wanted = {name: value for name, value in wanted.items() if value is not None}
    names = {"find_mode" if name == "benchmark" else name for name in wanted}
    previous = {name: getattr(module, name) for name in names}
    try:
        for name, value in wanted.items():
            setattr(module, name, value)
        yield
    finally:
        for name, value in previous.items():
            setattr(module, name, value)


class _Backend(types.ModuleType):
    """The module's settings as attributes, as those of torch.backends.cudnn are."""

    _prefer_reusable: bool | tuple[str, ...] = False

    @property
    def find_mode(self) -> str:
        return _C.find_mode()

    @find_mode.setter
    def find_mode(self, name: str) -> None:
        _C.set_find_mode(name)

    @property
    def find_share(self) -> float:
        return _C.find_share()

    @find_share.setter
    def find_share(self, share: float) -> None:
        _C.set_find_share(share)

    @property
    def benchmark(self) -> bool:
        return _C.find_mode() == "normal"

    @benchmark.setter
    def benchmark(self, on: bool) -> None:
        _C.set_find_mode("normal" if on else "fast")

    @property
    def deterministic(self) -> bool:
        return _C.deterministic()

    @deterministic.setter
    def deterministic(self, on: bool) -> None:
        _C.set_deterministic(on)

    @property
    def prefer_reusable(self) -> bool | tuple[str, ...]:
        return self._prefer_reusable

    @prefer_reusable.setter
    def prefer_reusable(self, prefer: bool | tuple[str, ...]) -> None:
        named = isinstance(prefer, (list, tuple)) and all(isinstance(op, str) for op in prefer)
        if not named and not isinstance(prefer, bool):
            raise ValueError(
                f'prefer_reusable is True, False or a tuple of ops as ("conv_fwd", "gemm"), not {prefer!r}'
            )
        _C.set_prefer_reusable(prefer is True, "" if isinstance(prefer, bool) else ",".join(prefer))
        self._prefer_reusable = prefer

    @property
    def fp32_precision(self) -> str:
        return _C.fp32_precision()

    @fp32_precision.setter
    def fp32_precision(self, name: str) -> None:
        _C.set_fp32_precision(name)

    @property
    def verbose(self) -> int:
        return _C.verbosity()

    @verbose.setter
    def verbose(self, level: int) -> None:
        _C.set_verbosity(level)


sys.modules[__name__].__class__ = _Backend
