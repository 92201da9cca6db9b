"""torch.distributed on ocl: registers the backend `oclgloo`, which computes collectives of ocl tensors on the host: by
memory that ranks of one host share, and by gloo.

    dist.init_process_group()                            # gloo for CPU tensors, oclgloo for those on ocl
    dist.init_process_group("oclgloo")                   # the same
    dist.init_process_group("cpu:gloo,ocl:oclgloo")      # the same, in full

See docs/distributed.md.
"""

from __future__ import annotations

import functools
import os
import types
import warnings
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
        def make_gloo(store: Any, rank: int, size: int) -> Any:
            return c10d.ProcessGroupGloo(store, rank, size, _options(c10d.ProcessGroupGloo, size, timeout))

        gloo = make_gloo(store, rank, size)
        gloo._set_sequence_number_for_group()
        # A store that outlives a group has what its ranks told each other, which the next group must not read.
        store = c10d.PrefixStore(str(store.add(f"groups/{rank}", 1)), store)
        hosts = _hosts(store, rank, size, c.host_identity())
        segment = _segment(c, store, rank, size, hosts) if len(hosts) < size else None
        firsts = [host[0] for host in hosts]
        between = None
        if segment is not None and rank in firsts and len(hosts) > 1:
            between = make_gloo(c10d.PrefixStore("hosts", store), firsts.index(rank), len(hosts))
        return c.make_oclgloo(gloo, segment, hosts, between)

    c10d.Backend.register_backend(NAME, create, devices=["ocl"])
    _serve_cpu_tensors_too(c10d.BackendConfig)


def _told_by_all(store: Any, subject: str, rank: int, size: int, own: str) -> list[str]:
    """What each rank tells the others about a subject. Waits for all, as long as the store's timeout allows."""
    store.set(f"{subject}/{rank}", own)
    keys = [f"{subject}/{i}" for i in range(size)]
    values = store.multi_get(keys) if store.has_extended_api() else [store.get(key) for key in keys]
    return [value.decode() for value in values]


def _hosts(store: Any, rank: int, size: int, identity: str) -> list[list[int]]:
    """The ranks of each host, by their lowest ranks. A rank that can share memory with no other (an empty identity) is
    on a host of its own.
    """
    ranks: dict[str, list[int]] = {}
    for other, told in enumerate(_told_by_all(store, "host", rank, size, identity or f"rank {rank}")):
        ranks.setdefault(told, []).append(other)
    return list(ranks.values())


def _segment(c: Any, store: Any, rank: int, size: int, hosts: list[list[int]]) -> Any:
    """The memory that this rank shares with the others of its host, or None where one of the group's hosts refuses: all
    ranks must take the same way.
    """
    own = next(host for host in hosts if rank in host)
    segment, problem = None, ""
    try:
        if rank == own[0]:
            segment = c.Segment(len(own))
        else:
            segment = c.Segment(store.get(f"segment/{own[0]}").decode(), own.index(rank))
    except RuntimeError as error:
        problem = f"rank {rank}: {error}"
    if rank == own[0]:
        store.set(f"segment/{rank}", segment.address if segment is not None else "none")
    problems = [told for told in _told_by_all(store, "shared", rank, size, problem or "yes") if told != "yes"]
    if not problems:
        return segment
    if rank == 0:
        warnings.warn(f"oclgloo: the ranks of a host share no memory and use the network: {problems[0]}", stacklevel=2)
    return None


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
