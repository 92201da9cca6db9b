"""ultralytics: `device="ocl"`, and ocl where no device is named, for YOLO's train, val and predict."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from dlbackend.integrations.devices import is_ocl_available
from dlbackend.integrations.patching import Exchange, Patch, Wrap

INSTEAD = "Give device=torch.device('ocl'), or install a version that is known."


def prefers_ocl(parse_device: Callable[..., str]) -> Callable[..., str]:
    """parse_device() that says "ocl" where no device is named and there is no CUDA."""

    @functools.wraps(parse_device)
    def wrapper(device: object = "") -> str:
        found = parse_device(device)
        return "ocl" if found == "" and is_ocl_available() and not torch.cuda.is_available() else found

    return wrapper


NPU = {"npu": "ocl"}

PATCHES: dict[str, list[Patch]] = {
    "ultralytics.utils.torch_utils": [
        Exchange("parse_device", 'device.type in {"npu", "xpu"}; for backend in ("npu", "xpu")', texts=NPU),
        Exchange(
            "select_device",
            'device.type not in {"cpu", "cuda", "npu", "xpu"}; device.startswith(("npu", "xpu"))',
            names={"torch_npu": "torch"},  # imports it, to have the device
            texts=NPU,
        ),
        Wrap("parse_device", '"" means CUDA, or the CPU', prefers_ocl),
    ],
    "ultralytics.engine.trainer": [
        Exchange(
            "BaseTrainer._setup_train",
            'GradScaler(self.device.type if self.device.type == "xpu" else "cuda")',
            texts={"xpu": "ocl"},
        ),
        Exchange(
            "BaseTrainer._setup_ddp",
            'device_type in {"npu", "xpu"} else "cuda"; {"npu": "hccl", "xpu": "xccl"}',
            texts={**NPU, "hccl": "oclgloo"},
        ),
    ],
    "ultralytics.engine.validator": [
        Exchange("BaseValidator.__call__", 'device_type if device_type in {"npu", "xpu"} else "cuda"', texts=NPU),
    ],
    "ultralytics.utils.ops": [
        Exchange("Profile.__init__", 'device_type in {"cuda", "npu", "xpu"} else None', texts=NPU),
    ],
}
