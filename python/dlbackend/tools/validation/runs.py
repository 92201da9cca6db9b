"""Runs of a network whose results can be compared: whatever the device and the type, they draw the same random
numbers, and where it is asked for they take the same decisions and have no jumps in their gradients.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

Function = Callable[..., Any]


def _pooled(average: Function) -> Function:
    def pool(
        x: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:  # fmt: skip
        if average is F.avg_pool3d:  # refuses what only padding makes as large as the window
            sides = padding if isinstance(padding, (tuple, list)) else [padding] * 3
            x, padding = F.pad(x, [side for size in reversed(sides) for side in (size, size)]), 0
        return average(x, kernel_size, stride, padding, ceil_mode)

    return pool


def _with(smooth: Function) -> Function:
    """`smooth` of the first argument. The others say where the function that it stands for bends, or `inplace`."""
    return lambda x, *_, **__: smooth(x)


# Functions whose gradient jumps, and what stands for them where gradients are held to rounding.
SMOOTH: dict[Function, Function] = {
    **dict.fromkeys((F.relu, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_), _with(F.silu)),
    **dict.fromkeys((F.relu6, F.leaky_relu, F.hardtanh, F.hardswish), _with(F.silu)),
    F.hardsigmoid: _with(torch.sigmoid),
    F.max_pool2d: _pooled(F.avg_pool2d),
    F.max_pool3d: _pooled(F.avg_pool3d),
}
# torchvision takes these targets in float32 only; what it computes of them has the type of the boxes.
ONE_TYPE = ("keypoints",)
DROPOUTS = {F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout, torch.dropout}
COMPARISONS = {
    function
    for name in ("eq", "ne", "lt", "le", "gt", "ge")
    for function in (getattr(torch, name), getattr(Tensor, name), getattr(Tensor, f"__{name}__"))
}
# Functions that take a dimension, and where it stands among their arguments.
SELECTIONS: dict[Function, int] = {
    **dict.fromkeys((torch.topk, Tensor.topk), 2),
    **dict.fromkeys((torch.sort, Tensor.sort, torch.argsort, Tensor.argsort), 1),
    **dict.fromkeys((torch.max, Tensor.max, torch.min, Tensor.min), 1),
    **dict.fromkeys((torch.argmax, Tensor.argmax, torch.argmin, Tensor.argmin), 1),
}


# Products for which PyTorch's CPU device has no kernel in float64.
GROUPED: set[Function] = {F.grouped_mm, torch._grouped_mm}


def grouped_product(x: Tensor, weights: Tensor, offs: Tensor) -> Tensor:
    """The products of groups of rows, which end at these offsets, with a matrix for each group."""
    ends = offs.tolist()
    groups = zip([0, *ends], ends, weights, strict=False)
    return torch.cat([x[begin:end] @ weight for begin, end, weight in groups])


class Decisions:
    """The decisions of one run by float numbers, which others repeat: comparisons, orders, boxes that are kept.

    Where two numbers are equal but for rounding, each run would decide otherwise, and from there on compute something
    else. The other runs still decide for themselves too, and it is counted how often they differ.
    """

    def __init__(self) -> None:
        self.taken: list[Tensor] = []
        self.position: int | None = None  # None while the decisions are recorded
        self.different = self.total = 0

    def replay(self) -> None:
        self.position = self.different = self.total = 0

    def decide(self, own: Tensor, as_sets: bool = False) -> Tensor:
        """The decision to go on with."""
        if self.position is None:
            self.taken.append(own.detach().cpu().clone())  # networks write into such results
            return own
        if self.position == len(self.taken):
            raise RuntimeError("decides more often than the run in float64 did")
        taken = self.taken[self.position]
        self.position += 1
        if as_sets:
            different = len(set(taken.tolist()) ^ set(own.tolist()))
        elif taken.shape == own.shape:
            different = int((taken != own.cpu()).sum())
        else:
            raise RuntimeError(f"decides about {tuple(own.shape)}, the run in float64 about {tuple(taken.shape)}")
        self.different += different
        self.total += max(taken.numel(), different)
        return taken.to(own.device, copy=True)

    @property
    def share(self) -> float:
        """The share of decisions that would have been others."""
        return self.different / max(self.total, 1)


class Comparable(TorchFunctionMode):
    """While it is active, dropout lets everything through, and other random numbers are drawn on the CPU in one order.
    In float64, tensors that a network always converts to float32 stay exact.
    """

    def __init__(
        self, dtype: torch.dtype = torch.float32, smooth: bool = False, decisions: Decisions | None = None
    ) -> None:
        super().__init__()
        self.dtype = dtype
        self.smooth = smooth
        self.decisions = decisions
        self.jumps = 0  # calls of functions whose gradient jumps
        self.generator = torch.Generator().manual_seed(2)

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.dtype == torch.float64:
            func = Tensor.double if func is Tensor.float else func
            args = tuple(self.dtype if x is torch.float32 else x for x in args)
            kwargs = {name: self.dtype if x is torch.float32 else x for name, x in kwargs.items()}
        if func in DROPOUTS:
            return args[0] if args else kwargs["input"]
        if func is torch.randperm:
            drawn = torch.randperm(args[0], generator=self.generator)
            return drawn.to(device=kwargs.get("device"), dtype=kwargs.get("dtype"))
        if func is Tensor.bernoulli_:
            probability = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
            return args[0].copy_(torch.empty(args[0].shape).bernoulli_(probability, generator=self.generator))
        if func in GROUPED and self.dtype == torch.float64:
            return grouped_product(args[0], args[1], kwargs["offs"])
        if func in SMOOTH:
            self.jumps += 1
            func = SMOOTH[func] if self.smooth else func
        result = func(*args, **kwargs)
        return result if self.decisions is None else self._decide(self.decisions, func, args, kwargs, result)

    def _decide(
        self, decisions: Decisions, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> Any:
        if func in COMPARISONS and any(isinstance(x, Tensor) and x.is_floating_point() for x in args):
            return decisions.decide(result)
        if str(func).startswith("torchvision.nms"):
            return decisions.decide(result, as_sets=True)
        if func not in SELECTIONS or not args[0].is_floating_point():
            return result
        if isinstance(result, Tensor):  # the larger of two tensors, element by element, is no decision
            return result if result.is_floating_point() else decisions.decide(result)
        indices = decisions.decide(result.indices)
        if decisions.position is None:
            return result
        place = SELECTIONS[func]
        dim = kwargs.get("dim", args[place] if len(args) > place else -1)
        dropped = indices.dim() < args[0].dim()
        values = args[0].gather(dim, indices.unsqueeze(dim) if dropped else indices)
        return type(result)((values.squeeze(dim) if dropped else values, indices))


def tensors(structure: Any) -> list[Tensor]:
    """The tensors in nested lists, tuples, dictionaries and what transformers returns, in order."""
    return [leaf for leaf in torch.utils._pytree.tree_leaves(structure) if isinstance(leaf, Tensor)]


def moved(structure: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """Copies of the tensors in a structure, the floating ones in this type unless they are taken in one type only."""

    def move(path: tuple[Any, ...], leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        converted = leaf.is_floating_point() and not (path and getattr(path[-1], "key", None) in ONE_TYPE)
        return leaf.detach().to(device=device, dtype=dtype if converted else None, copy=True)

    return torch.utils._pytree.tree_map_with_path(move, structure)


def without_dropout(model: nn.Module) -> nn.Module:
    """Turns dropout off: attention takes it as a number, and each device would draw its own."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
    return model
