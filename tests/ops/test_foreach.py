"""_foreach ops: every overload against the CPU, one launch for many tensors, and what must take the slow route."""

import math

import pytest
import torch
from torch.testing._internal.common_methods_invocations import (
    foreach_binary_op_db,
    foreach_other_op_db,
    foreach_pointwise_op_db,
    foreach_reduce_op_db,
    foreach_unary_op_db,
)

import dlbackend

DEVICE = "ocl:0"
SIZES = [(3, 5), (), (17,), (0, 4), (2, 3, 4), (1,), (33, 65)]
ALL_DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64,
]  # fmt: skip


def make(dtype, seed=0, sizes=SIZES):
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(size, generator=generator, dtype=torch.float64) * 3 for size in sizes]
    if dtype == torch.bool:
        return [t > 0 for t in tensors]
    if dtype == torch.uint8:
        return [t.abs().to(dtype) for t in tensors]
    return [t.to(dtype) for t in tensors]


def to_device(value):
    if isinstance(value, torch.Tensor):
        return value.to(DEVICE)
    return [to_device(v) for v in value] if isinstance(value, (list, tuple)) else value


def clone(value):
    if isinstance(value, torch.Tensor):
        return value.clone()
    return [clone(v) for v in value] if isinstance(value, (list, tuple)) else value


def launches(call):
    before = dlbackend.kernel_stats()["launches"]
    result = call()
    return result, dlbackend.kernel_stats()["launches"] - before


def check_call(function, in_place, args, kwargs, tolerance):
    """One call against the CPU's: same values, in place those of the first argument, or the same exception type."""
    here, there = clone(args), to_device(clone(args))
    try:
        expected = function(*here, **kwargs)
    except NotImplementedError:  # a dtype that the CPU lacks and we may have
        return
    except Exception as error:
        with pytest.raises(type(error)):
            function(*there, **kwargs)
        return
    actual = function(*there, **kwargs)
    expected, actual = (here[0], there[0]) if in_place else (expected, actual)
    for a, e in zip(actual, expected, strict=True):
        assert a.device.type == "ocl"
        torch.testing.assert_close(a.cpu(), e, equal_nan=True, **tolerance)


def check(name, *args, tolerance=None, **kwargs):
    """Functional and in-place forms of _foreach_<name> against the CPU: same values or the same exception type."""
    for form in (f"_foreach_{name}", f"_foreach_{name}_"):
        function = getattr(torch, form, None)
        if function is None:
            continue
        check_call(function, form.endswith("_"), args, kwargs, tolerance or {})


UNARY = [op.name.removeprefix("_foreach_") for op in foreach_unary_op_db]
OTHER_DTYPES = [torch.float64, torch.bfloat16, torch.int32, torch.bool, torch.complex64]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, torch.float32) for name in UNARY]
    + [(name, dtype) for name in ("abs", "neg", "sqrt", "sign") for dtype in OTHER_DTYPES],
)
def test_unary(name, dtype):
    if not hasattr(torch, f"_foreach_{name}"):
        pytest.skip("not in this torch")
    tensors = make(dtype)
    if name in ("acos", "asin", "lgamma", "log", "log2", "log10", "log1p", "rsqrt", "sqrt") and dtype.is_floating_point:
        tensors = [t.abs() / 10 for t in tensors]
    # bfloat16: the CPU rounds intermediate results that we keep in float. Transcendental functions: some ulp each.
    tolerance = {"rtol": 1.6e-2, "atol": 1e-2} if dtype == torch.bfloat16 else {"rtol": 2e-5, "atol": 1e-5}
    check(name, tensors, tolerance=tolerance if dtype.is_floating_point or dtype.is_complex else None)


