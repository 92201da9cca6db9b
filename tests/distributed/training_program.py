"""Training on two processes in the ways that PyTorch has: the same losses as one process has on the CPU."""

from __future__ import annotations

import os
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from ranks import say
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
STEPS, BATCH, FEATURES, CLASSES = 20, 16, 32, 10
Net = nn.Module
Losses = list[float]


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, CLASSES))


def data() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(5)
    return torch.randn(STEPS, BATCH, FEATURES), torch.randint(CLASSES, (STEPS, BATCH))


def train(model: Net, optimizer: Any = None, whole_batch: bool = False, accumulate: bool = False) -> Losses:
    """The losses of the whole batch, of which this rank takes its share unless each takes all."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = data()
    share = slice(None) if whole_batch else slice(RANK * BATCH // SIZE, (RANK + 1) * BATCH // SIZE)
    losses = []
    for x, y in zip(inputs[:, share].to("ocl"), targets[:, share].to("ocl"), strict=True):
        optimizer.zero_grad()
        if accumulate:
            half = len(x) // 2
            with model.no_sync():  # type: ignore[operator]
                first = nn.functional.cross_entropy(model(x[:half]), y[:half]) / 2
                first.backward()
            second = nn.functional.cross_entropy(model(x[half:]), y[half:]) / 2
            second.backward()
            loss = first + second
        else:
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    mean = torch.stack(losses)
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    found: Losses = mean.tolist()
    return found


def expected(model: Net) -> Losses:
    """One process on the CPU."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for x, y in zip(*data(), strict=True):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def ddp() -> Losses:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return train(DDP(net().to("ocl")))


def ddp_bucket_views() -> Losses:
    return train(DDP(net().to("ocl"), gradient_as_bucket_view=True, bucket_cap_mb=0.005))  # type: ignore[arg-type]


def ddp_static_graph() -> Losses:
    return train(DDP(net().to("ocl"), static_graph=True))


def ddp_unused_parameters() -> Losses:
    model = net()
    model[0].register_parameter("unused", nn.Parameter(torch.ones(3)))
    return train(DDP(model.to("ocl"), find_unused_parameters=True))


def ddp_no_sync() -> Losses:
    return train(DDP(net().to("ocl")), accumulate=True)


def ddp_fp16_hook() -> Losses:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model = DDP(net().to("ocl"), bucket_cap_mb=0.005)  # type: ignore[arg-type]
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return train(model)


def ddp_builtin_hook() -> Losses:
    model = DDP(net().to("ocl"))
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    return train(model)


def ddp_power_sgd_hook() -> Losses:
    """Approximates, from the third step on: only the steps before are exact. In several buckets."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    model = DDP(net().to("ocl"), bucket_cap_mb=0.005)  # type: ignore[arg-type]
    state = powerSGD_hook.PowerSGDState(None, 4, start_powerSGD_iter=3, min_compression_rate=1)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    losses, right = train(model), expected(net())
    assert max(abs(a - b) for a, b in zip(losses[:3], right[:3], strict=True)) < 1e-3
    assert max(abs(a - b) for a, b in zip(losses, right, strict=True)) < 0.3
    assert len(state.p_memory_dict) > 1, "all gradients were in one bucket"
    return right


def ddp_zero_redundancy_optimizer() -> Losses:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DDP(net().to("ocl"))
    return train(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1))


def fsdp2() -> Losses:
    from torch.distributed.fsdp import fully_shard

    model = net().to("ocl")
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    return train(model)


def fsdp1() -> Losses:
    from torch.distributed.fsdp import FullyShardedDataParallel

    return train(FullyShardedDataParallel(net(), device_id=torch.device("ocl:0"), use_orig_params=True))


def tensor_parallel() -> Losses:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("ocl", (SIZE,))
    plan: Any = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = parallelize_module(net().to("ocl"), mesh, plan)
    # Sharded and plain parameters side by side: PyTorch's foreach optimizers refuse that on every device.
    return train(model, torch.optim.SGD(model.parameters(), lr=0.1, foreach=False), whole_batch=True)


def checkpoints() -> Losses:
    """FSDP2's sharded state, saved in the middle and loaded into another model."""
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.fsdp import fully_shard

    model, other = net().to("ocl"), net().to("ocl")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    for one in (model, other):
        fully_shard(one)
    folder = [tempfile.mkdtemp() if RANK == 0 else None]
    dist.broadcast_object_list(folder, 0)
    checkpoint.save({"model": model.state_dict()}, checkpoint_id=folder[0])
    state = {"model": other.state_dict()}
    checkpoint.load(state, checkpoint_id=folder[0])
    other.load_state_dict(state["model"])
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.sub_(1)
    return train(other)


def sync_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Unflatten(1, (2, 4, 4)),
        nn.Conv2d(2, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16, CLASSES),
    )


def sync_batch_norm() -> Losses:
    model = DDP(nn.SyncBatchNorm.convert_sync_batchnorm(sync_net()).to("ocl"))
    losses, right, one = train(model), expected(sync_net()), sync_net()
    expected(one)
    mine = dict(model.module.named_buffers())
    for name, buffer in one.named_buffers():
        torch.testing.assert_close(mine[name].cpu(), buffer, rtol=1e-3, atol=1e-3)
    assert max(abs(a - b) for a, b in zip(losses, right, strict=True)) < 1e-3
    return expected(net())


def cpu_models_train_too() -> Losses:
    model = DDP(net())
    x, y = data()
    nn.functional.cross_entropy(model(x[0]), y[0]).backward()
    assert next(model.parameters()).grad is not None
    return expected(net())


CASES: list[Callable[[], Losses]] = [
    ddp,
    ddp_bucket_views,
    ddp_static_graph,
    ddp_unused_parameters,
    ddp_no_sync,
    ddp_fp16_hook,
    ddp_builtin_hook,
    ddp_power_sgd_hook,
    ddp_zero_redundancy_optimizer,
    fsdp2,
    fsdp1,
    tensor_parallel,
    checkpoints,
    sync_batch_norm,
    cpu_models_train_too,
]

if __name__ == "__main__":
    dist.init_process_group()
    right = expected(net())
    for case in CASES:
        try:
            worst = max(abs(a - b) for a, b in zip(case(), right, strict=True))
            say(case.__name__, "" if worst < 1e-3 else f"the losses differ by {worst}")
        except Exception:
            say(case.__name__, traceback.format_exc()[-3000:])
    import dlbackend

    say("no fallback", str(dlbackend.fallback_report() or ""))
    dist.destroy_process_group()
    print(Path(__file__).name, "ended")
