"""Ranges of the inputs of a model's layers, as batches of samples tell them: what scales of 8 bits are made from.

observe() runs the batches through the model and keeps a histogram of each layer's absolute values, from which a method
takes the value that stands for the last step:

    "minmax"      the greatest
    "percentile"  what a percentile of them stays below
    "mse"         the one with the least mean square of errors by rounding and saturation
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dlbackend.inputs import arguments

METHODS = ("minmax", "percentile", "mse")
PERCENTILE = 99.99  # by default
_BINS = 2048
_CANDIDATES = 100  # shares of the greatest value among which "mse" looks


@dataclass(frozen=True)
class Range:
    """Inputs are rounded to multiples of `scale`: up to 255 of them where none is negative, else up to 127."""

    scale: float
    unsigned: bool


class Histogram:
    """Counts of absolute values, in equal bins from 0 to `end`, which doubles as values grow."""

    def __init__(self) -> None:
        self.counts = torch.zeros(_BINS, dtype=torch.float64)
        self.end = self.largest = 0.0
        self.negative = False

    def add(self, values: torch.Tensor) -> None:
        """ValueError for infinities and NaN."""
        if not values.numel():
            return
        values = values.detach().float()
        low, high = (x.item() for x in values.aminmax())
        largest = max(-low, high)
        if not largest < float("inf"):  # which is true of NaN too
            raise ValueError("its inputs hold infinities or NaN")
        self.negative |= low < 0
        self.largest = max(self.largest, largest)
        if not self.largest:
            return
        self.end = self.end or largest
        while self.end < largest:
            pairs = self.counts.view(-1, 2).sum(1)
            self.counts = torch.cat([pairs, torch.zeros_like(pairs)])
            self.end *= 2
        self.counts += torch.histc(values.abs(), _BINS, 0, self.end).cpu().double()

    def range(self, method: str, percentile: float) -> Range | None:
        """None where there were no values but zeros."""
        if not self.largest:
            return None
        steps = 127 if self.negative else 255
        last = self.largest
        if method == "percentile":
            rank = self.counts.sum() * percentile / 100
            bin = int(torch.searchsorted(self.counts.cumsum(0), rank))
            last = min(last, (bin + 1) * self.end / _BINS)
        elif method == "mse":
            last = self._of_least_error(steps)
        return Range(last / steps, not self.negative)

    def _of_least_error(self, steps: int) -> float:
        centres = (torch.arange(_BINS, dtype=torch.float64) + 0.5) * (self.end / _BINS)
        centres[0] = 0  # what activations cut off
        last = torch.arange(1, _CANDIDATES + 1, dtype=torch.float64)[:, None] * (self.largest / _CANDIDATES)
        scale = last / steps
        rounded = (centres / scale).round().clamp(max=steps) * scale
        errors = ((centres - rounded).square() * self.counts).sum(1)
        return float(last[errors.argmin()])


def check_method(method: str, percentile: float) -> None:
    """ValueError for what observe() does not take."""
    if method not in METHODS:
        raise ValueError(f"calibration by {method!r} does not exist; there are {', '.join(METHODS)}")
    if not 0 < percentile <= 100:
        raise ValueError(f"a percentile is above 0 and at most 100, not {percentile}")


def observe(
    model: nn.Module,
    layers: Mapping[str, nn.Module],
    batches: Iterable[Any],
    method: str = "minmax",
    percentile: float = PERCENTILE,
) -> dict[str, Range]:
    """Runs batches through a model and returns the range of each layer's first input, by the layer's name.

    `layers`: modules of the model. `batches`: tensors, tuples or lists of positional arguments, or dictionaries of
    keyword arguments. Layers that no input reaches, or zeros alone, are left out. ValueError for another method, for no
    batches, and for infinities and NaN in a layer's inputs, with its name. The model keeps no trace of it.
    """
    check_method(method, percentile)
    found = {name: Histogram() for name in layers}

    def hook(name: str) -> Any:
        def add(_: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            try:
                found[name].add(inputs[0])
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None

        return add

    hooks = [layer.register_forward_pre_hook(hook(name)) for name, layer in layers.items()]
    count = 0
    try:
        with torch.no_grad():
            for batch in batches:
                count += 1
                args, kwargs = arguments(batch)
                model(*args, **kwargs)
    finally:
        for handle in hooks:
            handle.remove()
    if not count:
        raise ValueError("calibration has no inputs")
    ranges = {name: histogram.range(method, percentile) for name, histogram in found.items()}
    return {name: one for name, one in ranges.items() if one}
