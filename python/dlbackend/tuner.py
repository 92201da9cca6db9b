"""Tries a model's knobs on a device and keeps what is fastest: dlbackend.tune(), python -m dlbackend tune.

Knobs: precision, memory layout (global, and of single layers where that was measured faster), fusion of batch norms and
activations into convolutions (and sums), and how solvers are chosen. docs/tuning.md says how it is measured.
"""

import copy
import datetime
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import inf
from statistics import geometric_mean, median
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_map

from dlbackend import _C, backend, ocl, solvers, tuning, variant
from dlbackend._build import VERSION
from dlbackend.progress import Bar
from dlbackend.tuning import Json, Tuning
from dlbackend.variant import Configuration, Variant

KNOBS = {
    "fusion": variant.FUSIONS[::-1],
    "layout": variant.LAYOUTS,
    "precision": variant.PRECISIONS,
    "solvers": variant.SOLVERS[::-1],
}
GAIN = 0.98  # a configuration replaces another below this share of its time
UNDECIDED = 0.05  # shares this near to 1 are measured again
SLOT = 0.5  # seconds of runs before it is another configuration's turn
RUNS = (3, 30)  # in a slot, at least and at most
ROUNDS = 3  # of two configurations in turns, at most, before the search goes on with one of them
LAST_SLOT, LAST_RUNS = 0.15, 2  # seconds and least runs of the last slots and of replays
LAST_ROUNDS, LAST_SECONDS = 24, 90.0  # of them, at most; at least three rounds
FASTEST, SLOWEST = 4, 3  # configurations that take part in them
LAYER_GAIN = 0.05  # share of a layer's time that another layout of its own must save

Loss = Callable[[Any], torch.Tensor]
Inputs = tuple[tuple[Any, ...], dict[str, Any]]  # positional and keyword arguments


def squared(output: Any) -> torch.Tensor:
    """The loss where none is given: the mean square of every floating point result."""
    return sum(x.float().square().mean() for x in _floats(output))  # type: ignore[return-value]


def tune(
    model: nn.Module,
    inputs: Any,
    *,
    device: str | torch.device | int = "ocl:0",
    precision: str | Sequence[str] = "fp32",
    layout: str | Sequence[str] = "pick",
    fusion: str | Sequence[str] = "pick",
    solvers: str | Sequence[str] = "pick",
    search: str = "guided",
    budget: float = 300.0,
    training: bool = False,
    loss: Loss = squared,
    max_error: float = 0.2,
    name: str = "",
) -> Tuning:
    """Measures configurations of `model`, called with `inputs`, and returns them with the fastest marked.

    `model` stays as it is. `inputs`: a tensor, a tuple of positional or a dictionary of keyword arguments, on any
    device. Each knob takes a value, several, or "pick" for all that the device offers; see docs/tuning.md. `search`:
    "exhaustive" measures every combination, "guided" varies one knob at a time from the best so far. After
    `budget` seconds no configuration is begun and the last turns are taken; the first one is always measured. With
    `training`, a run is a forward and a backward pass of `loss` of the results, without the optimizer. A configuration
    cannot win whose result (in training: with the gradients) is further from float32 on the CPU than `max_error`, as
    relative L2 norm.
    ValueError for knobs that are not known or not offered, and for a `budget` or `max_error` below 0.
    """
    asked = {"precision": precision, "layout": layout, "fusion": fusion, "solvers": solvers}
    if search not in ("guided", "exhaustive"):
        raise ValueError(f'search must be "guided" or "exhaustive", not {search!r}')
    for limit, number in (("budget", budget), ("max_error", max_error)):
        if not number >= 0:  # NaN neither
            raise ValueError(f"{limit} must be 0 or more, not {number}")
    index = tuning.device_index(device)
    run = _Tuner(model, inputs, index, training, loss, budget, max_error, search == "exhaustive")
    knobs = run.offered({knob: _values(knob, value) for knob, value in asked.items()})
    with run.measuring():
        (run.exhaustive if search == "exhaustive" else run.guided)(knobs)
        run.finals()
        return run.result(asked, knobs, name)


