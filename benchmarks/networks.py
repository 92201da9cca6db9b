"""Steps of networks, which several suites time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.case import Step, torchvision
from benchmarks.steps import train

NETS = {  # torchvision's, and the pictures of 224 x 224 in a step on a GPU; on a CPU they are 4
    "alexnet": 64,
    "resnet18": 64,
    "resnet50": 32,
    "convnext_small": 16,
    "vgg16": 16,
    "densenet161": 16,
    "mobilenet_v2": 32,
    "mobilenet_v3_small": 64,
    "mobilenet_v3_large": 64,
    "resnext50_32x4d": 32,
    "wide_resnet50_2": 32,
    "mnasnet1_0": 32,
    "efficientnet_b0": 32,
    "regnet_y_400mf": 64,
    "vit_b_16": 16,
}
# tf32 is float32 with TF32 allowed, bf16 has weights of 16 bits. What CUDA is to be compared with: the least ratio.
PRECISIONS = {"f32": 0.9, "tf32": 0.85, "bf16": 0.9, "autocast": 0.9}


def prepare_precision(precision: str, device: Any) -> tuple[Any, Callable[[], Any]]:
    """The dtype of weights, and what makes the context of a step. Sets the process's TF32."""
    import contextlib

    import torch

    fp32: Any = "tf32" if precision == "tf32" else "ieee"
    # of the process, and what was set for CUDA alone
    backends: Any = torch.backends
    for backend in (backends, backends.cuda.matmul, backends.cudnn.conv):
        backend.fp32_precision = fp32
    if precision == "autocast":
        return torch.float32, lambda: torch.autocast(device.type, torch.bfloat16)
    return torch.bfloat16 if precision == "bf16" else torch.float32, contextlib.nullcontext


def training_step(name: str, batch: int, device: Any, precision: str = "f32") -> Step:
    """A step of training a torchvision net on random pictures of 224 x 224 with SGD."""
    import torch

    dtype, context = prepare_precision(precision, device)
    model = getattr(torchvision().models, name)(weights=None).to(device, dtype).train()
    x, y = torch.randn(batch, 3, 224, 224).to(device, dtype), torch.randint(1000, (batch,)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    return train(model, optimizer, x, y, context)


def inference_step(name: str, batch: int, device: Any, precision: str = "f32") -> Step:
    """The results of a torchvision net for random pictures of 224 x 224."""
    import torch

    dtype, context = prepare_precision(precision, device)
    model = getattr(torchvision().models, name)(weights=None).to(device, dtype).eval()
    x = torch.randn(batch, 3, 224, 224).to(device, dtype)

    def step() -> Any:
        with torch.no_grad(), context():
            return model(x)

    return step


def gpt2(layers: int, device: Any, precision: str = "f32") -> tuple[Any, Callable[[], Any]]:
    """GPT-2, of 124 million parameters where it has twelve layers, and what makes the context of a step."""
    import transformers

    dtype, context = prepare_precision(precision, device)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=layers)).to(device, dtype), context


def language_step(net: Any, context: Callable[[], Any], optimizer: Any, shape: tuple[int, int]) -> Step:
    """A step of training GPT-2 on random texts of this (number, tokens)."""
    import torch

    tokens = torch.randint(50257, shape).to(net.device)

    def step() -> None:
        optimizer.zero_grad()
        with context():
            loss = net(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()

    return step
