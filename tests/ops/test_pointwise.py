"""Pointwise ops: PyTorch's own sample inputs against the CPU, layouts, promotion, integer rules, errors."""

from __future__ import annotations

import itertools
import math
import re

import pytest
import torch
from common import DEVICE, FLOATS, layouts
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import UnaryUfuncInfo

import dlbackend

NAMES = """
    abs add addcdiv addcmul angle acos acosh asin asinh atan atan2 atanh bitwise_and bitwise_or bitwise_xor
    bitwise_not bitwise_left_shift bitwise_right_shift ceil clamp clamp_min clamp_max complex conj_physical
    copysign cos cosh digamma div eq ne lt le gt ge erf erfc erfinv exp exp2 expm1 float_power floor
    floor_divide fmax fmin fmod frac gcd lcm heaviside hypot isinf isnan isneginf isposinf isfinite lerp lgamma
    log log10 log1p log2 logaddexp logaddexp2 logical_and logical_not logical_or logical_xor logit masked_fill
    maximum minimum mul nan_to_num neg nextafter polar positive pow __rpow__ __radd__ __rsub__ __rmul__ __rdiv__
    __rmod__ reciprocal remainder round rsqrt rsub sgn sigmoid sign signbit sin sinc sinh sqrt square sub tan
    tanh true_divide trunc where xlogy special.airy_ai special.xlog1py special.entr nn.functional.relu
    nn.functional.relu6 nn.functional.gelu nn.functional.silu nn.functional.mish nn.functional.elu nn.functional.celu
    nn.functional.selu nn.functional.hardtanh nn.functional.hardswish nn.functional.hardsigmoid
    nn.functional.hardshrink nn.functional.softshrink nn.functional.leaky_relu nn.functional.softplus
    nn.functional.logsigmoid nn.functional.prelu nn.functional.glu nn.functional.threshold
    nn.functional.mse_loss nn.functional.smooth_l1_loss nn.functional.huber_loss
    nn.functional.binary_cross_entropy nn.functional.binary_cross_entropy_with_logits
    nn.functional.soft_margin_loss
"""
OPS = set(NAMES.split())
DTYPES = [
    torch.float32,
    torch.int64,
    torch.bool,
    torch.float16,
    torch.bfloat16,
    torch.int32,
    torch.uint8,
    torch.complex64,
    torch.float64,
    torch.complex128,
    torch.int16,
    torch.int8,
]
# For how many ops one is tested: all, every third or every tenth, for a new kernel takes half a second to build.
EVERY = dict(zip(DTYPES, [1] * 3 + [3] * 5 + [10] * 4, strict=True))

# The CPU's derivative of digamma is off by as much near poles.
LOOSE_OPS = {"digamma": (1e-4, 1e-5)}
# Ops whose complex bodies cancel: the CPU's own float32 results are no better than this.
LOOSE = {torch.complex64: (2e-4, 2e-4), torch.bfloat16: (1.6e-2, 1e-2), torch.float16: (2e-3, 2e-3)}


def moved(x, device=DEVICE):
    """Nested arguments with their tensors on the device."""
    if isinstance(x, torch.Tensor):
        return x.detach().to(device).requires_grad_(x.requires_grad)
    if isinstance(x, (list, tuple)):
        return type(x)(moved(v) for v in x)
    return {k: moved(v) for k, v in x.items()} if isinstance(x, dict) else x


def cases():
    for number, op in enumerate(o for o in op_db if o.name in OPS):
        for dtype in DTYPES:
            if dtype not in op.supported_dtypes("cpu"):
                continue
            if (number + DTYPES.index(dtype)) % EVERY[dtype]:
                continue
            name = f"{op.name}{'-' + op.variant_test_name if op.variant_test_name else ''}-{dtype}"
            yield pytest.param(op, dtype, id=name.replace("torch.", ""))


def compare(actual, expected, dtype, name=""):
    rtol, atol = LOOSE.get(dtype) or LOOSE_OPS.get(name) or (None, None)
    torch.testing.assert_close(actual.cpu(), expected, rtol=rtol, atol=atol, equal_nan=True)


