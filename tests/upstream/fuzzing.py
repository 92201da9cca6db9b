"""Calls of the ops of PyTorch's database with inputs of random sizes and layouts, for scripts/fuzz.py. A number, the
seed, says all of a call.
"""

from __future__ import annotations

import itertools
import random
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.testing import make_tensor
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, ReductionOpInfo, SampleInput, UnaryUfuncInfo
from torch.utils._pytree import tree_leaves, tree_map
from upstream import cases, comparing

SAMPLES = 30  # so many of the database's are looked at
# Ops whose arguments are valid for one size alone, and ops of which the CPU, when they are empty, reads memory that
# nothing wrote.
OF_ONE_SIZE = re.compile(r"lu_solve|lu_unpack|ldl_solve|margin_loss|segment_reduce")
# Ops that write to some of their inputs, so that these may not overlap.
WRITES = re.compile(r"batch_norm")
SIZES = [0, 1, 1, 2, 2, 3, 4, 5, 7]
LONG_SIZES = [16, 33, 64, 129, 300, 1025]


@dataclass
class Found:
    """The call of a seed, and its fault: "", comparing.REFUSED or a cause."""

    seed: int
    what: str
    cause: str


def random_shape(rng: random.Random, rank: int) -> list[int]:
    shape = [rng.choice(SIZES) for _ in range(rank)]
    if shape and rng.random() < 0.3:
        shape[rng.randrange(rank)] = rng.choice(LONG_SIZES)
    return shape


def broadcastable(rng: random.Random, shape: Sequence[int]) -> list[int]:
    """A shape that broadcasts with that one: without leading sizes, or with some of 1."""
    kept = list(shape[rng.choice([0, 0, 0, 1, len(shape)]) :])
    return [1 if rng.random() < 0.2 else size for size in kept]


def made(shape: Sequence[int], dtype: torch.dtype, **limits: Any) -> torch.Tensor:
    """From PyTorch's generator, which run_seed() seeds."""
    return make_tensor(tuple(shape), device="cpu", dtype=dtype, **limits)


def any_shape(op: Any, dtype: torch.dtype, rng: random.Random) -> SampleInput | None:
    """A sample of a size that the database does not have, for the kinds of op that take any."""
    shape = random_shape(rng, rng.choice([0, 1, 2, 3, 4, 5]))
    kwargs: dict[str, Any]
    if isinstance(op, UnaryUfuncInfo):
        low, high = op.domain
        x = made(shape, dtype, low=low, high=high)
        return SampleInput(x, kwargs=op.sample_kwargs("cpu", dtype, x)[0])
    if isinstance(op, BinaryUfuncInfo):
        shapes = [shape, broadcastable(rng, shape)]
        rng.shuffle(shapes)
        x = made(shapes[0], dtype, **op.lhs_make_tensor_kwargs)
        y = made(shapes[1], dtype, **op.rhs_make_tensor_kwargs)
        both = torch.broadcast_shapes(x.shape, y.shape)
        return SampleInput(x, args=(y,), kwargs=op.sample_kwargs("cpu", dtype, x)[0], broadcasts_input=x.shape != both)
    if isinstance(op, ReductionOpInfo):
        kwargs = {}
        if shape and rng.random() < 0.8:
            dims = rng.sample(range(len(shape)), rng.randint(1, len(shape)))
            kwargs = {"dim": dims if op.supports_multiple_dims and rng.random() < 0.7 else dims[0]}
            kwargs["keepdim"] = rng.random() < 0.5
        x = made(shape, dtype)
        args, kwargs = rng.choice(list(op.generate_args_kwargs(x, **kwargs)))
        return SampleInput(x, args=args, kwargs=kwargs)
    return None


