"""torch.distributed on ocl: registers the backend `oclgloo`, which computes collectives of ocl tensors by gloo.

    dist.init_process_group()                            # gloo for CPU tensors, oclgloo for those on ocl
    dist.init_process_group("oclgloo")                   # the same
    dist.init_process_group("cpu:gloo,ocl:oclgloo")      # the same, in full

See docs/distributed.md.
"""

from __future__ import annotations

import functools
import types
from datetime import timedelta
from typing import Any

NAME = "oclgloo"
BACKENDS = {"cpu": "gloo", "ocl": NAME}


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
        gloo = c10d.ProcessGroupGloo(store, rank, size, timeout=timeout)
        gloo._set_sequence_number_for_group()
        return c.make_oclgloo(gloo)

    c10d.Backend.register_backend(NAME, create, devices=["ocl"])
    _serve_cpu_tensors_too(c10d.BackendConfig)


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