def check_sample(op, dtype, sample, grad):
    args, kwargs = (sample.input, *sample.args), sample.kwargs
    expected = op(*args, **kwargs)
    device_args = moved(args)
    actual = op(*device_args, **moved(kwargs))
    compare(actual, expected, dtype)
    if not (grad and expected.requires_grad):
        return
    leaves = [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]
    device_leaves = [a for a in device_args if isinstance(a, torch.Tensor) and a.requires_grad]
    upstream = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, leaves, upstream, allow_unused=True)
    got = torch.autograd.grad(actual, device_leaves, upstream.to(DEVICE), allow_unused=True)
    for a, e in zip(got, wanted, strict=True):
        assert (a is None) == (e is None)
        if e is not None:
            compare(a, e, dtype, op.name)


@pytest.mark.parametrize(("op", "dtype"), cases())
def test_samples(op, dtype):
    grad = dtype == torch.float32 and op.supports_autograd
    samples = op.sample_inputs("cpu", dtype, requires_grad=grad)
    for sample in itertools.islice(samples, 2 if EVERY[dtype] == 1 else 1):
        check_sample(op, dtype, sample, grad)


UNARY_NAMES = "exp log sin cos tanh sigmoid relu neg abs sqrt rsqrt erf floor round reciprocal isnan isinf sgn"
BINARY_NAMES = "add sub mul div maximum minimum pow atan2 fmod remainder floor_divide eq lt hypot copysign"


def test_no_fallback():
    dlbackend.reset_fallback_report()
    x = torch.rand(4, 5, device=DEVICE) + 0.1
    for name in UNARY_NAMES.split():
        getattr(torch, name)(x)
    for name in BINARY_NAMES.split():
        getattr(torch, name)(x, x)
    _ = 1 - x, x**2, 2**x, x.clamp(0, 1), x.clamp_min(x), torch.where(x > 0.5, x, 0.0), x.masked_fill(x > 1, 0.0)
    _ = torch.lerp(x, x, 0.3), torch.addcmul(x, x, x), torch.addcdiv(x, x, x), x.nan_to_num(), x.logit()
    assert dlbackend.fallback_report() == {}


BINARY = {
    "add": lambda a, b: a + b,
    "sub_alpha": lambda a, b: torch.sub(a, b, alpha=2),
    "where": lambda a, b: torch.where(a > b, a, b),
    "lt": lambda a, b: a < b,
}


@pytest.mark.parametrize("name", BINARY)
def test_layouts(name):
    fn = BINARY[name]
    a, b = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 4, 5)
    for x, y in itertools.product(layouts(a).values(), layouts(b).values()):
        actual = fn(strided_copy(x), strided_copy(y))
        expected = fn(x, y)
        torch.testing.assert_close(actual.cpu(), expected)
        assert actual.stride() == expected.stride()


def strided_copy(x):
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=DEVICE).copy_(x)


@pytest.mark.parametrize(
    "shapes",
    [((5, 1), (1, 7)), ((), (3,)), ((0, 4), (4,)), ((2, 1, 3), (2, 1)), ((1,), ()), ((3, 0, 2), (1, 1, 2))],
    ids=str,
)
def test_broadcast(shapes):
    a, b = (torch.randn(s) for s in shapes)
    torch.testing.assert_close((a.to(DEVICE) * b.to(DEVICE)).cpu(), a * b)
    torch.testing.assert_close(torch.maximum(a.to(DEVICE), b.to(DEVICE)).cpu(), torch.maximum(a, b))


def test_expanded_and_overlapping():
    base = torch.randn(6)
    windows = base.as_strided((4, 3), (1, 1))
    on_device = base.to(DEVICE).as_strided((4, 3), (1, 1))
    torch.testing.assert_close((on_device + on_device.exp()).cpu(), windows + windows.exp())
    expanded = torch.zeros(1, device=DEVICE).expand(4)
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        expanded.add_(1)
    x = torch.arange(8.0, device=DEVICE)
    with pytest.raises(RuntimeError, match="some elements of the input tensor and the written-to tensor"):
        x[1:].add_(x[:-1])
    with pytest.raises(RuntimeError, match="some elements of the input tensor and the written-to tensor"):
        torch.add(x[1:], 1.0, out=x[:-1])
    torch.testing.assert_close(x.add_(x).cpu(), 2 * torch.arange(8.0))


