"""transformers: the device of TrainingArguments and pipelines, bf16, random state of checkpoints, memory metrics."""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Any

import torch

from dlbackend.integrations.patching import Exchange, Patch, branch_of, function_of

INSTEAD = (
    "Move models to ocl yourself, train with a loop of your own or accelerate's, or install a version that is known."
)
QUESTION = "is_torch_{}_available"


def of_npu(target: str, upstream: str) -> Patch:
    return branch_of("npu", target, upstream, QUESTION)


class _Cuda:
    """Stands in for torch.cuda: the default stream of any accelerator's device."""

    @staticmethod
    def default_stream(device: torch.device) -> Any:
        return torch.get_device_module(device).default_stream(device)


class _TorchOfAnyDevice:
    """Stands in for torch, with the above as its `cuda`."""

    cuda = _Cuda

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@dataclass(frozen=True)
class StreamsOfTheTensors:
    """Has a function ask the tensors' device for its default stream, also where CUDA is there too."""

    target: str
    upstream: str

    def apply(self, module: types.ModuleType) -> None:
        """Changes the function."""
        names = {"torch": "torch_of_any_device", "default_stream": "default_stream"}
        Exchange(self.target, self.upstream, names=names).apply(module)
        function_of(module, self.target).__globals__["torch_of_any_device"] = _TorchOfAnyDevice()


PATCHES: dict[str, list[Patch]] = {
    "transformers.utils.import_utils": [
        of_npu("is_torch_bf16_gpu_available", "is_torch_npu_available(): torch.npu.is_bf16_supported(); else False"),
    ],
    "transformers.training_args": [
        of_npu("TrainingArguments._setup_devices", 'is_torch_npu_available(): torch.device("npu:0"); else "cpu"'),
    ],
    "transformers.trainer": [
        of_npu("Trainer._save_rng_state", 'rng_states["npu"] = torch.npu.random.get_rng_state()'),
        of_npu("Trainer._load_rng_state", 'set_rng_state_for_device("NPU", torch.npu, ...)'),
    ],
    "transformers.trainer_utils": [
        of_npu("TrainerMemoryTracker.__init__", "is_torch_npu_available(): self.gpu = {}; else self.torch = None"),
        of_npu("TrainerMemoryTracker.start", "self.torch.npu.reset_peak_memory_stats()"),
        of_npu("TrainerMemoryTracker.stop", "self.torch.npu.max_memory_allocated()"),
    ],
    "transformers.pipelines.base": [
        of_npu("Pipeline.__init__", 'is_torch_npu_available(): torch.device(f"npu:{device}"); else "cpu"'),
    ],
    "transformers.integrations.accelerate": [
        branch_of("xpu", "get_max_memory", "is_torch_xpu_available(): torch.xpu.memory_reserved(i) - ...", QUESTION),
    ],
    "transformers.cache_utils": [
        StreamsOfTheTensors("Cache.update", "torch.cuda.default_stream(key_states.device), whatever the device"),
    ],
}
