"""The answers to inductor, torch.compile's default backend: it generates no code for the device yet.

Inductor takes these names from torch.ocl when it meets a tensor of the device. Without them it fails with a KeyError.
"""

from typing import Any, NoReturn

from torch._inductor.codegen.common import DeviceOpOverrides, register_device_op_overrides

MESSAGE = (
    'torch.compile: the backend "inductor", which is the default, generates no code for ocl yet. Run the model without '
    'torch.compile, or with torch.compile(..., backend="aot_eager"): both compute with dlbackend\'s kernels.'
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
