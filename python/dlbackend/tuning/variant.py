"""Variants of a model that compute the same another way: in another precision, memory layout, or with batch norms and
activations fused into convolutions. The tuner measures them; a Tuning makes the one that won again.
"""

import copy
import math
import operator
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.utils._pytree import tree_map

from dlbackend import backend, quantization
from dlbackend.quantization import LayerPrecision

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "autocast-fp16", "autocast-bf16", *quantization.PRECISIONS)
LAYOUTS = ("nchw", "nhwc", "per-layer")
FUSIONS = ("on", "off")
SOLVERS = ("measured", "heuristic")

_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)

Json = dict[str, Any]


@dataclass(frozen=True)
class Configuration:
    """One value for every knob. `layers`, only for the layout "per-layer", names each convolution's own layout.
    `quantized`, only for a precision of quantization.PRECISIONS, names the layers that have it; the others are float32.
    """

    precision: str = "fp32"
    layout: str = "nchw"
    fusion: str = "off"
    solvers: str = "heuristic"
    layers: tuple[tuple[str, str], ...] = field(default=())
    quantized: tuple[tuple[str, LayerPrecision], ...] = field(default=())

    def __str__(self) -> str:
        layout, precision = self.layout, self.precision
        if self.layers:
            layout += f" ({sum(format == 'nhwc' for _, format in self.layers)} of {len(self.layers)} nhwc)"
        if self.quantized:
            precision += f" ({len(self.quantized)} layers)"
        return f"{precision}, {layout}, fusion {self.fusion}, solvers {self.solvers}"


def configuration_of(entry: Json) -> Configuration:
    """The knobs of one entry of the "configurations" in a tuning's JSON."""
    layers = tuple(sorted(entry["layer_layouts"].items()))
    quantized = tuple(sorted((n, LayerPrecision(**how)) for n, how in entry.get("layer_precisions", {}).items()))
    return Configuration(entry["precision"], entry["layout"], entry["fusion"], entry["solvers"], layers, quantized)


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
        with self._precision():
            result = self.module(*args, **kwargs)
        return tree_map(self._bring_out, result)

    def _precision(self) -> AbstractContextManager[object]:
        precision = self.configuration.precision
        kind, _, name = precision.partition("-")
        if precision in ("fp32", "tf32", *quantization.PRECISIONS):
            return backend.fp32_precision_here("tf32" if kind == "tf32" else "ieee")
        return torch.autocast("ocl", _DTYPES[name]) if kind == "autocast" else nullcontext()

    def _bring_in(self, x: object) -> object:
        if not isinstance(x, torch.Tensor) or not x.is_floating_point():
            return x
        x = x.to(_DTYPES.get(self.configuration.precision, x.dtype))
        nhwc = self.configuration.layout == "nhwc"  # with "per-layer" the layers' hooks do it
        return x.contiguous(memory_format=memory_format("nhwc", x.dim())) if nhwc else x

    def _bring_out(self, x: object) -> object:
        low = isinstance(x, torch.Tensor) and x.dtype in _DTYPES.values()
        return x.float() if low else x  # type: ignore[attr-defined]


def make_variant(model: nn.Module, configuration: Configuration) -> Variant:
    """The model as the configuration says, changed in place: copy it before where that matters. With fusion, the
    variant's module is a torch.fx.GraphModule of the model's layers, under their names.

    ValueError, saying why, when it cannot be made: fusion for a model that trains or that torch.fx cannot trace, or
    the layout or precision of a layer that the model does not have, or that cannot have it.
    """
    if configuration.quantized:
        quantization.check_layers(model, dict(configuration.quantized))  # before anything is changed
    if configuration.fusion == "on":
        fold_batch_norms(model)
    if configuration.quantized:
        quantization.quantize_layers(model, dict(configuration.quantized))
    elif configuration.precision in quantization.PRECISIONS:  # of all layers that can have it
        quantization.quantize(model, configuration.precision)
    if configuration.fusion == "on":
        model = fuse_activations(fuse_integers(model))
    if configuration.precision in _DTYPES:
        model.to(_DTYPES[configuration.precision])
    set_layout(model, configuration)
    return Variant(model, configuration)


