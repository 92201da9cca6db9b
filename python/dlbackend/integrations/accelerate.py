"""accelerate: the device of Accelerator() and PartialState(), fp16, memory of devices, saved random state."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from dlbackend.integrations.devices import good_devices, is_ocl_available, no_cuda
from dlbackend.integrations.patching import Allow, Exchange, Patch, Wrap, branch_of

INSTEAD = "Set ACCELERATE_TORCH_DEVICE=ocl for training in float32, or install a version that is known."


def with_devices_of_ocl(get_max_memory: Callable[..., dict[Any, int]]) -> Callable[..., dict[Any, int]]:
    """get_max_memory() that names good devices only, and no host where host memory is all that devices have."""

    @functools.wraps(get_max_memory)
    def wrapper(max_memory: dict[Any, Any] | None = None) -> dict[Any, int]:
        found = get_max_memory(max_memory)
        if max_memory is not None or not is_ocl_available():
            return found
        good = good_devices()
        if torch.get_device_module("ocl").get_device_properties(good[0]).type == "cpu":
            found.pop("cpu", None)  # would count the same memory twice, as upstream says of CUDA's integrated GPUs
        return {device: size for device, size in found.items() if device in good or not isinstance(device, int)}

    return wrapper


def own_device(state: Any) -> int:
    """The index of the device of this process's Accelerator or PartialState: that of ocl, of which several processes
    may have the same, otherwise the process's number.
    """
    index: int = state.device.index if state.device.type == "ocl" else state.local_process_index
    return index


@dataclass(frozen=True)
class OwnDevice:
    """Has a method take own_device() where it takes the process's number for that of a device, which set_device() does
    not: that takes it modulo the number of devices.
    """

    target: str
    upstream: str

    def apply(self, module: types.ModuleType) -> None:
        """Changes the method, and gives its class the property that the method asks for now."""
        Exchange(self.target, self.upstream, names={"local_process_index": "index_of_own_device"}).apply(module)
        getattr(module, self.target.partition(".")[0]).index_of_own_device = property(own_device)


PATCHES: dict[str, list[Patch]] = {
    "accelerate.state": [
        branch_of("npu", "PartialState.default_device", 'is_npu_available(): return torch.device("npu"); else "cpu"'),
        Exchange(
            "PartialState._prepare_backend",
            'is_npu_available(): backend = "hccl"; distributed_type = DistributedType.MULTI_NPU',
            # There is no type for ocl. The type of GPUs does no more than the NPU's, except in set_device().
            names={"is_npu_available": "is_ocl_available", "MULTI_NPU": "MULTI_GPU"},
            texts={"hccl": "oclgloo"},
        ),
        Exchange(
            "PartialState.set_device",
            'if device == "gpu": device = "cuda"',
            texts={"cuda": "ocl"},
            only_if=no_cuda,
        ),
        OwnDevice("PartialState.wait_for_everyone", "torch.distributed.barrier(device_ids=[self.local_process_index])"),
    ],
    "accelerate.accelerator": [
        OwnDevice("Accelerator.prepare_model", "device_ids, output_device = [self.local_process_index], ..."),
        Allow("Accelerator.__init__", 'fp16: supported_device = ("xpu", "cuda", "npu", ...)'),
    ],
    "accelerate.utils.modeling": [
        branch_of("hpu", "get_grad_scaler", 'is_hpu_available(): torch.amp.GradScaler("hpu"); else "cuda"'),
        branch_of("npu", "get_max_memory", "is_npu_available(): torch.npu.mem_get_info(i)[0]; else torch.cuda"),
        branch_of("npu", "get_balanced_memory", 'is_npu_available(): expected_device_type = "npu"; else "cuda"'),
        Wrap("get_max_memory", "one entry for every device, and one for the host", with_devices_of_ocl),
    ],
    "accelerate.utils.memory": [
        branch_of("npu", "clear_device_cache", "is_npu_available(): torch.npu.empty_cache()"),
    ],
    "accelerate.utils.dataclasses": [
        branch_of(
            "npu",
            "FullyShardedDataParallelPlugin.__post_init__",
            "is_npu_available(): device = torch.npu.current_device(); else raise",
        ),
    ],
    "accelerate.checkpointing": [
        branch_of(
            "musa", "save_accelerator_state", 'states["torch_musa_manual_seed"] = torch.musa.get_rng_state_all()'
        ),
        branch_of("musa", "load_accelerator_state", 'torch.musa.set_rng_state_all(states["torch_musa_manual_seed"])'),
    ],
}
