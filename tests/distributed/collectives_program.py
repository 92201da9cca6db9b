"""Every collective on ocl against gloo on the CPU: the same calls, the same results or errors of the same type."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from ranks import say

import dlbackend

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
OPS = dist.ReduceOp
REDUCED = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
]
MOVED = [torch.float32, torch.bfloat16, torch.bool, torch.complex64, torch.int64]
LARGE = 3_000_001  # more than a chunk of 8 MiB in float32, and not a multiple of anything
Outputs = list[torch.Tensor]
Collective = Callable[[str, torch.dtype, int], Outputs]


def values(count: int, dtype: torch.dtype, device: str, shift: int = 0) -> torch.Tensor:
    """Small whole numbers that differ from rank to rank."""
    return ((torch.arange(count) * 3) % 5 + RANK + shift).to(dtype).to(device)


def reduction(op: Any) -> Collective:
    def run(device: str, dtype: torch.dtype, count: int) -> Outputs:
        x = values(count, dtype, device)
        dist.all_reduce(x, op)
        return [x]

    return run


def reduce(device: str, dtype: torch.dtype, count: int) -> Outputs:
    x = values(count, dtype, device)
    dist.reduce(x, 1)
    return [x] if RANK == 1 else []


def reduce_scatter_tensor(device: str, dtype: torch.dtype, count: int) -> Outputs:
    x, y = values(SIZE * count, dtype, device), torch.zeros(count, dtype=dtype, device=device)
    dist.reduce_scatter_tensor(y, x)
    return [x, y]


def reduce_scatter(device: str, dtype: torch.dtype, count: int) -> Outputs:
    x = [values(count, dtype, device, i) for i in range(SIZE)]
    y = torch.zeros(count, dtype=dtype, device=device)
    dist.reduce_scatter(y, x)
    return [y, *x]


def reduce_scatter_uneven(device: str, dtype: torch.dtype, count: int) -> Outputs:
    x = [values(count + i, dtype, device, i) for i in range(SIZE)]
    y = torch.zeros(count + RANK, dtype=dtype, device=device)
    dist.reduce_scatter(y, x)
    return [y]


def all_reduce_coalesced(device: str, dtype: torch.dtype, count: int) -> Outputs:
    x = [values(count + i, dtype, device, i) for i in range(3)]
    dist.all_reduce_coalesced(x)
    return x


def broadcast(device: str, dtype: torch.dtype, count: int) -> Outputs:
    x = values(count, dtype, device)
    dist.broadcast(x, 1)
    return [x]


def all_gather(device: str, dtype: torch.dtype, count: int) -> Outputs:
    x = values(count, dtype, device)
    y = [torch.zeros_like(x) for _ in range(SIZE)]
    dist.all_gather(y, x)
    return y


def all_gather_into_tensor(device: str, dtype: torch.dtype, count: int) -> Outputs:
    y = torch.zeros(SIZE * count, dtype=dtype, device=device)
    dist.all_gather_into_tensor(y, values(count, dtype, device))
    return [y]


def gather(device: str, dtype: torch.dtype, count: int) -> Outputs:
    x = values(count, dtype, device)
    y = [torch.zeros_like(x) for _ in range(SIZE)] if RANK == 0 else None
    dist.gather(x, y)
    return y or []


def scatter(device: str, dtype: torch.dtype, count: int) -> Outputs:
    x = [values(count, dtype, device, i) for i in range(SIZE)] if RANK == 0 else None
    y = torch.zeros(count, dtype=dtype, device=device)
    dist.scatter(y, x)
    return [y]


def all_to_all(device: str, dtype: torch.dtype, count: int) -> Outputs:
    x = [values(count, dtype, device, i) for i in range(SIZE)]
    y = [torch.zeros_like(one) for one in x]
    dist.all_to_all(y, x)
    return y


def all_to_all_single(device: str, dtype: torch.dtype, count: int) -> Outputs:
    x = values(SIZE * count, dtype, device)
    even = torch.zeros_like(x)
    dist.all_to_all_single(even, x)
    rows = values(6, dtype, device).view(3, 2)  # one row to rank 0, two to rank 1
    mine = 1 + RANK
    uneven = torch.zeros(SIZE * mine, 2, dtype=dtype, device=device)
    dist.all_to_all_single(uneven, rows, [mine] * SIZE, [1, 2])
    return [even, uneven]


def send(device: str, dtype: torch.dtype, count: int) -> Outputs:
    x = values(count, dtype, device)
    if RANK == 0:
        dist.send(x, 1)
    else:
        assert dist.recv(x) == 0
    y, z = torch.zeros_like(x), values(count, dtype, device)
    both = [dist.P2POp(dist.isend, z, 1 - RANK), dist.P2POp(dist.irecv, y, 1 - RANK)]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    return [x, y]


MOVES: list[Collective] = [
    broadcast,
    all_gather,
    all_gather_into_tensor,
    scatter,
    all_to_all,
    all_to_all_single,
    send,
]
SUMS: list[Collective] = [
    reduce,
    reduce_scatter_tensor,
    reduce_scatter,
    reduce_scatter_uneven,
    all_reduce_coalesced,
]


def outcome(run: Collective, device: str, dtype: torch.dtype, count: int) -> Outputs | Exception:
    try:
        return run(device, dtype, count)
    except Exception as error:
        return error


def check(case: str, run: Collective, dtype: torch.dtype, count: int = 7) -> None:
    expected, found = outcome(run, "cpu", dtype, count), outcome(run, "ocl", dtype, count)
    problem = ""
    if isinstance(expected, Exception) or isinstance(found, Exception):
        # gloo exchanges lists of tensors only since torch 2.12.
        ours_alone = "does not support alltoall" in str(expected) and not isinstance(found, Exception)
        if type(expected) is not type(found) and not ours_alone:
            problem = f"gloo: {expected!r}, ocl: {found!r}"
    elif not all(y.device.type == "ocl" and torch.equal(x, y.cpu()) for x, y in zip(expected, found, strict=True)):
        problem = f"gloo: {expected}, ocl: {found}"
    say(f"{case} {str(dtype).removeprefix('torch.')} {count}", problem)


def bytes_of_any_dtype() -> None:
    for dtype in (torch.int16, torch.uint16, torch.float8_e4m3fn):
        right = torch.tensor([3, 1, 5]).to(dtype).view(torch.uint8)
        x = (right if RANK == 0 else right * 0).to("ocl").view(dtype)
        dist.broadcast(x, 0)
        assert torch.equal(x.cpu().view(torch.uint8), right), dtype


def strided_tensors_are_right() -> None:
    base = torch.arange(12.0).view(3, 4)
    for view in (lambda x: x[:, :2], lambda x: x.t(), lambda x: x[:, ::2], lambda x: x[1:]):
        whole = (base + RANK).to("ocl")
        dist.all_reduce(view(whole))
        right = base + RANK
        view(right).copy_(view(2 * base + 1))
        assert torch.equal(whole.cpu(), right), whole
    x = view(base.to("ocl"))
    y = [torch.zeros(4, 4, device="ocl")[:2] for _ in range(SIZE)]
    dist.all_gather(y, x + RANK)
    assert torch.equal(y[1].cpu(), view(base) + 1)


def all_to_all_of_several_sizes() -> None:
    x = [torch.full((3 + i + RANK,), 10.0 * RANK + i, device="ocl") for i in range(SIZE)]
    y = [torch.zeros(3 + i + RANK, device="ocl") for i in range(SIZE)]
    dist.all_to_all(y, x)
    assert [one.tolist() for one in y] == [[10.0 * i + RANK] * (3 + i + RANK) for i in range(SIZE)]


def wrong_arguments_raise() -> None:
    ones = torch.ones(4, device="ocl")
    for call in (
        lambda: dist.all_gather_into_tensor(torch.ones(3, device="ocl"), ones),
        lambda: dist.all_gather_into_tensor(torch.ones(8, device="ocl").double(), ones),
        lambda: dist.reduce_scatter_tensor(ones, torch.ones(9, device="ocl")),
        lambda: dist.all_reduce(ones.expand(3, 4)),
        lambda: dist.all_reduce(ones, dist._make_nccl_premul_sum(2.0)),
        lambda: dist.all_to_all_single(torch.ones(3, device="ocl"), ones),
        lambda: dist.send(torch.ones(3, 2, device="ocl").t(), 1 - RANK),
    ):
        try:
            call()
        except RuntimeError:
            continue
        raise AssertionError("nothing was raised")


def futures_and_streams() -> None:
    side = torch.ocl.Stream()
    for i in range(20):
        x = torch.full((1000,), 1.0, device="ocl")
        with torch.ocl.stream(side):
            side.wait_stream(torch.ocl.default_stream())
            y = x * (i + RANK)
            work = dist.all_reduce(y, async_op=True)
            doubled = work.get_future().then(lambda future: future.value()[0] * 2)
        work.wait()
        assert y.sum().item() == 1000 * (2 * i + 1)
        assert doubled.wait()[5].item() == 2 * (2 * i + 1)
    tensors = [torch.ones(100, device="ocl") * i for i in range(50)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        work.wait()
    assert [int(tensor[3]) for tensor in tensors] == [2 * i for i in range(50)]
    for _ in range(5):  # nobody waits, and the memory is used again at once
        dist.all_reduce(torch.ones(3_000_000, device="ocl"), async_op=True)
        torch.zeros(3_000_000, device="ocl")
    dist.barrier()


def callbacks_may_wait_for_collectives() -> None:
    def again(future: torch.futures.Future[Any]) -> torch.Tensor:
        x = future.value()[0]
        dist.all_reduce(x, async_op=True).get_future().wait()
        return x

    first = dist.all_reduce(torch.ones(10, device="ocl"), async_op=True).get_future()
    assert first.then(again).wait()[0].item() == 4


def receive_before_joining() -> None:
    """Rank 1 receives first: what rank 0 sends must not wait for the all_reduce that rank 0 has begun."""
    x, y = torch.ones(40_000_000, device="ocl"), torch.full((5,), float(RANK), device="ocl")
    if RANK == 0:
        work = dist.all_reduce(x, async_op=True)
        dist.send(y, 1)
        work.wait()
    else:
        dist.recv(y, 0)
        dist.all_reduce(x)
    assert y[0].item() == 0
    assert x[-1].item() == 2


def objects() -> None:
    for group in (None, dist.new_group(backend="ocl:oclgloo")):
        found: list[Any] = [None] * SIZE
        dist.all_gather_object(found, {"rank": RANK}, group=group)
        assert found == [{"rank": 0}, {"rank": 1}]
        sent = [["a", torch.ones(2)]] if RANK == 0 else [None]
        dist.broadcast_object_list(sent, 0, group=group)
        assert sent[0] is not None
        assert sent[0][0] == "a"
        dist.barrier(group=group)


def groups() -> None:
    both, alone = dist.new_group(), [dist.new_group([rank]) for rank in range(SIZE)]
    x, y, z = (torch.ones(100_000, device="ocl") for _ in range(3))
    works = [dist.all_reduce(t, group=g, async_op=True) for t, g in ((x, None), (y, both), (z, alone[RANK]))]
    for work in works:
        work.wait()
    assert (x[0].item(), y[0].item(), z[0].item()) == (2, 2, 1)
    dist.destroy_process_group(both)
    dist.all_reduce(x)
    assert x[7].item() == 4
    backend: Any = dist.distributed_c10d._get_default_group()._get_backend(torch.device("ocl"))
    assert backend.name() == "oclgloo"
    backend.monitored_barrier()
    assert dist.get_backend_config() == "cpu:gloo,ocl:oclgloo"


def sparse() -> None:
    x = torch.sparse_coo_tensor(torch.tensor([[RANK, 2]]), torch.tensor([1.0, 2.0]), (4,)).to("ocl")
    dist.all_reduce(x)
    assert x.to_dense().tolist() == [1, 1, 4, 0]


if __name__ == "__main__":
    dist.init_process_group()
    for name in ("SUM", "AVG", "MIN", "MAX", "PRODUCT", "BAND", "BOR", "BXOR"):
        for dtype in (*REDUCED, torch.bool) if name in ("SUM", "AVG") else REDUCED[:2] + REDUCED[3:6]:
            if name != "SUM" or dtype != torch.bool:  # gloo adds bytes: see the page
                check(f"all_reduce {name}", reduction(getattr(OPS, name)), dtype)
    for run in SUMS:
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            check(run.__name__, run, dtype)
        check(run.__name__, run, torch.float32, LARGE)
        check(run.__name__, run, torch.float32, 0)
    for run in MOVES:
        for dtype in MOVED:
            check(run.__name__, run, dtype)
        check(run.__name__, run, torch.float32, LARGE)
    check("gather", gather, torch.float32)
    check("all_reduce SUM", reduction(OPS.SUM), torch.complex64)
    for size in (LARGE, 0):
        check("all_reduce SUM", reduction(OPS.SUM), torch.float32, size)
    for claim in (
        bytes_of_any_dtype,
        strided_tensors_are_right,
        all_to_all_of_several_sizes,
        wrong_arguments_raise,
        futures_and_streams,
        callbacks_may_wait_for_collectives,
        receive_before_joining,
        objects,
        groups,
        sparse,
    ):
        try:
            claim()
            say(claim.__name__, "")
        except Exception as error:
            say(claim.__name__, repr(error))
    import dlbackend

    say("no fallback", str(dlbackend.fallback_report() or ""))
    dist.destroy_process_group()
