"""repr() of tensors on devices without double precision: PyTorch computes the layout of the numbers in it."""

import types
from typing import Any


def install(torch: types.ModuleType, ocl: types.ModuleType) -> None:
    """Has PyTorch format such tensors on the CPU, as it does itself for other devices that it knows to lack float64."""
    module = torch._tensor_str
    original = module._tensor_str

    def tensor_str(self: Any, indent: int) -> str:
        if self.device.type == "ocl" and not ocl.get_device_properties(self.device).has_fp64:
            self = self.cpu()
        text: str = original(self, indent)
        return text

    module._tensor_str = tensor_str
