"""Networks in eager mode and by torch.compile, whose default backend is Inductor, on both devices."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.case import Case, Step, torchvision
from benchmarks.networks import gpt2, language_step, prepare_precision

ON_GPU = os.environ.get("DLB_BENCH_PEER") == "cuda"


def _training(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, optimizer: torch.optim.Optimizer, compiled: bool, update: Any
) -> Step:
    """A step of training a classifier, the loss within the graph; `update` is the optimizer's step."""

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(x), y)

    forward: Any = torch.compile(loss_of) if compiled else loss_of

    @torch.enable_grad()
    def step() -> None:
        optimizer.zero_grad()
        forward(x, y).backward()
        update()

    return step


def _net(name: str, batch: int, device: torch.device, compiled: bool) -> Step:
    """A step of training a torchvision net in float32."""
    prepare_precision("f32", device)
    torch.manual_seed(0)
    model = torchvision().models.get_model(name, weights=None).to(device).train()
    x, y = torch.randn(batch, 3, 224, 224).to(device), torch.randint(1000, (batch,)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    return _training(model, x, y, optimizer, compiled, optimizer.step)


def _language(precision: str, device: torch.device, compiled: bool) -> Step:
    """A step of training GPT-2 small."""
    net, context = gpt2(12 if ON_GPU else 4, device, precision)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    if compiled:
        net.forward = torch.compile(net.forward)
    return torch.enable_grad()(language_step(net, context, optimizer, (8, 512) if ON_GPU else (1, 128)))


def _bert(precision: str, device: torch.device, compiled: bool) -> Step:
    """BERT base in evaluation."""
    import transformers

    dtype, _ = prepare_precision(precision, device)
    torch.manual_seed(0)
    layers = 12 if ON_GPU else 4
    net: Any = transformers.BertModel(transformers.BertConfig(num_hidden_layers=layers)).to(device, dtype).eval()
    tokens = torch.randint(30522, (16, 128) if ON_GPU else (1, 128)).to(device)
    forward = torch.compile(net) if compiled else net

    @torch.no_grad()
    def step() -> Any:
        return forward(input_ids=tokens)

    return step


def _mlp(device: torch.device, compiled: bool) -> Step:
    """A step of training a small MLP with Adam, the optimizer compiled too."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, capturable=device.type != "cpu")
    x, y = torch.randn(32, 64).to(device), torch.randint(10, (32,)).to(device)

    update = torch.compile(optimizer.step) if compiled else optimizer.step
    return _training(net, x, y, optimizer, compiled, update)


def cases() -> list[Case]:
    """Each in eager mode and compiled."""
    batches = {"vit_b_16": 16, "convnext_small": 16, "mobilenet_v3_small": 64, "resnet18": 64}
    rows: list[tuple[str, Callable[[torch.device, bool], Step]]] = [
        (f"{name} training", partial(_net, name, batch if ON_GPU else 4)) for name, batch in batches.items()
    ]
    rows += [(f"gpt2 training, {precision}", partial(_language, precision)) for precision in ("bf16", "f32")]
    rows += [(f"bert inference, {precision}", partial(_bert, precision)) for precision in ("f32", "bf16")]
    rows += [("MLP training, Adam", _mlp)]

    def case(name: str, build: Callable[[torch.device, bool], Step], compiled: bool) -> Case:
        what = "compiled" if compiled else "eager"
        return Case(f"{name}, {what}", "compiled", lambda device: build(device, compiled))

    return [case(name, build, compiled) for name, build in rows for compiled in (False, True)]