BINARY = ["add", "sub", "mul", "div", "maximum", "minimum", "clamp_max", "clamp_min"]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, dtype) for name in BINARY for dtype in (torch.float32, torch.int64)]
    + [("add", dtype) for dtype in ALL_DTYPES if dtype not in (torch.float32, torch.int64)],
)
def test_binary(name, dtype):
    a, b = make(dtype), make(dtype, seed=1)
    if name == "div" and not dtype.is_floating_point and not dtype.is_complex:
        b = [t.abs() + 1 if t.dtype != torch.bool else t | True for t in b]
    check(name, a, b)
    scalars = [1.5, 2, -3.25, 0.5, 7, 1, 2.5] if dtype.is_floating_point else [1, 2, 3, 4, 5, 6, 7]
    check(name, a, scalars)
    for scalar in (2, 2.5, True):
        check(name, a, scalar)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_pow(dtype):
    a = [t.abs() + 0.5 for t in make(dtype)]
    tolerance = {"rtol": 2e-3, "atol": 1e-3} if dtype == torch.float16 else {"rtol": 2e-6, "atol": 1e-6}
    for exponent in (2, 0.5, -1.5, make(dtype, seed=1), [1.0, 2.0, 3.0, 0.5, 0.0, -1.0, 2.5]):
        check("pow", a, exponent, tolerance=tolerance)
    result = torch._foreach_pow(2.5, to_device(a))
    torch.testing.assert_close([t.cpu() for t in result], list(torch._foreach_pow(2.5, a)), **tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.complex64])
def test_alpha_and_tensor_operand(dtype):
    a, b = make(dtype), make(dtype, seed=1)
    loose = {"rtol": 1.6e-2, "atol": 2e-2} if dtype == torch.bfloat16 else None
    for name in ("add", "sub"):
        check(name, a, b, alpha=3, tolerance=loose)
        check(name, a, b, alpha=2.5, tolerance=loose)  # integers: the same error
    for name in ("add", "mul", "div"):
        for other in (torch.tensor(2, dtype=dtype), torch.tensor(2.5), torch.tensor([2.0, 3.0])):
            check(name, a, other, tolerance=loose)
    # a scalar tensor that stays on the CPU
    expected = torch._foreach_mul(a, torch.tensor(3, dtype=dtype))
    actual = torch._foreach_mul(to_device(a), torch.tensor(3, dtype=dtype))
    torch.testing.assert_close([t.cpu() for t in actual], list(expected))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_numbers_are_those_of_the_op_alone(dtype):
    """A number that the lists' dtype has not is rounded to it, or not, as by the op for one tensor."""
    a, b = to_device(make(dtype)), to_device(make(dtype, seed=1))
    numbers = [0.1, 3.14, -0.7, 1e-3, 2.5, 1.001, -3.3]
    for name in ("add", "sub", "mul", "div", "pow", "clamp_min", "clamp_max"):
        op = getattr(torch, name)
        x = [t.abs() for t in a] if name == "pow" else a
        lists, one = getattr(torch, f"_foreach_{name}")(x, numbers), getattr(torch, f"_foreach_{name}")(x, 3.14)
        for i, (t, number) in enumerate(zip(x, numbers, strict=True)):
            assert lists[i].equal(op(t, number)), (name, number)
            assert one[i].equal(op(t, 3.14)), name
    for name in ("add", "sub"):
        for t, u, result in zip(a, b, getattr(torch, f"_foreach_{name}")(a, b, alpha=3.14), strict=True):
            assert result.equal(getattr(torch, name)(t, u, alpha=3.14)), name


def test_bool_refuses_numbers_as_clamp_does():
    a = to_device(make(torch.bool))
    for name in ("clamp_min", "clamp_max", "maximum", "minimum"):
        for number in (True, [True] * len(a)):
            with pytest.raises(NotImplementedError, match="clamp"):
                getattr(torch, f"_foreach_{name}")(a, number)


