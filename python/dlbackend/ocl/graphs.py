"""Graphs of torch.ocl: work that is captured once and then replayed without Python or PyTorch's dispatcher, in the
manner of torch.cuda's graphs.

    static_x = torch.zeros(64, 512, device="ocl")
    ...                                   # run a few times on a side stream, so that kernels are built and chosen
    g = torch.ocl.OclGraph()
    with torch.ocl.graph(g):
        static_y = model(static_x)
    static_x.copy_(x)
    g.replay()                            # static_y holds model(x)

docs/graphs.md says what can be captured.
"""

import gc
import warnings
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils import _pytree as pytree

from dlbackend import _C
from dlbackend.ocl.device import _lazy_init, is_initialized, synchronize
from dlbackend.ocl.memory import empty_cache
from dlbackend.ocl.streams import Stream, StreamContext

PoolHandle = tuple[int, int]
ERROR_MODES = ("global", "thread_local", "relaxed")


def is_current_stream_capturing() -> bool:
    """Whether the current stream's work is captured into a graph. Opens no driver."""
    return is_initialized() and _C.is_current_stream_capturing()


def graph_pool_handle() -> PoolHandle:
    """A token for a pool of memory that several captures can share; see docs/graphs.md for when they may."""
    return _C.graph_pool_handle()


class OclGraph(_C._OclGraph):
    """Work that is captured from a stream, and can be replayed.

    Args:
        keep_graph: for programs written for CUDA; there is no other form of the graph to keep.
    """

    def __init__(self, keep_graph: bool = False) -> None:
        _lazy_init()
        super().__init__()

    def capture_begin(self, pool: PoolHandle | None = None, capture_error_mode: str = "global") -> None:
        """Begins to capture the current stream, which must not be the default one; usually torch.ocl.graph does it.

        Args:
            pool: of graph_pool_handle(), or pool() of another graph: share its memory.
            capture_error_mode: "global", "thread_local" or "relaxed", which are alike: a capture concerns its own
                streams, and work of other threads on other streams goes on.
        """
        if capture_error_mode not in ERROR_MODES:
            raise RuntimeError(
                f"Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, got {capture_error_mode}"
            )
        super().capture_begin(pool or (0, 0))

    def capture_end(self) -> None:
        """Ends the capture, on the stream on which it began. RuntimeError where something in it was refused."""
        super().capture_end()
        if not self.describe():
            warnings.warn(
                "The ocl graph is empty. This usually means that the graph was attempted to be captured on wrong "
                "device or stream.",
                stacklevel=2,
            )

    def instantiate(self) -> None:
        """For programs written for CUDA: a captured graph is ready to be replayed. RuntimeError without one."""
        if not self.has_capture():
            raise RuntimeError("Called OclGraph.instantiate() without a preceding successful capture.")

    def replay(self) -> None:
        """Enqueues the captured work on the current stream."""
        super().replay()

    def reset(self) -> None:
        """Forgets the captured work and gives its memory back, but for what tensors hold."""
        super().reset()

    def pool(self) -> PoolHandle:
        """The token of the graph's memory, which captures of other graphs may share."""
        return super().pool()

    def register_generator_state(self, generator: torch.Generator) -> None:
        """Has each replay draw new numbers of this generator. A capture does so by itself for those that it meets."""
        super().register_generator_state(generator)

    def enable_debug_mode(self) -> None:
        """For programs written for CUDA: debug_dump() always works."""

    def debug_dump(self, debug_path: str) -> None:
        """Writes a line for each captured kernel and copy to a file."""
        with open(debug_path, "w") as file:
            file.write(self.describe())


def _refuse_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """A hook of all optimizers: one that counts its steps on the host would repeat the same step in each replay."""
    if not is_current_stream_capturing():
        return
    for group in optimizer.param_groups:
        if not group.get("capturable", True) and not group.get("fused"):
            raise RuntimeError(
                f"Attempting graph capture of step() for an instance of {type(optimizer).__name__} but param_groups' "
                "capturable is False. Construct it with capturable=True."
            )


