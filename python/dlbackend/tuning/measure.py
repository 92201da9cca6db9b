"""Runs a model in one configuration after the other: how long a run takes, how long each layer, and how right it is."""

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from statistics import geometric_mean, median
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from dlbackend import _C, backend, ocl, quantization, solvers
from dlbackend.inputs import Inputs, Loss, arguments, floats
from dlbackend.tuning import result, variant
from dlbackend.tuning.accuracy import accuracy_of
from dlbackend.tuning.sensitivity import Sensitivity
from dlbackend.tuning.variant import Configuration, Json, Variant

SLOT = 0.5  # seconds of runs before it is another configuration's turn
RUNS = (3, 30)  # the least and the most runs in a slot


@dataclass
class Entry:
    """A configuration and what was measured of it."""

    configuration: Configuration
    records: dict[str, str] = field(default_factory=dict)  # find records of its problems
    solutions: Json = field(default_factory=dict)
    samples: list[float] = field(default_factory=list)  # milliseconds of single runs, of the slots that count
    slot: float = 0.0  # milliseconds of a run in the last slot, by undisturbed()
    settled: float = 0.0  # milliseconds of a run when configurations took turns, by in_turns(); 0 before
    layers: list[Json] = field(default_factory=list)
    accuracy: Json | None = None
    rejected: str = ""
    final: bool = False

    @property
    def milliseconds(self) -> float:
        return self.settled or (undisturbed(self.samples) if self.samples else float("inf"))


