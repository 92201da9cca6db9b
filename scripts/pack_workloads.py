#!/usr/bin/env python3
"""One of the workloads of scripts/make_pack.py: what programs ask for in their first iterations.

    python scripts/pack_workloads.py digits ocl:0

Prints how many problems were new and how many programs were compiled. In find mode "normal" the workload runs twice,
and what was measured is complete at the end.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import dlbackend

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

NETS = ("resnet18", "resnet50", "mobilenet_v2", "densenet121", "vgg11", "vit_b_16")
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def train(net: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
    """One step of training a classifier of the last dimension."""
    optimizer.zero_grad()
    output = net(x)
    F.cross_entropy(output.flatten(0, -2).float(), y.flatten()).backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def digits(device: torch.device) -> None:
    """The README's CNN, as examples/train_digits.py trains it."""
    net = nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(256, 10)),
    ).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    images, labels = torch.rand(256, 1, 8, 8).to(device), torch.randint(10, (256,)).to(device)
    chosen = torch.randperm(256)[:64].to(device)
    for _ in range(3):
        train(net, optimizer, F.pad(images[chosen], (1, 1, 1, 1))[:, :, 1:9, 0:8], labels[chosen])
    net.eval()
    with torch.no_grad():
        net(images).argmax(1).cpu()
    dlbackend.solvers.wait()  # also measures the device's rates


def network(name: str, dtype: torch.dtype, channels_last: bool = False) -> Callable[[torch.device], None]:
    """A torchvision net: training with SGD, under autocast where `dtype` is narrow, then inference."""

    def run(device: torch.device) -> None:
        from benchmarks.case import torchvision

        net = getattr(torchvision().models, name)(weights=None).to(device)
        batch = 4 if torch.ocl.get_device_properties(device).type == "cpu" else 32  # type: ignore[attr-defined]
        x, y = torch.randn(batch, 3, 224, 224).to(device), torch.randint(1000, (batch,)).to(device)
        if channels_last:
            net, x = net.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
        with torch.autocast("ocl", dtype, enabled=dtype != torch.float32):
            train(net, optimizer, x, y)
            net.eval()
            with torch.no_grad():
                net(x[:1])

    return run


class Block(nn.Module):
    """A layer of a GPT-2."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, length, width = x.shape
        parts = self.qkv(self.norms[0](x)).view(n, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + F.dropout(self.out(mixed.transpose(1, 2).reshape(n, length, width)), 0.1, self.training)
        result: torch.Tensor = x + self.mlp(self.norms[1](x))
        return result


def gpt2(dtype: torch.dtype) -> Callable[[torch.device], None]:
    """A GPT-2 of two layers: training with AdamW and clipped gradients, then inference and sampling."""

    def run(device: torch.device) -> None:
        width, words = 256, 1000
        net = nn.Sequential(
            nn.Embedding(words, width), Block(width, 4), Block(width, 4), nn.LayerNorm(width), nn.Linear(width, words)
        ).to(device)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        tokens = torch.randint(words, (4, 65)).to(device)
        with torch.autocast("ocl", dtype, enabled=dtype != torch.float32):
            train(net, optimizer, tokens[:, :-1], tokens[:, 1:])
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            net.eval()
            with torch.no_grad():
                torch.multinomial(net(tokens[:1, :7])[:, -1].float().softmax(-1), 1)

    return run


def ops(device: torch.device) -> None:
    """Single ops of all families, in the common types."""
    for dtype in (*FLOATS, torch.int64):
        x = (torch.randn(64, 48) * 4).to(dtype).to(device)
        y = (torch.rand(64, 48) + 1).to(dtype).to(device)
        (x + y, x - y, x * y, x / y, x + 1, 2 * x, x == y, x > y, -x, x.abs(), x.clamp(-1, 1), torch.where(x > 0, x, y))
        (x.sum(), x.sum(0), x.sum(1), x.amax(1), x.max(1), x.argmax(1), x.cumsum(1), x.t().contiguous(), x.sort(1))
        (x[x > 0], x[:, 3:9].clone(), torch.cat([x, y]), torch.stack([x, y]), x.topk(5), x.float(), x.flip(0))
        (x.gather(1, x.long().abs() % 48), x.index_select(0, torch.arange(9, device=device)), x.fill_(1), x.zero_())
    for dtype in FLOATS:
        x = torch.randn(64, 48).to(dtype).to(device).requires_grad_()
        for f in (torch.exp, torch.sigmoid, torch.tanh, F.relu, F.gelu, F.silu, lambda t: F.softmax(t, 1)):
            f(x).sum().backward()  # type: ignore[no-untyped-call]
        (
            x.mean(),
            x.std(),
            x.norm(),
            F.layer_norm(x, (48,)),
            F.log_softmax(x, 1),
            x @ x.t(),
            F.dropout(x),
            x.detach().log1p(),
        )
        torch.randn(99, device=device, dtype=dtype).uniform_().normal_()
    torch.randint(9, (9,), device=device), torch.randperm(99, device=device), torch.arange(9, device=device)


WORKLOADS: dict[str, Callable[[torch.device], None]] = {
    "digits": digits,
    "ops": ops,
    "gpt2": gpt2(torch.float32),
    "gpt2-bf16": gpt2(torch.bfloat16),
    **{name: network(name, torch.float32) for name in NETS},
    "resnet18-bf16": network("resnet18", torch.bfloat16),
    "resnet18-channels-last": network("resnet18", torch.float32, channels_last=True),
}

if __name__ == "__main__":
    run, device = WORKLOADS[sys.argv[1]], torch.device(sys.argv[2])
    run(device)
    if torch.backends.ocl.find_mode == "normal":  # type: ignore[attr-defined]
        run(device)
        dlbackend.solvers.wait()
    torch.ocl.synchronize()  # type: ignore[attr-defined]
    misses, compiled = dlbackend.solvers.stats()["misses"], dlbackend.kernel_stats()["compiled"]
    print(f"{misses} problems new, {int(compiled)} programs compiled")
