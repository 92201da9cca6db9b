"""Variants of a model that compute the same another way: in another precision, memory layout, or with batch norms
folded into convolutions. The tuner measures them; a Tuning makes the one that won again.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch.utils._pytree import tree_map

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "autocast-fp16", "autocast-bf16")
LAYOUTS = ("nchw", "nhwc", "per-layer")
FUSIONS = ("on", "off")
SOLVERS = ("measured", "heuristic")

_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@dataclass(frozen=True)
class Configuration:
    """One value for every knob. `layers`, only for the layout "per-layer", names each convolution's own layout."""

    precision: str = "fp32"
    layout: str = "nchw"
    fusion: str = "off"
    solvers: str = "heuristic"
    layers: tuple[tuple[str, str], ...] = field(default=())

    def __str__(self) -> str:
        layout = self.layout
        if self.layers:
            layout += f" ({sum(format == 'nhwc' for _, format in self.layers)} of {len(self.layers)} nhwc)"
        return f"{self.precision}, {layout}, fusion {self.fusion}, solvers {self.solvers}"


class Variant(nn.Module):
    """A network in a configuration's precision and layout, called as the network itself is.

    `module` is the network. Floating point inputs are brought into the precision and layout that it computes in;
    results in float16 or bfloat16 come back as float32.
    """

    def __init__(self, module: nn.Module, configuration: Configuration) -> None:
        super().__init__()
        self.module = module
        self.configuration = configuration

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree_map(self._bring_in, (args, kwargs))
        with self._autocast():
            result = self.module(*args, **kwargs)
        return tree_map(self._bring_out, result)

    def _autocast(self) -> AbstractContextManager[object]:
        kind, _, name = self.configuration.precision.partition("-")
        return torch.autocast("ocl", _DTYPES[name]) if kind == "autocast" else nullcontext()

    def _bring_in(self, x: object) -> object:
        if not isinstance(x, torch.Tensor) or not x.is_floating_point():
            return x
        x = x.to(_DTYPES.get(self.configuration.precision, x.dtype))
        nhwc = self.configuration.layout == "nhwc"  # per layer, hooks do it
        return x.contiguous(memory_format=memory_format("nhwc", x.dim())) if nhwc else x

    def _bring_out(self, x: object) -> object:
        low = isinstance(x, torch.Tensor) and x.dtype in _DTYPES.values()
        return x.float() if low else x  # type: ignore[attr-defined]


def make_variant(model: nn.Module, configuration: Configuration) -> Variant:
    """The model as the configuration says, changed in place: copy it before where that matters.

    ValueError, saying why, when it cannot be made: fusion for a model that trains or that torch.fx cannot trace, or
    the layout of a layer that the model does not have.
    """
    if configuration.fusion == "on":
        fold_batch_norms(model)
    if configuration.precision in _DTYPES:
        model.to(_DTYPES[configuration.precision])
    set_layout(model, configuration)
    return Variant(model, configuration)


def refusal(configuration: Configuration, training: bool) -> str:
    """Why a configuration is not offered; empty when it is."""
    if configuration.precision == "tf32":
        return "no solver of this version computes with float32 operands rounded to TF32"
    if training and configuration.precision in _DTYPES:
        return "training in it loses small updates for want of float32 weights; autocast keeps them"
    if training and configuration.fusion == "on":
        return "batch norms can be folded for inference only"
    return ""


# Layout


def memory_format(layout: str, dimensions: int) -> torch.memory_format:
    """PyTorch's name for "nchw" or "nhwc" of a tensor with so many dimensions; other than 4 or 5 know one only."""
    if layout == "nchw" or dimensions not in (4, 5):
        return torch.contiguous_format
    return torch.channels_last if dimensions == 4 else torch.channels_last_3d


def layered(model: nn.Module) -> list[str]:
    """Names of the layers that may have a layout of their own: convolutions in two or three dimensions."""
    kind = nn.modules.conv._ConvNd
    return [name for name, m in model.named_modules() if isinstance(m, kind) and m.weight.dim() in (4, 5)]