def test_many_dimensions():
    x = torch.randn(2, 1, 2, 1, 3, 2, 1, 2, 2, 2, 2, 2, 2).permute(12, 3, 5, 0, 7, 9, 11, 1, 2, 4, 6, 8, 10)
    y = torch.randn(2, 2, 2, 3, 1, 2, 2)[..., :1]
    torch.testing.assert_close((strided_copy(x) + y.to(DEVICE)).cpu(), x + y)


def test_out_and_inplace():
    a, b = torch.randn(4, 5), torch.randn(5)
    out = torch.empty(0, device=DEVICE)
    torch.add(a.to(DEVICE), b.to(DEVICE), out=out)
    torch.testing.assert_close(out.cpu(), a + b)
    wide = torch.empty(4, 5, dtype=torch.float64, device=DEVICE)
    torch.mul(a.to(DEVICE), b.to(DEVICE), out=wide)
    torch.testing.assert_close(wide.cpu(), (a * b).double())
    strided = torch.zeros(5, 4, device=DEVICE).t()
    torch.exp(a.to(DEVICE), out=strided)
    torch.testing.assert_close(strided.cpu(), a.exp())
    truth = torch.empty(4, 5, device=DEVICE)
    torch.gt(a.to(DEVICE), 0, out=truth)
    torch.testing.assert_close(truth.cpu(), (a > 0).float())
    x = a.to(DEVICE)
    x.add_(b.to(DEVICE), alpha=3).mul_(2).clamp_(-1, 1).relu_()
    torch.testing.assert_close(x.cpu(), a.add(b, alpha=3).mul(2).clamp(-1, 1).relu())
    with pytest.raises(RuntimeError, match="can't be cast to the desired output type"):
        torch.arange(3, device=DEVICE).add_(1.5)
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        torch.zeros(3, device=DEVICE).add_(torch.zeros(2, 3, device=DEVICE))


# Activations that no sample of PyTorch's calls with out=, and their arguments after the input.
ACTIVATIONS = {
    "elu": (),
    "gelu": (),
    "hardsigmoid": (),
    "hardswish": (),
    "hardtanh": (),
    "leaky_relu": (),
    "mish": (),
    "silu": (),
    "softplus": (),
    "threshold": (0.1, 0.2),
}


def unary_calls():
    """Names, calls with out= and their inputs."""
    for op in op_db:
        if not (isinstance(op, UnaryUfuncInfo) and op.supports_out):
            continue
        for dtype in (torch.float32, torch.int64, torch.bool, torch.complex64):
            if op.supports_dtype(dtype, "cpu"):
                sample = next(iter(op.sample_inputs("cpu", dtype)))
                call = lambda x, out, op=op, sample=sample: op(x, *sample.args, **sample.kwargs, out=out)  # noqa: E731
                yield op.formatted_name, call, torch.ones(2, 3).to(dtype)
    for name, arguments in ACTIVATIONS.items():
        packet = getattr(torch.ops.aten, name)
        call = lambda x, out, f=packet.out, a=arguments: f(x, *a, out=out)  # noqa: E731
        yield name, call, torch.ones(2, 3)


def wrote(result, *what):
    pytest.fail(f"{what}: {result}")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_out_dtypes_that_the_cpu_refuses():
    refused = 0
    for name, call, x in unary_calls():
        for dtype in (torch.float64, torch.float16, torch.int64, torch.int32, torch.complex64, torch.bool):
            try:
                call(x, torch.empty(2, 3, dtype=dtype))
            except Exception as error:
                refused += 1
                there = x.to(DEVICE), torch.empty(2, 3, dtype=dtype, device=DEVICE)
                with pytest.raises(type(error)):
                    wrote(call(*there), name, x.dtype, dtype)
    assert refused > 500


PROMOTION = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
             torch.float32, torch.float64]  # fmt: skip