class graph:
    """Context manager that captures what its body does on ocl, and runs nothing of it.

    Args:
        ocl_graph: the OclGraph that takes the work.
        pool: of graph_pool_handle(), or pool() of another graph: share its memory.
        stream: the stream to capture; one that all captures share if None.
        capture_error_mode: as for OclGraph.capture_begin().
    """

    default_capture_stream: Stream | None = None

    def __init__(
        self,
        ocl_graph: OclGraph,
        pool: PoolHandle | None = None,
        stream: torch.Stream | None = None,
        capture_error_mode: str = "global",
    ) -> None:
        if stream is None:
            if graph.default_capture_stream is None:
                graph.default_capture_stream = Stream()
            stream = graph.default_capture_stream
        self.ocl_graph, self.pool, self.capture_error_mode = ocl_graph, pool, capture_error_mode
        self.capture_stream = stream
        self._stream = StreamContext(stream)
        self._hook: Any = None

    def __enter__(self) -> None:
        synchronize()
        if torch.compiler.config.force_cudagraph_gc:
            gc.collect()
        empty_cache()
        self._stream.__enter__()
        try:
            self.ocl_graph.capture_begin(self.pool, self.capture_error_mode)
        except BaseException:
            self._stream.__exit__()
            raise
        self._hook = register_optimizer_step_pre_hook(_refuse_step)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hook.remove()
        try:
            if kind is None:
                self.ocl_graph.capture_end()
            else:
                self.ocl_graph.reset()  # the exception says why there is no graph
        finally:
            self._stream.__exit__()


Tensors = tuple[torch.Tensor, ...]


