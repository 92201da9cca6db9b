"""Devices of torch.ocl: discovery, the current device, properties, and initialisation on first use."""

import threading
from collections.abc import Callable
from typing import Any

import torch

from dlbackend import _C

DeviceLike = torch.device | str | int | None

_initialized = False
_init_lock = threading.RLock()
# Calls that wait until the generators exist; see _lazy_call().
_deferred: list[Callable[[], object]] = []


def _is_in_bad_fork() -> bool:
    """Whether this process was forked from one that had used OpenCL, which no driver survives."""
    return _C.is_in_bad_fork()


def _is_compiled() -> bool:
    return True


def is_initialized() -> bool:
    """Whether a device has been used in this process."""
    return _initialized and not _is_in_bad_fork()


def _lazy_call(call: Callable[[], object], replaces_earlier: bool = False) -> None:
    """Runs `call` now, or at the first use of a device. One that sets every generator makes earlier ones moot."""
    with _init_lock:
        if not is_initialized():
            if replaces_earlier:
                _deferred.clear()
            _deferred.append(call)
            return
    call()


def _lazy_init() -> None:
    """Finds the devices and makes their generators. RuntimeError with the cure if there is no device to use."""
    global _initialized
    if is_initialized():
        return
    if _is_in_bad_fork():
        raise RuntimeError(
            "Cannot use ocl in a process forked after OpenCL was used: drivers do not survive a fork. Use the 'spawn' "
            "start method: torch.multiprocessing.set_start_method('spawn')"
        )
    with _init_lock:
        if _initialized:
            return
        count = _C.device_count()
        if count == 0:
            raise RuntimeError(_C.why_no_device())
        torch.get_device_module("ocl").default_generators = tuple(map(_C.default_generator, range(count)))
        _initialized = True
        calls = _deferred.copy()
        _deferred.clear()
        for call in calls:
            call()


def init() -> None:
    """Initialises the devices now rather than at first use. Does nothing when that has happened."""
    _lazy_init()


def device_count() -> int:
    """Number of devices; 0 where there is no OpenCL driver or this process is a fork. Never raises."""
    return _C.device_count()


def is_available() -> bool:
    """Whether there is a device to use. Never raises."""
    return device_count() > 0


def current_device() -> int:
    """Index of the current device of this thread."""
    _lazy_init()
    return _C.current_device()


def device_index(device: DeviceLike) -> int:
    """Index of `device`: an index, "ocl", "ocl:N" or a torch.device; the current device for None or no index.

    ValueError for a device of another type. -1 stands for "leave as it is" and is returned. RuntimeError for what
    can be no index; the extension, whose indices have eight bits, knows which devices there are.
    """
    if isinstance(device, int):
        if not -1 <= device < 128:
            raise RuntimeError(f"ocl:{device} does not exist: this process sees {_C.device_count()} OpenCL device(s).")
        return device
    if isinstance(device, str):
        device = torch.device(device)
    if device is not None and device.type != "ocl":
        raise ValueError(f"Expected an ocl device, but got: {device}")
    if device is None or device.index is None:
        return current_device()
    return device.index


def set_device(device: DeviceLike) -> None:
    """Makes `device` the current one. Does nothing for -1."""
    _lazy_init()
    index = device_index(device)
    if index >= 0:
        _C.set_device(index)


def _exchange_device(device: int) -> int:
    """Makes the device of that index the current one and returns the previous one's. A negative index: no change."""
    _lazy_init()
    return _C.exchange_device(device)


_maybe_exchange_device = _exchange_device  # elsewhere spares a device its context; here that is made at the first use


class device:
    """Context manager that makes a device the current one. Does nothing for None or -1.

    Args:
        device: index, "ocl:N" or torch.device.
    """

    def __init__(self, device: DeviceLike) -> None:
        self.idx = -1 if device is None else device_index(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        if self.idx >= 0:
            _lazy_init()
            self.prev_idx = _C.exchange_device(self.idx)

    def __exit__(self, *_: object) -> None:
        if self.idx >= 0:
            _C.set_device(self.prev_idx)


class device_of(device):
    """Context manager that makes the device of a tensor or storage the current one; no effect if it is not on ocl."""

    def __init__(self, obj: torch.Tensor | torch.UntypedStorage) -> None:
        super().__init__(obj.device if obj.device.type == "ocl" else None)


def synchronize(device: DeviceLike = None) -> None:
    """Waits for all work on a device, all its streams. Raises what went wrong in work enqueued earlier."""
    _lazy_init()
    _C.synchronize(device_index(device))


def get_device_properties(device: DeviceLike = None) -> "_C._OclDeviceProperties":
    """A device's name, vendor, platform, driver_version, version (of OpenCL), type ("cpu", "gpu", "accelerator"),
    total_memory, max_alloc (of one tensor) and local_mem in bytes, compute_units, max_work_group_size, has_fp64,
    has_fp16 (arithmetic; float16 tensors work everywhere)."""
    _lazy_init()
    return _C.device_properties(device_index(device))


def get_device_name(device: DeviceLike = None) -> str:
    """The name that the driver gives the device."""
    return get_device_properties(device).name


def get_device_capability(device: DeviceLike = None) -> dict[str, Any]:
    """get_device_properties() as a dictionary."""
    properties = get_device_properties(device)
    return {name: getattr(properties, name) for name in dir(properties) if not name.startswith("_")}


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether bfloat16 tensors work: everywhere, computed in float32, which counts as emulation."""
    return including_emulation and is_available()


# torch.compile may ask these questions of compiled code once: the functions are marked as
# torch.compiler.assume_constant_result() would mark them, which imports the compiler.
for _question in (device_count, is_available, is_bf16_supported):
    _question._dynamo_marked_constant = True  # type: ignore[attr-defined]


def is_tf32_supported() -> bool:
    """Whether the current device has TF32 for products and convolutions; see torch.backends.ocl.fp32_precision."""
    return is_available() and get_device_properties().has_tensor_cores


def can_device_access_peer(device: DeviceLike, peer_device: DeviceLike) -> bool:
    """False: OpenCL devices do not reach each other's memory. RuntimeError for a device that does not exist."""
    for each in (device, peer_device):
        get_device_properties(each)
    return False


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that torch.autocast("ocl") takes."""
    return [torch.float16, torch.bfloat16]
