"""PyTorch's databases of ops, modules, foreach functions and optimizers as cases to run on the device.

A case is an entry of a database, a kind of call and a dtype. It runs the database's own samples and compares each with
the CPU.
"""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.testing._internal import common_methods_invocations as ops
from torch.testing._internal.common_modules import module_db
from torch.testing._internal.common_optimizers import optim_db
from torch.utils._pytree import tree_leaves, tree_map
from upstream.comparing import REFUSED, Call, compare, tensors
from upstream.stable import STABLE

from dlbackend import fallback_report, reset_fallback_report

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64,
    )
}  # fmt: skip
QUICK_SAMPLES = 4
CAUSES = 3  # so many different ones are kept of a case

# PyTorch's random ops seed the generator and set it back, which hides from compare() that they draw numbers.
ops.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
FOREACH = [
    *ops.foreach_unary_op_db, *ops.foreach_binary_op_db, *ops.foreach_pointwise_op_db, *ops.foreach_reduce_op_db,
    *ops.foreach_other_op_db,
]  # fmt: skip


@dataclass(frozen=True)
class Case:
    """`number` is the entry's in its database: two entries may have one name."""

    database: str
    number: int
    name: str
    kind: str
    dtype: str

    @property
    def id(self) -> str:
        return f"{self.database}::{self.name}::{self.kind}::{self.dtype}".replace(" ", "_")


@dataclass
class Result:
    """`samples` that were compared, with none the case says nothing; what was wrong with some; ops that fell back."""

    samples: int = 0
    causes: list[str] = field(default_factory=list)
    fallbacks: list[str] = field(default_factory=list)

    @property
    def outcome(self) -> str:
        if self.causes:
            return "failed"
        return "passed" if self.samples else REFUSED


def op_kinds(op: Any, dtype: torch.dtype) -> Iterator[str]:
    yield "forward"
    yield "noncontiguous"
    if op.supports_autograd and dtype in op.supported_backward_dtypes("cpu"):
        yield "gradient"
    if op.supports_out:
        yield "out"
    if op.get_inplace() is not None:
        yield "inplace"


def module_kinds(dtype: torch.dtype) -> tuple[str, ...]:
    return ("train", "eval", "gradient") if dtype.is_floating_point or dtype.is_complex else ("train", "eval")


def entries() -> Iterator[tuple[str, int, str, Iterable[torch.dtype], Any]]:
    """Database, number, name, dtypes of each entry, and a function from a dtype to its kinds."""
    for number, op in enumerate(ops.op_db):
        yield "op_db", number, op.full_name, op.supported_dtypes("cpu"), lambda dtype, op=op: op_kinds(op, dtype)
    for number, module in enumerate(module_db):
        yield "module_db", number, module.name, module.dtypes, module_kinds
    for number, op in enumerate(FOREACH):
        variants = {"forward": op.method_variant, "inplace": op.inplace_variant}
        kinds: tuple[str, ...] = tuple(kind for kind, function in variants.items() if function is not None)
        yield "foreach_db", number, op.name, op.supported_dtypes("cpu"), lambda _, kinds=kinds: kinds
    for number, optimizer in enumerate(optim_db):
        kinds = ("forloop", *(i for i in optimizer.supported_impls if i in ("foreach", "fused")))
        yield "optim_db", number, optimizer.name, [torch.float32], lambda _, kinds=kinds: kinds


def cases(databases: Iterable[str] | None = None) -> list[Case]:
    """The cases of these databases, or of all."""
    wanted = set(databases or DATABASES)
    return [
        Case(database, number, name, kind, text)
        for database, number, name, dtypes, kinds in entries()
        if database in wanted
        for text, dtype in DTYPES.items()
        if dtype in dtypes
        for kind in kinds(dtype)
    ]


def with_gradients(results: Any, leaves: list[Any]) -> list[torch.Tensor | None]:
    """The results, and the gradients of the leaves for random upstream ones."""
    found = [r for r in tree_leaves(results) if isinstance(r, torch.Tensor)]
    differentiable = [r for r in found if r.requires_grad]
    wanted = [t for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad]
    if not differentiable or not wanted:
        return list(found)
    generator = torch.Generator().manual_seed(0)
    upstream = [
        torch.randn(r.shape, generator=generator, dtype=torch.complex64 if r.is_complex() else torch.float32)
        .to(r.dtype)
        .to(r.device)
        for r in differentiable
    ]
    return [*found, *torch.autograd.grad(differentiable, wanted, upstream, allow_unused=True)]


# Means and deviations that the device gives in float32 also for half inputs, which the CPU rounds. For batch_norm and
# layer_norm PyTorch's decompositions do so on any device but the CPU (torch/_decomp, torch/_refs). For group_norm they
# round on all; here its statistics stay float32, for that is better for the gradient, and rounding takes two launches.
STATISTICS = {"native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update", "native_layer_norm",
              "native_group_norm"}  # fmt: skip


def called(op: Any, first: Any, args: Any, kwargs: Any) -> Any:
    on_cpu = isinstance(first, torch.Tensor) and first.device.type == "cpu"
    function = STABLE.get(op.name, op) if on_cpu else op
    return function(first, *args, **kwargs)


def spaced(t: torch.Tensor) -> torch.Tensor:
    """Room for such a result in every second element."""
    return t.new_zeros((*t.shape, 2))[..., 0]


