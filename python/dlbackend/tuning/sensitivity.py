"""What quantized layers cost in accuracy: each alone, for the order in which they stay in float32, and together."""

import copy
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

import torch
from torch import nn

from dlbackend import quantization
from dlbackend.inputs import Inputs, arguments, floats
from dlbackend.quantization import LayerPrecision
from dlbackend.tuning.accuracy import accuracy_of

Evaluate = Callable[[nn.Module], float]
Layers = Mapping[str, LayerPrecision]


class Sensitivity:
    """A float32 model on a device with batches of its inputs, whose results are compared."""

    def __init__(self, model: nn.Module, batches: Sequence[Inputs], evaluate: Evaluate | None) -> None:
        """`evaluate` says how good a model is, the higher the better; without it, results are compared with float32's.
        The batches are on the model's device.
        """
        self.model, self.batches, self.evaluate = model, batches, evaluate
        self.expected = [self._results(model, batch) for batch in batches]
        self.before = evaluate(model) if evaluate else 0.0

    @staticmethod
    def _results(model: nn.Module, batch: Inputs) -> list[torch.Tensor]:
        args, kwargs = batch
        with torch.no_grad():
            return [x.cpu().double() for x in floats(model(*args, **kwargs))]

    def error(self, name: str, how: LayerPrecision) -> float:
        """Relative L2 error of the first batch's results with one layer quantized alone."""
        whole, layer = self.model, self.model.get_submodule(name)
        quantization.quantize_layers(whole, {name: how})
        try:
            norm = accuracy_of(self._results(whole, self.batches[0]), self.expected[0])["relative_l2"]
        finally:
            whole.set_submodule(name, layer)
        return inf if norm is None else float(norm)

    def drop(self, model: nn.Module) -> float:
        """How much worse a variant of the model is: by `evaluate`, or the share of results whose class, the largest
        number, is another than float32's, or, where there are no classes, the relative L2 error; of all batches.
        """
        if self.evaluate:
            return self.before - self.evaluate(model)
        drops, weights = [], []
        for batch, expected in zip(self.batches, self.expected, strict=True):
            accuracy = accuracy_of(self._results(model, batch), expected)
            same = accuracy["top1_agreement"]
            error = 1 - same if same is not None else accuracy["relative_l2"]
            drops.append(error if accuracy["finite"] else inf)
            weights.append(expected[0].shape[0] if expected[0].dim() else 1)
        return sum(d * w for d, w in zip(drops, weights, strict=True)) / max(sum(weights), 1)

    def within(self, layers: Layers, errors: Mapping[str, float], max_drop: float) -> dict[str, LayerPrecision]:
        """The layers without the most sensitive, as few of these as keep the drop at `max_drop` or below. Bisects their
        number, which takes the drop to grow with the layers.
        """
        order = sorted(layers, key=lambda name: -errors.get(name, inf))
        refused, least = -1, len(order)
        while refused + 1 < least:
            left = (refused + least) // 2 if refused >= 0 else 0  # all of them are tried first
            rest = {name: layers[name] for name in order[left:]}
            trial = copy.deepcopy(self.model)
            quantization.quantize_layers(trial, rest)
            if self.drop(trial) <= max_drop:
                least = left
            else:
                refused = left
        return {name: layers[name] for name in layers if name in order[least:]}


def first_arguments(batch: Any, example: Inputs) -> Inputs:
    """The model's arguments of a calibration batch, of which as many positional ones are taken as the example has: a
    loader's further tensors are labels.
    """
    args, kwargs = arguments(batch)
    return (args[: len(example[0])], kwargs) if example[0] else (args, kwargs)
