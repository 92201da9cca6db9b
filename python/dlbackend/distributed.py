"""torch.distributed on ocl: registers the backend `oclgloo`, which computes collectives of ocl tensors by gloo.

    dist.init_process_group()                            # gloo for CPU tensors, oclgloo for those on ocl
    dist.init_process_group("oclgloo")                   # the same
    dist.init_process_group("cpu:gloo,ocl:oclgloo")      # the same, in full

See docs/distributed.md.
"""

from __future__ import annotations

import functools
import os
import types
from datetime import timedelta
from typing import Any

from dlbackend import environment

NAME = "oclgloo"
BACKENDS = {"cpu": "gloo", "ocl": NAME}
CONNECTIONS = 8  # to each rank, in groups of up to so many ranks:
RANKS_WITH_ALL = 16


def install(torch: types.ModuleType, c: types.ModuleType) -> None:
    """Registers the backend and makes it the default for ocl. Does nothing where torch or this build lacks
    distributed. Opens no driver and makes no connection.
    """
    if not torch.distributed.is_available() or not hasattr(c, "make_oclgloo"):
        return
    import torch.distributed.distributed_c10d as c10d

    if NAME in c10d.Backend.backend_list or not c10d.is_gloo_available():
        return

    def create(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
        gloo = c10d.ProcessGroupGloo(store, rank, size, _options(c10d.ProcessGroupGloo, size, timeout))
        gloo._set_sequence_number_for_group()
        return c.make_oclgloo(gloo)

    c10d.Backend.register_backend(NAME, create, devices=["ocl"])
    _serve_cpu_tensors_too(c10d.BackendConfig)


def _options(gloo: Any, size: int, timeout: timedelta) -> Any:
    """Connections of a group of that many ranks.

    A gloo device moves data by one thread, over one connection to each rank. The parts of a collective go by several:
    eight reduced 102 MB of two processes of one host in 10 ms, one in 47 (docs/scaling.md). Large groups have fewer, as
    each device connects to every rank.
    """
    options = gloo._Options()
    options._timeout = timeout
    options._devices = _devices(gloo, os.getpid(), *environment.gloo_interfaces())
    if size > RANKS_WITH_ALL:
        options._devices = options._devices[: max(2, CONNECTIONS * RANKS_WITH_ALL // size)]
    options._threads = CONNECTIONS
    return options


@functools.cache
def _devices(gloo: Any, process: int, *names: str) -> list[Any]:
    """gloo's devices, which all groups of a process share: on the interfaces named, in turns, or on the default one."""
    if not names:
        return [gloo.create_default_device() for _ in range(CONNECTIONS)]
    return [gloo.create_device(interface=names[i % len(names)]) for i in range(max(CONNECTIONS, len(names)))]


def _serve_cpu_tensors_too(config: Any) -> None:
    """Without a backend's name PyTorch serves the accelerator's tensors only. Programs that train on the CPU while a
    device exists would find no backend for theirs, and groups would have no default backend.
    """
    plain = config.__init__

    @functools.wraps(plain)
    def init(self: Any, backend: Any) -> None:
        plain(self, backend)
        if set(self.device_backend_map.items()) == {("ocl", NAME)} and ":" not in str(backend):
            self.device_backend_map = dict(BACKENDS)

    config.__init__ = init