@pytest.mark.parametrize("dtype", PROMOTION)
def test_promotion(dtype):
    a = torch.tensor([0, 1, 3]).to(dtype)
    for other in (torch.tensor([2, 1, 0], dtype=torch.int32), torch.tensor(2.5), 2, 2.5, True):
        b = other.to(DEVICE) if isinstance(other, torch.Tensor) else other
        expected, actual = a * other, a.to(DEVICE) * b
        assert actual.dtype == expected.dtype
        torch.testing.assert_close(actual.cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_operands_are_rounded_to_a_common_dtype_of_16_bits(dtype):
    """Integers and 0-dim tensors of wider dtypes, where they lie on the device."""
    torch.manual_seed(0)
    x = torch.randn(1000).to(dtype)
    functions = (
        torch.eq, torch.ge, torch.sub, torch.remainder, torch.atan2, torch.hypot, torch.mul, torch.div,
        lambda a, b: torch.add(a, b, alpha=2), lambda a, b: torch.addcmul(a, a, b), lambda a, b: torch.addcdiv(a, a, b),
        lambda a, b: a.clone().sub_(b),
    )  # fmt: skip
    others = [torch.tensor(0.3), torch.tensor(0.1, dtype=torch.float64), torch.randint(200, 4000, (1000,))]
    for i, function in enumerate(functions):
        for other in others:
            got = function(x.to(DEVICE), other.to(DEVICE)).cpu()
            torch.testing.assert_close(got, function(x, other), rtol=0, atol=0, msg=lambda m, i=i: f"{i}: {m}")
    large, infinite = torch.tensor([70000], dtype=torch.int32), torch.tensor([math.inf], dtype=torch.half)
    assert (large.to(DEVICE) - infinite.to(DEVICE)).isnan().all()
    assert (large.to(DEVICE) >= infinite.to(DEVICE)).all()
    same = torch.tensor([257]).to(DEVICE) == torch.tensor([256.0], dtype=torch.bfloat16).to(DEVICE)
    assert same.all()


def test_half_into_a_complex_result_has_the_digits_of_half():
    x = torch.rand(100).half()
    out = torch.sin(x.to(DEVICE), out=torch.empty(100, dtype=torch.complex64, device=DEVICE))
    assert out.real.cpu().equal(torch.sin(x.to(DEVICE)).cpu().float())


def test_same_errors():
    def both(fn):
        with pytest.raises((RuntimeError, TypeError, NotImplementedError)) as expected:
            fn("cpu")
        with pytest.raises(expected.type, match=re.escape(str(expected.value).splitlines()[0][:60])):
            fn(DEVICE)

    flags = lambda d: torch.tensor([True, False], device=d)  # noqa: E731
    both(lambda d: flags(d) - flags(d))
    both(lambda d: -flags(d))
    both(lambda d: torch.arange(3, device=d) ** -1)
    both(lambda d: torch.rsub(flags(d), 1))
    both(lambda d: torch.add(torch.arange(3, device=d), 1, alpha=0.5))
    both(lambda d: torch.nn.functional.relu(flags(d)))
    both(lambda d: torch.addcdiv(*3 * [torch.arange(1, 3, device=d)]))
    both(lambda d: torch.lerp(torch.zeros(2, device=d), torch.zeros(2, dtype=torch.float64, device=d), 0.5))
    both(lambda d: torch.zeros(2, dtype=torch.uint8, device=d).masked_fill_(flags(d), 300))
    both(lambda d: torch.zeros(2, device=d).masked_fill_(torch.zeros(2, device=d), 0.0))
    for dtype, value in (
        (torch.uint8, torch.tensor(-1.0)),
        (torch.uint8, torch.tensor(300)),
        (torch.int64, torch.tensor(1e300, dtype=torch.float64)),
        (torch.float16, torch.tensor(1e10)),
        (torch.float32, torch.tensor(1j)),
    ):
        both(lambda d, t=dtype, v=value: torch.zeros(2, dtype=t, device=d).masked_fill_(flags(d), v.to(d)))
    both(lambda d: torch.where(torch.zeros(2, device=d), 1.0, 2.0))
    both(lambda d: torch.nn.functional.gelu(torch.zeros(2, device=d), approximate="x"))
    both(lambda d: torch.zeros(2, device=d).clamp())
    both(lambda d: torch.arange(3, device=d) // 0)
    truth = lambda d: torch.zeros((), dtype=torch.bool, device=d)  # noqa: E731
    both(lambda d: torch.ops.aten.mse_loss.out(torch.ones(2, device=d), torch.ones(2, device=d), out=truth(d)))


@pytest.mark.parametrize(
    "fn", [torch.remainder, torch.fmod, torch.floor_divide, lambda a, b: torch.div(a, b, rounding_mode="trunc")]
)
def test_integer_division_by_zero(fn):
    """The device finds it: the next synchronising call raises what the CPU raises, and the device goes on working."""
    a, b = torch.arange(5, device=DEVICE), torch.tensor([1, 2, 0, 4, 5], device=DEVICE)
    y = fn(a, b)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        y.cpu()
    torch.testing.assert_close(fn(a, b + 1).cpu(), fn(a.cpu(), b.cpu() + 1))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
def test_integer_edges(dtype):
    info = torch.iinfo(dtype)
    values = torch.tensor(
        sorted({info.min, info.min + 1, 0, 1, 2, 3, 7, info.max - 1, info.max, max(info.min, -1), max(info.min, -3)}),
        dtype=dtype,
    )
    a, b = values.repeat_interleave(len(values)), values.repeat(len(values))
    x, y = a.to(DEVICE), b.to(DEVICE)
    for fn in (torch.add, torch.mul, torch.pow, torch.bitwise_left_shift, torch.bitwise_right_shift, torch.lcm):
        torch.testing.assert_close(fn(x, y).cpu(), fn(a, b))
    torch.testing.assert_close((-x).cpu(), -a)
    torch.testing.assert_close(x.abs().cpu(), a.abs())
    # The CPU traps on the least number by -1, where the quotient wraps.
    fine = (b != 0) & ~((b == -1) & (a == info.min))
    a, b = a[fine], b[fine]
    x, y = a.to(DEVICE), b.to(DEVICE)
    for fn in (torch.remainder, torch.fmod, torch.floor_divide, lambda p, q: torch.div(p, q, rounding_mode="trunc")):
        torch.testing.assert_close(fn(x, y).cpu(), fn(a, b))
    if info.min < 0:
        least, minus = (
            torch.tensor([info.min], dtype=dtype, device=DEVICE),
            torch.tensor([-1], dtype=dtype, device=DEVICE),
        )
        assert torch.floor_divide(least, minus).item() == info.min
        assert torch.remainder(least, minus).item() == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_division_truncates_what_16_bits_hold(dtype):
    """The quotient of two tensors is rounded first, the one by a number is not."""
    a = torch.tensor([-55808.0, 50208, -55904, 7, -7, 0]).to(dtype)
    b = torch.tensor([65.75, 238, 18640, 2, 2, 3]).to(dtype)
    trunc = lambda x, y: torch.div(x, y, rounding_mode="trunc")  # noqa: E731
    x, y = a.to(DEVICE), b.to(DEVICE)
    expected = (a.double() / b.double()).to(dtype).trunc()
    assert torch.equal(trunc(x, y).cpu(), expected)
    assert torch.equal(trunc(a, b), expected)
    assert torch.equal(trunc(x, 65.75).cpu(), trunc(a, 65.75))
    assert torch.equal(x.clone().div_(y, rounding_mode="trunc").cpu(), expected)


def test_bool_memory_with_other_bytes():
    raw = torch.tensor([0, 1, 2, 255], dtype=torch.uint8)
    flags = raw.to(DEVICE).view(torch.bool)
    assert flags.logical_not().tolist() == [True, False, False, False]
    assert (flags & torch.ones(4, dtype=torch.bool, device=DEVICE)).tolist() == [False, True, True, True]
    assert (flags.float() + flags).tolist() == [0, 2, 2, 2]
    assert torch.where(flags, 1.0, -1.0).tolist() == [-1, 1, 1, 1]
    assert torch.add(flags, flags, alpha=True).view(torch.uint8).tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_conversions_are_exact(dtype):
    every = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16).view(dtype)
    widened = torch.mul(every.to(DEVICE), torch.ones((), device=DEVICE), out=torch.empty(0, device=DEVICE))
    torch.testing.assert_close(widened.cpu(), every.float(), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(
        (-every.to(DEVICE)).cpu().view(torch.int16)[~every.isnan()], (-every).view(torch.int16)[~every.isnan()]
    )
    # Numbers around the midpoints between neighbours, denormals and the overflow threshold included.
    finite = every[every.isfinite()].float().sort().values
    middle = (finite[1:] + finite[:-1]) / 2
    x = torch.cat([middle, torch.nextafter(middle, middle + 1), torch.nextafter(middle, middle - 1),
                   torch.tensor([65519.0, 65520.0, 1e-8, 3e-8, 3e38, float("nan"), float("inf"), -0.0])])  # fmt: skip
    narrow = torch.mul(x.to(DEVICE), 1.0, out=torch.empty(0, dtype=dtype, device=DEVICE))
    torch.testing.assert_close(narrow.cpu(), x.to(dtype), rtol=0, atol=0, equal_nan=True)
    zeros = narrow.cpu() == 0
    assert torch.equal(narrow.cpu()[zeros].signbit(), x.to(dtype)[zeros].signbit())


def test_nan_semantics():
    nan, inf = float("nan"), float("inf")
    x = torch.tensor([nan, -1.0, 0.0, 2.0, inf, -inf, -0.0])
    d = x.to(DEVICE)
    functions = {
        "relu": torch.relu,
        "clamp": lambda t: t.clamp(0, 1),
        "clamp_min_nan": lambda t: t.clamp_min(nan),
        "clamp_nan_max": lambda t: t.clamp(0, nan),
        "clamp_tensor": lambda t: t.clamp(torch.full_like(t, -1), torch.full_like(t, nan)),
        "clamp_reversed": lambda t: t.clamp(3, 1),
        "maximum": lambda t: (
            torch.maximum(t, t.flip(0)) if t.device.type == "cpu" else torch.maximum(t, x.flip(0).to(t.device))
        ),
        "fmax": lambda t: torch.fmax(t, torch.full_like(t, nan)),
        "hardtanh": torch.nn.functional.hardtanh,
        "hardswish": torch.nn.functional.hardswish,
        "hardsigmoid": torch.nn.functional.hardsigmoid,
        "threshold": lambda t: torch.nn.functional.threshold(t, 0.5, 7.0),
        "softshrink": torch.nn.functional.softshrink,
        "hardshrink": torch.nn.functional.hardshrink,
        "gelu": lambda t: torch.nn.functional.gelu(t.clamp(max=2.0)),
        "silu": torch.nn.functional.silu,
        "sign": torch.sign,
        "floor_divide": lambda t: t // 0.0,
        "remainder": lambda t: t % 3,
        "pow": lambda t: t**0.0,
        "nan_to_num": torch.nan_to_num,
    }
    for name, fn in functions.items():
        actual, expected = fn(d).cpu(), fn(x)
        torch.testing.assert_close(actual, expected, equal_nan=True, msg=lambda m, name=name: f"{name}: {m}")


def test_known_traps():
    """Other OpenCL devices were seen to get these wrong, silently."""
    quotient = torch.arange(5, device=DEVICE) / torch.arange(1, 6, device=DEVICE)
    torch.testing.assert_close(quotient.cpu(), torch.arange(5) / torch.arange(1, 6))
    torch.testing.assert_close((torch.arange(4, device=DEVICE) * 2.5).cpu(), torch.arange(4) * 2.5)
    assert torch.relu(torch.tensor([float("nan")], device=DEVICE)).isnan().all()
    x = torch.tensor([1 + 2j, -3 + 0.5j])
    torch.testing.assert_close((x.to(DEVICE).conj() * 2).cpu(), x.conj() * 2)


def test_loss_reductions():
    p, t = torch.rand(4, 3) * 0.9 + 0.05, torch.rand(4, 3)
    w = torch.rand(3)
    functional = torch.nn.functional
    losses = [
        functional.mse_loss,
        functional.smooth_l1_loss,
        functional.huber_loss,
        lambda a, b, **k: functional.binary_cross_entropy(a, b, w.to(a.device), **k),
    ]
    for reduction in ("none", "mean", "sum"):
        for fn in losses:
            a, b = p.clone().requires_grad_(), p.to(DEVICE).requires_grad_()
            expected, actual = fn(a, t, reduction=reduction), fn(b, t.to(DEVICE), reduction=reduction)
            torch.testing.assert_close(actual.detach().cpu(), expected.detach())
            expected.sum().backward()
            actual.sum().backward()
            torch.testing.assert_close(b.grad.cpu(), a.grad)
    with pytest.raises(RuntimeError, match="between 0 and 1"):
        torch.nn.functional.binary_cross_entropy(p.to(DEVICE) + 1, t.to(DEVICE)).item()


def test_new_shapes_compile_nothing():
    def step(n):
        x = torch.randn(n, 7, device=DEVICE)
        return torch.where(x > 0, x * 2 + 1, x.exp()).add_(x[:, :1])

    step(3), step(4)
    before = dlbackend.kernel_stats()
    for n in range(5, 40):
        step(n)
    after = dlbackend.kernel_stats()
    assert (after["compiled"], after["loaded"]) == (before["compiled"], before["loaded"])


def test_rrelu():
    x = torch.randn(1000, device=DEVICE)
    y = torch.nn.functional.rrelu(x, 0.1, 0.3, training=True)
    slope = (y / x).cpu()[x.cpu() < 0]
    assert ((slope > 0.099) & (slope < 0.301)).all()
    assert slope.std() > 0.01
    torch.testing.assert_close(
        torch.nn.functional.rrelu(x, 0.1, 0.3).cpu(), torch.nn.functional.rrelu(x.cpu(), 0.1, 0.3)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_add_bounded(dtype):
    """A sum within bounds: every layout of both sides, broadcasting, promotion; NaN stays, infinities are bounded."""
    a, b = torch.randn(3, 4, 5, 6, dtype=torch.float64).to(dtype), torch.randn(4, 1, 6, dtype=torch.float64).to(dtype)
    a[0, 0, 0, :3] = torch.tensor([float("nan"), float("inf"), float("-inf")], dtype=dtype)
    for low, high in ((0.0, float("inf")), (-0.5, 0.75)):
        for x in layouts(a.to(DEVICE)).values():
            for y in (*layouts(b.to(DEVICE)).values(), x):
                got = torch.ops.dlbackend.add_bounded(x, y, low, high)
                expected = (x.cpu() + y.cpu()).clamp(low, high)
                torch.testing.assert_close(got.cpu(), expected, rtol=0, atol=0, equal_nan=True)
    mixed = torch.ops.dlbackend.add_bounded(a.to(DEVICE), b.float().to(DEVICE), 0.0, 6.0)
    assert mixed.dtype == torch.promote_types(dtype, torch.float32)
    assert torch.ops.dlbackend.add_bounded(a[:0].to(DEVICE), b.to(DEVICE), 0.0, 1.0).shape == (0, 4, 5, 6)


def test_add_bounded_refuses():
    a = torch.ones(3, device=DEVICE)
    with pytest.raises(RuntimeError, match=r"low \(2\) must not be above high \(1\)"):
        torch.ops.dlbackend.add_bounded(a, a, 2.0, 1.0)
    with pytest.raises(NotImplementedError, match='"add_bounded" not implemented for Long'):
        torch.ops.dlbackend.add_bounded(a.long(), a.long(), 0.0, 1.0)
    with pytest.raises(RuntimeError, match="must match the size"):
        torch.ops.dlbackend.add_bounded(a, torch.ones(2, device=DEVICE), 0.0, 1.0)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nextafter_steps_in_its_own_type(dtype):
    x = torch.arange(-(2**15), 2**15).to(torch.int16)
    x = x.view(dtype) if dtype.itemsize == 2 else x.view(torch.float16).to(dtype)
    for other in (x.flip(0), x, torch.full_like(x, float("inf")), torch.zeros_like(x), -x):
        wanted, got = torch.nextafter(x, other), torch.nextafter(x.to(DEVICE), other.to(DEVICE))
        torch.testing.assert_close(got.cpu(), wanted, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(got.cpu().signbit()[~wanted.isnan()], wanted.signbit()[~wanted.isnan()])
