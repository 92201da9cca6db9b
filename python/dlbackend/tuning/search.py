"""The search: it decides which configurations of a model are measured, in which order, and which of them win."""

import copy
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from statistics import median
from typing import Any

from torch import nn
from torch.utils._pytree import tree_map

from dlbackend import _C, quantization, solvers
from dlbackend._build import VERSION
from dlbackend.calibration import PERCENTILE
from dlbackend.inputs import Loss
from dlbackend.progress import Bar
from dlbackend.quantization import LayerPrecision
from dlbackend.tuning import variant
from dlbackend.tuning.measure import Entry, Measurement, in_turns, on
from dlbackend.tuning.sensitivity import Evaluate, Sensitivity, first_arguments
from dlbackend.tuning.variant import Configuration

KNOBS = {
    "fusion": variant.FUSIONS[::-1],
    "layout": variant.LAYOUTS,
    "precision": variant.PRECISIONS,
    "solvers": variant.SOLVERS[::-1],
}
GAIN = 0.98  # a configuration replaces another when it takes less than this share of that one's time
UNDECIDED = 0.05  # a share this near to 1 is measured again
ROUNDS = 3  # two configurations take at most so many turns each before the search goes on with one of them
LAST_SLOT, LAST_RUNS = 0.15, 2  # seconds, and least runs, of a slot of take_turns()
LAST_ROUNDS, LAST_SECONDS = 24, 90.0  # take_turns() ends after so many rounds or seconds, but not before three rounds
FASTEST, SLOWEST = 4, 3  # so many of the fastest and of the slowest configurations take turns at the end
LAYER_GAIN = 0.05  # the share of its time that a layer must save to get a layout of its own


