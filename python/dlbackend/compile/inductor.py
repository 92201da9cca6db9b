"""The answers to inductor where something other than torch.compile asks it for code, such as AOTInductor: it generates
none for the device. torch.compile's own graphs go to dlbackend.compile.

Inductor takes these names from torch.ocl when it meets a tensor of the device. Without them it fails with a KeyError.
"""

from typing import Any, NoReturn

from torch._inductor.codegen.common import DeviceOpOverrides, register_device_op_overrides

MESSAGE = (
    'inductor generates no code for ocl. Use torch.compile(model), or backend="ocl", which computes with dlbackend\'s '
    "kernels, or run the model without a compiler."
)


class Unsupported:
    """Raises NotImplementedError, with what to do instead, where inductor would begin to generate code."""

    supports_caching = False

    def __init__(self, *_: Any, **__: Any) -> None:
        self.create()

    @staticmethod
    def create(*_: Any, **__: Any) -> NoReturn:
        """As PythonWrapperCodegen.create(), the first thing that inductor calls."""
        raise NotImplementedError(MESSAGE)


Scheduling = PythonWrapperCodegen = CppWrapperCodegen = WrapperFxCodegen = Unsupported
register_device_op_overrides("ocl", DeviceOpOverrides())
