"""Programs of two processes as users write them with accelerate, transformers and Lightning: prints the losses as JSON.

Each step takes the same 16 samples that one process takes, so that its loss is the CPU's of one process.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import packages  # noqa: F401 (makes any torchvision importable, before those who import it)
import torch
from torch import nn

STEPS, BATCH = 20, 16


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))


def samples() -> torch.utils.data.TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return torch.utils.data.TensorDataset(
        torch.randn(STEPS * BATCH, 8, generator=generator), torch.randn(STEPS * BATCH, 1, generator=generator)
    )


def with_accelerate(**arguments: Any) -> list[float]:
    import accelerate

    accelerator = accelerate.Accelerator(**arguments)
    assert accelerator.num_processes == 2, accelerator.state
    assert accelerator.device == torch.device("ocl", accelerator.local_process_index % torch.ocl.device_count())
    model = net()
    loader = torch.utils.data.DataLoader(samples(), batch_size=BATCH // 2)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2), loader)
    losses = []
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        losses.append(accelerator.gather(loss.detach().view(1)).mean().item())
    accelerator.wait_for_everyone()
    accelerator.end_training()
    return losses


def accelerate_ddp() -> list[float]:
    return with_accelerate()


def accelerate_fsdp(version: int) -> list[float]:
    import accelerate

    policy = "size_based_wrap"
    plugin = accelerate.FullyShardedDataParallelPlugin(
        fsdp_version=version, auto_wrap_policy=policy, min_num_params=200, use_orig_params=version == 1 or None
    )
    return with_accelerate(fsdp_plugin=plugin)


def trainer(folder: str, version: int = 0, **arguments: Any) -> list[float]:
    from small_bert import trained

    # Without it the Trainer multiplies what is a mean by the number of processes, on any device, since BERT takes any
    # argument.
    found, losses = trained(folder, max_steps=STEPS, average_tokens_across_devices=False, **arguments)
    assert found.accelerator.num_processes == 2, found.accelerator.state
    assert {parameter.device.type for parameter in found.model.parameters()} == {"ocl"}
    kind = found.accelerator.distributed_type
    assert (kind == "FSDP") == ("fsdp" in arguments), kind
    if "fsdp" in arguments:
        assert found.accelerator.is_fsdp2 == (version == 2)
    return losses


def trainer_fsdp(folder: str, version: int) -> list[float]:
    wrap = {"version": version, "transformer_layer_cls_to_wrap": ["BertLayer"]}
    return trainer(folder, version, fsdp="full_shard auto_wrap", fsdp_config=wrap)


def lightning(folder: str, strategy: str = "ddp") -> list[float]:
    import lightning as pl

    class Net(pl.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = net()
            self.losses: list[float] = []

        def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
            loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
            self.losses.append(self.all_gather(loss.detach()).mean().item())
            return loss

        def train_dataloader(self) -> torch.utils.data.DataLoader:
            data = samples()
            sampler: torch.utils.data.Sampler[int]
            sampler = torch.utils.data.DistributedSampler(data, 2, self.global_rank, shuffle=False)
            return torch.utils.data.DataLoader(data, batch_size=BATCH // 2, sampler=sampler)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.net.parameters(), lr=1e-2)

    fit = pl.Trainer(
        accelerator="ocl",
        devices=2,
        strategy=strategy,
        use_distributed_sampler=False,
        max_epochs=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=folder,
    )
    module = Net()
    fit.fit(module)
    assert fit.world_size == 2
    assert fit.strategy.root_device.type == "ocl"
    losses: list[float] = module.losses
    return losses


def on_the_cpu() -> list[float]:
    """One process."""
    model, losses = net(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for x, y in torch.utils.data.DataLoader(samples(), batch_size=BATCH):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


CASES = {
    "accelerate": lambda folder: accelerate_ddp(),
    "accelerate_fsdp1": lambda folder: accelerate_fsdp(1),
    "accelerate_fsdp2": lambda folder: accelerate_fsdp(2),
    "trainer": trainer,
    "trainer_fsdp1": lambda folder: trainer_fsdp(folder, 1),
    "trainer_fsdp2": lambda folder: trainer_fsdp(folder, 2),
    "lightning": lightning,
}

if __name__ == "__main__":
    import dlbackend

    found = {"losses": CASES[sys.argv[1]](sys.argv[2]), "fallbacks": dlbackend.fallback_report()}
    print("\nfound " + json.dumps(found) + "\n", end="", flush=True)
