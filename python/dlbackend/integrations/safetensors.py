"""safetensors: files read straight to ocl. Its Rust code refuses names that it does not know, and takes indices."""

from __future__ import annotations

from typing import Any

import torch

from dlbackend.integrations.patching import Patch, Wrap

INSTEAD = "Give a device's index, 0, instead of 'ocl' where safetensors reads a file."


def with_names_of_ocl(original: Any) -> type:
    """safe_open that takes "ocl", "ocl:0" and such torch.devices, too."""

    class OfEither(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, original)

    class safe_open(metaclass=OfEither):
        __doc__ = original.__doc__

        def __new__(cls, filename: Any, framework: Any, device: Any = "cpu", *others: Any, **options: Any) -> Any:
            return original(filename, framework, index_of(device), *others, **options)

    return safe_open


def index_of(device: Any) -> Any:
    """The index of an ocl device, and anything else as it is."""
    if isinstance(device, torch.device) or (isinstance(device, str) and device.startswith("ocl")):
        named = torch.device(device)
        if named.type == "ocl":
            return torch.get_device_module("ocl").current_device() if named.index is None else named.index
    return device


PATCHES: dict[str, list[Patch]] = {
    "safetensors": [Wrap("safe_open", '"device ocl is invalid" (bindings/python/src/lib.rs)', with_names_of_ocl)],
}
