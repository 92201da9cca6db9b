"""The rule by which a network's results on a device are right or wrong, and the runs that it compares.

How far float32 may be off depends on the network. So each runs three times: in float64 on the CPU (the truth), in
float32 on the CPU, and in float32 on the device. Both float32 runs do the same sums in other orders, so their errors
are of one size; the device may have a small multiple of the CPU's, measured over all gradients together, and over each
output.

Gradients jump where ReLU's or max pooling's input is within rounding of a tie, and behind small feature maps one unit
that decides otherwise moves them all by some percent, on the CPU in float32 too. So networks with such jumps run with
them, gradients held to those percent, and again with smooth functions in their place, gradients held to rounding.
"""

import copy
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from dlbackend.tools.training_worker import synchronize
from dlbackend.tools.validation.runs import Comparable, Decisions, moved, tensors, without_dropout

# The device may have so many times the CPU's float32 error, and this much more: results are rounded to float32
# themselves, about a thousand times in a row through a deep network.
TIMES, FLOOR = 8.0, 2e-5
# The limit for gradients where single units may decide otherwise, and for the share of other decisions (Decisions).
FLIPPED = 0.1
GRADIENTS = ("input gradient", "gradients")
RATE = 0.01  # of SGD
PIECE = 1 << 20  # elements that are compared at a time: a network's gradients in float64 fill a laptop
CPU = torch.device("cpu")


@dataclass
class Example:
    """A network with what it is called with, in training and otherwise, and the loss of what it returns."""

    model: nn.Module
    inputs: Any  # the call's arguments: a tuple, or a dictionary of keywords
    loss: Callable[[Any], Tensor]
    training_inputs: Any = None  # `inputs` where it is None
    generate: dict[str, Any] | None = None  # keywords of the model's generate(), if that is to be compared
    replay: bool = False  # all runs take the decisions of the one in float64: detection, routing among experts
    compiles: bool = False  # the device runs what torch.compile makes of the model


@dataclass
class Check:
    """One quantity: how far the device is from float64, relative to its norm, and how far it and the CPU may be."""

    stage: str
    what: str
    error: float
    cpu_error: float
    allowed: float

    @property
    def passed(self) -> bool:
        """A NaN fails, and so does an infinite limit: what the CPU gave cannot be compared then."""
        return self.error <= self.allowed < math.inf

    @property
    def used(self) -> float:
        """How much of what is allowed the error is."""
        return self.error / self.allowed


Vector = Sequence[Tensor]  # tensors that are compared together, as if they were one


@dataclass
class Run:
    """The results of one run. The tensors are the run's own, in its type and on its device: copies would be large."""

    quantities: dict[str, list[Vector]]
    seconds: float
    jumps: int
    different: float = 0.0
    own: dict[str, float] = field(default_factory=dict)  # errors that are known without the truth


@dataclass
class Errors:
    """The part of a run in float32 that is kept: how far each vector is from the truth, and what else is reported."""

    of: dict[str, list[float]]
    seconds: float
    different: float


@dataclass
class Comparison:
    """The checks of a stage, and the seconds of its runs."""

    checks: list[Check] = field(default_factory=list)
    first_seconds: float = 0.0  # on the device, with what had to be compiled
    seconds: float = 0.0  # on the device, when it runs again
    cpu_seconds: float = 0.0


def _pieces(vector: Vector) -> Iterator[Tensor]:
    """The elements in order, in float64 on the CPU, some at a time."""
    for x in vector:
        yield from (piece.cpu().double() for piece in torch.split(x.detach().flatten(), PIECE))


def relative(a: Iterable[Tensor], b: Iterable[Tensor]) -> float:
    """The L2 norm of a - b relative to b's norm, absolute where that is zero, of vectors in pieces."""
    off = norm = 0.0
    for mine, exact in zip(a, b, strict=True):
        off, norm = math.hypot(off, float((mine - exact).norm())), math.hypot(norm, float(exact.norm()))
    return off / (norm or 1.0)


def distance(a: Vector, b: Vector) -> float:
    """relative(); infinity where shapes differ."""
    return relative(_pieces(a), _pieces(b)) if [x.shape for x in a] == [x.shape for x in b] else math.inf


def _each(results: Iterable[Tensor]) -> list[Vector]:
    """A vector of each tensor."""
    return [(result.detach(),) for result in results]


def _together(results: Sequence[Tensor | None], like: Sequence[Tensor]) -> list[Vector]:
    """One vector of all, with zeros for missing gradients; none where there are no tensors."""
    both = zip(results, like, strict=True)
    vector = [torch.zeros(()).expand(x.shape) if result is None else result.detach() for result, x in both]
    return [vector] if vector else []


def _call(model: Any, inputs: Any) -> Any:
    return model(**inputs) if isinstance(inputs, dict) else model(*inputs)


def call_training(example: Example, model: nn.Module) -> Any:
    """The model's outputs for what it is called with in training."""
    return _call(model, example.inputs if example.training_inputs is None else example.training_inputs)


