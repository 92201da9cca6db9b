"""A convolution or linear layer and the elementwise calls behind it in one launch, as MIOpen's fusion plans have it.

    fused = dlbackend.fusion.fuse(conv, lambda y, shortcut: F.relu(y + shortcut), norm=bn)
    y = fused(x, shortcut)
    print(fused.plan(x, shortcut))  # Plan(fused=True, solver='cpu_winograd', rows='v0 = add_alpha.f32(x0, x1, 1); ...')

For inference: where gradients are wanted, the calls run one by one. torch.compile finds such chains in a model by
itself, with gradients (docs/compile.md).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval
from torch.profiler import ProfilerActivity, profile

from dlbackend import solvers

__all__ = ["Fused", "Plan", "fuse"]

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class Plan:
    """How a fused layer runs for inputs of certain shapes and dtypes."""

    fused: bool  # whether one launch computes all of it
    solver: str  # that computes the convolution or product
    rows: str  # what is computed behind it (docs/template-api.md); "" for nothing


def fuse(layer: nn.Module, then: Callable[..., torch.Tensor] | None = None, norm: nn.Module | None = None) -> Fused:
    """Returns a module that computes `then(norm(layer(x)), *operands)` in as few launches as there is a solver for.

    `layer`: Conv1d to Conv3d or Linear, whose parameters the module keeps unless there is a norm. `norm`: a batch norm
    in eval mode, folded into a copy of them. `then`: a function of the result and further tensors that broadcast to it,
    made of elementwise calls: activations, additions, factors, comparisons. It is traced once for each dtype and number
    of dimensions, so that its control flow must not depend on values.

    TypeError for another layer, ValueError for a norm that is training. `then` raises what it raises by itself.
    """
    if not isinstance(layer, (*_CONVOLUTIONS, nn.Linear)):
        raise TypeError(f"fuse() takes Conv1d, Conv2d, Conv3d or Linear, not {type(layer).__name__}")
    if norm is not None:
        if norm.training:
            raise ValueError("fuse() folds a norm as it is in evaluation: call norm.eval() first")
        fold: Any = fuse_linear_bn_eval if isinstance(layer, nn.Linear) else fuse_conv_bn_eval
        layer = fold(copy.deepcopy(layer).eval(), norm)
    return Fused(layer, then)


class Fused(nn.Module):
    """What fuse() returns."""

    def __init__(self, layer: nn.Module, then: Callable[..., torch.Tensor] | None) -> None:
        super().__init__()
        self.layer = layer
        self.then = then
        self._rows: dict[Any, str | None] = {}

    def forward(self, x: torch.Tensor, *operands: torch.Tensor) -> torch.Tensor:
        """x: what the layer takes; operands: tensors of x's device that broadcast to the layer's result."""
        tensors = [x, *operands, *self.layer.parameters()]
        wants_gradient = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
        rows = None if wants_gradient or x.device.type != "ocl" else self._rows_for(x, operands)
        if rows is None:
            y: torch.Tensor = self.layer(x)
            return self.then(y, *operands) if self.then else y
        return self._run(rows, x, operands)

    def _run(self, rows: str, x: torch.Tensor, operands: tuple[torch.Tensor, ...]) -> torch.Tensor:
        layer: Any = self.layer
        ops = torch.ops.dlbackend
        if isinstance(layer, nn.Linear):
            from dlbackend.compile.products import as_matrix

            matrix = x.reshape(-1, x.shape[-1])
            shape = (*x.shape[:-1], layer.out_features)
            flat = [as_matrix(o, shape) for o in operands]
            made = ops.product_rows.default(rows, matrix, layer.weight.t(), layer.bias, 1, 1, flat)[0]
            return made.reshape(shape)  # type: ignore[no-any-return]
        if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
            x = nn.functional.pad(x, layer._reversed_padding_repeated_twice, _padding_mode(layer))
            padding = [0] * (x.dim() - 2)
        else:
            padding = list(layer.padding)
        return ops.convolution_rows.default(  # type: ignore[no-any-return]
            rows, x, layer.weight, layer.bias, layer.stride, padding, layer.dilation, layer.groups, operands,
            not self.training,
        )[0]  # fmt: skip

    def _rows_for(self, x: torch.Tensor, operands: tuple[torch.Tensor, ...]) -> str | None:
        """The rows of `then`; None where it is none, or is not made of rows alone."""
        if self.then is None:
            return None
        key = (x.dtype, x.dim(), *((o.dtype, o.dim()) for o in operands))
        if key not in self._rows:
            self._rows[key] = _rows_of(self.then, x.dtype, x.dim(), operands)
        return self._rows[key]

    def plan(self, x: torch.Tensor, *operands: torch.Tensor) -> Plan:
        """How the module runs for such inputs without gradients, once what it wants is built. Runs it a few times."""
        with torch.no_grad():
            for _ in range(3):
                self(x, *operands)
                solvers.wait()
            with profile(activities=[ProfilerActivity.CPU]) as record:
                self(x, *operands)
        op = "ocl::gemm::" if isinstance(self.layer, nn.Linear) else "ocl::conv_fwd::"
        names = [event.name.removeprefix(op) for event in record.events() if event.name.startswith(op)]
        solver, _, behind = (names[0] if names else "").partition(" then ")
        return Plan(bool(behind), solver.partition(" ")[0], self._rows_for(x, operands) or "")


def _padding_mode(layer: Any) -> str:
    return "constant" if layer.padding_mode == "zeros" else layer.padding_mode


def _rows_of(
    then: Callable[..., torch.Tensor], dtype: torch.dtype, dims: int, operands: tuple[torch.Tensor, ...]
) -> str | None:
    """Traces the function on tensors without data and writes its calls as rows."""
    from dlbackend.compile.fuse import Group
    from dlbackend.compile.rows import row_of

    with FakeTensorMode(), torch.no_grad():
        values = [torch.empty([2] * dims, dtype=dtype, device="ocl")]
        values += [torch.empty([2] * o.dim(), dtype=o.dtype, device="ocl") for o in operands]
        graph = make_fx(then, tracing_mode="fake")(*values).graph
    group = Group(())
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    for node in graph.nodes:
        if node.op == "call_function":
            row = row_of(node)
            if row is None:
                return None
            group.members[node] = row
    (result,) = next(n for n in graph.nodes if n.op == "output").args
    if result not in group.members or result.meta["val"].dtype != dtype:
        return None
    return group.expression(inputs, [result])
