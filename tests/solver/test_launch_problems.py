"""Problems of the ops that are bound by memory: keys, every solver of every family against float64, forcing one, and
what is remembered between processes."""

import json
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from common import DEVICE, assert_near, on_gpu_class
from fresh_process import forked_python
from stores import cache_with_programs

import dlbackend
from dlbackend import _C

FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


@dataclass(frozen=True)
class Case:
    """A call and the op that it is a problem of."""

    op: str
    name: str
    fn: Callable  # of the inputs; returns a tensor or several
    shapes: tuple  # of the inputs
    order: str = "dense"  # or "permuted": the first two dimensions swapped in memory
    scale: float = 4  # of the dtype's tolerance
    dtypes: tuple = (torch.float32, torch.float16)


def softmax_case(fn, shape, dim, **more):
    return Case("softmax", f"{fn.__name__}{shape}[{dim}]", lambda x: fn(x, dim), (shape,), **more)


def reduce_case(name, fn, shape, **more):
    return Case("reduce", f"{name}{shape}", fn, (shape,), **more)


def softmax_backward_case(fn, shape, dim, **more):
    def backward(x, grad):
        x = x.detach().requires_grad_()
        fn(x, dim).backward(grad)
        return x.grad

    return Case("softmax_bwd", f"{fn.__name__}{shape}[{dim}]", backward, (shape, shape), **more)


def gradients(fn):
    """The gradients of a function's inputs, the last argument being that of its result."""

    def backward(*args):
        *inputs, grad = args
        inputs = [t.detach().requires_grad_() for t in inputs]
        y = fn(*inputs)
        return torch.autograd.grad(y, inputs, grad.contiguous(memory_format=layout_of(y)))

    return backward


def layout_of(t):
    channels_last = t.dim() == 4 and t.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if channels_last else torch.contiguous_format


def batch_norm(x, *params):
    return F.batch_norm(x, None, None, *params, training=True)


def batch_norm_last(x, *params):
    return batch_norm(x.contiguous(memory_format=torch.channels_last), *params)


def group_norm(x, *params):
    return F.group_norm(x, 2, *params)


def layer_norm(x, *params):
    return F.layer_norm(x, x.shape[-1:], *params)


def norm_cases():
    """Short and long runs, split rows, interleaved rows, few and many of them."""
    images = [(batch_norm, (9, 150, 7, 7)), (batch_norm, (3, 8, 60, 61)), (batch_norm, (2, 3, 128, 128))]
    last = [(batch_norm_last, (5, 70, 14, 15)), (batch_norm, (500, 300)), (batch_norm_last, (3, 300, 9, 9))]
    for fn, shape in (*images, *last, (group_norm, (3, 6, 64, 66))):
        applies = fn is group_norm or not on_gpu_class()  # GPUs' batch norms do in the kernel behind the pass
        for op in ("norm_stats", "norm_apply")[: 1 + applies]:
            yield Case(op, f"{fn.__name__}{shape}", fn, (shape, shape[1:2], shape[1:2]), scale=8)
        for op in ("norm_sums", "norm_apply_bwd")[: 1 + applies]:
            shapes = (shape, shape[1:2], shape[1:2], shape)
            yield Case(op, f"{fn.__name__}{shape}", gradients(fn), shapes, scale=40, dtypes=(torch.float32,))
    for shape in ((300, 1024), (1100, 67), (17, 4111)):
        weights = (shape[1:], shape[1:])
        yield Case("layer_norm", f"layer_norm{shape}", layer_norm, (shape, *weights), scale=8)
        yield Case("layer_norm_bwd", f"layer_norm{shape}", gradients(layer_norm), (shape, *weights, shape), scale=40)
    yield Case("layer_norm", "layer_norm without weights", layer_norm, ((300, 520),), scale=8)
    yield Case("layer_norm_bwd", "layer_norm without weights", gradients(layer_norm), ((300, 520),) * 2, scale=40)
    yield Case(
        "norm_sums", "layer_norm's weights", gradients(layer_norm), ((900, 130), (130,), (130,), (900, 130)), scale=40
    )


def pool_case(fn, shape, last=False, **options):
    """Forward and backward, of windows that overlap, touch, leave gaps or differ in size."""

    def pool(x):
        return fn(x.contiguous(memory_format=torch.channels_last) if last else x, **options)

    name = fn.__name__ + "".join(f" {v}" for v in options.values()) + f"{shape}" + (" channels last" if last else "")
    is_max = "max" in fn.__name__
    y = pool(torch.zeros(shape))
    y = y[0] if isinstance(y, tuple) else y
    yield Case("max_pool" if is_max else "avg_pool", name, pool, (shape,))
    values = (lambda x: pool(x)[0]) if is_max else pool
    yield Case("max_pool_bwd" if is_max else "avg_pool_bwd", name, gradients(values), (shape, tuple(y.shape)))


def max_pool(x, **options):
    return F.max_pool2d(x, return_indices=True, **options)