def _placed(example: Example, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """A copy of the model for a run."""
    model = copy.deepcopy(example.model).to(device=device, dtype=dtype)
    if example.compiles and device.type != "cpu":
        model.compile()
    return model


def train(example: Example, device: torch.device, dtype: torch.dtype, mode: Comparable) -> Run:
    """One training step with SGD."""
    model = without_dropout(_placed(example, device, dtype)).train()
    inputs = moved(example.inputs if example.training_inputs is None else example.training_inputs, device, dtype)
    # Targets stand in the second place of what torchvision's detection takes; their gradients are not compared.
    pictures = [x for x in tensors(inputs[0] if isinstance(inputs, tuple) else inputs) if x.is_floating_point()]
    for picture in pictures:
        picture.requires_grad_()
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=RATE, momentum=0.9)
    synchronize(device)
    start = time.perf_counter()
    with mode:
        outputs = _call(model, inputs)
        example.loss(outputs).backward()  # type: ignore[no-untyped-call]
    if dtype != torch.float64:  # a step is held against one in float64 with its own gradients
        optimizer.step()
    synchronize(device)
    seconds = time.perf_counter() - start
    statistics = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    quantities = {
        "outputs": _each(tensors(outputs)),
        "input gradient": _together([picture.grad for picture in pictures], pictures),
        "gradients": _together([p.grad for p in parameters], parameters),
        "statistics": _together(statistics, statistics),
    }
    for what in ("input gradient", "gradients"):
        if any(not any(piece.any() for piece in _pieces(vector)) for vector in quantities[what]):
            raise ValueError(f"the {what} is zero, so comparing it would say nothing")
    (gradients,) = quantities["gradients"]
    before = _pieces(list(example.model.parameters()))
    stepped = (x - RATE * gradient for x, gradient in zip(before, _pieces(gradients), strict=True))
    own = {} if dtype == torch.float64 else {"parameters": relative(_pieces(parameters), stepped)}
    return Run(quantities, seconds, mode.jumps, own=own)


def infer(example: Example, device: torch.device, dtype: torch.dtype, mode: Comparable) -> Run:
    """The outputs in eval mode."""
    return _forward(example, device, dtype, mode, _call)


def generate(example: Example, device: torch.device, dtype: torch.dtype, mode: Comparable) -> Run:
    """The tokens that the model generates."""
    more = example.generate or {}
    return _forward(example, device, dtype, mode, lambda model, inputs: model.generate(**inputs, **more))


def _forward(
    example: Example, device: torch.device, dtype: torch.dtype, mode: Comparable, call: Callable[[Any, Any], Any]
) -> Run:
    model = _placed(example, device, dtype).eval()
    inputs = moved(example.inputs, device, dtype)
    synchronize(device)
    start = time.perf_counter()
    with torch.inference_mode(), mode:
        outputs = call(model, inputs)
    synchronize(device)
    return Run({"outputs": _each(tensors(outputs))}, time.perf_counter() - start, mode.jumps)


Stage = Callable[[Example, torch.device, torch.dtype, Comparable], Run]


def compare(stage: Stage, name: str, example: Example, device: torch.device, smooth: bool = False) -> Comparison:
    """Runs a stage on the CPU and on the device, and with jumps in its gradients once more without them.

    Only the run in float64 is kept while others run: each copy of a network and its gradients may be gigabytes.
    """
    decisions = Decisions() if example.replay else None

    def run(where: torch.device, dtype: torch.dtype) -> Run:
        made = stage(example, where, dtype, Comparable(dtype, smooth, decisions))
        made.different = decisions.share if decisions else 0.0
        if decisions:
            decisions.replay()
        return made

    truth = run(CPU, torch.float64)
    jumps = truth.jumps
    here = errors(run(CPU, torch.float32), truth)
    first = errors(run(device, torch.float32), truth)
    del truth
    # The timed runs come after: kernels are compiled by then, and the CPU's threads are awake.
    cpu_seconds, seconds = (0.0, 0.0) if smooth else (run(where, torch.float32).seconds for where in (CPU, device))
    free_cached(device)
    checks = []
    for what in here.of:
        to_rounding = smooth or what not in GRADIENTS or not jumps
        checks += check(name, what, here.of[what], first.of[what], to_rounding)
    if decisions:
        checks.append(Check(name, "decisions", first.different, here.different, FLIPPED))
    found = Comparison(checks, first.seconds, seconds, cpu_seconds)
    if stage is train and jumps and not smooth:
        found.checks += compare(stage, f"{name}, smooth", example, device, smooth=True).checks
    return found


def free_cached(device: torch.device) -> None:
    """Gives the driver what the device's allocator keeps: with drivers for CPUs it is the host's memory."""
    if device.type != "cpu":
        getattr(torch, device.type).empty_cache()


def errors(made: Run, truth: Run) -> Errors:
    """How far a run is from the truth. A vector that only one of them has is infinitely far."""
    of = {
        what: [distance(*pair) for pair in itertools.zip_longest(made.quantities[what], vectors, fillvalue=())]
        for what, vectors in truth.quantities.items()
    }
    return Errors({**of, **{what: [error] for what, error in made.own.items()}}, made.seconds, made.different)


def check(stage: str, what: str, here: list[float], there: list[float], to_rounding: bool) -> list[Check]:
    """The checks of one quantity, one for each vector of it. A run that lacks one is infinitely far from it."""
    both = itertools.zip_longest(here, there, fillvalue=math.inf)
    limits = [(own, cpu, TIMES * cpu + FLOOR if to_rounding else FLIPPED) for cpu, own in both]
    return [Check(stage, what, own, cpu, allowed) for own, cpu, allowed in limits]


def stages(example: Example) -> dict[str, Stage]:
    """The stages in which a network is compared, by name. Generating tokens is compared without the compiler."""
    generates = example.generate and not example.compiles
    return {"train": train, "eval": infer, **({"generate": generate} if generates else {})}
