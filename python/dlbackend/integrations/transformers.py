"""transformers: the device of TrainingArguments and pipelines, bf16, random state of checkpoints, memory metrics."""

from __future__ import annotations

from dlbackend.integrations.devices import no_cuda
from dlbackend.integrations.patching import Exchange, Patch, branch_of

INSTEAD = (
    "Move models to ocl yourself, train with a loop of your own or accelerate's, or install a version that is known."
)
QUESTION = "is_torch_{}_available"


def of_npu(target: str, upstream: str) -> Patch:
    return branch_of("npu", target, upstream, QUESTION)


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
        Exchange(
            "Cache.update",
            "torch.cuda.default_stream(key_states.device) of offloaded caches, whatever the device",
            names={"cuda": "ocl"},
            only_if=no_cuda,
        ),
    ],
}
