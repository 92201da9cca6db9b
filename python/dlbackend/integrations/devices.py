"""The devices that other packages shall use when their users name none."""

from __future__ import annotations

import torch

from dlbackend_autoload import other_accelerator


def is_ocl_available(*_: object, **__: object) -> bool:
    """Whether ocl is the accelerator of this process and has a device. Takes any arguments, as packages pass them."""
    return torch._C._get_privateuse1_backend_name() == "ocl" and torch.get_device_module("ocl").is_available()


def good_devices() -> list[int]:
    """The devices that work shall be spread over: GPUs and accelerators; where there are none, all."""
    ocl = torch.get_device_module("ocl")
    every = list(range(ocl.device_count()))
    return [i for i in every if ocl.get_device_properties(i).type != "cpu"] or every


def no_cuda() -> bool:
    """Whether CUDA (or ROCm, which has its name) cannot be used here, so that "cuda" in other packages is never
    meant. A torch that was built for CUDA, as PyPI's is, is no sign of a GPU.
    """
    return other_accelerator(torch) != "cuda"


def collectives_work() -> bool:
    """Whether torch.distributed has a backend for ocl."""
    distributed = torch.distributed
    return distributed.is_available() and "ocl" in distributed.Backend.default_device_backend_map
