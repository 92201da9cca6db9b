"""Example inputs of a model as tuning and precompiling take them, and the loss where none is given."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

Loss = Callable[[Any], torch.Tensor]
Inputs = tuple[tuple[Any, ...], dict[str, Any]]  # positional and keyword arguments


def arguments(inputs: Any) -> Inputs:
    """Example inputs as positional and keyword arguments."""
    if isinstance(inputs, dict):
        return (), inputs
    return (tuple(inputs), {}) if isinstance(inputs, (tuple, list)) else ((inputs,), {})


def squared(output: Any) -> torch.Tensor:
    """The loss where none is given: the mean square of every floating point result."""
    return sum(x.float().square().mean() for x in floats(output))  # type: ignore[return-value]


def floats(output: Any) -> list[torch.Tensor]:
    """The floating point tensors among a model's results. ValueError when there is none."""
    flat, _ = tree_flatten(output)
    found = [x for x in flat if isinstance(x, torch.Tensor) and x.is_floating_point()]
    if not found:
        raise ValueError("the model gives no floating point tensor, so its results cannot be compared")
    return found