def refusal(configuration: Configuration, training: bool, tensor_cores: bool) -> str:
    """Why a configuration is not offered on a device with or without tensor cores; empty when it is."""
    if configuration.precision == "tf32" and not tensor_cores:
        return "the device has no tensor cores that a solver can use"
    if configuration.precision == "tf32" and training:
        return 'a backward pass is no call of the model; torch.backends.ocl.fp32_precision = "tf32" is for the program'
    if training and configuration.precision in quantization.PRECISIONS:
        return "quantized layers do not train"
    if training and configuration.precision in _DTYPES:
        return "training in it loses small updates for want of float32 weights; autocast keeps them"
    if training and configuration.fusion == "on":
        return "batch norms and activations can be fused for inference only"
    return ""


# Layout


def memory_format(layout: str, dimensions: int) -> torch.memory_format:
    """PyTorch's name for "nchw" or "nhwc". Tensors of other than 4 or 5 dimensions have one layout only."""
    if layout == "nchw" or dimensions not in (4, 5):
        return torch.contiguous_format
    return torch.channels_last if dimensions == 4 else torch.channels_last_3d


def layered(model: nn.Module) -> list[str]:
    """Names of the layers that may have a layout of their own: convolutions in two or three dimensions."""
    kind = (nn.modules.conv._ConvNd, quantization.Int8Layer)
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
        layer: Any = model.get_submodule(name)
        layout = own.get(name, "nhwc" if configuration.layout == "nhwc" else "nchw")
        weight = layer.weight
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
    graph = _trace(model)
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


# Layers of integers


def fuse_integers(model: nn.Module) -> nn.Module:
    """The model with what follows its Int8Layers done by their kernels: sums with another tensor, ReLU, ReLU6 and
    hardtanh, and rounding where only such layers read the result, which then is integers of 8 bits. The values are
    those of the calls one by one. A torch.fx.GraphModule of the model's layers, which are changed; the model itself
    where it has no Int8Layer. ValueError when torch.fx cannot trace it.
    """
    if not any(isinstance(m, quantization.Int8Layer) for m in model.modules()):
        return model
    graph = _without_identities(model)
    calls = [node.target for node in graph.nodes if node.op == "call_module"]
    layers = {
        node: layer
        for node in graph.nodes
        if node.op == "call_module" and calls.count(node.target) == 1
        if isinstance(layer := model.get_submodule(str(node.target)), quantization.Int8Layer)
    }
    for node in list(graph.nodes):
        _fuse_sum(model, graph, layers, node)
    for value, activation, bounds in list(_activations(model, graph)):
        behind = layers.get(value)
        if behind is not None and not behind.bounded():
            behind.low, behind.high = bounds
            activation.replace_all_uses_with(value)
            graph.erase_node(activation)
    for node, layer in layers.items():
        following = [layers.get(user) for user in node.users if user.args[0] is node and user.args[1:] != (node,)]
        if following and None not in following and len(following) == len(node.users):
            scales = {(f.input_scale.item(), f.input_dtype) for f in following if f}
            if len(scales) == 1 and following[0]:
                layer.give_integers(following[0])
    return fx.GraphModule(model, graph, type(model).__name__).eval()


def _fuse_sum(model: nn.Module, graph: fx.Graph, layers: dict[fx.Node, quantization.Int8Layer], node: fx.Node) -> None:
    """Has an Int8Layer whose result only this sum reads add the other summand itself."""
    summands = _summands(model, node) if node.op in ("call_function", "call_method") else ()
    for value, other in (summands, summands[::-1]) if summands else ():
        if value in layers and value is not other and len(value.users) == 1 and len(value.args) == 1:
            with graph.inserting_before(node):
                call = graph.call_module(str(value.target), (value.args[0], other))
            node.replace_all_uses_with(call)
            graph.erase_node(node)
            graph.erase_node(value)
            layers[call] = layers.pop(value)
            return


# Activations at the end of convolutions

_RELU = (0.0, math.inf)
_ACTIVATION_FUNCTIONS: dict[Any, tuple[float, float]] = {F.relu: _RELU, torch.relu: _RELU, F.relu6: (0.0, 6.0)}
_ACTIVATION_METHODS = {"relu": _RELU, "relu_": _RELU}