class _Captured:
    """The two graphs of a callable: forward, and backward where something requires a gradient."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...], allow_unused: bool) -> None:
        self.function, self.arguments, self.allow_unused = function, arguments, allow_unused
        leaves = pytree.arg_tree_leaves(*arguments)
        if isinstance(function, torch.nn.Module):
            _check_module(function)
        if not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
            raise AssertionError(
                "sample_args for each callable must contain only Tensors. Other types are not allowed."
            )
        self.count = len(leaves)
        self.parameters: Tensors = tuple(function.parameters()) if isinstance(function, torch.nn.Module) else ()
        self.inputs: Tensors = tuple(leaves) + self.parameters
        self.forward, self.backward = OclGraph(), OclGraph()
        self.outputs: Tensors = ()
        self.spec: Any = None
        self.grad_outputs: tuple[torch.Tensor | None, ...] = ()
        self.grad_inputs: tuple[torch.Tensor | None, ...] = ()

    def gradients(self, outputs: Sequence[torch.Tensor], grads: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """Of the inputs that require one, for these gradients of the outputs that do."""
        return torch.autograd.grad(
            outputs=[o for o in outputs if o.requires_grad],
            inputs=[i for i in self.inputs if i.requires_grad],
            grad_outputs=grads,
            only_inputs=True,
            allow_unused=self.allow_unused,
        )

    def warm_up(self) -> None:
        outputs = pytree.tree_leaves(self.function(*self.arguments))
        grads = [torch.empty_like(o) for o in outputs if o.requires_grad]
        if grads:
            self.gradients(outputs, grads)

    def capture_forward(self, pool: PoolHandle) -> None:
        with graph(self.forward, pool=pool):
            made = self.function(*self.arguments)
        leaves, self.spec = pytree.tree_flatten(made)
        self.outputs = tuple(leaves)

    def capture_backward(self, pool: PoolHandle) -> None:
        self.grad_outputs = tuple(torch.empty_like(o) if o.requires_grad else None for o in self.outputs)
        grads = [g for g in self.grad_outputs if g is not None]
        found: list[torch.Tensor | None] = []
        if grads:
            with graph(self.backward, pool=pool):
                found = list(self.gradients(self.outputs, grads))
        left = iter(found)
        self.grad_inputs = tuple(next(left, None) if i.requires_grad else None for i in self.inputs)

    def runner(self) -> Callable[..., Any]:
        """A function that takes what the callable takes, and replays."""
        captured = self

        class Graphed(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *inputs: torch.Tensor) -> Tensors:
                for static, given in zip(captured.inputs[: captured.count], inputs, strict=False):
                    _move(static, given)
                captured.forward.replay()
                return tuple(o.detach() for o in captured.outputs)

            @staticmethod
            @torch.autograd.function.once_differentiable
            def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
                for static, given in zip(captured.grad_outputs, grads, strict=True):
                    if static is not None:
                        _move(static, given)
                captured.backward.replay()
                return tuple(g.detach() if g is not None else None for g in captured.grad_inputs)

        def run(*arguments: Any) -> Any:
            leaves = pytree.arg_tree_leaves(*arguments)
            made = Graphed.apply(*leaves, *captured.parameters)  # type: ignore[no-untyped-call]
            return pytree.tree_unflatten(made, captured.spec)

        return run


def _move(static: torch.Tensor, given: torch.Tensor) -> None:
    """Puts a tensor where a graph reads it, unless it is there already."""
    if static.data_ptr() != given.data_ptr():
        static.copy_(given)


def _check_module(module: torch.nn.Module) -> None:
    if module._backward_hooks or module._forward_hooks or module._forward_pre_hooks:
        raise AssertionError(
            "Modules must not have hooks registered at the time they are passed. However, registering hooks on "
            "modules after passing them through make_graphed_callables is allowed."
        )
    if any(b.requires_grad for b in module.buffers()):
        raise AssertionError(
            "In any torch.nn.Module passed to make_graphed_callables, only parameters may be trainable. All buffers "
            "must have requires_grad=False."
        )


def _replace_forward(module: torch.nn.Module, run: Callable[..., Any]) -> None:
    """Has the module replay while its training flag is as it was captured, and run as before otherwise."""
    before, training = module.forward, module.training

    def forward(*arguments: Any, **named: Any) -> Any:
        return run(*arguments, **named) if module.training == training else before(*arguments, **named)

    module.forward = forward


def make_graphed_callables(
    callables: Any,
    sample_args: Any,
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: PoolHandle | None = None,
) -> Any:
    """Graphed versions of functions or modules, whose forward and backward passes are replayed.

    They take arguments in the order and of the sizes, dtypes and requires_grad of `sample_args`, and know no second
    derivative. A module is changed in place, and replays while its training flag is what it is now.

    Args:
        callables: a function or torch.nn.Module without hooks; or a tuple of them, in the order in which they will
            run, which share memory.
        sample_args: a tuple of tensors, which become the graphs' static inputs; for a tuple of callables a tuple of
            such tuples.
        num_warmup_iters: how often each runs before it is captured.
        allow_unused_input: whether an input may have no part in the outputs.
        pool: as for torch.ocl.graph.
    """
    if torch.is_autocast_enabled("ocl") and torch.is_autocast_cache_enabled():
        raise RuntimeError(
            "make_graphed_callables does not support the autocast caching. Please set `cache_enabled=False`."
        )
    single = not isinstance(callables, tuple)
    pairs = [(callables, sample_args)] if single else list(zip(callables, sample_args, strict=True))
    captured = [_Captured(function, arguments, allow_unused_input) for function, arguments in pairs]
    pool = pool or graph_pool_handle()
    synchronize()
    with StreamContext(Stream()):
        for each in captured:
            for _ in range(num_warmup_iters):
                each.warm_up()
    synchronize()
    # They share memory, so that they are captured in the order in which they will run.
    for each in captured:
        each.capture_forward(pool)
    for each in reversed(captured):
        each.capture_backward(pool)
    made: list[Callable[..., Any]] = []
    for each in captured:
        run = each.runner()
        if isinstance(each.function, torch.nn.Module):
            _replace_forward(each.function, run)
            made.append(each.function)
        else:
            made.append(run)
    return made[0] if single else tuple(made)