class _BringIn:
    """Forward pre-hook: gives a layer its first input in the layer's layout. Costs nothing where it has it already."""

    def __init__(self, layout: str) -> None:
        self.layout = layout

    def __call__(self, _: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        x = args[0]
        return (x.contiguous(memory_format=memory_format(self.layout, x.dim())), *args[1:])


def set_layout(model: nn.Module, configuration: Configuration) -> None:
    """Weights of convolutions in the configuration's layout; their results follow. With layers of their own, hooks
    bring inputs over where two layouts meet.
    """
    names = layered(model)
    own = dict(configuration.layers)
    if unknown := set(own) - set(names):
        raise ValueError(f"the model has no convolution named {sorted(unknown)[0]!r}")
    for name in names:
        layer = model.get_submodule(name)
        layout = own.get(name, "nhwc" if configuration.layout == "nhwc" else "nchw")
        weight = layer.get_parameter("weight")
        weight.data = weight.data.contiguous(memory_format=memory_format(layout, weight.dim()))
        if own:
            layer.register_forward_pre_hook(_BringIn(layout))


# Folding


def fold_batch_norms(model: nn.Module) -> int:
    """Folds batch norms, as they are in eval mode, into the convolutions before them: one kernel and one pass over
    memory less for each. Changes the model; folded batch norms become nn.Identity under their name. Returns how many.
    ValueError when the model is in training mode or torch.fx cannot trace it.
    """
    if model.training:
        raise ValueError("batch norms can be folded for inference only: call eval() first")
    pairs = foldable(model)
    for convolution, batch_norm in pairs:
        _fold(convolution, batch_norm)
    ours = {id(batch_norm) for _, batch_norm in pairs}
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if id(child) in ours:
                setattr(parent, name, nn.Identity())
    return len(pairs)


def foldable(model: nn.Module) -> list[tuple[nn.Module, nn.Module]]:
    """Convolutions and the batch norms that alone read their results; both called once, without hooks or shared
    parametrisations. ValueError when torch.fx cannot trace the model.
    """
    try:
        graph = fx.Tracer().trace(model)
    except Exception as error:  # whatever a model's own code does when it is traced
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"torch.fx cannot trace the model: {reason}") from error
    calls = [node for node in graph.nodes if node.op == "call_module"]
    modules = {node: model.get_submodule(node.target) for node in calls}
    times = [id(m) for m in modules.values()]
    read = {str(node.target).rpartition(".")[0] for node in graph.nodes if node.op == "get_attr"}
    pairs = []
    for node in calls:
        previous = node.args[0] if node.args else None
        if not isinstance(previous, fx.Node) or previous not in modules or len(previous.users) != 1:
            continue
        convolution, batch_norm = modules[previous], modules[node]
        if type(convolution) not in _CONVOLUTIONS or type(batch_norm) not in _BATCH_NORMS:
            continue
        if {previous.target, node.target} & read:  # a parameter is also used by itself
            continue
        once = times.count(id(convolution)) == times.count(id(batch_norm)) == 1
        fixed = batch_norm.running_mean is not None and not batch_norm.training
        if once and fixed and not _has_hooks(convolution) and not _has_hooks(batch_norm):
            pairs.append((convolution, batch_norm))
    return pairs


def _has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)


def _fold(convolution: Any, batch_norm: Any) -> None:
    """y = (conv(x) - mean) / sqrt(var + eps) * gamma + beta, in float64, as one convolution."""
    mean, variance = batch_norm.running_mean.cpu().double(), batch_norm.running_var.cpu().double()
    scale = (variance + batch_norm.eps).rsqrt()
    shift = -mean * scale
    if batch_norm.affine:
        gamma, beta = batch_norm.weight.detach().cpu().double(), batch_norm.bias.detach().cpu().double()
        scale, shift = scale * gamma, shift * gamma + beta
    weight = convolution.weight.detach()
    if convolution.bias is not None:
        shift = shift + convolution.bias.detach().cpu().double() * scale
    folded = weight.cpu().double() * scale.reshape(-1, *[1] * (weight.dim() - 1))
    convolution.weight = nn.Parameter(folded.to(weight.dtype).to(weight.device), requires_grad=False)
    convolution.bias = nn.Parameter(shift.to(weight.dtype).to(weight.device), requires_grad=False)