def each_tensor(sample: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The sample with its strided tensors changed."""

    def one(leaf: Any) -> Any:
        is_plain = isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided and not leaf.is_quantized
        return change(leaf.detach()).requires_grad_(leaf.requires_grad) if is_plain else leaf

    changed = tree_map(one, (sample.input, sample.args, sample.kwargs))
    return SampleInput(
        changed[0], args=changed[1], kwargs=changed[2],
        output_process_fn_grad=sample.output_process_fn_grad, broadcasts_input=sample.broadcasts_input,
    )  # fmt: skip


def narrowed(sample: Any, rng: random.Random) -> Any:
    """The sample with all sizes that equal one of them cut to another, so that what belongs together still fits."""
    tensors = [
        leaf for leaf in tree_leaves((sample.input, sample.args, sample.kwargs)) if isinstance(leaf, torch.Tensor)
    ]
    sizes = sorted({size for t in tensors for size in t.shape if size > 1})
    if not sizes:
        return sample
    old = rng.choice(sizes)
    new = rng.choice([0, 1, 1, old - 1])

    def cut(t: torch.Tensor) -> torch.Tensor:
        for dim, size in enumerate(t.shape):
            t = t.narrow(dim, 0, new) if size == old else t
        return t

    return each_tensor(sample, cut)


def random_strides(shape: Sequence[int], rng: random.Random, overlapping: bool) -> list[int]:
    """Strides of some order of the dimensions, with gaps. Where elements may overlap, some are 0 or too short."""
    order = list(range(len(shape)))
    chance = rng.random()
    if chance < 0.4:
        rng.shuffle(order)
    elif chance < 0.6 and len(shape) in (4, 5):  # channels last
        order = [0, *order[2:], 1]
    strides = [0] * len(shape)
    gap = rng.choice([0.0, 0.0, 0.3])
    step = 1
    for dim in reversed(order):
        if overlapping and rng.random() < 0.4:
            strides[dim] = rng.choice([0, 0, 1, 2])
            continue
        strides[dim] = step * (rng.choice([2, 3]) if rng.random() < gap else 1)
        step = strides[dim] * max(1, shape[dim]) + (rng.random() < gap)
    return strides


def laid_out(t: torch.Tensor, rng: random.Random, overlapping: bool) -> torch.Tensor:
    """A tensor of that size in another layout, with these values, or where elements overlap some of them."""
    strides = random_strides(t.shape, rng, overlapping)
    offset = rng.choice([0, 0, 1, 2, 5])
    if t.numel() == 0:
        return t.new_empty(offset + 1).as_strided(t.shape, strides, offset)
    length = offset + 1 + sum((size - 1) * stride for size, stride in zip(t.shape, strides, strict=True))
    storage = t.reshape(-1)[torch.arange(length) % t.numel()]
    view = storage.as_strided(t.shape, strides, offset)
    return view if overlapping else view.copy_(t)


def random_layouts(sample: Any, rng: random.Random, may_overlap: bool) -> Any:
    def one(t: torch.Tensor) -> torch.Tensor:
        return t if rng.random() < 0.2 else laid_out(t, rng, overlapping=may_overlap and rng.random() < 0.25)

    return each_tensor(sample, one)


def sharing(sample: Any) -> Any:
    """The sample with one tensor in the place of all of its size and dtype."""
    seen: dict[Any, torch.Tensor] = {}
    return each_tensor(sample, lambda t: seen.setdefault((t.shape, t.dtype, t.requires_grad), t))


def room(seed: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Makes tensors like results in a layout that the seed says, where out= may be written."""

    def make(t: torch.Tensor) -> torch.Tensor:
        rng = random.Random(f"{seed} {tuple(t.shape)}")
        there = laid_out(torch.zeros(t.shape, dtype=t.dtype), rng, overlapping=False)
        return comparing.copied(there, str(t.device))

    return make


def described(sample: Any) -> str:
    def one(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.layout != torch.strided:
            return leaf
        dtype = str(leaf.dtype).removeprefix("torch.")
        return f"{dtype}{list(leaf.shape)} by {list(leaf.stride())} from {leaf.storage_offset()}"

    return " ".join(str(tree_map(one, (sample.input, *sample.args, sample.kwargs))).replace("'", "").split())[:400]


def choose(found: Sequence[cases.Case], seed: int) -> cases.Case:
    """One of these cases, each op being as likely as the others."""
    rng = random.Random(f"{seed} case")
    number = rng.choice(sorted({case.number for case in found}))
    return rng.choice([case for case in found if case.number == number])


def run_seed(seed: int, found: Sequence[cases.Case], ops: Sequence[Any] = cases.ops.op_db) -> Found:
    """Runs the call that the seed says of one of these cases, whose numbers are of `ops`."""
    case = choose(found, seed)
    op, dtype = ops[case.number], cases.DTYPES[case.dtype]
    rng = random.Random(f"{seed} call")
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gradient = case.kind == "gradient"
        sample = any_shape(op, dtype, rng) if rng.random() < 0.5 else None
        if sample is None:
            known = list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=gradient), SAMPLES))
            if not known:
                return Found(seed, case.id, comparing.REFUSED)
            sample = rng.choice(known)
        elif gradient:
            sample = each_tensor(sample, lambda t: t)
            sample.input.requires_grad_()
        if rng.random() < 0.25 and not OF_ONE_SIZE.search(op.name):
            sample = narrowed(sample, rng)
        sample = random_layouts(sample, rng, may_overlap=not WRITES.search(op.name))
        if rng.random() < 0.1:
            sample = sharing(sample)
        values = not getattr(op, "has_nondeterministic_output", False)
        cause = comparing.compare(cases.op_call(op, case.kind, sample, room(seed)), values)
    return Found(seed, f"{case.id} {described(sample)}", cause)