class _Bounded:
    """Mixin for a convolution that brings its results to [low, high] in the same kernel where that can be done, and
    whose weight is taken for a constant: solvers may keep it in a form of their own until it changes.
    """

    low: float
    high: float

    def _conv_forward(self: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        tensors: list[Any] = [x, weight, bias]
        unbounded = self.low == -math.inf and self.high == math.inf
        differentiable = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
        if x.device.type != "ocl" or x.dim() != weight.dim() or differentiable:
            result = super()._conv_forward(x, weight, bias)  # type: ignore[misc]
            return result if unbounded else F.hardtanh(result, self.low, self.high)
        if torch.is_autocast_enabled("ocl"):
            low = torch.get_autocast_dtype("ocl")
            tensors = [t if t is None or t.dtype == torch.float64 else t.to(low) for t in tensors]
        return torch.ops.dlbackend.convolution_bounded(  # type: ignore[no-any-return]
            *tensors, self.stride, self.padding, self.dilation, self.groups, self.low, self.high, tensors[1] is weight
        )


class BoundedConv1d(_Bounded, nn.Conv1d):
    """A convolution with an activation that brings results to bounds."""


class BoundedConv2d(_Bounded, nn.Conv2d):
    """A convolution with an activation that brings results to bounds."""


class BoundedConv3d(_Bounded, nn.Conv3d):
    """A convolution with an activation that brings results to bounds."""


_BOUNDED: dict[Any, type[nn.Module]] = {nn.Conv1d: BoundedConv1d, nn.Conv2d: BoundedConv2d, nn.Conv3d: BoundedConv3d}


def add_bounded(a: Any, b: Any, low: float, high: float) -> Any:
    """a + b with an activation that brings results to [low, high], in the same kernel where that can be done."""
    tensors = [t for t in (a, b) if isinstance(t, torch.Tensor) and t.device.type == "ocl" and t.is_floating_point()]
    if len(tensors) < 2 or (torch.is_grad_enabled() and any(t.requires_grad for t in tensors)):
        return F.hardtanh(a + b, low, high)
    return torch.ops.dlbackend.add_bounded(a, b, low, high)


def fuse_activations(model: nn.Module) -> nn.Module:
    """The model with the ReLU, ReLU6 and hardtanh that alone read the result of a convolution or a sum of two tensors
    done by that one's kernel: one kernel and one pass over memory less for each. A torch.fx.GraphModule of the model's
    layers, without nn.Identity; the model itself where there is nothing to fuse. `model` stays as it is, its parameters
    are shared. ValueError when the model is in training mode or torch.fx cannot trace it.

    Its convolutions take their weights for constants, which solvers may pack once for all runs. Assigning a weight,
    load_state_dict() and operators in place are noticed; writing through `weight.data` is not.
    """
    if model.training:
        raise ValueError("activations can be fused for inference only: call eval() first")
    graph = _without_identities(model)
    pairs, sums = _bounded_pairs(model, graph), _bounded_sums(model, graph)
    if not pairs and not sums:
        return model
    for node, activation, _ in pairs + sums:
        activation.replace_all_uses_with(node)
        graph.erase_node(activation)
    for node, _, bounds in sums:
        node.args = (*node.args[-2:], *bounds)
        node.op, node.target = "call_function", add_bounded
        node.meta["is_wrapped"] = True  # tracing the result again, as unpickling does, keeps the call
    fused = fx.GraphModule(model, graph, type(model).__name__)
    bounds_of = {str(node.target): bounds for node, _, bounds in pairs}
    for name in {str(node.target) for node in graph.nodes if node.op == "call_module"}:
        convolution: Any = model.get_submodule(name)
        if _can_be_bounded(convolution):
            bounded = copy.copy(convolution)
            bounded.__class__ = _BOUNDED[type(convolution)]
            bounded.low, bounded.high = bounds_of.get(name, (-math.inf, math.inf))
            fused.set_submodule(name, bounded)
    return fused.eval()


def _without_identities(model: nn.Module) -> fx.Graph:
    graph = _trace(model)
    for node in list(graph.nodes):
        if node.op == "call_module" and type(model.get_submodule(node.target)) is nn.Identity:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    return graph


def fusible(model: nn.Module) -> bool:
    """Whether fold_batch_norms() or fuse_activations() would change the model. ValueError as theirs."""
    graph = _trace(model)
    return bool(foldable(model) or _bounded_pairs(model, graph) or _bounded_sums(model, graph))


_Bounds = tuple[float, float]


def _activations(model: nn.Module, graph: fx.Graph) -> Iterator[tuple[fx.Node, fx.Node, _Bounds]]:
    """Results that an activation alone reads, the activation, and its bounds. None where containers have hooks: a graph
    calls layers only.
    """
    if any(_has_hooks(m) for m in model.modules() if list(m.children())):
        return
    for node in graph.nodes:
        bounds = _bounds_of(model, node)
        value = node.args[0] if node.args else None
        if bounds is not None and isinstance(value, fx.Node) and len(value.users) == 1:
            yield value, node, bounds


def _bounded_pairs(model: nn.Module, graph: fx.Graph) -> list[tuple[fx.Node, fx.Node, _Bounds]]:
    """The _activations() that read the result of a convolution."""
    calls = [node.target for node in graph.nodes if node.op == "call_module"]
    pairs = []
    for value, activation, bounds in _activations(model, graph):
        if value.op != "call_module" or calls.count(value.target) != 1:
            continue
        if _can_be_bounded(model.get_submodule(str(value.target))):
            pairs.append((value, activation, bounds))
    return pairs


def _can_be_bounded(convolution: Any) -> bool:
    if type(convolution) not in _BOUNDED or _has_hooks(convolution):
        return False
    return convolution.padding_mode == "zeros" and not isinstance(convolution.padding, str)


def _bounded_sums(model: nn.Module, graph: fx.Graph) -> list[tuple[fx.Node, fx.Node, _Bounds]]:
    """The _activations() that read the sum of two tensors."""
    return [found for found in _activations(model, graph) if _summands(model, found[0])]


def _summands(model: nn.Module, node: fx.Node) -> tuple[fx.Node, ...]:
    """The two tensors whose sum a node is; empty where it is none, or is written where others read it."""
    args = node.args
    in_place = node.target == "add_"
    if node.target is apply_in_place and args[0] == "iadd":
        args, in_place = args[1:], True
    elif node.target not in (operator.add, torch.add, "add", "add_"):
        return ()
    if node.kwargs or len(args) != 2 or not all(isinstance(x, fx.Node) for x in args):
        return ()
    return () if in_place and not _is_only_read_by(model, args[0], node) else args  # type: ignore[return-value]


def _is_only_read_by(model: nn.Module, value: Any, reader: fx.Node) -> bool:
    """Whether nobody would notice that the reader no longer writes its result over this value: a layer's own result."""
    makers = (*_CONVOLUTIONS, *_BATCH_NORMS, nn.Linear, *quantization.LAYERS)
    new = value.op == "call_module" and isinstance(model.get_submodule(value.target), makers)
    return new and set(value.users) == {reader}


def _bounds_of(model: nn.Module, node: fx.Node) -> tuple[float, float] | None:
    """The bounds to which an activation brings its input. None for a node that is no such activation."""
    if node.op == "call_function":
        return _ACTIVATION_FUNCTIONS.get(node.target)
    if node.op == "call_method":
        return _ACTIVATION_METHODS.get(str(node.target))
    if node.op != "call_module":
        return None
    module: Any = model.get_submodule(str(node.target))
    if _has_hooks(module):
        return None
    if type(module) is nn.ReLU:
        return _RELU
    return (module.min_val, module.max_val) if type(module) in (nn.Hardtanh, nn.ReLU6) else None


def apply_in_place(name: str, a: Any, b: Any) -> Any:
    """Does to a tensor what `a += b` and the like do, and returns what they give; `name` is a function of operator.
    That function itself would stand as `a += b` in a graph's code, and change a number that is read later on.
    """
    return getattr(operator, name)(a, b)


class _Proxy(fx.Proxy):
    """Records `y += x` as in place. torch.fx takes it for `y = y + x`, which differs where y has views."""


def _in_place(name: str) -> Any:
    return lambda self, other: self.tracer.create_proxy("call_function", apply_in_place, (name, self, other), {})


for _name in ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul", "iand", "ior", "ixor"):
    setattr(_Proxy, f"__{_name}__", _in_place(_name))


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, name: str) -> bool:
        return isinstance(m, quantization.LAYERS) or super().is_leaf_module(m, name)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)


def _trace(model: nn.Module) -> fx.Graph:
    try:
        return _Tracer().trace(model)
    except Exception as error:  # whatever a model's own code does when it is traced
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"torch.fx cannot trace the model: {reason}") from error


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
