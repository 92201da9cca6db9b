"""Random state of torch.ocl: a Philox generator per device, reproducible from its seed.

Seeding before the first use of a device is remembered and done then, so torch.manual_seed() opens no driver.
"""

from collections.abc import Iterable

import torch

from dlbackend import _C
from dlbackend.ocl.device import DeviceLike, _lazy_call, _lazy_init, device_index


def _generators() -> tuple[torch.Generator, ...]:
    _lazy_init()
    return torch.get_device_module("ocl").default_generators  # type: ignore[no-any-return]


def _generator(device: DeviceLike) -> torch.Generator:
    _lazy_init()
    return _C.default_generator(device_index(device))


def get_rng_state(device: DeviceLike = "ocl") -> torch.Tensor:
    """State of a device's generator, a uint8 tensor on the CPU."""
    return _generator(device).get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """States of all devices' generators."""
    return [generator.get_state() for generator in _generators()]


def set_rng_state(new_state: torch.Tensor, device: DeviceLike = "ocl") -> None:
    """Sets the state of a device's generator to one that get_rng_state() returned."""
    state = new_state.clone(memory_format=torch.contiguous_format)
    _lazy_call(lambda: _generator(device).set_state(state))


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Sets the states of all devices' generators."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def manual_seed(seed: int) -> None:
    """Seeds the current device's generator. No effect where there is no device."""
    seed = int(seed)
    _lazy_call(lambda: _generator(None).manual_seed(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds all devices' generators; torch.manual_seed() calls it. No effect where there is no device."""
    seed = int(seed)

    def call() -> None:
        for generator in _generators():
            generator.manual_seed(seed)

    _lazy_call(call, replaces_earlier=True)


def seed() -> None:
    """Seeds the current device's generator from the system's randomness."""
    _lazy_call(lambda: _generator(None).seed())


def seed_all() -> None:
    """Seeds all devices' generators with one number from the system's randomness."""

    def call() -> None:
        first, *others = _generators()
        number = first.seed()
        for generator in others:
            generator.manual_seed(number)

    _lazy_call(call, replaces_earlier=True)


def initial_seed() -> int:
    """The seed of the current device's generator."""
    return _generator(None).initial_seed()