def undisturbed(times: list[float]) -> float:
    """The time that one run in ten stays below: what a run takes while nothing else uses the machine. Others only ever
    add to it, and on a machine with neighbours half of all runs can be slower by a sixth, in one process and not in the
    next.
    """
    return sorted(times)[len(times) // 10]


def in_turns(rounds: Sequence[Sequence[float]]) -> list[float]:
    """The times of configurations of which every round measured each once, at the pace of the median round.

    A shared machine's pace changes by tenths within seconds, for all that runs on it. So what counts is a
    configuration's share of its round, the median over the rounds; the round's pace is the geometric mean of its times.
    """
    paces = [geometric_mean(times) for times in rounds]
    return [
        median(time / pace for time, pace in zip(times, paces, strict=True)) * median(paces)
        for times in zip(*rounds, strict=True)
    ]


class Measurement:
    """A model with its inputs and its right results. Configurations of it are made, run and timed on one device."""

    sensitivity: Sensitivity | None = None
    max_drop = inf  # of quantized layers, by the sensitivity's batches

    def __init__(self, model: nn.Module, inputs: Any, index: int, training: bool, loss: Loss) -> None:
        self.index, self.device = index, torch.device("ocl", index)
        self.place = _C.find_place(index)
        self.base = copy.deepcopy(model).cpu().float().train(training)
        self.described = result.describe_model(model)
        self.inputs: Inputs = tree_map(on("cpu"), arguments(inputs))
        self.device_inputs: Inputs = tree_map(on(self.device), self.inputs)
        self.training, self.loss = training, loss

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """While it lasts nothing else runs, such as a search for solvers. Restores the random state."""
        with (
            torch.random.fork_rng([self.index], device_type="ocl"),
            backend.flags(find_mode="fast", fp32_precision="ieee"),
        ):
            try:
                self.reference = self._flat_results(copy.deepcopy(self.base), on_device=False)
                yield
            finally:
                result.restore_solvers()

    def build(self, configuration: Configuration) -> Variant:
        return variant.make_variant(copy.deepcopy(self.base), configuration).to(self.device)

    def step(self, model: nn.Module, on_device: bool = True) -> Any:
        """One run: a forward pass, in training also the backward pass."""
        args, kwargs = self.device_inputs if on_device else self.inputs
        if not self.training:
            with torch.no_grad():
                return model(*args, **kwargs)
        model.zero_grad(set_to_none=True)
        output = model(*args, **kwargs)
        self.loss(output).backward()  # type: ignore[no-untyped-call]
        return output

    def _activate_records(self, entry: Entry) -> None:
        _C.drop_find_records()
        for key, text in entry.records.items():
            _C.load_find_record(self.place, key, text)

    def sample(self, entry: Entry, seconds: float = SLOT, least: int = RUNS[0], most: float = RUNS[1]) -> None:
        """A slot of runs, each waited for; the first two do not count, nor what they have compiled behind them."""
        self._activate_records(entry)
        model = self.build(entry.configuration)
        for _ in range(2):
            self.step(model)
            ocl.synchronize(self.index)
            solvers.wait()
        begin = time.perf_counter()
        times: list[float] = []
        while len(times) < least or (time.perf_counter() - begin < seconds and len(times) < most):
            start = time.perf_counter()
            self.step(model)
            ocl.synchronize(self.index)
            times.append((time.perf_counter() - start) * 1e3)
        entry.slot = undisturbed(times)
        entry.samples += times

    def check(self, entry: Entry, max_error: float) -> None:
        """Compares the results with those on the CPU, which may reject the configuration, and times its layers."""
        model = self.build(entry.configuration)
        entry.accuracy = accuracy_of(self._flat_results(model), self.reference)
        if not entry.accuracy["finite"]:
            entry.rejected = "results are not finite"
        elif not entry.accuracy["relative_l2"] <= max_error:
            entry.rejected = f"error above {max_error}"
        if self.sensitivity and entry.configuration.precision in quantization.PRECISIONS:
            entry.accuracy["drop"] = self.sensitivity.drop(model)
            if not entry.rejected and not entry.accuracy["drop"] <= self.max_drop:
                entry.rejected = f"drop above {self.max_drop}"
        entry.layers = self._layer_times(model)

    def _layer_times(self, model: Variant, runs: int = 5) -> list[Json]:
        """Milliseconds of each layer's forward pass between events on a stream of its own (timestamps make launches
        dearer on some drivers, for good); medians of several runs.
        """
        layers = {name: m for name, m in model.module.named_modules() if not list(m.children())}
        marks: dict[str, list[tuple[torch.Event, torch.Event]]] = {name: [] for name in layers}
        handles = []
        for name, layer in layers.items():

            def begin(*_: Any, name: str = name) -> None:
                marks[name].append((ocl.Event(enable_timing=True), ocl.Event(enable_timing=True)))
                marks[name][-1][0].record()

            def end(*_: Any, name: str = name) -> None:
                marks[name][-1][1].record()

            handles += [layer.register_forward_pre_hook(begin, prepend=True), layer.register_forward_hook(end)]
        times: dict[str, list[float]] = {name: [] for name in layers}
        ocl.synchronize(self.index)
        args, kwargs = self.device_inputs
        with ocl.stream(ocl.Stream(self.device)), torch.set_grad_enabled(self.training):
            for _ in range(runs + 1):
                model(*args, **kwargs)
                ocl.synchronize(self.index)
                for name, pairs in marks.items():
                    times[name].append(sum(first.elapsed_time(last) for first, last in pairs))
                    pairs.clear()
        for handle in handles:
            handle.remove()
        return [
            {"name": name, "type": type(layer).__name__, "milliseconds": round(median(times[name][1:]), 4)}
            for name, layer in layers.items()
        ]

    def _flat_results(self, model: nn.Module, on_device: bool = True) -> list[torch.Tensor]:
        """Results, and gradients in training, in float64 on the CPU. Dropout would differ between devices."""
        dropouts = [m for m in model.modules() if isinstance(m, nn.modules.dropout._DropoutNd)]
        for module in dropouts:
            module.eval()
        found = floats(self.step(model, on_device))
        for module in dropouts:
            module.train(self.training)
        if self.training:
            found += [p.grad for p in model.parameters() if p.grad is not None]
        return [x.detach().cpu().double() for x in found]


def on(device: str | torch.device) -> Callable[[Any], Any]:
    """Moves a tensor to a device; for tree_map()."""
    return lambda x: x.to(device) if isinstance(x, torch.Tensor) else x
