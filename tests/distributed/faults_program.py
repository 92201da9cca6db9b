"""Collectives whose peers are late or gone. The argument names the case."""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from ranks import say

import dlbackend  # noqa: F401

RANK = int(os.environ["RANK"])


def raises(call: str, within: float, *words: str) -> str:
    """The fault of the error that an all_reduce without a peer raises."""
    x, begin = torch.ones(10_000_000, device="ocl"), time.monotonic()
    try:
        if call == "wait":
            dist.all_reduce(x, async_op=True).wait()
        else:
            dist.all_reduce(x)
    except dist.DistBackendError as error:
        took = time.monotonic() - begin
        missing = [word for word in words if word not in str(error)]
        return f"not in {error}: {missing}" if missing else "" if took < within else f"took {took} s"
    return "nothing was raised"


def killed_peer() -> None:
    x = torch.ones(1000, device="ocl")
    dist.all_reduce(x)
    if RANK == 1:
        os.kill(os.getpid(), 9)
    say("killed peer", raises("wait", 5, "all_reduce", "40000000 bytes", "rank 0 of 2"))
    say("again", raises("call", 5, "all_reduce", "rank 0 of 2"))
    y = x + 1  # the device works as before
    assert y.sum().item() == 3000


def killed_in_the_middle() -> None:
    """While the ranks are exchanging a large tensor, as far as one can tell."""
    x = torch.ones(100_000_000, device="ocl")
    dist.all_reduce(torch.ones(1000, device="ocl"))
    begin = time.monotonic()
    work = dist.all_reduce(x, async_op=True)
    if RANK == 1:
        time.sleep(0.05)
        os.kill(os.getpid(), 9)
    try:
        work.wait()
        dist.all_reduce(x)
        say("killed", "nothing was raised")
    except dist.DistBackendError as error:
        took, told = time.monotonic() - begin, "has ended" in str(error) or "failed in this" in str(error)
        say("killed", "" if took < 10 and told else f"{took} s: {error}")


def timeout() -> None:
    if RANK == 0:
        say("timeout", raises("wait", 10, "all_reduce", "rank 0 of 2"))
    else:
        time.sleep(4)


def wait_with_timeout() -> None:
    if RANK == 0:
        work = dist.all_reduce(x := torch.ones(5, device="ocl"), async_op=True)
        try:
            work.wait(timedelta(seconds=0.2))
            say("wait", "nothing was raised")
        except dist.DistBackendError as error:
            say("wait", "" if "time out" in str(error) else str(error))
        work.wait()
        assert x.sum().item() == 10
    else:
        time.sleep(1.5)
        dist.all_reduce(torch.ones(5, device="ocl"))


def store() -> dist.Store:
    found: dist.Store = dist.distributed_c10d._get_default_store()
    return found


LEFT: list[object] = []  # works that the process ends with


def exit_with_pending_work() -> None:
    if RANK == 0:
        pending = [dist.all_reduce(torch.ones(100_000, device="ocl"), async_op=True) for _ in range(3)]
        LEFT.extend(pending)
        LEFT.append(pending[0].get_future().then(lambda future: future.value()))
        store().set("pid", str(os.getpid()))
    else:
        pid, begin = int(store().get("pid")), time.monotonic()
        while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]:
            if time.monotonic() - begin > 20:
                return say("exit", "the process with work pending does not end")
            time.sleep(0.1)
        say("exit", "")


def exit_without_destroying() -> None:
    dist.all_reduce(torch.ones(100_000, device="ocl"), async_op=True)


if __name__ == "__main__":
    seconds = 2 if sys.argv[1] == "timeout" else 60
    dist.init_process_group(timeout=timedelta(seconds=seconds))
    globals()[sys.argv[1]]()