@dataclass
class _Entry:
    """A configuration and what was measured of it."""

    configuration: Configuration
    records: dict[str, str] = field(default_factory=dict)  # find records of its problems
    solutions: Json = field(default_factory=dict)
    samples: list[float] = field(default_factory=list)  # milliseconds of single runs, of the slots that count
    slot: float = 0.0  # undisturbed() of the last slot
    settled: float = 0.0  # milliseconds, by in_turns() of the last slots
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


class _Tuner:
    def __init__(
        self,
        model: nn.Module,
        inputs: Any,
        index: int,
        training: bool,
        loss: Loss,
        budget: float,
        max_error: float,
        thorough: bool,
    ) -> None:
        self.index, self.device = index, torch.device("ocl", index)
        self.place = _C.find_place(index)
        self.base = copy.deepcopy(model).cpu().float().train(training)
        self.described = tuning.describe_model(model)
        args, kwargs = arguments(inputs)
        self.inputs: Inputs = tree_map(_on("cpu"), (args, kwargs))
        self.device_inputs: Inputs = tree_map(_on(self.device), self.inputs)
        self.training, self.loss, self.max_error, self.thorough = training, loss, max_error, thorough
        self.budget, self.start = budget, time.monotonic()
        self.entries: dict[Configuration, _Entry] = {}
        self.only_probes: set[str] = set()  # layouts that are measured for the sake of the layers'
        self.bar = Bar("tune")
        self.notes: list[str] = []
        self.cut = False

    # What is offered

    def offered(self, knobs: dict[str, tuple[list[str], bool]]) -> dict[str, Any]:
        """Per knob the values to try, and why others are not. ValueError when none is left of those named."""
        found = {}
        for knob, (values, picked) in knobs.items():
            reasons = {value: why for value in values if (why := self._refused(knob, value))}
            tried = [value for value in values if value not in reasons]
            refused = [f"{knob} {value} is not offered: {why}" for value, why in reasons.items()]
            if refused and not (picked and tried):
                raise ValueError("; ".join(refused))
            found[knob] = {"tried": tried, "not_offered": reasons}
        return found

    def _refused(self, knob: str, value: str) -> str:
        tensor_cores = ocl.get_device_properties(self.index).has_tensor_cores
        why = variant.refusal(_with(Configuration(), knob, value), self.training, tensor_cores)
        if why:
            return why
        if knob == "fusion" and value == "on":
            try:
                none = "there is no batch norm or activation to fuse right after a convolution or a sum"
                return "" if variant.fusible(self.base) else none
            except ValueError as error:
                return str(error)
        if knob == "layout" and value != "nchw" and not variant.layered(self.base):
            return "the model has no convolution of two or three dimensions"
        return ""

    # Measuring

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Nothing but what is measured runs: no search for solvers between runs. Leaves random state as it was."""
        with (
            torch.random.fork_rng([self.index], device_type="ocl"),
            backend.flags(find_mode="fast", fp32_precision="ieee"),
        ):
            try:
                self.reference = self._flat(copy.deepcopy(self.base), on_device=False)
                yield
            finally:
                tuning.restore_solvers()

    def out_of_time(self) -> bool:
        if time.monotonic() - self.start > self.budget:
            self.cut = True
        return self.cut

    def entry(self, configuration: Configuration) -> _Entry | None:
        """What is known of a configuration, measuring it when it is new. None when there is no time for it."""
        if configuration in self.entries:
            return self.entries[configuration]
        if self.entries and self.out_of_time():
            return None
        entry = self.entries[configuration] = _Entry(configuration)
        self._show()
        try:
            self._choose_solvers(entry)
            self.sample(entry)
            self._look_at(entry)
        except Exception as error:  # a model's own code may not run in every precision
            entry.samples.clear()
            entry.rejected = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            if len(self.entries) == 1:
                raise
        if configuration.layout in self.only_probes:
            entry.rejected = entry.rejected or "measured only to choose layouts of layers"
        self._show()
        return entry

    def _show(self) -> None:
        best = min((e.milliseconds for e in self.entries.values()), default=float("inf"))
        seconds = time.monotonic() - self.start
        about = f"{len(self.entries)} configurations, best {best:.1f} ms, {seconds:.0f} s"
        self.bar.show(min(seconds, 0.99 * self.budget), self.budget, about)

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

    def _activate(self, entry: _Entry) -> None:
        _C.drop_find_records()
        for key, text in entry.records.items():
            _C.load_find_record(self.place, key, text)

    def _choose_solvers(self, entry: _Entry) -> None:
        """Records of the solvers that this configuration takes for its problems."""
        _C.drop_find_records()
        model = self.build(entry.configuration)
        self.step(model)
        keys = solvers.problems()
        if entry.configuration.solvers == "heuristic":
            for key in keys:
                _C.load_find_record(self.place, key, "")
        else:
            self._measure_solvers(keys)
        self.step(model)
        for key in keys:
            found = solvers.solutions(key, self.index)
            stored = _C.find_record(key, self.index) if entry.configuration.solvers == "measured" else ""
            entry.records[key] = stored or _record(found)
            taken = next((s for s in found if s.taken), None)
            if taken:
                entry.solutions[key] = {
                    "solver": taken.solver,
                    "config": taken.config,
                    "microseconds": taken.microseconds,
                    "workspace": taken.workspace,
                }

    def _measure_solvers(self, keys: list[str]) -> None:
        for key in keys:
            if not self.thorough and _C.find_record(key, self.index):
                continue
            if self.out_of_time():
                break
            try:
                _C.tune_problem(key, self.index, self.thorough)
            except RuntimeError as error:  # no memory for it, or none of its solvers is worth it
                self.notes.append(str(error).splitlines()[0])
            self._show()

    def sample(self, entry: _Entry, seconds: float = SLOT, least: int = RUNS[0], most: float = RUNS[1]) -> None:
        """A slot of runs, each waited for; the first two do not count."""
        self._activate(entry)
        model = self.build(entry.configuration)
        for _ in range(2):
            self.step(model)
        ocl.synchronize(self.index)
        begin = time.perf_counter()
        times: list[float] = []
        while len(times) < least or (time.perf_counter() - begin < seconds and len(times) < most):
            start = time.perf_counter()
            self.step(model)
            ocl.synchronize(self.index)
            times.append((time.perf_counter() - start) * 1e3)
        entry.slot = undisturbed(times)
        entry.samples += times

    def _look_at(self, entry: _Entry) -> None:
        """Accuracy, and the time of each layer."""
        model = self.build(entry.configuration)
        entry.accuracy = _accuracy(self._flat(model), self.reference)
        if not entry.accuracy["finite"]:
            entry.rejected = "results are not finite"
        elif not entry.accuracy["relative_l2"] <= self.max_error:
            entry.rejected = f"error above {self.max_error}"
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

    def _flat(self, model: nn.Module, on_device: bool = True) -> list[torch.Tensor]:
        """Results, and gradients in training, in float64 on the CPU. Dropout would differ between devices."""
        dropouts = [m for m in model.modules() if isinstance(m, nn.modules.dropout._DropoutNd)]
        for module in dropouts:
            module.eval()
        found = _floats(self.step(model, on_device))
        for module in dropouts:
            module.train(self.training)
        if self.training:
            found += [p.grad for p in model.parameters() if p.grad is not None]
        return [x.detach().cpu().double() for x in found]

    # Searching

    def guided(self, knobs: dict[str, Any]) -> None:
        """Coordinate descent: one knob after the other from the best so far, until none helps."""
        best = self.entry(self._first(knobs))
        changed = True
        while changed:
            changed = False
            for knob in KNOBS:
                for configuration in self._along(knob, knobs[knob]["tried"], best):
                    other = self.entry(configuration)
                    if other is None:
                        return
                    if self._is_faster(other, best):
                        best, changed = other, True

    def exhaustive(self, knobs: dict[str, Any]) -> None:
        """Every combination; layouts of single layers by prefixes of the layers that gain."""
        self._first(knobs)
        values = [knobs[knob]["tried"] for knob in KNOBS]
        for combination in itertools.product(*values):
            named = dict(zip(KNOBS, combination, strict=True))
            start = Configuration(**{**named, "layout": "nchw"})
            for configuration in self._layouts([named["layout"]], start):
                if self.entry(configuration) is None:
                    return

    def _first(self, knobs: dict[str, Any]) -> Configuration:
        layouts = knobs["layout"]["tried"]
        if "per-layer" in layouts:
            self.only_probes = {"nchw", "nhwc"} - set(layouts)
        first = {knob: knobs[knob]["tried"][0] for knob in KNOBS}
        return Configuration(**{**first, "layout": "nchw" if "per-layer" in layouts else first["layout"]})

    def _along(self, knob: str, values: list[str], best: _Entry | None) -> Iterator[Configuration]:
        assert best is not None
        if knob == "layout":
            yield from self._layouts(values, best.configuration)
            return
        for value in values:
            yield _with(best.configuration, knob, value)

    def _layouts(self, values: list[str], start: Configuration) -> Iterator[Configuration]:
        both = [replace(start, layout=layout, layers=()) for layout in ("nchw", "nhwc")]
        for configuration in both:
            if configuration.layout in values or "per-layer" in values:
                yield configuration
        if "per-layer" in values:
            yield from self._layouts_of_layers(*both)

    def _layouts_of_layers(self, nchw: Configuration, nhwc: Configuration) -> Iterator[Configuration]:
        """From the faster layout: first all layers that are faster in the other, then the half that gains most, ..."""
        entries = [self.entries[c] for c in (nchw, nhwc) if c in self.entries and self.entries[c].layers]
        if len(entries) < 2:
            return
        usual, other = sorted(entries, key=lambda entry: entry.milliseconds)
        names = variant.layered(self.base)
        before, after = ({x["name"]: x["milliseconds"] for x in entry.layers} for entry in (usual, other))
        gains = {name: before[name] - after[name] for name in names if name in before and name in after}
        worth = [name for name in names if name in gains and gains[name] > LAYER_GAIN * before[name]]
        worth.sort(key=lambda name: -gains[name])
        if not worth:
            self.notes.append(f"no layer is faster in {other.configuration.layout}: {usual.configuration}")
        usual_layout, other_layout = usual.configuration.layout, other.configuration.layout
        if len(worth) == len(names):  # that is the other layout
            worth = worth[: len(worth) // 2]
        while worth:
            layers = tuple(sorted((name, other_layout if name in worth else usual_layout) for name in names))
            yield replace(nchw, layout="per-layer", layers=layers)
            worth = worth[: len(worth) // 2]

    def _is_faster(self, new: _Entry, best: _Entry | None) -> bool:
        """Measured in turns, because a machine is not equally fast all the time."""
        assert best is not None
        if new is best or new.rejected or not new.samples:
            return False
        if best.rejected:
            return True
        ratios: list[float] = []
        while len(ratios) < ROUNDS:
            self.sample(best)
            self.sample(new)
            ratios.append(new.slot / best.slot)
            if abs(median(ratios) - 1) > UNDECIDED or self.out_of_time():
                break
        return median(ratios) < GAIN

    def finals(self) -> None:
        """The fastest, the first and the slowest take turns: their times are comparable, and one of them wins."""
        ran = sorted((e for e in self.entries.values() if e.samples), key=lambda entry: entry.milliseconds)
        eligible = [entry for entry in ran if not entry.rejected]
        if not eligible:
            reasons = "; ".join(f"{e.configuration}: {e.rejected}" for e in self.entries.values())
            raise RuntimeError(f"no configuration can be used: {reasons}")
        first = next(iter(self.entries.values()))
        chosen = [*eligible[:FASTEST], first, *ran[-SLOWEST:]]
        finalists = list({id(e): e for e in chosen if e.samples}.values())
        for entry in finalists:
            entry.final = True
        self.take_turns(finalists)

    def take_turns(self, entries: Sequence[_Entry]) -> None:
        """Settles the times of configurations, in many short slots."""
        begin = time.monotonic()
        rounds: list[list[float]] = []
        for entry in entries:
            entry.samples = []
        while len(rounds) < 3 or (len(rounds) < LAST_ROUNDS and time.monotonic() - begin < LAST_SECONDS):
            rounds.append([])
            for entry in entries:
                self.sample(entry, LAST_SLOT, LAST_RUNS, inf)
                rounds[-1].append(entry.slot)
            self.bar.show(len(rounds) - 0.5, LAST_ROUNDS, f"{len(entries)} configurations take turns")
        for entry, settled in zip(entries, in_turns(rounds), strict=True):
            entry.settled = settled
        self.bar.show(1, 1, f"{len(entries)} configurations, {time.monotonic() - self.start:.0f} s")

    # The result

    def result(self, asked: Json, knobs: dict[str, Any], name: str) -> Tuning:
        ran = [entry for entry in self.entries.values() if entry.final and not entry.rejected]
        winner = min(ran, key=lambda entry: entry.milliseconds)
        for knob, value in asked.items():
            knobs[knob]["asked"] = value if isinstance(value, str) else ",".join(value)
        args, kwargs = self.inputs
        flat, _ = tree_flatten((args, kwargs))
        data = tuning.without_infinities(
            {
                "schema": tuning.SCHEMA,
                "version": tuning.VERSION,
                "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                "library": VERSION,
                "torch": torch.__version__,
                "device": tuning.describe_device(self.index),
                "model": {"name": name or type(self.base).__name__, **self.described},
                "inputs": [
                    {"shape": list(x.shape), "dtype": str(x.dtype).removeprefix("torch.")}
                    for x in flat
                    if isinstance(x, torch.Tensor)
                ],
                "training": self.training,
                "knobs": knobs,
                "search": {
                    "method": "exhaustive" if self.thorough else "guided",
                    "budget_seconds": self.budget,
                    "seconds": round(time.monotonic() - self.start, 1),
                    "complete": not self.cut,
                    "max_error": self.max_error,
                    "notes": list(dict.fromkeys(self.notes)),
                },
                "timing": {
                    "whole": "tenth percentile of single runs, each waited for; "
                    "of configurations with `final`, which took turns, the median over the rounds, at one pace",
                    "layers": "median of 5 forward passes, between events before and after each layer",
                    "reference": "float32 on the CPU",
                },
                "configurations": [_json(entry, entry is winner) for entry in self.entries.values()],
                "records": winner.records,
            }
        )
        return Tuning(data)


def _with(configuration: Configuration, knob: str, value: str) -> Configuration:
    change: dict[str, Any] = {knob: value}
    return replace(configuration, **change)


def _json(entry: _Entry, winner: bool) -> Json:
    c = entry.configuration
    return {
        "precision": c.precision,
        "layout": c.layout,
        "layer_layouts": dict(c.layers),
        "fusion": c.fusion,
        "solvers": c.solvers,
        "milliseconds": round(entry.milliseconds, 4) if entry.samples else None,
        "runs": len(entry.samples),
        "final": entry.final,
        "accuracy": entry.accuracy,
        "layers": entry.layers,
        "solutions": entry.solutions,
        "rejected": entry.rejected or None,
        "winner": winner,
    }


def _record(found: list[solvers.Solution]) -> str:
    """The text of a find record (csrc/solver/find_record.h) that takes what is taken now, without a search."""
    names = " ".join(dict.fromkeys(s.solver for s in found))
    lines = [
        f"{s.solver} {'s' * s.specialised}{s.config} {s.microseconds or 0:.2f} {s.workspace} {s.error or 0:.3g}"
        for s in found
        if s.taken
    ]
    return "\n".join([f"dlbackend-find 1 {VERSION}", f"considered {names}", *lines, ""]) if lines else ""


def _accuracy(found: list[torch.Tensor], expected: list[torch.Tensor]) -> Json:
    got, want = (torch.cat([x.flatten() for x in xs]) for xs in (found, expected))
    finite = bool(got.isfinite().all())
    agreement = None
    if found[0].dim() >= 2 and found[0].shape == expected[0].shape:
        classes = 2 if found[0].dim() == 3 else 1  # (batch, tokens, classes); else (batch, classes, ...)
        if found[0].shape[classes] > 1:
            agreement = (found[0].argmax(classes) == expected[0].argmax(classes)).double().mean().item()
    largest, norm = _errors(got - want, want) if finite else (None, None)
    return {"finite": finite, "max_relative": largest, "relative_l2": norm, "top1_agreement": agreement}


def _errors(difference: torch.Tensor, want: torch.Tensor) -> tuple[float, float]:
    """Largest difference over the largest value, and relative L2 norm. Infinite where what is wanted is zero, or not
    finite, and not met.
    """
    if not difference.any():  # also where all is zero, or there is nothing
        return 0.0, 0.0
    if not want.isfinite().all():
        return inf, inf
    return (difference.abs().max() / want.abs().max()).item(), (difference.norm() / want.norm()).item()


def arguments(inputs: Any) -> Inputs:
    """Example inputs as positional and keyword arguments."""
    if isinstance(inputs, dict):
        return (), inputs
    return (tuple(inputs), {}) if isinstance(inputs, (tuple, list)) else ((inputs,), {})


def _on(device: str | torch.device) -> Callable[[Any], Any]:
    return lambda x: x.to(device) if isinstance(x, torch.Tensor) else x


def _floats(output: Any) -> list[torch.Tensor]:
    flat, _ = tree_flatten(output)
    found = [x for x in flat if isinstance(x, torch.Tensor) and x.is_floating_point()]
    if not found:
        raise ValueError("the model gives no floating point tensor, so its results cannot be compared")
    return found


def _values(knob: str, asked: str | Sequence[str]) -> tuple[list[str], bool]:
    """The values that a knob's setting stands for, in the order in which they are tried, and whether it said "pick"
    for all. ValueError, naming those there are.
    """
    known = KNOBS[knob]
    named = asked.split(",") if isinstance(asked, str) else list(asked)
    if named == ["pick"]:
        return list(known), True
    if not named:
        raise ValueError(f"{knob} needs a value: pick, {', '.join(known)}")
    if wrong := [value for value in named if value not in known]:
        raise ValueError(f"{knob} {wrong[0]!r} does not exist; there are pick, {', '.join(known)}")
    return [value for value in known if value in named], False


def replay(found: Tuning, model: nn.Module, inputs: Any, device: str | torch.device | int, loss: Loss) -> list[float]:
    """Milliseconds of the winner and of the slowest configuration of a tuning, measured in turns, as made from the
    JSON: what a process gets that loads it. With another driver that means solvers found anew. ValueError for another
    model than the tuned one.
    """
    data = found.data
    found.check_model(model)
    again = _Tuner(model, inputs, tuning.device_index(device), data["training"], loss, float("inf"), 1.0, False)
    winner = _Entry(tuning.configuration_of(found.winner), records=data["records"])
    slowest = _Entry(tuning.configuration_of(found.slowest))
    with again.measuring():
        again._choose_solvers(slowest)
        if data["device"]["place"] != again.place:
            winner.records = {}
            again._choose_solvers(winner)
        again.take_turns((winner, slowest))
    return [winner.milliseconds, slowest.milliseconds]
