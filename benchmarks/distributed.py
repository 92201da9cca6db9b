"""all_reduce on ocl against gloo on CPU tensors of the same size: `python -m benchmarks.distributed`.

Processes on this host, as many as --ranks says. The two alternate; what is printed is the median of each and the
median of the rounds' ratios: 1 is gloo itself, staging included on the side of ocl.
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

COLLECTIVES = ("all_reduce", "broadcast", "all_gather", "reduce_scatter")


def call(collective: str, x: torch.Tensor, ranks: int) -> None:
    share = x[: len(x) // ranks]
    if collective == "all_reduce":
        dist.all_reduce(x)
    elif collective == "broadcast":
        dist.broadcast(x, 0)
    elif collective == "all_gather":
        dist.all_gather_into_tensor(x, share.clone())
    else:
        dist.reduce_scatter_tensor(share.clone(), x)


def seconds(collective: str, x: torch.Tensor, ranks: int) -> float:
    """From all ranks' start until the result is in this rank's tensor."""
    if x.device.type == "ocl":
        ocl.synchronize()
    dist.barrier()
    begin = time.perf_counter()
    call(collective, x, ranks)
    if x.device.type == "ocl":
        ocl.synchronize()
    return time.perf_counter() - begin


def rank_main(rank: int, ranks: int, sizes: list[int], rounds: int, chosen: list[str]) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks))
    dist.init_process_group()
    for collective in chosen:
        for mebibytes in sizes:
            tensors = {device: torch.zeros(mebibytes << 18, device=device) for device in ("cpu", "ocl")}
            times: dict[str, list[float]] = {device: [] for device in tensors}
            for i in range(rounds + 1):
                for device, x in tensors.items():
                    took = seconds(collective, x, ranks)
                    if i > 0:
                        times[device].append(took)
            if rank == 0:
                gloo, ours = (statistics.median(times[device]) for device in ("cpu", "ocl"))
                ratio = statistics.median(a / b for a, b in zip(times["cpu"], times["ocl"], strict=True))
                milliseconds = f"gloo {gloo * 1e3:8.1f} ms   ocl {ours * 1e3:8.1f} ms"
                print(f"{collective:15s} {mebibytes:5d} MiB   {milliseconds}   {ratio:5.2f}x", flush=True)
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
