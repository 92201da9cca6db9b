"""PyTorch's Inductor for ocl: kernels in OpenCL C, generated from its graphs.

Nothing of it is imported before torch.compile is called (dlbackend.integrations.torch).
"""

from __future__ import annotations

import copy
import functools
import hashlib
import warnings
from collections import namedtuple
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.device_interface import DeviceInterface, register_interface_for_device
from torch._functorch.aot_autograd import make_boxed_func
from torch._inductor.codegen.common import (
    DeviceOpOverrides,
    register_backend_for_device,
    register_device_op_overrides,
)
from torch._inductor.custom_graph_pass import CustomGraphModulePass

from dlbackend import _C
from dlbackend.compile.fuse import fuse_behind_products
from dlbackend.compile.inductor.patches import compiling, patch
from dlbackend.compile.inductor.runtime import KernelDoesNotBuild
from dlbackend.compile.products import join_biases

ocl: Any = torch.get_device_module("ocl")
_Properties = namedtuple(
    "_Properties",
    "name type index multi_processor_count max_threads_per_multi_processor warp_size major regs_per_multiprocessor",
)


@functools.cache
def _properties(index: int) -> _Properties:
    properties = _C.device_properties(index)
    units = int(properties.compute_units)
    threads = 8 if properties.kernel_class == "cpu" else 2048
    return _Properties(properties.name, "ocl", index, units, threads, 32, None, None)


def _index(device: Any) -> int:
    if device is None:
        return int(ocl.current_device())
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return int(ocl.current_device()) if index is None else index


class OclInterface(DeviceInterface):
    """What Dynamo and Inductor ask of the device."""

    device = ocl.device
    Event = torch.Event
    Stream = torch.Stream

    class Worker:
        """For processes that compile."""

        set_device = staticmethod(ocl.set_device)
        current_device = staticmethod(ocl.current_device)

        @staticmethod
        def get_device_properties(device: Any = None) -> _Properties:
            """As OclInterface.get_device_properties()."""
            return _properties(_index(device))

    current_device = staticmethod(ocl.current_device)
    set_device = staticmethod(ocl.set_device)
    device_count = staticmethod(ocl.device_count)
    is_available = staticmethod(ocl.is_available)
    synchronize = staticmethod(ocl.synchronize)
    current_stream = staticmethod(ocl.current_stream)
    set_stream = staticmethod(ocl.set_stream)
    stream = staticmethod(ocl.stream)
    memory_allocated = staticmethod(ocl.memory_allocated)

    @staticmethod
    def exchange_device(device: int) -> int:
        """Sets the current device and returns the former."""
        former = int(ocl.current_device())
        if device >= 0:
            ocl.set_device(device)
        return former

    maybe_exchange_device = exchange_device

    @staticmethod
    def get_raw_stream(device_idx: int) -> int:
        """Streams have no handle that generated code takes: kernels run on the current one."""
        return 0

    @classmethod
    def get_device_properties(cls, device: Any = None) -> _Properties:
        """Sizes by which reductions are split."""
        return _properties(_index(device))

    @staticmethod
    def get_compute_capability(device: Any = None) -> str:
        """Drivers have no such number."""
        return ""

    @staticmethod
    def is_bf16_supported(including_emulation: bool = False) -> bool:
        """Kernels compute in float32 and round."""
        return True

    @classmethod
    def is_dtype_supported(cls, dtype: torch.dtype, including_emulation: bool = False) -> bool:
        """All but double precision where the device has none."""
        return dtype not in (torch.float64, torch.complex128) or bool(_C.device_properties(_index(None)).has_fp64)

    @staticmethod
    def is_triton_capable(device: Any = None) -> bool:
        """Triton has no OpenCL."""
        return False

    @staticmethod
    def raise_if_triton_unavailable(device: Any = None) -> None:
        """Raises: there is no Triton for ocl."""
        raise RuntimeError("Triton generates no code for ocl")


class OclOpOverrides(DeviceOpOverrides):
    """Statements of a graph's code that name the device."""

    def import_get_raw_stream_as(self, name: str) -> str:
        """A function of a device's stream."""
        return f"def {name}(_):\n    return 0"

    def set_device(self, device_idx: int) -> str:
        """Sets the current device."""
        return f"torch.ocl.set_device({device_idx})"

    def synchronize(self) -> str:
        """Waits for the device."""
        return "torch.ocl.synchronize()"

    def device_guard(self, device_idx: int) -> str:
        """A context with that device."""
        return f"torch.ocl.device({device_idx})"

    def cpp_aoti_device_guard(self) -> str:
        """The class in C++ that makes a device the current one."""
        return "dlb::aoti::DeviceGuard"

    def cpp_aoti_stream_guard(self) -> str:
        """The same with the stream that a package is run on, which is the current one."""
        return self.cpp_aoti_device_guard()


