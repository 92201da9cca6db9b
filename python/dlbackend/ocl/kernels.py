"""Kernels of a user's own OpenCL C as callables on tensors and numbers; see docs/custom-kernels.md."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from dlbackend import _C
from dlbackend.ocl.device import DeviceLike, _lazy_init, device_index
from dlbackend.ocl.kernel_source import Source, read_source

Size = int | Sequence[int]
_T = TypeVar("_T")


@dataclass(frozen=True)
class LocalMemory:
    """An argument for a pointer to `local` memory: so many bytes for each work-group. ValueError unless above 0."""

    nbytes: int

    def __post_init__(self) -> None:
        if self.nbytes <= 0:
            raise ValueError(f"local memory must have more than {self.nbytes} bytes")


class Kernel:
    """A compiled kernel, made by compile_kernel() or compile_library()."""

    def __init__(self, source: Source, name: str, options: str, device: int) -> None:
        parameters = source.parameters(name)
        fields = [(p.name, p.type, p.kind, p.dtypes, p.written, p.format, p.width) for p in parameters]
        self._kernel = _C.UserKernel(device, source.text, options, name, fields)
        self._launch = self._kernel.launch
        self._types = [f"{parameter.type} {parameter.name}" for parameter in parameters]
        self.name = name
        self.device = torch.device("ocl", device)

    @property
    def max_work_group_size(self) -> int:
        """The most work-items that a work-group of this kernel can have on its device."""
        return self._kernel.max_work_group_size

    @property
    def local_memory(self) -> int:
        """Bytes of local memory that the variables of the kernel itself take."""
        return self._kernel.local_memory

    def __call__(
        self, *args: Any, global_size: Size, local_size: Size | None = None, stream: torch.Stream | None = None
    ) -> None:
        """Launches the kernel and returns without waiting for it.

        Args:
            args: what the kernel's parameters are given, in their order. Pointers to `global` and `constant` memory
                take tensors of the device whose dtype fits, or None for a null pointer; the kernel sees the memory
                from the tensor's first element on, whatever its shape and strides. Pointers to `local` memory take
                LocalMemory; numbers an int, a float or a bool; vectors a tuple of numbers.
            global_size: how many work-items, in one to three dimensions. If one of them is 0, nothing is launched.
            local_size: how many of them form a work-group, in as many dimensions; must divide global_size. If None,
                what the kernel's attribute reqd_work_group_size says, else powers of two that divide global_size.
            stream: where to launch; the current stream if None. It does not wait for other streams.

        Raises TypeError for an argument of the wrong kind or a wrong number of them, OverflowError for a number that
        the parameter cannot hold, RuntimeError for a tensor of another dtype or device, and ValueError for sizes or
        local memory that the kernel or the device does not take.
        """
        self._launch(args, global_size, local_size, stream)

    def __repr__(self) -> str:
        return f"<kernel {self.name}({', '.join(self._types)}) on {self.device}>"


class KernelLibrary:
    """The kernels of one source as attributes, each compiled with the others; made by compile_library()."""

    def __init__(self, source: Source, options: str, device: int) -> None:
        self._source, self._options, self._device = source, options, device

    def __getattr__(self, name: str) -> Kernel:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            kernel = Kernel(self._source, name, self._options, self._device)
        except ValueError as error:
            raise AttributeError(str(error)) from None
        setattr(self, name, kernel)
        return kernel

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._source.kernels})


def compile_kernel(source: str, name: str, *, options: str = "", device: DeviceLike = None) -> Kernel:
    """A kernel from OpenCL C, compiled now or loaded from the program cache.

    Args:
        source: OpenCL C text, whose `#include` is not taken.
        name: of the kernel in it. Its definition must stand in the text and not come out of a macro.
        options: for the OpenCL compiler, such as "-DN=4 -cl-fast-relaxed-math".
        device: where the kernel runs; the current device if None.

    Raises RuntimeError with the compiler's messages and the numbered lines that they name, and ValueError where the
    source has no such kernel or the kernel has parameters that cannot be given (structs, images).
    """
    text, index = _read(source, options, device)
    return _built(source, lambda: Kernel(text, name, options, index))


def compile_library(source: str, *, options: str = "", device: DeviceLike = None) -> KernelLibrary:
    """All kernels of a source, as attributes: compile_library(source).saxpy(...). Arguments and errors are those of
    compile_kernel(); AttributeError for a kernel that is not there.
    """
    text, index = _read(source, options, device)
    library = KernelLibrary(text, options, index)
    if text.kernels:
        _built(source, lambda: getattr(library, next(iter(text.kernels))))
    return library


def _read(source: str, options: str, device: DeviceLike) -> tuple[Source, int]:
    """The kernels of a source, and the index of the device."""
    if "\n" in options or "\0" in options + source:
        raise ValueError("options must be one line, and neither they nor the source may hold a null character")
    _lazy_init()
    index = device_index(device)
    index = _C.current_device() if index < 0 else index
    properties = _C.device_properties(index)
    standard = re.search(r"-cl-std=CL(\d)\.(\d)", options)
    digits = standard[1] + standard[2] if standard else "12"
    predefined = {"__OPENCL_C_VERSION__": f"{digits}0", "__ENDIAN_LITTLE__": "1"}
    if version := re.match(r"OpenCL (\d)\.(\d)", properties.version):
        predefined["__OPENCL_VERSION__"] = f"{version[1]}{version[2]}0"
    predefined |= {f"CL_VERSION_{n[0]}_{n[1]}": f"{n}0" for n in ("10", "11", "12", "20", "30")}
    predefined |= {"cl_khr_fp64": "1"} if properties.has_fp64 else {}
    predefined |= {"cl_khr_fp16": "1"} if properties.has_fp16 else {}
    return read_source(source, options, predefined), index


def _built(source: str, build: Callable[[], _T]) -> _T:
    """What `build` makes. The error of a source that does not compile shows the lines that the compiler names."""
    try:
        return build()
    except RuntimeError as error:
        message = str(error)
        if "Build log:" not in message:
            raise
        raise RuntimeError(message + "\n" + _numbered(source, message)) from None


def _numbered(source: str, log: str) -> str:
    """The lines of a source that a compiler's messages name, with two before and after each; all if none is named."""
    lines = source.splitlines()
    named = {int(number) for number in re.findall(r":(\d+):\d+", log)}
    shown = {number + d for number in named for d in range(-2, 3)} & set(range(1, len(lines) + 1))
    return "\n".join(f"{number:4} | {lines[number - 1]}" for number in sorted(shown or range(1, len(lines) + 1)))
