"""torch.ocl: devices, streams, events, memory and random state of the device `ocl`, in the manner of torch.xpu; and
kernels of one's own.

Nothing here opens an OpenCL driver before the first call that needs a device. In a process forked after that, every
such call raises: use the "spawn" start method there.
"""

from typing import Any

import torch

from dlbackend.ocl import graphs, kernels, memory, random, streams
from dlbackend.ocl.device import (  # noqa: F401 (PyTorch calls the underscored ones)
    _exchange_device,
    _is_compiled,
    _is_in_bad_fork,
    _lazy_call,
    _lazy_init,
    _maybe_exchange_device,
    can_device_access_peer,
    current_device,
    device,
    device_count,
    device_of,
    get_amp_supported_dtype,
    get_device_capability,
    get_device_name,
    get_device_properties,
    init,
    is_available,
    is_bf16_supported,
    is_initialized,
    is_tf32_supported,
    set_device,
    synchronize,
)
from dlbackend.ocl.graphs import (
    OclGraph,
    graph,
    graph_pool_handle,
    is_current_stream_capturing,
    make_graphed_callables,
)
from dlbackend.ocl.kernels import Kernel, KernelLibrary, LocalMemory, compile_kernel, compile_library
from dlbackend.ocl.memory import (
    empty_cache,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    memory_stats_as_nested_dict,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
)
from dlbackend.ocl.random import (
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from dlbackend.ocl.streams import (
    Event,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    set_stream,
    stream,
)

# One generator per device; empty until the first use of a device.
default_generators: tuple[torch.Generator, ...] = ()


def __getattr__(name: str) -> Any:
    """`_initialized`, which torch.utils.checkpoint reads to know whether there is random state to save, and what
    torch.compile's inductor asks a device for.
    """
    if name == "_initialized":
        return is_initialized()
    if name in ("Scheduling", "PythonWrapperCodegen", "CppWrapperCodegen", "WrapperFxCodegen"):
        from dlbackend.compile.inductor import code_generator  # imports PyTorch's inductor, which takes a second

        return code_generator(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Event",
    "Kernel",
    "KernelLibrary",
    "LocalMemory",
    "OclGraph",
    "Stream",
    "StreamContext",
    "can_device_access_peer",
    "compile_kernel",
    "compile_library",
    "current_device",
    "current_stream",
    "default_generators",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "empty_cache",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "get_rng_state_all",
    "graph",
    "graph_pool_handle",
    "graphs",
    "init",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_current_stream_capturing",
    "is_initialized",
    "is_tf32_supported",
    "kernels",
    "make_graphed_callables",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "random",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "streams",
    "synchronize",
]
