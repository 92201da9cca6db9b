"""peft: the device that it loads adapters to."""

from __future__ import annotations

from dlbackend.integrations.patching import Patch, branch_of

INSTEAD = "Give torch_device='ocl' where peft loads adapters, or install a version that is known."

PATCHES: dict[str, list[Patch]] = {
    "peft.utils.other": [
        branch_of("npu", "infer_device", 'is_npu_available(): return "npu"; else "cpu"'),
    ],
}
