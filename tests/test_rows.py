"""Expressions of rows: one launch gives the values that the ops give one by one."""

import itertools

import pytest
import torch
from common import DEVICE

import dlbackend
from dlbackend.template import rows

FLOATS = [torch.float32, torch.bfloat16, torch.float16]
NAMES = {
    torch.float32: "f32",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.float64: "f64",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.complex64: "c64",
}


def launches() -> int:
    torch.ocl.synchronize()
    return int(dlbackend._C.kernel_stats()["launches"])


def made(*shape, dtype=torch.float32):
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(*shape).to(dtype).to(DEVICE)
    return torch.randint(-9, 9, shape).to(dtype).to(DEVICE)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rounds_where_eager_rounds(dtype):
    x, y, z = made(33, 70, dtype=dtype), made(70, dtype=dtype), made(33, 1, dtype=dtype)
    t = NAMES[dtype]
    got = rows(f"v = add_alpha.{t}(x0, x1, 1); w = mul.{t}(v, x2); y0 = sigmoid.{t}(w); y1 = w", x, y, z)
    w = (x + y) * z
    assert torch.equal(got[1], w)
    assert got[1].dtype == dtype
    assert torch.equal(got[0], torch.sigmoid(w))


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "channels_last", "sliced"])
def test_strides_and_several_types(layout):
    x, i = made(4, 6, 5, 8), made(4, 6, 5, 8, dtype=torch.int64)
    if layout == "transposed":
        x, i = x.transpose(1, 3), i.transpose(1, 3)
    elif layout == "channels_last":
        x = x.contiguous(memory_format=torch.channels_last)
    elif layout == "sliced":
        x, i = x[:, ::2, :, 1:], i[:, ::2, :, 1:]
    # A kernel of bool, int64, float32 and bfloat16 at once, with exp and floor division of two types.
    mask, value, count = rows(
        "m = gt.i64(x1, 2); e = exp.f32(x0); y1 = where.bf16(m, e, 0.5); y2 = mul.i64(x1, x1); y0 = m", x, i
    )
    assert torch.equal(mask, i > 2)
    assert mask.dtype == torch.bool
    expected = torch.where(i > 2, torch.exp(x).bfloat16(), torch.tensor(0.5, dtype=torch.bfloat16, device=DEVICE))
    assert torch.equal(value, expected)
    assert value.dtype == torch.bfloat16
    assert torch.equal(count, i * i)


def test_one_function_in_two_types():
    """exp of float and of double, and of complex numbers, in one program."""
    x = made(1000)
    single, double, pair = rows(
        "y0 = exp.f32(x0); y1 = exp.f64(x0); z = exp.c64(x1); y2 = z", x, made(1000, dtype=torch.complex64) * 0 + 1j
    )
    assert torch.equal(single, torch.exp(x))
    assert torch.equal(double, torch.exp(x.double()))
    assert torch.allclose(pair.cpu(), torch.exp(torch.full((1000,), 1j)))


def test_scalars_numbers_and_cpu_tensors():
    x = made(257)
    text = "v = mul.f32(x0, s0); w = add_alpha.f32(v, x1, 1); y0 = maximum.f32(w, -0.25)"
    for factor, shift in itertools.product([2.0, -3.5], [0.0, 1.25]):
        got = rows(text, x, torch.tensor(shift), scalars=[factor])
        assert torch.equal(got, torch.clamp(x * factor + shift, min=-0.25))
    compiled = dlbackend._C.kernel_stats()["compiled"]
    rows(text, x, torch.tensor(7.0), scalars=[11.0])
    assert dlbackend._C.kernel_stats()["compiled"] == compiled


def test_numbers_keep_their_value():
    """Each scalar arrives in a type of its rows, a CPU tensor in its own, whatever else the kernel computes in."""
    x, i = torch.tensor([0.25, 0.6, 0.9], device=DEVICE), torch.tensor([1, 2, 3], device=DEVICE)
    large = 2**40 + 1
    sums, halves = rows("y0 = add_alpha.i64(x1, s0, 1); y1 = mul.f32(x0, s1)", x, i, scalars=[large, 0.5])
    assert torch.equal(sums, i + large)
    assert torch.equal(halves, x * 0.5)
    assert rows("m = gt.f32(x0, s0); y0 = sum.i64(m)", x, scalars=[0.5]).item() == 2
    assert torch.equal(rows("y0 = add_alpha.i64(x0, x1, 1)", i, torch.tensor(large)), i + large)
    tenth = rows(
        "v = mul.f64(x0, x1); y0 = add_alpha.f64(v, s0, 1)", x.double() * 0, torch.tensor(0.1).double(), scalars=[0.1]
    )
    assert tenth.tolist() == [0.1] * 3
    assert torch.equal(rows("y0 = add_alpha.i64(x0, 9007199254740991, 1)", i), i + (2**53 - 1))


def test_out_in_place_and_dtypes():
    x, y = made(50, dtype=torch.float32), torch.empty(50, dtype=torch.float16, device=DEVICE)
    assert rows("y0 = mul.f32(x0, 2)", x, out=y) is y
    assert torch.equal(y, (x * 2).half())
    doubled = x * 2
    rows("y0 = mul.f32(x0, 2)", x, out=x)
    assert torch.equal(x, doubled)
    assert rows("y0 = mul.f32(x0, 2)", x, dtypes=[torch.int32]).dtype == torch.int32