def op_call(op: Any, kind: str, sample: Any, room: Callable[[torch.Tensor], torch.Tensor] = spaced) -> Call:
    """`room` makes what a result is written to by out=."""
    arguments = (sample.input, sample.args, sample.kwargs)

    def defined(results: Any) -> Any:
        """The part of the results that the op defines: singular vectors' signs, for one, are anyone's choice."""
        if op.name in STATISTICS:
            dtype = sample.input.dtype
            results = tree_map(lambda t: t.to(dtype) if t.dtype == torch.float32 else t, results)
        return sample.output_process_fn_grad(results)

    def call(copies: Any) -> list[torch.Tensor | None]:
        first, args, kwargs = copies(arguments)
        if op.name == "tensor_split":  # on any device the host reads where to split
            args = sample.args
        if kind == "gradient":
            return with_gradients(defined(called(op, first, args, kwargs)), tree_leaves((first, args, kwargs)))
        if kind == "inplace":
            return tensors((op.get_inplace()(first, *args, **kwargs), first))
        results = called(op, first, args, kwargs)
        if kind != "out":
            return tensors(defined(results))
        out = tree_map(room, results)
        op(first, *args, **kwargs, out=out)
        # PyTorch's CPU kernels of narrow_copy and avg_pool3d write to a strided tensor as if it were dense.
        on_cpu = all(t is None or t.device.type == "cpu" for t in tensors(results))
        return tensors(defined(results if on_cpu else out))

    return call


def all_strided(sample: Any) -> bool:
    """Sparse tensors have no strides that could be others."""
    leaves = tree_leaves((sample.input, sample.args, sample.kwargs))
    return all(leaf.layout == torch.strided for leaf in leaves if isinstance(leaf, torch.Tensor))


def op_calls(op: Any, kind: str, dtype: torch.dtype) -> Iterator[Call]:
    for sample in op.sample_inputs("cpu", dtype, requires_grad=kind == "gradient"):
        if kind == "inplace" and sample.broadcasts_input:
            continue
        if kind == "noncontiguous" and not all_strided(sample):
            continue
        yield op_call(op, kind, sample.noncontiguous() if kind == "noncontiguous" else sample)


def module_calls(info: Any, kind: str, dtype: torch.dtype) -> Iterator[Call]:
    training = kind != "eval"
    gradient = kind == "gradient"
    for sample in info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=gradient, training=training):
        if sample.forward_input is None:
            continue
        torch.manual_seed(0)
        module = info.module_cls(*sample.constructor_input.args, **sample.constructor_input.kwargs)
        module.to(dtype).train(training)
        arguments = (sample.forward_input.args, sample.forward_input.kwargs)
        if info.is_lazy:
            module(*copy.deepcopy(arguments[0]), **copy.deepcopy(arguments[1]))

        def call(copies: Any, module: Any = module, arguments: Any = arguments) -> list[torch.Tensor | None]:
            args, kwargs = copies(arguments)
            there = copy.deepcopy(module).to(copies(torch.empty(0, dtype=dtype)))
            results = there(*args, **kwargs)
            if gradient:
                return with_gradients(results, [*tree_leaves((args, kwargs)), *there.parameters()])
            return tensors((results, list(there.buffers())))

        yield call


def foreach_calls(op: Any, kind: str, dtype: torch.dtype) -> Iterator[Call]:
    function = op.inplace_variant if kind == "inplace" else op.method_variant
    for sample in op.sample_inputs("cpu", dtype, noncontiguous=False):
        kwargs = {name: value for name, value in sample.kwargs.items() if name != "is_fastpath"}
        arguments = (sample.input, sample.args, kwargs)

        def call(copies: Any, arguments: Any = arguments) -> list[torch.Tensor | None]:
            first, args, kwargs = copies(arguments)
            results = function(first, *args, **kwargs)
            return tensors(first if kind == "inplace" else results)

        yield call


def optimizer_calls(info: Any, kind: str, dtype: torch.dtype) -> Iterator[Call]:
    """Three steps, of whose parameters the values are compared."""
    torch.manual_seed(0)
    shapes = [(4, 3), (3, 5)]
    start = [torch.randn(shape, dtype=dtype) for shape in shapes]
    gradients = [[torch.randn(shape, dtype=dtype) for shape in shapes] for _ in range(3)]
    if info.only_supports_sparse_grads:
        gradients = [[g.to_sparse() for g in step] for step in gradients]
    for sample in info.optim_inputs_func(device="cpu"):
        options = dict(sample.kwargs)
        options.update({kind: True} if kind != "forloop" else {"foreach": False} if info.supported_impls else {})

        def call(copies: Any, options: Any = options) -> list[torch.Tensor | None]:
            parameters = [torch.nn.Parameter(p) for p in copies(start)]
            optimizer = info.optim_cls(parameters, **copy.deepcopy(options))
            for step in copies(gradients):
                for parameter, gradient in zip(parameters, step, strict=True):
                    parameter.grad = gradient
                if info.step_requires_closure:
                    optimizer.step(lambda: sum(p.detach().square().sum() for p in parameters))
                else:
                    optimizer.step()
            return list(parameters)

        yield call


DATABASES: dict[str, tuple[Any, Any]] = {
    "op_db": (ops.op_db, op_calls),
    "module_db": (module_db, module_calls),
    "foreach_db": (FOREACH, foreach_calls),
    "optim_db": (optim_db, optimizer_calls),
}


def run_case(case: Case, samples: int | None = None) -> Result:
    """Runs so many of the case's samples, or all of them."""
    database, calls = DATABASES[case.database]
    info = database[case.number]
    values = not getattr(info, "has_nondeterministic_output", False)
    result = Result()
    torch.manual_seed(0)
    reset_fallback_report()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for call in itertools.islice(calls(info, case.kind, DTYPES[case.dtype]), samples):
            found = compare(call, values)
            result.samples += found != REFUSED
            if found and found != REFUSED and found not in result.causes and len(result.causes) < CAUSES:
                result.causes.append(found)
    result.fallbacks = sorted(fallback_report())
    return result