@pytest.mark.parametrize("name", ["addcmul", "addcdiv"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int64, torch.complex64])
def test_addc(name, dtype):
    a, b, c = make(dtype), make(dtype, seed=1), make(dtype, seed=2)
    if dtype.is_floating_point:
        c = [t + 10 for t in c]
    tolerance = {torch.float16: {"rtol": 4e-3, "atol": 2e-2}, torch.complex64: {"rtol": 1e-4, "atol": 1e-4}}.get(dtype)
    check(name, a, b, c, value=2, tolerance=tolerance)
    check(name, a, b, c, [1, 2, 3, 4, 5, 6, 7], tolerance=tolerance)
    here, there = clone(a), to_device(a)
    packed = torch.arange(1, 8, dtype=torch.float64 if dtype.is_floating_point else torch.int64)
    if name == "addcmul" or dtype.is_floating_point:
        getattr(torch, f"_foreach_{name}_")(here, b, c, packed)
        getattr(torch, f"_foreach_{name}_")(there, to_device(b), to_device(c), packed)
        torch.testing.assert_close([t.cpu() for t in there], here, **(tolerance or {}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_lerp(dtype):
    a, b, w = make(dtype), make(dtype, seed=1), make(dtype, seed=2)
    tolerance = {"rtol": 1.6e-2, "atol": 3e-2} if dtype == torch.bfloat16 else None
    for weight in (0.1, 0.9, 1.0, w, [0.1, 0.2, 0.5, 0.7, 0.9, 1.0, 0.0]):
        check("lerp", a, b, weight, tolerance=tolerance)
    exact = to_device(a)
    torch._foreach_lerp_(exact, to_device(b), 1.0)
    assert all(torch.equal(x.cpu(), y) for x, y in zip(exact, b, strict=True))


@pytest.mark.parametrize("to_dtype", [torch.float32, torch.bfloat16, torch.int32, torch.bool])
@pytest.mark.parametrize("from_dtype", [torch.float32, torch.float16, torch.int64, torch.complex64])
def test_copy_and_zero(to_dtype, from_dtype):
    to, source = make(to_dtype), make(from_dtype, seed=1)
    there = to_device(to)
    torch._foreach_copy_(there, to_device(source))
    torch._foreach_copy_(to, source)
    torch.testing.assert_close([t.cpu() for t in there], to)
    torch._foreach_copy_(there, source)  # from the CPU
    torch.testing.assert_close([t.cpu() for t in there], to)
    torch._foreach_zero_(there)
    assert all(not t.any() for t in to_device(there))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("order", [1, 2, math.inf, 0, 3])
def test_norm(dtype, order):
    sizes = [s for s in SIZES if 0 not in s] if order == math.inf else SIZES
    tensors = make(dtype, sizes=[*sizes, (100_003,)])
    # float32: sums of n squares by blocks, off by less than n^(1/2) 2^-24; half: one rounding of the result.
    tolerance = {torch.float16: {"rtol": 2e-3, "atol": 0}, torch.bfloat16: {"rtol": 1.6e-2, "atol": 0}}.get(
        dtype, {"rtol": 1e-5 if dtype == torch.float32 else 1e-12, "atol": 0}
    )
    expected = torch._foreach_norm([t.double() for t in tensors], order)
    actual = torch._foreach_norm(to_device(tensors), order)
    for a, e in zip(actual, expected, strict=True):
        assert a.dtype == dtype
        assert a.shape == ()
        if torch.isfinite(e.to(dtype)):
            torch.testing.assert_close(a.cpu().double(), e, **tolerance)
    wide = torch._foreach_norm(to_device(tensors), order, dtype=torch.float64)
    for a, e in zip(wide, expected, strict=True):
        torch.testing.assert_close(a.cpu(), e, rtol=1e-12, atol=0)


def test_norm_of_nan_and_inf():
    tensors = [torch.tensor([1.0, math.nan, 2.0]), torch.tensor([1.0, -math.inf]), torch.ones(40) * math.nan]
    for order in (1, 2, math.inf):
        actual = torch._foreach_norm(to_device(tensors), order)
        torch.testing.assert_close([t.cpu() for t in actual], list(torch._foreach_norm(tensors, order)), equal_nan=True)
    with pytest.raises((RuntimeError, IndexError)):
        torch._foreach_norm(to_device([torch.empty(0)]), math.inf)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.int8, torch.uint8, torch.bool])