def max_pool3d(x, **options):
    return F.max_pool3d(x, return_indices=True, **options)


def adaptive_max_pool(x, output_size):
    return F.adaptive_max_pool2d(x, output_size, return_indices=True)


def pool_cases():
    for last in (False, True):
        for fn in (max_pool, F.avg_pool2d):
            yield from pool_case(fn, (2, 9, 61, 80), last, kernel_size=3, stride=2, padding=1)
            yield from pool_case(fn, (2, 70, 23, 31), last, kernel_size=2, stride=2, ceil_mode=True)
        yield from pool_case(max_pool, (2, 20, 41, 43), last, kernel_size=2, stride=3, padding=1)
        yield from pool_case(max_pool, (2, 20, 41, 43), last, kernel_size=3, stride=1, padding=1, dilation=2)
        yield from pool_case(
            F.avg_pool2d, (2, 20, 41, 43), last, kernel_size=(3, 2), stride=3, padding=1, count_include_pad=False
        )
        yield from pool_case(F.adaptive_avg_pool2d, (3, 40, 24, 24), last, output_size=(8, 6))
        yield from pool_case(adaptive_max_pool, (3, 40, 24, 24), last, output_size=(7, 5))
    yield from pool_case(max_pool3d, (2, 6, 9, 31, 33), kernel_size=(2, 3, 3), stride=(2, 2, 3))


SOFTMAX_SHAPES = [((130, 521), 1), ((67, 1030), 0), ((3, 101, 221), 1), ((2, 9, 7, 530), 1), ((22001, 3), 1)]
CASES = [
    *(
        make(fn, shape, dim)
        for make in (softmax_case, softmax_backward_case)
        for fn in (torch.softmax, torch.log_softmax)
        for shape, dim in SOFTMAX_SHAPES
    ),
    softmax_case(torch.softmax, (260, 261), 1, order="permuted"),
    reduce_case("sum", lambda x: x.sum(), (401, 331), dtypes=FLOATS),
    reduce_case("sum-1", lambda x: x.sum(1), (131, 1027)),
    reduce_case("sum-0", lambda x: x.sum(0), (1027, 131), scale=8),
    reduce_case("sum-0", lambda x: x.sum(0), (260, 261), order="permuted", scale=8),
    reduce_case("mean-0,2,3", lambda x: x.mean((0, 2, 3)), (5, 13, 32, 36)),
    reduce_case("amax-1", lambda x: x.amax(1), (9, 101, 77)),
    reduce_case("norm", lambda x: x.norm(dim=0), (3000, 24)),
    reduce_case("norm_3", lambda x: torch.linalg.vector_norm(x, 3, 1), (140, 800), scale=8),
    reduce_case("var-1", lambda x: x.var(1, correction=0), (131, 1027), scale=8),
    reduce_case("var_mean-0", lambda x: torch.var_mean(x + 3, 0, correction=2.5), (1027, 131), scale=20),
    reduce_case("std_mean-0,2,3", lambda x: torch.std_mean(x, (0, 2, 3)), (5, 13, 32, 36), scale=8),
    reduce_case("max-1", lambda x: x.max(1), (300, 250), dtypes=(torch.float32, torch.int32)),
    reduce_case("argmin", lambda x: x.argmin(), (70001,), dtypes=(torch.float32,)),
    reduce_case("int sum", lambda x: x.sum(0), (70, 1001), dtypes=(torch.int32, torch.uint8, torch.int64)),
    *norm_cases(),
    *pool_cases(),
    reduce_case("strided sum", lambda x: x[:, ::2].sum(1), (140, 1001), dtypes=(torch.float32,)),
]
FAMILIES = sorted({case.op for case in CASES})


def inputs_of(case: Case, dtype: torch.dtype, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(shape, generator=generator) * 2 for shape in case.shapes]
    if not dtype.is_floating_point:  # without ties, whose order is nobody's
        tensors = [torch.randperm(t.numel(), generator=generator).reshape(t.shape) for t in tensors]
    tensors = [t.to(dtype) for t in tensors]
    if case.order == "permuted":
        tensors = [t.transpose(0, 1).contiguous().transpose(0, 1) for t in tensors]
    return tensors


def solvers_of(problem: str) -> dict[str, str]:
    """Name -> "applicable" or the reason why not."""
    return dict(line.strip().split(": ", 1) for line in _C.explain_problem(problem).splitlines()[1:])


