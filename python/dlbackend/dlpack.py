"""Tensor.__dlpack_device__ of ocl: PyTorch knows only the PrivateUse1 slot's old name there.

With it torch.from_dlpack(tensor) shares memory within the process, numpy.from_dlpack(tensor, device="cpu") and others
that ask for a device get a copy, and libraries that ask for none refuse a device that they do not know.
"""

import types
from typing import Any


def install(torch: types.ModuleType) -> None:
    """Has tensors of ocl say that they are on DLPack's device type for extensions (kDLExtDev); others do as before."""
    original = torch.Tensor.__dlpack_device__
    overridden = torch.overrides.has_torch_function_unary

    def __dlpack_device__(self: Any) -> tuple[Any, int]:
        if overridden(self) or self.device.type != "ocl":
            where: tuple[Any, int] = original(self)
            return where
        return torch.utils.dlpack.DLDeviceType.kDLExtDev, self.device.index

    torch.Tensor.__dlpack_device__ = __dlpack_device__