def test_max(dtype):
    tensors = make(dtype, sizes=[s for s in SIZES if 0 not in s] + [(50_001,)])
    if dtype.is_floating_point:
        tensors[2][3] = math.nan
        tensors[0] = -tensors[0].abs() - 5
    check("max", tensors)


def test_one_launch_for_many_tensors(background_at_rest):
    a = to_device([torch.randn(7 * i % 300) for i in range(300)])
    b = [torch.randn_like(t) for t in a]
    torch._foreach_add_(a, b)  # builds
    expected = [x.cpu() + y.cpu() for x, y in zip(a, b, strict=True)]
    _, count = launches(lambda: torch._foreach_add_(a, b))
    assert count == 1
    torch.testing.assert_close([t.cpu() for t in a], expected)
    compiled = dlbackend.kernel_stats()["compiled"]
    c = to_device([torch.randn(11 * i % 70, 3) for i in range(90)])  # other sizes and numbers
    torch._foreach_add_(c, to_device([torch.ones(t.shape) for t in c]))
    assert dlbackend.kernel_stats()["compiled"] == compiled


def test_more_segments_than_a_kernel_takes(background_at_rest):
    # each of these is larger than half of a usual segment, so that they lie in many
    count = 17
    sizes = [(9 << 20) + i for i in range(count)]
    there = [torch.full((n,), float(i), device=DEVICE) for i, n in enumerate(sizes)]
    halves = [t[: 4 << 20] for t in there] + [t[4 << 20 :] for t in there]
    torch._foreach_add_(halves, [float(i % count) for i in range(2 * count)])
    _, launched = launches(lambda: torch._foreach_add_(halves, 1.0))
    assert launched == 2  # not a third for the second halves, whose segments both launches have
    torch._foreach_mul_([*there, there[-1], there[0]], 2.0)  # each after the one before it
    torch._foreach_add_([there[0], *there], 1.0)
    factors, added = [2.0] * count, [1.0] * count
    factors[0] = factors[-1] = 4.0
    added[0] = 2.0
    expected = [(2 * i + 1) * f + a for i, f, a in zip(range(count), factors, added, strict=True)]
    for t, e in zip(there, expected, strict=True):
        assert t[0].item() == t[-1].item() == t[(4 << 20) + 5].item() == e
    norms = torch._foreach_norm(there)
    torch.testing.assert_close(
        torch.stack(norms).cpu(), torch.tensor([e * math.sqrt(n) for e, n in zip(expected, sizes, strict=True)]),
        rtol=1e-5, atol=0,
    )  # fmt: skip


def test_overlapping_lists_run_in_order():
    a = torch.arange(10, dtype=torch.float32, device=DEVICE)
    torch._foreach_add_([a, a], 1)
    assert a.tolist() == [float(i) for i in range(2, 12)]
    b, c = torch.ones(5, device=DEVICE), torch.full((5,), 2.0, device=DEVICE)
    torch._foreach_add_([b, c], [c, b])  # the second adds the new b
    assert b.tolist() == [3.0] * 5
    assert c.tolist() == [5.0] * 5
    d = torch.arange(8, dtype=torch.float32, device=DEVICE)
    torch._foreach_mul_([d[:5], d[3:]], 2)
    assert d.tolist() == [0, 2, 4, 12, 16, 10, 12, 14]


