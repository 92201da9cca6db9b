"""dlbackend.precompile(): what a model needs is compiled before its first iteration."""

import copy
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.utils._pytree import tree_leaves, tree_map

from dlbackend import _C, ocl, solvers
from dlbackend.inputs import Inputs, Loss, arguments, squared
from dlbackend.progress import Bar

RUNS = 2  # the search for other solvers begins with the second run of a problem


def precompile(
    model: nn.Module,
    example_inputs: Any,
    training: bool = False,
    loss: Loss = squared,
    optimizer: torch.optim.Optimizer | None = None,
) -> dict[str, float]:
    """Compiles, or loads from the cache, the kernels of `model` called with `example_inputs`, on its ocl device, so
    that an iteration compiles nothing. Kernels take sizes at run time: other sizes need no call of their own.

    `example_inputs`: a tensor, a tuple of positional or a dictionary of keyword arguments, on any device. With
    `training`, a backward pass of `loss` of the results counts too (give your own: its kernels are not the default's),
    and with `optimizer` a step, on copies of its parameters and state. Draws a progress bar on a terminal.

    First the model runs without computing, only to collect programs, which are then built in as many threads as there
    are cores; a model that looks at its data is followed as far as that. Then it runs twice for real, for what the
    driver does at the first launch and for solvers to be checked. Parameters, gradients, buffers, random state,
    training flags and the optimizer stay as they are; other things that a forward pass changes do not. Memory: once
    more the buffers, and parameters and state with an `optimizer`, for as long as it runs.

    Returns the number of "programs" collected, how many programs were "compiled" and "loaded", and the "seconds".
    ValueError when the model is not on an ocl device.
    """
    return _Precompile(model, example_inputs, training, loss, optimizer).run()


class _Precompile:
    def __init__(
        self,
        model: nn.Module,
        inputs: Any,
        training: bool,
        loss: Loss,
        optimizer: torch.optim.Optimizer | None,
    ) -> None:
        tensors = [
            *model.parameters(),
            *model.buffers(),
            *(x for x in tree_leaves(inputs) if isinstance(x, torch.Tensor)),
        ]
        device = tensors[0].device if tensors else torch.device("cpu")
        if device.type != "ocl":
            raise ValueError(f'precompile() is for models on an ocl device, not on {device}: model.to("ocl")')
        self.model, self.training, self.loss, self.optimizer = model, training, loss, optimizer
        self.device, self.index = device, device.index if device.index is not None else _C.current_device()
        self.inputs: Inputs = arguments(inputs)
        self.changed: set[str] = set()  # parameters that a forward pass writes to

    def run(self) -> dict[str, float]:
        start, before = time.monotonic(), _C.kernel_stats()
        bar = Bar("precompile")
        with self._unchanged():
            programs = self._collect()
            total = len(programs) + RUNS

            def built(done: int) -> bool:
                bar.show(done, total, f"{done}/{len(programs)} programs")
                return True

            _C.prefetch(self.index, programs, 0, built)
            for run in range(RUNS):
                self._step()
                solvers.wait()
                bar.show(len(programs) + run + 1, total, f"{len(programs)} programs, run {run + 1}/{RUNS}")
        after = _C.kernel_stats()
        counts = {what: after[what] - before[what] for what in ("compiled", "loaded")}
        return {"programs": len(programs), **counts, "seconds": time.monotonic() - start}

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        flags = [(module, module.training) for module in self.model.modules()]
        with torch.random.fork_rng([self.index], device_type="ocl"), torch.set_grad_enabled(self.training):
            try:
                self.model.train(self.training)
                yield
            finally:
                for module, flag in flags:
                    module.training = flag

    def _collect(self) -> list[tuple[str, str]]:
        """Sources and options of the programs that a run asks for, without computing anything."""
        versions = {name: p._version for name, p in self.model.named_parameters()}
        complete = False
        _C.begin_recording()
        try:
            # Backward passes would otherwise run on a thread of their own, which does not record.
            with torch.autograd.set_multithreading_enabled(False):
                self._step()
            complete = True
        except Exception as error:  # it needs data, or it fails, which the real run will raise
            if _C.verbosity() >= 1:
                print(f"dlbackend,collecting programs ended early,{error}", file=sys.stderr)
        finally:
            programs = _C.end_recording()
        self.changed = {n for n, p in self.model.named_parameters() if not complete or p._version != versions[n]}
        return programs

    def _step(self) -> None:
        """A run on stand-ins of parameters and buffers: gradients and statistics go to those."""
        stand_ins: dict[str, torch.Tensor] = {name: b.detach().clone() for name, b in self.model.named_buffers()}
        for name, p in self.model.named_parameters():
            own = p.detach().clone() if name in self.changed else p.detach()
            stand_ins[name] = own.requires_grad_(p.requires_grad)
        args, kwargs = tree_map(lambda x: x.to(self.device) if isinstance(x, torch.Tensor) else x, self.inputs)
        output = functional_call(self.model, stand_ins, args, kwargs)
        if self.training:
            self.loss(output).backward()  # type: ignore[no-untyped-call]
        if self.optimizer is not None:
            self._optimizer_step(self.optimizer)
        ocl.synchronize(self.index)

    def _optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        own = copy.deepcopy(optimizer)
        for group in own.param_groups:
            for p in group["params"]:
                p.grad = torch.zeros_like(p)
        own.step()
