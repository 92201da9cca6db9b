"""Weak scaling on the devices of this host: `python -m benchmarks.scaling --devices 2`.

A training step with DistributedDataParallel, one process to a device and the same batch on each, against the same step
on one device alone. It prints the throughput of all over that many times one's: 1 is perfect; with gradients by shared
memory and, in turns with that, by loopback TCP. Needs torchvision for resnet50 and transformers for gpt2, which is
built from its configuration of 124 million parameters.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from benchmarks.distributed import loopback_group
from dlbackend import ocl

Step = Callable[[torch.nn.Module], torch.Tensor]
WARM_UP, ROUNDS, STEPS = 40, 5, 10


def resnet50(device: torch.device) -> tuple[torch.nn.Module, Step]:
    """The net, and the loss of 64 images."""
    import torchvision

    x, y = torch.randn(64, 3, 224, 224, device=device), torch.randint(1000, (64,), device=device)
    net: torch.nn.Module = torchvision.models.resnet50().to(device)
    return net, lambda model: torch.nn.functional.cross_entropy(model(x), y)


def gpt2(device: torch.device) -> tuple[torch.nn.Module, Step]:
    """The language model, and the loss of 8 texts of 512 tokens."""
    import transformers

    config = transformers.GPT2Config()
    tokens = torch.randint(config.vocab_size, (8, 512), device=device)
    net = transformers.GPT2LMHeadModel(config).to(device)

    def loss(model: torch.nn.Module) -> torch.Tensor:
        output: Any = model(input_ids=tokens, labels=tokens)
        found: torch.Tensor = output.loss
        return found

    return net, loss


NETS = {"resnet50": resnet50, "gpt2": gpt2}


def seconds_of_a_step(name: str, rank: int, groups: dict[str, dist.ProcessGroup | None]) -> dict[str, float]:
    """The median over rounds for each way of exchanging gradients, on the device of the rank; without ways that
    of one device alone, "one".
    """
    device = torch.device("ocl", rank % ocl.device_count())
    torch.ocl.set_device(device)  # type: ignore[attr-defined]

    def make(group: dist.ProcessGroup | None) -> Callable[[int], float]:
        torch.manual_seed(0)
        net, loss = NETS[name](device)
        model = torch.nn.parallel.DistributedDataParallel(net, process_group=group) if groups else net
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

        def steps(count: int) -> float:
            begin = time.perf_counter()
            for _ in range(count):
                optimizer.zero_grad()
                loss(model).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            ocl.synchronize()
            return (time.perf_counter() - begin) / count

        return steps

    ways = {way: make(group) for way, group in (groups or {"one": None}).items()}
    for steps in ways.values():
        steps(WARM_UP)
    rounds = [{way: steps(STEPS) for way, steps in ways.items()} for _ in range(ROUNDS)]
    return {way: statistics.median(found[way] for found in rounds) for way in ways}


def rank_main(rank: int, ranks: int, names: list[str], results: Any) -> None:
    """A process: measures and, as rank 0, tells the parent."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank))
    groups: dict[str, dist.ProcessGroup | None] = {}
    if ranks > 1:
        dist.init_process_group()
        groups = {"shared memory": None, "loopback": loopback_group(rank)}
    for name in names:
        for way, seconds in seconds_of_a_step(name, rank, groups).items():
            if rank == 0:
                results[name, way] = seconds
    if ranks > 1:
        dist.destroy_process_group()


def main() -> None:
    """Measures one device, then all, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--nets", nargs="+", choices=sorted(NETS), default=sorted(NETS))
    arguments = parser.parse_args()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(listener.getsockname()[1]))
    results = mp.Manager().dict()
    for ranks in (1, arguments.devices):
        mp.spawn(rank_main, args=(ranks, arguments.nets, results), nprocs=ranks)  # type: ignore[no-untyped-call]
    for name in arguments.nets:
        one = results[name, "one"]
        print(f"{name:10s} a step: {one * 1e3:8.1f} ms on one device", flush=True)
        for way in ("shared memory", "loopback"):
            time_of_all = f"{results[name, way] * 1e3:8.1f} ms on {arguments.devices} by {way}"
            print(f"{'':10s} {time_of_all}   {one / results[name, way]:5.2f} of perfect scaling", flush=True)


if __name__ == "__main__":
    main()
