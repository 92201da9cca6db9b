"""Collectives of ranks that share memory, of any number of ranks and hosts, against the CPU's arithmetic."""

from __future__ import annotations

import gc
import os
import random
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from ranks import say

import dlbackend  # noqa: F401

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
HALF = 256 << 10  # bytes of a step
COUNTS = [0, 1, 3, 63, 1025, HALF // 4, HALF + 5, 2_200_003]
OPS = dist.ReduceOp
INTEGERS = (torch.uint8, torch.int8, torch.int32, torch.int64)
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
Tensor = torch.Tensor


def values(rank: int, count: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """The same on every rank that asks for a rank's: whole numbers that every dtype holds, so that sums are exact."""
    generator = torch.Generator().manual_seed(97 * seed + rank)
    low = 0 if dtype in (torch.uint8, torch.bool) else -3
    return torch.randint(low, 2 if dtype == torch.bool else 4, (count,), generator=generator).to(dtype)


def fold(op: Any, tensors: list[Tensor]) -> Tensor:
    """Integers as they are, the rest in float64; back in the dtype of the tensors."""
    dtype = tensors[0].dtype
    wide = [x.double() if dtype.is_floating_point else x.clone() for x in tensors]
    binary: dict[Any, Callable[[Tensor, Tensor], Tensor]] = {
        OPS.SUM: lambda a, b: a | b if dtype == torch.bool else a + b,
        OPS.AVG: torch.add,
        OPS.PRODUCT: torch.mul,
        OPS.MIN: torch.minimum,
        OPS.MAX: torch.maximum,
        OPS.BAND: torch.bitwise_and,
        OPS.BOR: torch.bitwise_or,
        OPS.BXOR: torch.bitwise_xor,
    }
    result = wide[0]
    for x in wide[1:]:
        result = binary[op](result, x)
    return (result / len(tensors) if op == OPS.AVG else result).to(dtype)


def equal(found: Tensor, right: Tensor, *what: object) -> None:
    assert torch.equal(found.cpu(), right), (what, found, right)


def shares_memory() -> bool:
    return "memfd:dlbackend" in Path("/proc/self/maps").read_text()


def reductions_of_all_dtypes() -> None:
    for dtype in (*FLOATS, *INTEGERS, torch.bool):
        names = ["SUM", "PRODUCT", "MIN", "MAX"]
        names += ["AVG"] if dtype in FLOATS else ["BAND", "BOR", "BXOR"] if dtype in INTEGERS else []
        for name in names:
            op = getattr(OPS, name)
            x = values(RANK, 1025, dtype).to("ocl")
            dist.all_reduce(x, op)
            equal(x, fold(op, [values(i, 1025, dtype) for i in range(SIZE)]), dtype, name)


def collectives_of_all_sizes() -> None:
    for count in COUNTS:
        inputs = [values(i, count) for i in range(SIZE)]
        x = inputs[RANK].to("ocl")
        dist.all_reduce(x)
        equal(x, fold(OPS.SUM, inputs), "all_reduce", count)
        y = torch.zeros(SIZE * count, device="ocl")
        dist.all_gather_into_tensor(y, inputs[RANK].to("ocl"))
        equal(y, torch.cat(inputs), "all_gather", count)
        wide = [values(i, SIZE * count, torch.float16) for i in range(SIZE)]
        z = torch.zeros(count, dtype=torch.float16, device="ocl")
        dist.reduce_scatter_tensor(z, (whole := wide[RANK].to("ocl")))
        equal(z, fold(OPS.SUM, wide)[RANK * count : (RANK + 1) * count], "reduce_scatter", count)
        equal(whole, wide[RANK], "the input of reduce_scatter", count)
        dist.barrier()


def roots() -> None:
    for root in range(SIZE):
        inputs = [values(i, HALF + root, seed=root) for i in range(SIZE)]
        x, y = (inputs[RANK].to("ocl") for _ in range(2))
        dist.broadcast(x, root)
        equal(x, inputs[root], "broadcast", root)
        dist.reduce(y, root)
        equal(y, fold(OPS.SUM, inputs) if root == RANK else inputs[RANK], "reduce", root)


def strided_and_in_place() -> None:
    inputs = [values(i, 60_000).view(200, 300) for i in range(SIZE)]
    whole = inputs[RANK].to("ocl")
    dist.all_reduce(whole.t()[10:200:2])
    right = inputs[RANK].clone()
    right.t()[10:200:2] = fold(OPS.SUM, inputs).t()[10:200:2]
    equal(whole, right)
    gathered = torch.zeros(SIZE, 60_000, device="ocl")
    gathered[RANK] = inputs[RANK].view(-1).to("ocl")
    dist.all_gather_into_tensor(gathered, gathered[RANK])
    equal(gathered, torch.stack([x.view(-1) for x in inputs]))


def results_are_the_same_bits_on_all_ranks() -> None:
    """Also where rounding depends on the order, and each time anew."""
    for dtype in FLOATS:
        generator = torch.Generator().manual_seed(RANK)
        own = torch.randn(100_003, generator=generator).to(dtype)
        results = []
        for _ in range(2):
            x = own.to("ocl")
            dist.all_reduce(x)
            results.append(x.cpu())
        assert torch.equal(*results), dtype
        everywhere = [torch.zeros_like(own) for _ in range(SIZE)]
        dist.all_gather(everywhere, results[0])  # by gloo
        assert all(torch.equal(one, results[0]) for one in everywhere), dtype
        inputs = [torch.zeros_like(own) for _ in range(SIZE)]
        dist.all_gather(inputs, own)
        wide = torch.stack([x.double() for x in inputs]).sum(0)
        error = (results[0].double() - wide).abs().max().item()
        assert error <= SIZE * torch.finfo(dtype).eps * wide.abs().max().item(), (dtype, error)


def random_work_in_flight() -> None:
    """Many collectives begun before the first is waited for, in two groups, as those of DDP's buckets are."""
    dice, other = random.Random(5), dist.new_group()
    works, expected = [], []
    for seed in range(60):
        count, dtype = dice.choice([1, 70, 3_001, 90_000]), dice.choice([*FLOATS, torch.int64])
        x = values(RANK, count, dtype, seed).to("ocl")
        root, group = dice.randrange(SIZE), dice.choice([None, other])
        if dice.random() < 0.3:
            works.append(dist.broadcast(x, root, group=group, async_op=True))
            expected.append((x, values(root, count, dtype, seed)))
        else:
            works.append(dist.all_reduce(x, group=group, async_op=True))
            expected.append((x, fold(OPS.SUM, [values(i, count, dtype, seed) for i in range(SIZE)])))
    for work in reversed(works):
        work.wait()
    for x, right in expected:
        equal(x, right)


def threads_with_groups_of_their_own() -> None:
    groups, problems = [dist.new_group() for _ in range(3)], []

    def run(number: int, group: Any) -> None:
        try:
            for seed in range(15):
                x = values(RANK, 20_000 + number, seed=seed).to("ocl")
                dist.all_reduce(x, group=group)
                equal(x, fold(OPS.SUM, [values(i, 20_000 + number, seed=seed) for i in range(SIZE)]))
        except BaseException:
            problems.append(traceback.format_exc())

    threads = [threading.Thread(target=run, args=each) for each in enumerate(groups)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems, problems[0]


def groups_of_some_ranks() -> None:
    for members in ([0, SIZE - 1], list(range(1, SIZE)), [SIZE - 1]):
        group = dist.new_group(members)
        if RANK in members:
            x = values(RANK, HALF).to("ocl")
            dist.all_reduce(x, group=group)
            equal(x, fold(OPS.SUM, [values(i, HALF) for i in members]), members)
            y = values(RANK, 100).to("ocl")
            dist.broadcast(y, members[-1], group=group)
            equal(y, values(members[-1], 100), members)


def calls_that_do_not_match_raise() -> None:
    """On all ranks and at once; the group's later collectives raise too, and other groups go on."""
    group, told = dist.new_group(), []
    for _ in range(2):
        try:
            dist.all_reduce(torch.ones(10 + RANK, device="ocl"), group=group)
        except dist.DistBackendError as error:
            told.append(str(error))
    assert len(told) == 2, told
    assert "called for another collective" in told[0] or "failed in this collective" in told[0], told
    dist.barrier()


def nothing_is_left() -> None:
    """The memory has no name while it is used, and goes with the groups."""
    before = sorted(os.listdir("/dev/shm"))
    dist.all_reduce(torch.ones(10, device="ocl"))
    assert sorted(os.listdir("/dev/shm")) == before
    dist.barrier()
    dist.destroy_process_group()
    gc.collect()
    assert not shares_memory()


CASES = [
    reductions_of_all_dtypes,
    collectives_of_all_sizes,
    roots,
    strided_and_in_place,
    results_are_the_same_bits_on_all_ranks,
    random_work_in_flight,
    threads_with_groups_of_their_own,
    groups_of_some_ranks,
]

if __name__ == "__main__":
    dist.init_process_group()
    dist.all_reduce(torch.ones(1, device="ocl"))
    one_host = "host=" not in os.environ.get("DLBACKEND_EMULATE", "")
    say("shares memory", "" if shares_memory() else "no")
    for case in [*CASES, calls_that_do_not_match_raise, nothing_is_left] if one_host else [*CASES, nothing_is_left]:
        try:
            case()
            say(case.__name__, "")
        except Exception:
            say(case.__name__, traceback.format_exc()[-3000:])
    if dist.is_initialized():
        dist.destroy_process_group()
