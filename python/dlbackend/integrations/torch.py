"""PyTorch itself: DistributedDataParallel's hooks that begin collectives in callbacks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from dlbackend.integrations.patching import Patch, Wrap

INSTEAD = "Give DistributedDataParallel a bucket_cap_mb of the net's size where you register a PowerSGD hook."


def in_order(hook: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A hook that ends one bucket's collectives before the caller can begin the next one's.

    PowerSGD's second and third all_reduce begin in callbacks of the first. Where data comes by the host, callbacks
    run when it is there: on one rank before the next bucket's first all_reduce, on another behind it. Collectives are
    matched by their order, so that this ends the process, or both ranks wait for each other. (It does so in plain
    gloo too. CUDA's futures complete before the data is there, in the call that makes them.)
    """

    @functools.wraps(hook)
    def wrapper(state: Any, bucket: Any) -> Any:
        future = hook(state, bucket)
        if bucket.buffer().device.type == "ocl":
            future.wait()
        return future

    return wrapper


PATCHES: dict[str, list[Patch]] = {
    "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook": [
        Wrap("powerSGD_hook", "all_reduce(...).get_future().then(... all_reduce(...) ...).then(compute_qs)", in_order),
    ],
}