def test_is_one_launch(background_at_rest):
    x, inputs = made(64, 64), [made(64, 64) for _ in range(14)]
    text = "v0 = add_alpha.f32(x0, x1, 1); " + "".join(
        f"v{k} = add_alpha.f32(v{k - 1}, x{k + 1}, 1); " for k in range(1, 14)
    )
    rows(text + "y0 = v13", x, *inputs)
    before = launches()
    got = rows(text + "y0 = v13", x, *inputs)
    assert launches() == before + 1
    expected = x
    for other in inputs:
        expected = expected + other
    assert torch.equal(got, expected)


def test_meta_and_empty():
    assert rows("y0 = exp.f32(x0)", torch.empty(3, 0, device="meta")).shape == (3, 0)
    assert rows("y0 = exp.bf16(x0)", torch.empty(3, 0, device=DEVICE)).dtype == torch.bfloat16
    assert rows("y0 = exp.f32(x0)", torch.tensor(1.0, device=DEVICE)).shape == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("y0 = nothing.f32(x0)", "no pointwise row nothing"),
        ("y0 = add_alpha.f32(x0, x0)", "takes 2 inputs and 1 scalars, not 2"),
        ("y0 = exp.f99(x0)", "no type f99"),
        ("y0 = exp.i64(x0)", "exp is not defined for i64"),
        ("y0 = exp.f32(v)", 'no value "v"'),
        ("v = exp.f32(x0)", "no result is called y0"),
        ("x1 = exp.f32(x0); y0 = x1", "cannot be the name"),
        ("y0 = exp(x0)", "the type is missing"),
        ("y0 = exp.f32(1)", "at least one input"),
        ("y0 = exp.f32(x0); y1 = 2", "y1 depends on no input"),
        ("y0 = add_alpha.i64(x0, 0.5, 1)", "integers are exact below"),
        ("y0 = add_alpha.i64(x0, 9007199254740993, 1)", "integers are exact below"),
        ("y0 = add_alpha.i64(x0, s0, 1); y1 = mul.f32(x0, s0)", "s0 is taken by integers and by floats"),
        ("y0", "a statement is"),
    ],
)
def test_errors_name_the_statement(text, message):
    with pytest.raises(ValueError, match=message):
        rows(text, torch.ones(3, device=DEVICE))


def test_wrong_counts():
    with pytest.raises(ValueError, match="takes 2 inputs and 0 scalars, not 1 and 0"):
        rows("y0 = mul.f32(x0, x1)", torch.ones(3, device=DEVICE))
    with pytest.raises(RuntimeError, match="must match"):
        rows("y0 = mul.f32(x0, x1)", torch.ones(3, device=DEVICE), torch.ones(4, device=DEVICE))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("dims", [None, -1, 0, (0, 2)])
def test_reduction_with_what_goes_before_and_after(dtype, dims):
    x, y = made(9, 40, 33, dtype=dtype), made(40, 1, dtype=dtype)
    t = NAMES[dtype]
    text = f"v = sub_alpha.{t}(x0, x1, 1); w = mul.{t}(v, v); m = mean.{t}(w); y0 = sqrt.{t}(m); y1 = v"
    norm, difference = rows(text, x, y, dims=dims)
    expected = torch.sqrt(((x - y) * (x - y)).mean(dim=dims if dims is not None else (0, 1, 2)))
    assert torch.equal(difference, x - y)
    torch.testing.assert_close(norm, expected)
    assert rows(text, x, y, dims=dims, keepdim=True)[0].dim() == 3


def test_reduction_of_other_types():
    """A comparison of int64 feeds a sum of int64, whose mean is taken in float."""
    x = made(70, 300, dtype=torch.int64)
    share = rows("m = gt.i64(x0, s0); n = sum.i64(m); y0 = div.f32(n, 300)", x, scalars=[2], dims=1)
    assert torch.equal(share, (x > 2).sum(1).float() / 300)
    largest, where = rows("v = abs.i64(x0); y0, y1 = max.i64(v)", x, dims=1)
    assert torch.equal(largest, x.abs().max(1).values)
    assert torch.equal(x.abs().gather(1, where[:, None])[:, 0], largest)
    assert where.dtype == torch.int64


def test_reduction_is_one_launch(background_at_rest):
    x = made(64, 50)
    text = "v = exp.f32(x0); s = sum.f32(v); y0 = log.f32(s)"
    rows(text, x, dims=1)
    before = launches()
    got = rows(text, x, dims=1)
    assert launches() == before + 1
    torch.testing.assert_close(got, torch.logsumexp(x, 1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = sum.f32(x0); b = mean.f32(x0); y0 = add_alpha.f32(a, b, 1)", "has one reduction"),
        ("a = sum.f32(x0); y0 = add_alpha.f32(a, x0, 1)", "takes a value of each element beside a reduced one"),
        ("a = sum.f32(x0); y0 = x0", "no result is reduced"),
        ("y0 = sum.f16(x0, x0)", "takes 1 inputs and 0 scalars"),
    ],
)
def test_errors_of_reductions(text, message):
    with pytest.raises(ValueError, match=message):
        rows(text, torch.ones(3, device=DEVICE))


def test_values_that_are_passed_on():
    x, z = torch.randn(5, 7, device=DEVICE), torch.randn(7, device=DEVICE).bfloat16()
    first, second = rows("y0 = x1; y1 = x0", x, z)
    assert torch.equal(first, z.expand(5, 7))
    assert torch.equal(second, x)