def test_strided_and_mixed_lists():
    channels_last = torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last)
    here = [torch.randn(6, 8)[:, ::2], channels_last, torch.randn(3, 3).t()]
    there = [t.to(DEVICE) for t in here]
    there[0] = here[0].new_empty(6, 8).to(DEVICE)[:, ::2].copy_(here[0])
    other = [torch.randn_like(t) for t in here]
    torch._foreach_addcmul_(there, [o.to(DEVICE) for o in other], there, value=0.5)
    torch._foreach_addcmul_(here, other, here, value=0.5)
    torch.testing.assert_close([t.cpu() for t in there], here)
    mixed = [torch.ones(3, device=DEVICE), torch.ones(3, device=DEVICE, dtype=torch.float16), torch.ones(3)]
    result = torch._foreach_add(mixed, 1.5)
    assert [(t.device.type, t.dtype) for t in result] == [
        ("ocl", torch.float32), ("ocl", torch.float16), ("cpu", torch.float32)
    ]  # fmt: skip


def test_unaligned_views():
    base_here = torch.arange(4000, dtype=torch.float32)
    base = base_here.to(DEVICE)
    spans = [(1, 1000), (1003, 1500), (1502, 3999)]
    torch._foreach_mul_([base[a:b] for a, b in spans], [2.0, 3.0, 4.0])
    torch._foreach_mul_([base_here[a:b] for a, b in spans], [2.0, 3.0, 4.0])
    torch.testing.assert_close(base.cpu(), base_here)


def test_in_place_counts_versions_and_autograd_works():
    x = torch.ones(3, device=DEVICE, requires_grad=True)
    y = x.exp()
    torch._foreach_mul_([y.detach()], 2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    z = torch.ones(3, device=DEVICE, requires_grad=True)
    (w,) = torch._foreach_mul([z], 3)
    w.sum().backward()
    assert z.grad.tolist() == [3, 3, 3]


def test_bad_lists():
    a = [torch.ones(3, device=DEVICE)]
    with pytest.raises(RuntimeError):
        torch._foreach_add([], 1)
    with pytest.raises(RuntimeError):
        torch._foreach_add(a, a * 2)
    with pytest.raises(RuntimeError):
        torch._foreach_add(a, [torch.ones(4, device=DEVICE)])
    with pytest.raises(RuntimeError):
        torch._foreach_add(a, [1.0, 2.0])


def test_clip_grad_norm():
    for foreach in (True, False, None):
        here = [torch.nn.Parameter(torch.zeros(s)) for s in [(50, 30), (40,), (3, 3)]]
        for i, p in enumerate(here):
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(i)) * 10
        there = [torch.nn.Parameter(p.detach().to(DEVICE)) for p in here]
        for p, q in zip(here, there, strict=True):
            q.grad = p.grad.to(DEVICE)
        expected = torch.nn.utils.clip_grad_norm_(here, 1.0)
        actual = torch.nn.utils.clip_grad_norm_(there, 1.0, foreach=foreach)
        torch.testing.assert_close(actual.cpu(), expected)
        for p, q in zip(here, there, strict=True):
            torch.testing.assert_close(q.grad.cpu(), p.grad)
        torch.nn.utils.clip_grad_value_(there, 0.01, foreach=foreach)
        assert max(q.grad.abs().max().item() for q in there) <= 0.01


OPINFOS = [
    *foreach_unary_op_db, *foreach_binary_op_db, *foreach_pointwise_op_db, *foreach_reduce_op_db, *foreach_other_op_db,
]  # fmt: skip


@pytest.mark.parametrize("info", OPINFOS, ids=lambda info: info.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
def test_samples_of_pytorch(info, dtype):
    """PyTorch's own samples for foreach ops, a thinned-out selection."""
    if dtype not in info.dtypes or info.name == "_foreach_mm":
        pytest.skip("no samples")
    torch.manual_seed(0)
    samples = [s for i, s in enumerate(info.sample_inputs("cpu", dtype, noncontiguous=False)) if i % 7 == 0][:12]
    for sample in samples:
        args = [sample.input, *sample.args]
        kwargs = {k: v for k, v in sample.kwargs.items() if k != "is_fastpath"}
        if any(v is None for v in args):
            continue
        for function in (info.method_variant, info.inplace_variant):
            if function is None:
                continue
            check_call(function, function is info.inplace_variant, args, kwargs, {"rtol": 2e-5, "atol": 2e-5})
