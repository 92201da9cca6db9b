"""Collectives on ocl by shared memory, by loopback TCP, and of gloo on CPU tensors: `python -m benchmarks.distributed`.

Processes on this host, as many as --ranks says, each on the device of its number. The three alternate; what is printed
is the median of each, the bytes of the tensor over the time of shared memory, and the median of the rounds' ratios of
loopback to shared memory.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from dlbackend import ocl

Group = dist.ProcessGroup | None
COLLECTIVES = ("all_reduce", "broadcast", "all_gather", "reduce_scatter")


def loopback_group(rank: int) -> dist.ProcessGroup:
    """All ranks, of which each is taken to be on a host of its own: gloo by loopback."""
    plain = os.environ.get("DLBACKEND_EMULATE", "")
    os.environ["DLBACKEND_EMULATE"] = f"{plain},host={rank}".lstrip(",")
    group: dist.ProcessGroup = dist.new_group()
    os.environ["DLBACKEND_EMULATE"] = plain
    return group


def call(collective: str, x: torch.Tensor, ranks: int, group: Group) -> None:
    share = x[: len(x) // ranks]
    if collective == "all_reduce":
        dist.all_reduce(x, group=group)
    elif collective == "broadcast":
        dist.broadcast(x, 0, group=group)
    elif collective == "all_gather":
        dist.all_gather_into_tensor(x, share.clone(), group=group)
    else:
        dist.reduce_scatter_tensor(share.clone(), x, group=group)


def seconds(collective: str, x: torch.Tensor, ranks: int, group: Group) -> float:
    """From all ranks' start until the result is in this rank's tensor."""
    if x.device.type == "ocl":
        ocl.synchronize()
    dist.barrier()
    begin = time.perf_counter()
    call(collective, x, ranks, group)
    if x.device.type == "ocl":
        ocl.synchronize()
    return time.perf_counter() - begin


def rank_main(rank: int, ranks: int, sizes: list[int], rounds: int, chosen: list[str]) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks))
    ocl.set_device(rank % ocl.device_count())
    dist.init_process_group()
    ways: dict[str, tuple[str, Group]] = {
        "gloo": ("cpu", None),
        "loopback": ("ocl", loopback_group(rank)),
        "shared memory": ("ocl", None),
    }
    for collective in chosen:
        for mebibytes in sizes:
            tensors = {device: torch.zeros(mebibytes << 18, device=device) for device in ("cpu", "ocl")}
            times: dict[str, list[float]] = {way: [] for way in ways}
            for i in range(rounds + 1):
                for way, (device, group) in ways.items():
                    took = seconds(collective, tensors[device], ranks, group)
                    if i > 0:
                        times[way].append(took)
            if rank == 0:
                medians = "   ".join(f"{way} {statistics.median(t) * 1e3:8.2f} ms" for way, t in times.items())
                rate = (mebibytes << 20) / statistics.median(times["shared memory"]) / 1e9
                pairs = zip(times["loopback"], times["shared memory"], strict=True)
                ratio = statistics.median(a / b for a, b in pairs)
                print(f"{collective:15s} {mebibytes:5d} MiB   {medians}  {rate:6.1f} GB/s   {ratio:5.2f}x", flush=True)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--mebibytes", type=int, nargs="+", default=[256])
    parser.add_argument("--collectives", nargs="+", choices=COLLECTIVES, default=["all_reduce"])
    arguments = parser.parse_args()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(listener.getsockname()[1]))
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"
    of_each = (arguments.ranks, arguments.mebibytes, arguments.rounds, arguments.collectives)
    mp.spawn(rank_main, args=of_each, nprocs=arguments.ranks)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