def problem_of(case: Case, inputs: list[torch.Tensor]) -> str:
    _C.force_solver("")
    case.fn(*(t.to(DEVICE) for t in inputs))
    (problem,) = (p for p in dlbackend.solvers.problems() if p.startswith(case.op + ":"))
    return problem


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.op}-{c.name}-{c.order}")
def test_every_solver(case):
    for dtype in FLOATS if case in (CASES[0], CASES[2]) else case.dtypes:
        inputs = inputs_of(case, dtype)
        expected = case.fn(*(t.double() if dtype.is_floating_point else t for t in inputs))
        tried = 0
        for solver, verdict in solvers_of(problem_of(case, inputs)).items():
            _C.force_solver(f"{case.op}:{solver}")
            if verdict != "applicable":
                with pytest.raises(RuntimeError, match=f"(?s)'{solver}' is not applicable.*{solver}: "):
                    case.fn(*(t.to(DEVICE) for t in inputs))
                continue
            actual = case.fn(*(t.to(DEVICE) for t in inputs))
            pairs = [(actual, expected)] if isinstance(actual, torch.Tensor) else zip(actual, expected, strict=True)
            for a, e in pairs:
                assert_near(a, e, case.scale)
            tried += 1
        assert tried >= 2  # one and the reference


@pytest.mark.parametrize("op", FAMILIES)
def test_key_round_trips(op):
    case = next(c for c in CASES if c.op == op)
    problem = problem_of(case, inputs_of(case, torch.float32))
    assert problem.startswith(f"{op}:float32 ")
    head = _C.explain_problem(problem).splitlines()[0]
    name, printed = head.split(" for ", 1)
    assert printed == problem
    assert name in dlbackend.solvers.names(op)
    for bad in (problem[:-3], problem + " x=1", problem.replace("=", ":", 1)):
        with pytest.raises(ValueError, match="problem key"):
            _C.explain_problem(bad)


@pytest.mark.parametrize("op", FAMILIES)
def test_every_config_of_every_solver_is_checked_and_right(op):
    """Measuring compares every config with the reference, on synthetic data; nothing may be found wrong."""
    rejected = dlbackend.solvers.stats()["rejected"]
    for case in (c for c in CASES if c.op == op):
        problem = problem_of(case, inputs_of(case, torch.float32))
        dlbackend.solvers.tune(problem)
        measured = [s for s in dlbackend.solvers.solutions(problem) if s.microseconds is not None]
        assert measured
        assert all(s.error < 3e-5 for s in measured)
    assert dlbackend.solvers.stats()["rejected"] == rejected


@pytest.mark.parametrize("op", FAMILIES)
def test_deterministic(op):
    """By estimate alone, whatever was measured: right, and the same bits each time."""
    case = next(c for c in CASES if c.op == op)
    inputs = inputs_of(case, torch.float32)
    dlbackend.solvers.tune(problem_of(case, inputs))
    torch.backends.ocl.deterministic = True
    try:
        runs = [case.fn(*(t.to(DEVICE) for t in inputs)) for _ in range(2)]
    finally:
        torch.backends.ocl.deterministic = False
    first, second = ((r,) if isinstance(r, torch.Tensor) else r for r in runs)
    expected = case.fn(*(t.double() for t in inputs))
    for a, b, e in zip(first, second, (expected,) if isinstance(expected, torch.Tensor) else expected, strict=True):
        assert a.cpu().equal(b.cpu())
        assert_near(a, e, case.scale)


def test_batch_norm_measured_between_runs_updates_running_statistics_once():
    """Measuring repeats solutions, but not the update of the running statistics."""
    reference, module = torch.nn.BatchNorm2d(16).double(), torch.nn.BatchNorm2d(16).to(DEVICE)
    x = torch.randn(4, 16, 40, 40) * 3 + 2
    for _ in range(40):
        reference(x.double())
        module(x.to(DEVICE))
    assert_near(module.running_mean, reference.running_mean)
    assert_near(module.running_var, reference.running_var)


def test_small_problems_are_not_looked_up_unless_forced():
    dlbackend.solvers.force("")
    x = torch.randn(5, 7, device=DEVICE)
    torch.softmax(x, 1)
    assert not dlbackend.solvers.problems()
    dlbackend.solvers.force("softmax:reference")
    assert_near(torch.softmax(x, 1), torch.softmax(x.cpu().double(), 1))
    assert [p.split(":")[0] for p in dlbackend.solvers.problems()] == ["softmax"]


def test_a_second_process_knows(tmp_path):
    code = """
import json, torch, dlbackend
x = torch.randn(300, 500, device="ocl")
torch.softmax(x, 1)
problem, = dlbackend.solvers.problems()
found = dlbackend.solvers.solutions(problem)
taken, = [s for s in found if s.taken]
state = {"taken": [taken.solver, taken.config]}
print(json.dumps({**dlbackend.solvers.stats(), **dlbackend.kernel_stats(), **state}))
"""
    states, cache = [], cache_with_programs(tmp_path / "cache")
    for _ in range(2):
        result = forked_python(code, DLBACKEND_CACHE_DIR=cache, DLBACKEND_FIND_MODE="normal")
        assert result.returncode == 0, result.stderr
        states.append(json.loads(result.stdout.splitlines()[-1]))
    assert states[0]["misses"] == 1
    assert states[0]["measured"] >= 2
    assert states[1]["hits"] == 1
    assert states[1]["measured"] == 0
    assert states[1]["compiled"] == 0
    assert states[1]["taken"] == states[0]["taken"]
