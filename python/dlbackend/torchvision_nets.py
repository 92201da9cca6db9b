"""torchvision's networks with random weights, for the tools that measure and compare them."""

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def import_torchvision(purpose: str, instead: str = "") -> types.ModuleType:
    """torchvision; without it the program ends and says how to install it."""
    try:
        import torchvision
    except (ImportError, RuntimeError) as error:
        raise SystemExit(
            f"{purpose} needs torchvision, which cannot be imported: {error}\n"
            f"pip install --no-deps torchvision  (the version for your torch){instead}"
        ) from error
    module: types.ModuleType = torchvision
    return module


def calibrate(model: nn.Module, call: Callable[[nn.Module], Any]) -> None:
    """Gives batch norms the mean and variance of the features that they see in this call of the model in training."""
    kept = {}
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            kept[module], module.momentum = module.momentum, 1.0
    if kept:
        with torch.no_grad():
            call(model.train())
    for module, momentum in kept.items():
        module.momentum = momentum
