"""torch.compile for ocl: by Inductor, whose kernels dlbackend.compile.inductor generates, and by a backend of our own,
whose graphs run elementwise chains in one launch each.

    model = torch.compile(model)                 # Inductor
    model = torch.compile(model, backend="ocl")  # backend()

For the latter, AOTAutograd makes a forward and a backward graph of ATen calls. Chains of elementwise calls become
expressions of rows (dlbackend.template.rows) with the values that the ops give one by one, bit for bit; everything else
runs as in eager mode. No kernel depends on sizes, so new sizes compile no new kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition

from dlbackend.compile.fuse import fuse

__all__ = ["backend", "default_backend"]

INDUCTOR_OF = "2.13."  # Inductor's classes differ between minor versions


def _compile(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    return make_boxed_func(fuse(module).forward)


_aot = aot_autograd(
    fw_compiler=_compile,
    bw_compiler=_compile,
    partition_fn=min_cut_rematerialization_partition,
    keep_inference_input_mutations=True,
)


def backend(module: torch.fx.GraphModule, inputs: Sequence[Any], **_: Any) -> Callable[..., Any]:
    """The backend "ocl" of torch.compile. Options and modes of other backends are taken and change nothing."""
    return _aot(module, inputs)


def default_backend(
    compile_fx: Callable[..., Any], module: torch.fx.GraphModule, inputs: Sequence[Any]
) -> Callable[..., Any]:
    """What torch.compile does with a graph on ocl by default: Inductor, by its own `compile_fx`, with the torch that
    dlbackend.compile.inductor is written for, else backend().
    """
    if not torch.__version__.startswith(INDUCTOR_OF):
        return backend(module, inputs)
    from dlbackend.compile.inductor import compile_graph

    made: Callable[..., Any] = compile_graph(compile_fx, module, inputs)
    return made
