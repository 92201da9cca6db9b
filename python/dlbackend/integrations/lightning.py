"""Lightning: `Trainer(accelerator="ocl")`, "auto" and "gpu", and the same for Fabric, under each name of its packages.

Lightning lets packages register accelerators, but gives one that it does not know the device "cpu", and the autocast
of CUDA.
"""

from __future__ import annotations

import functools
import importlib
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from dlbackend.integrations.devices import collectives_work, good_devices, is_ocl_available, no_cuda
from dlbackend.integrations.patching import Allow, DoesNotFit, Exchange, Patch, Wrap

INSTEAD = (
    "Give strategy=SingleDeviceStrategy(torch.device('ocl:0'), accelerator=CPUAccelerator()), or install a version "
    "that is known."
)


def devices_from(wish: int | str | list[int]) -> list[int]:
    """The indices that `devices=` means, one for each process: a number of devices, -1 or "-1" for all, or a list as
    [0, 1] or "0,1". A number above that of devices has processes share them, with a warning; a list must name devices
    that are there.
    """
    if isinstance(wish, str):
        wish = [int(part) for part in wish.split(",") if part.strip()] if "," in wish else int(wish)
    count = torch.get_device_module("ocl").device_count()
    if not isinstance(wish, (list, tuple)):
        if wish > count:
            message = f"devices={wish}, but there {'is one ocl device' if count == 1 else f'are {count} ocl devices'}: "
            warnings.warn(f"{message}several processes share a device", RuntimeWarning, stacklevel=2)
        return [i % count for i in range(count if wish == -1 else wish)]
    if missing := [i for i in wish if not 0 <= i < count]:
        raise ValueError(f"devices={wish!r} names ocl:{missing[0]}, but there are {count} ocl devices")
    return list(wish)


def accelerator_class(base: type) -> type:
    """OclAccelerator, derived from a package's Accelerator."""
    ocl = torch.get_device_module("ocl")

    class OclAccelerator(base):  # type: ignore[misc]
        """Accelerator for the devices of dlbackend."""

        def setup_device(self, device: torch.device) -> None:
            if device.type != "ocl":
                raise ValueError(f"Device should be ocl, got {device} instead")
            ocl.set_device(device)

        def get_device_stats(self, device: Any) -> dict[str, Any]:
            return ocl.memory_stats(device)  # type: ignore[no-any-return]

        def teardown(self) -> None:
            ocl.empty_cache()

        @staticmethod
        def parse_devices(devices: int | str | list[int]) -> list[int]:
            return devices_from(devices)

        @staticmethod
        def get_parallel_devices(devices: list[int]) -> list[torch.device]:
            return [torch.device("ocl", i) for i in devices]

        @staticmethod
        def auto_device_count() -> int:
            return len(good_devices()) if collectives_work() else 1

        @staticmethod
        def is_available() -> bool:
            return is_ocl_available()

        @staticmethod
        def name() -> str:
            return "ocl"

    OclAccelerator.__module__ = __name__
    return OclAccelerator


@dataclass(frozen=True)
class Register:
    """Registers an accelerator in a package's `accelerators`."""

    target: str  # the registry
    upstream: str

    def apply(self, module: types.ModuleType) -> None:
        """Adds OclAccelerator to the module and its registry."""
        registry = getattr(module, self.target, None)
        if registry is None:
            raise DoesNotFit("it is not there")
        # lightning.pytorch imports lightning.fabric's, whose Accelerator its own derives from.
        base = importlib.import_module(f"{module.__name__}.accelerator").Accelerator
        module.OclAccelerator = accelerator_class(base)  # type: ignore[attr-defined]
        registry.register("ocl", module.OclAccelerator, description="OclAccelerator", override=True)


def ocl_not_cpu(choose: Callable[[], str]) -> Callable[[], str]:
    """The choice of an accelerator that takes ocl before the CPU."""

    @functools.wraps(choose)
    def wrapper() -> str:
        found = choose()
        return "ocl" if found == "cpu" and is_ocl_available() else found

    return wrapper


def ocl_for_gpu(choose: Callable[[], str]) -> Callable[[], str]:
    """The choice of a GPU that takes ocl where there is no other."""

    @functools.wraps(choose)
    def wrapper() -> str:
        try:
            return choose()
        except Exception:
            if is_ocl_available():
                return "ocl"
            raise

    return wrapper


def remembers_ocl(set_devices: Callable[[Any], None]) -> Callable[[Any], None]:
    """Has the connector know the accelerator by its name where it was given as an object."""

    @functools.wraps(set_devices)
    def wrapper(self: Any) -> None:
        set_devices(self)
        if type(self.accelerator).name() == "ocl":
            self._accelerator_flag = "ocl"

    return wrapper


def tells_of_ocl(log_device_info: Callable[[Any], None]) -> Callable[[Any], None]:
    """The Trainer's lines on devices, for ocl."""

    @functools.wraps(log_device_info)
    def wrapper(trainer: Any) -> None:
        if type(trainer.accelerator).name() == "ocl":
            rank_zero = importlib.import_module(
                log_device_info.__module__.split(".trainer.")[0] + ".utilities.rank_zero"
            )
            names = [torch.get_device_module("ocl").get_device_name(device) for device in good_devices()]
            rank_zero.rank_zero_info(f"GPU available: True (ocl: {', '.join(names)}), used: True")
        else:
            log_device_info(trainer)

    return wrapper


def of_connector(name: str) -> list[Patch]:
    """Patches of the class that turns a Trainer's or Fabric's arguments into devices, strategy and precision."""
    return [
        Wrap(f"{name}._choose_auto_accelerator", 'XLA, MPS, CUDA.is_available(); else "cpu"', ocl_not_cpu),
        Wrap(f"{name}._choose_gpu_accelerator_backend", "MPS, CUDA; else raise", ocl_for_gpu),
        Wrap(f"{name}._set_parallel_devices_and_init_accelerator", "asked with isinstance later", remembers_ocl),
        Allow(f"{name}._choose_strategy", 'self._accelerator_flag in ("cuda", "gpu", "mps"); else "cpu"', "mps"),
        Allow(f"{name}._check_and_init_precision", 'self._accelerator_flag in ("cpu", "mps"); else "cuda"', "mps"),
    ]


def of_ddp(method: str) -> list[Patch]:
    """Patches of the method that wraps a net for distributed training."""
    upstream = "torch.cuda.stream(torch.cuda.Stream()) if device_ids is not None"
    return [Exchange(f"DDPStrategy.{method}", upstream, names={"cuda": "ocl"}, only_if=no_cuda)]


PATCHES: dict[str, list[Patch]] = {}
for pytorch in ("lightning.pytorch", "pytorch_lightning"):
    PATCHES[f"{pytorch}.accelerators"] = [Register("AcceleratorRegistry", "CPU, CUDA, MPS and XLA only")]
    PATCHES[f"{pytorch}.trainer.connectors.accelerator_connector"] = of_connector("_AcceleratorConnector")
    PATCHES[f"{pytorch}.trainer.setup"] = [Wrap("_log_device_info", '"GPU available: False"', tells_of_ocl)]
    PATCHES[f"{pytorch}.strategies.ddp"] = of_ddp("_setup_model")
for fabric in ("lightning.fabric", "lightning_fabric"):
    PATCHES[f"{fabric}.accelerators"] = [Register("ACCELERATOR_REGISTRY", "CPU, CUDA, MPS and XLA only")]
    PATCHES[f"{fabric}.connector"] = of_connector("_Connector")
    PATCHES[f"{fabric}.strategies.ddp"] = of_ddp("setup_module")