class Search(Measurement):
    """Measures configurations until none is faster or the budget of seconds is used up."""

    def __init__(
        self,
        model: nn.Module,
        inputs: Any,
        index: int,
        training: bool,
        loss: Loss,
        budget: float = inf,
        max_error: float = 1.0,
        thorough: bool = False,
    ) -> None:
        super().__init__(model, inputs, index, training, loss)
        self.max_error, self.thorough = max_error, thorough
        self.budget, self.start = budget, time.monotonic()
        self.entries: dict[Configuration, Entry] = {}
        self.only_probes: set[str] = set()  # layouts and precisions measured only for the times of their layers
        self.calibration = Calibration()
        self.quantized: dict[str, Sweep] = {}  # by precision
        self.bar = Bar("tune")
        self.notes: list[str] = []
        self.cut = False  # the time was up before all was measured

    def out_of_time(self) -> bool:
        """Whether the budget is used up, which the result then reports."""
        if time.monotonic() - self.start > self.budget:
            self.cut = True
        return self.cut

    def entry(self, configuration: Configuration) -> Entry | None:
        """The entry of a configuration, which is measured when it is new. None when there is no time for it."""
        if configuration in self.entries:
            return self.entries[configuration]
        if self.entries and self.out_of_time():
            return None
        entry = self.entries[configuration] = Entry(configuration)
        self._show()
        try:
            self.choose_solvers(entry)
            self.sample(entry)
            self.check(entry, self.max_error)
        except Exception as error:  # a model's own code may not run in every precision
            entry.samples.clear()
            entry.rejected = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            if len(self.entries) == 1:
                raise
        for knob in ("layout", "precision"):
            if getattr(configuration, knob) in self.only_probes:
                entry.rejected = entry.rejected or f"measured only to choose {knob}s of layers"
        self._show()
        return entry

    def _show(self) -> None:
        best = min((e.milliseconds for e in self.entries.values()), default=float("inf"))
        seconds = time.monotonic() - self.start
        about = f"{len(self.entries)} configurations, best {best:.1f} ms, {seconds:.0f} s"
        self.bar.show(min(seconds, 0.99 * self.budget), self.budget, about)

    def choose_solvers(self, entry: Entry) -> None:
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
            entry.records[key] = stored or record_of(found)
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
            except RuntimeError as error:  # there is no memory for it, or none of its solvers could be measured
                self.notes.append(str(error).splitlines()[0])
            self._show()

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
        """Measures every combination. Layouts of single layers go by prefixes of the list of layers that gain."""
        self._first(knobs)
        values = [knobs[knob]["tried"] for knob in KNOBS]
        for combination in itertools.product(*values):
            named = dict(zip(KNOBS, combination, strict=True))
            start = Configuration(**{**named, "layout": "nchw"})
            for precise in self._precisions([named["precision"]], start):
                for configuration in self._layouts([named["layout"]], precise):
                    if self.entry(configuration) is None:
                        return

    def _first(self, knobs: dict[str, Any]) -> Configuration:
        layouts = knobs["layout"]["tried"]
        if "per-layer" in layouts:
            self.only_probes |= {"nchw", "nhwc"} - set(layouts)
        first = {knob: knobs[knob]["tried"][0] for knob in KNOBS}
        if first["precision"] in quantization.PRECISIONS:  # whose layers are compared with float32's
            self.only_probes.add("fp32")
            first["precision"] = "fp32"
        return Configuration(**{**first, "layout": "nchw" if "per-layer" in layouts else first["layout"]})

    def _along(self, knob: str, values: list[str], best: Entry | None) -> Iterator[Configuration]:
        assert best is not None
        if knob in ("layout", "precision"):
            yield from (self._layouts if knob == "layout" else self._precisions)(values, best.configuration)
            return
        for value in values:
            yield with_value(best.configuration, knob, value)

    def _layouts(self, values: list[str], start: Configuration) -> Iterator[Configuration]:
        both = [replace(start, layout=layout, layers=()) for layout in ("nchw", "nhwc")]
        for configuration in both:
            if configuration.layout in values or "per-layer" in values:
                yield configuration
        if "per-layer" in values:
            yield from self.layouts_of_layers(*both)

    def _precisions(self, values: list[str], start: Configuration) -> Iterator[Configuration]:
        for value in values:
            float32 = replace(start, precision="fp32", quantized=())
            if value in quantization.PRECISIONS:
                yield from self.precisions_of_layers(value, float32)
            else:
                yield replace(float32, precision=value)

    def precisions_of_layers(self, precision: str, float32: Configuration) -> Iterator[Configuration]:
        """First all layers have the precision, but for those that would cost more accuracy than `max_drop`; then, of
        the rest, those that are faster in it than in float32.
        """
        sweep = self.sweep(precision)
        if not sweep.chosen:
            self.notes.append(f"{precision}: no layer keeps the drop at {self.max_drop} or below")
            return
        if self.entry(float32) is None:
            return
        all_of_them = replace(float32, precision=precision, quantized=tuple(sorted(sweep.chosen.items())))
        yield all_of_them
        entries = [self.entries[c] for c in (float32, all_of_them) if c in self.entries and self.entries[c].layers]
        if len(entries) < 2:
            return
        before, after = ({x["name"]: x["milliseconds"] for x in entry.layers} for entry in entries)
        sweep.times = {name: (before[name], after[name]) for name in sweep.chosen if name in before and name in after}
        worth = tuple(c for c in all_of_them.quantized if c[0] in sweep.times and sweep.saves(c[0]))
        if worth and worth != all_of_them.quantized:
            yield replace(all_of_them, quantized=worth)

    def calibrate(self, precisions: Sequence[str], evaluate: Evaluate | None) -> None:
        """Ranges of layers' inputs and results to compare with, for those of the precisions that are quantized."""
        wanted = [p for p in precisions if p in quantization.PRECISIONS]
        if not wanted:
            return
        calibration = self.calibration
        batches = [first_arguments(batch, self.inputs) for batch in calibration.batches] or [self.inputs]
        batches = [tree_map(on(self.device), batch) for batch in batches]
        model = copy.deepcopy(self.base).to(self.device)
        for precision in wanted:
            layers = quantization.quantizable(model, precision)
            found = dict.fromkeys(layers, LayerPrecision(precision))
            if precision == "int8":
                how = calibration.method, calibration.percentile
                given = [args or kwargs for args, kwargs in batches]
                found = quantization.static_precisions(model, layers, given, *how)
            quantization.check_layers(model, found)
            self.quantized[precision] = Sweep(found, {n: type(layers[n]).__name__ for n in found})
        self.sensitivity = Sensitivity(model, batches, evaluate)

    def sweep(self, precision: str) -> "Sweep":
        """The layers of a precision that keep the drop within its limit, after a sweep over single layers."""
        sweep, sensitivity = self.quantized[precision], self.sensitivity
        if sweep.done or sensitivity is None:
            return sweep
        for name, how in sweep.layers.items():
            if self.out_of_time():
                self.notes.append(f"{precision}: no time to try each layer alone")
                break
            sweep.errors[name] = sensitivity.error(name, how)
            self._show()
        sweep.chosen = sensitivity.within(sweep.layers, sweep.errors, self.max_drop)
        sweep.done = True
        return sweep

    def layouts_of_layers(self, nchw: Configuration, nhwc: Configuration) -> Iterator[Configuration]:
        """Starts from the faster layout. First all layers that are faster in the other take it, then the half
        of them that gains most, and so on.
        """
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
        if len(worth) == len(names):  # all layers together are the other layout, which was measured
            worth = worth[: len(worth) // 2]
        while worth:
            layers = tuple(sorted((name, other_layout if name in worth else usual_layout) for name in names))
            yield replace(nchw, layout="per-layer", layers=layers)
            worth = worth[: len(worth) // 2]

    def _is_faster(self, new: Entry, best: Entry | None) -> bool:
        """Whether `new` is faster. Both are measured in turns, because a machine is not equally fast all the time."""
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

    def take_turns(self, entries: Sequence[Entry]) -> None:
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


@dataclass
class Calibration:
    """Batches of a model's inputs, and how ranges are made of them (dlbackend.calibration)."""

    batches: Sequence[Any] = ()
    method: str = "minmax"
    percentile: float = PERCENTILE


@dataclass
class Sweep:
    """What is known of the layers that can have a precision."""

    layers: dict[str, LayerPrecision]
    types: dict[str, str]
    errors: dict[str, float] = field(default_factory=dict)  # relative L2, of the model, by the layer alone
    chosen: dict[str, LayerPrecision] = field(default_factory=dict)  # within the limit of the drop
    times: dict[str, tuple[float, float]] = field(default_factory=dict)  # milliseconds in float32 and in the precision
    done: bool = False

    def saves(self, name: str) -> bool:
        before, after = self.times[name]
        return after < before


def with_value(configuration: Configuration, knob: str, value: str) -> Configuration:
    change: dict[str, Any] = {knob: value}
    return replace(configuration, **change)


def record_of(found: list[solvers.Solution]) -> str:
    """The text of a find record (csrc/solver/find_record.h) that takes what is taken now, without a search."""
    names = " ".join(dict.fromkeys(s.solver for s in found))
    lines = [
        f"{s.solver} {'s' * s.specialised}{s.config} {s.microseconds or 0:.2f} {s.workspace} {s.error or 0:.3g}"
        for s in found
        if s.taken
    ]
    return "\n".join([f"dlbackend-find 1 {VERSION}", f"considered {names}", *lines, ""]) if lines else ""