def _is_generated(node: torch.fx.Node) -> bool:
    """Whether Inductor generates what computes the call, which then computes what it takes as well."""
    tags = getattr(node.target, "tags", ())
    return torch.Tag.pointwise in tags or torch.Tag.reduction in tags


class GraphPass(CustomGraphModulePass):
    """What is done to graphs on the device before they are lowered. Its uuid puts the device and its driver, and this
    package, into the keys of Inductor's caches of graphs.
    """

    def __call__(self, gm: torch.fx.GraphModule) -> None:
        """Products and convolutions take the rows behind them and matrices of 8 bits."""
        join_biases(gm.graph)
        fuse_behind_products(gm, _is_generated)

    def uuid(self) -> Any:
        """Equal for processes that generate the same code."""
        return _identity()


@functools.cache
def _identity() -> str:
    made = hashlib.sha256()
    for path in sorted(Path(__file__).parent.parent.rglob("*.py")):
        made.update(path.read_bytes())
    for index in range(ocl.device_count()):
        p = _C.device_properties(index)
        made.update(repr((p.name, p.version, p.driver_version, p.kernel_class, p.has_fp64, p.compute_units)).encode())
    made.update(repr(_C.op_table()).encode())
    return made.hexdigest()


@functools.cache
def register() -> None:
    """Makes the device known to Dynamo and Inductor. Done once in a process, by the first graph on the device."""
    from dlbackend.compile.inductor.cpp_wrapper import OpenCLCppWrapper
    from dlbackend.compile.inductor.scheduling import OpenCLScheduling, OpenCLWrapper

    register_interface_for_device("ocl", OclInterface)
    for index in range(ocl.device_count()):
        register_interface_for_device(f"ocl:{index}", OclInterface)
    register_device_op_overrides("ocl", OclOpOverrides())
    register_backend_for_device(
        "ocl", OpenCLScheduling, OpenCLWrapper, OpenCLCppWrapper, device_custom_pass=GraphPass()
    )
    patch()


def code_generator(name: str) -> Any:
    """What Inductor looks for as torch.ocl's attributes where it meets the device before torch.compile does."""
    from dlbackend.compile.inductor.cpp_wrapper import OpenCLCppWrapper
    from dlbackend.compile.inductor.scheduling import OpenCLScheduling, OpenCLWrapper

    register()
    known: dict[str, Any] = {
        "Scheduling": OpenCLScheduling,
        "PythonWrapperCodegen": OpenCLWrapper,
        "CppWrapperCodegen": OpenCLCppWrapper,
    }
    return known.get(name)


# Inductor would make every net channels last, for which our convolutions have no preference that pays for the change,
# refuse results of ops that begin anywhere, which kernels take, and launch pointwise kernels one by one that need
# nothing of each other, such as the counters of a net's batch norms.
_CONFIG = {"layout_optimization": False, "alignment_asserts": False, "combo_kernels": True}
_warned = False


def _warn(error: Exception) -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            f"{error}\nThis graph runs without torch.compile, as do others for which this happens.", stacklevel=2
        )


def _guarded(compile_inner: Callable[..., Any]) -> Callable[..., Any]:
    """Inductor's compilation of a forward or backward graph, in whose place the graph is run op by op where a kernel
    does not build. Where torch._dynamo.config.suppress_errors is set, Dynamo is told of it instead.
    """

    @functools.wraps(compile_inner)
    def compile_or_run(module: torch.fx.GraphModule, inputs: Sequence[Any], **kwargs: Any) -> Any:
        plain = torch.fx.GraphModule(module, copy.copy(module.graph))
        try:
            with compiling():
                return compile_inner(module, inputs, **kwargs)
        except Exception as error:
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, KernelDoesNotBuild):
                cause = cause.__cause__ or getattr(cause, "inner_exception", None)
            if not isinstance(cause, KernelDoesNotBuild) or torch._dynamo.config.suppress_errors:
                raise
            _warn(cause)
            return make_boxed_func(plain.forward)

    return compile_or_run


def compile_graph(compile_fx: Callable[..., Any], module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
    """A graph of torch.compile's, by Inductor."""
    from torch._inductor.compile_fx import compile_fx_inner

    register()
    with compiling():
        return compile_fx(module, inputs, inner_compile=_guarded(compile_fx_inner), config_patches=_CONFIG)


def compile_package(compile_fx: Callable[..., Any], module: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    """A graph of AOTInductor's, by Inductor's own `compile_fx`."""
    register()
    if kwargs.get("config_patches"):  # else compile_fx has called itself with them in force
        kwargs["config_patches"] = _CONFIG | kwargs["config_patches"]
    with compiling():
        return compile_fx(module, inputs, *args, **kwargs)
