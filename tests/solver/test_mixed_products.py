"""Products and convolutions of other dtypes than is computed in, by every solver that takes them."""

import pytest
import torch
import torch.nn.functional as F

import dlbackend
from dlbackend import _C

SOLVERS = [name.partition(":")[2] for name in _C.solver_names() if name.startswith("gemm:")]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float64: 1e-12}
SIZES = [(1, 1, 1), (1, 300, 70), (3, 40, 129), (65, 70, 33), (130, 96, 260), (200, 2, 48)]  # m, n, k


@pytest.fixture(autouse=True)
def any_solver_again():
    yield
    _C.force_solver("")


def integers(dtype: torch.dtype, *size: int) -> torch.Tensor:
    info = torch.iinfo(dtype)
    return torch.randint(info.min, info.max + 1, size, dtype=dtype)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("solver", SOLVERS)
def test_every_solver(solver, dtype):
    _C.force_solver(f"gemm:{solver}")
    took = 0
    for narrow in (torch.int8, torch.uint8):
        for m, n, k in SIZES:
            wide = torch.randn(m, k).to(dtype)
            for weight in (integers(narrow, k, n), integers(narrow, n, k).T, integers(narrow, k, 2 * n)[:, ::2]):
                scale = torch.rand(n).to(dtype)
                want = (wide.double() @ weight.double()) * scale.double()
                name = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.float64: "f64"}[dtype]
                try:
                    weight_ocl = torch.empty_strided(weight.shape, weight.stride(), dtype=narrow, device="ocl")
                    weight_ocl.copy_(weight)
                    (got,) = torch.ops.dlbackend.product_rows(
                        f"y0 = mul.{name}(x0, x1)", wide.to("ocl") / 16, weight_ocl, None, 0, 1, [scale.to("ocl")]
                    )
                    (turned,) = torch.ops.dlbackend.product_rows(
                        "y0 = x0", weight_ocl.T, wide.T.to("ocl") / 16, None, 0, 1, []
                    )
                except RuntimeError as error:
                    if "is not applicable" not in str(error):
                        raise
                    continue
                took += 1
                atol = TOLERANCE[dtype] * max(want.abs().max().item(), 1)
                torch.testing.assert_close(16 * got.cpu().double(), want, rtol=0, atol=atol)
                other = (wide.double() @ weight.double()).T
                atol = TOLERANCE[dtype] * max(other.abs().max().item(), 1)
                torch.testing.assert_close(16 * turned.cpu().double(), other, rtol=0, atol=atol)
    if not took:
        pytest.skip(f"{solver} takes no matrices of other dtypes on this device")


def packed(q: torch.Tensor) -> torch.Tensor:
    """Numbers of 4 bits in pairs, the first in the high bits."""
    return (q[:, ::2] << 4 | q[:, 1::2]).to(torch.uint8)


def of_groups(q: torch.Tensor, parameters: torch.Tensor, group: int) -> torch.Tensor:
    scale, zero = (parameters[..., i].T.repeat_interleave(group, 1).double() for i in (0, 1))
    return (q - 8) * scale + zero


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("solver", SOLVERS)
def test_groups_of_four_bits(solver, dtype):
    _C.force_solver(f"gemm:{solver}")
    name = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}[dtype]
    took = 0
    for m, n, k, group in (
        (1, 40, 64, 32),
        (1, 1, 32, 32),
        (3, 33, 192, 96),
        (4, 70, 1536, 512),
        (1, 40, 4160, 64),
        (7, 5, 256, 256),
        (70, 130, 288, 96),
        (3, 2, 96, 32),
    ):
        q, x = torch.randint(0, 16, (n, k)), torch.randn(m, k).to(dtype)
        parameters = torch.rand(k // group, n, 2).sub(0.4).to(dtype)
        bias = torch.randn(n).to(dtype)
        weight = of_groups(q, parameters, group)
        want = x.double() @ weight.T + bias.double()
        for a in (x.to("ocl"), x.T.contiguous().to("ocl").T, x.repeat(1, 2).to("ocl")[:, :k]):
            try:
                (got,) = torch.ops.dlbackend.group_product_rows(
                    f"y0 = add_alpha.{name}(x0, x1, 1)",
                    a,
                    packed(q).to("ocl"),
                    group,
                    parameters.to("ocl"),
                    [bias.to("ocl")],
                )
            except RuntimeError as error:
                if "is not applicable" not in str(error):
                    raise
                continue
            took += 1
            size = x.abs().double() @ weight.abs().T
            apart = ((got.cpu().double() - want).abs() / (size + want.abs() + 1)).max().item()
            assert apart < {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype], (m, n, k, group)
    if not took:
        pytest.skip(f"{solver} takes no groups on this device")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("solver", SOLVERS)
def test_float8(solver, dtype):
    """Every number of both formats, beside what is computed in."""
    _C.force_solver(f"gemm:{solver}")
    took = 0
    for narrow in (torch.float8_e4m3fn, torch.float8_e5m2):
        every = torch.arange(256, dtype=torch.uint8).view(narrow)
        every = every[every.float().isfinite()]
        weight = every.repeat(4)[: 3 * 112].view(3, 112)
        for n in (weight, weight.T.contiguous().T, weight[:, :33]):
            a = torch.eye(n.shape[1])[:70].to(dtype)
            try:
                there = torch.empty_strided(n.shape, n.stride(), dtype=narrow, device="ocl").copy_(n)
                for left in (a, a[:3]):
                    (y,) = torch.ops.dlbackend.product_rows("y0 = x0", left.to("ocl"), there.T, None, 0, 1, [])
                    assert torch.equal(y.cpu().float(), left.float() @ n.float().T)
                    took += 1
            except RuntimeError as error:
                if "is not applicable" not in str(error):
                    raise
    if not took:
        pytest.skip(f"{solver} takes no float8 on this device")


@pytest.mark.parametrize("solver", SOLVERS)
def test_sums_of_integers_are_exact(solver):
    _C.force_solver(f"gemm:{solver}")
    try:
        for m, n, k in (*SIZES, (4, 5, 3000)):
            a, b = integers(torch.int8, m, k), integers(torch.int8, n, k).T
            a[0], b[:, 0] = -128, -128  # the largest sums
            for right in (b, b.contiguous()):
                got = torch._int_mm(a.to("ocl"), right.to("ocl"))
                assert got.dtype == torch.int32
                assert torch.equal(got.cpu(), (a.long() @ b.long()).int())
    except RuntimeError as error:
        if "is not applicable" not in str(error):
            raise
        pytest.skip(f"{solver} takes no products of int8 on this device")


def rounded(v: torch.Tensor, zero: int, low: int, high: int) -> torch.Tensor:
    """As torch.quantize_per_tensor() does: to nearest, ties to even, then the zero point, saturated."""
    return (v.round() + zero).clamp(low, high)


@pytest.mark.parametrize(
    ("left", "right"), [(torch.int8, torch.int8), (torch.uint8, torch.int8), (torch.int8, torch.uint8)]
)
@pytest.mark.parametrize("solver", SOLVERS)
def test_rows_behind_sums_of_integers(solver, left, right):
    _C.force_solver(f"gemm:{solver}")
    scaled = "sum = copy.f32(x0); v = mul.f32(sum, x1); w = add_alpha.f32(v, x2, 1); "
    quantised = scaled + "r = round.f32(w); z = add_alpha.f32(r, 3, 1); c = clamp.f32(z, -128, 127); "
    took = 0
    for m, n, k in ((1, 1, 1), (5, 33, 70), (70, 130, 129), (64, 64, 64), (3, 17, 2050)):
        a, b = integers(left, m, k), integers(right, n, k).T
        scale, bias = torch.rand(n) / (40 * k**0.5), torch.randn(n)
        sums = a.long() @ b.long()
        want = sums.float() * scale + bias
        for b_there in (b.to("ocl"), b.contiguous().to("ocl"), b.repeat(1, 2)[:, :n].to("ocl")):
            try:
                run = torch.ops.dlbackend.product_rows
                extras = [scale.to("ocl"), bias.to("ocl")]
                (floats,) = run(scaled + "y0 = w", a.to("ocl"), b_there, None, 0, 1, extras)
                (bf16,) = run(scaled + "y0 = copy.bf16(w)", a.T.contiguous().to("ocl").T, b_there, None, 0, 1, extras)
                (bytes_,) = run(quantised + "y0 = copy.i8(c)", a.to("ocl"), b_there, None, 0, 1, extras)
            except RuntimeError as error:
                if "is not applicable" not in str(error):
                    raise
                continue
            took += 1
            torch.testing.assert_close(floats.cpu(), want, rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(bf16.cpu(), want.bfloat16(), rtol=8e-3, atol=1e-5)
            assert bytes_.dtype == torch.int8
            assert torch.equal(bytes_.cpu().float(), rounded(floats.cpu(), 3, -128, 127))
    if not took:
        pytest.skip(f"{solver} takes no products of int8 on this device")


CONV_SOLVERS = [name.partition(":")[2] for name in _C.solver_names() if name.startswith("conv_fwd:")]
CONVOLUTIONS = {  # channels, filters, size, filter, stride, padding, dilation, groups
    "3x3": (5, 7, 9, 3, 1, 1, 1, 1),
    "1x1": (8, 12, 6, 1, 1, 0, 1, 1),
    "strided": (3, 16, 13, 5, 2, 3, 1, 1),
    "dilated": (4, 6, 11, 3, 1, 2, 2, 1),
    "groups": (6, 4, 8, 3, 1, 1, 1, 2),
    "depthwise": (6, 6, 8, 3, 2, 1, 1, 6),
}


@pytest.mark.parametrize("case", CONVOLUTIONS)
@pytest.mark.parametrize("solver", CONV_SOLVERS)
def test_convolutions_of_integers(solver, case):
    c, k, size, f, stride, padding, dilation, groups = CONVOLUTIONS[case]
    _C.force_solver(f"conv_fwd:{solver}")
    rows = (
        "sum = copy.f32(x0); v = mul.f32(sum, x1); w = add_alpha.f32(v, x2, 1); p = relu.f32(w); r = round.f32(p); "
        "z = add_alpha.f32(r, -7, 1); c = clamp.f32(z, -128, 127); y0 = copy.i8(c)"
    )
    took = 0
    for left in (torch.int8, torch.uint8):
        x, w = integers(left, 2, c, size, size + 1), integers(torch.int8, k, c // groups, f, f)
        scale, shift = torch.rand(k, 1, 1) / (10 * (c * f * f) ** 0.5), torch.randn(k, 1, 1)
        bias = torch.randint(-1000, 1000, (k,), dtype=torch.int32)
        sums = F.conv2d(x.double(), w.double(), bias.double(), stride, padding, dilation, groups).long()
        want = rounded((sums.float() * scale + shift).relu(), -7, -128, 127).char()
        for layout in (torch.contiguous_format, torch.channels_last):
            x_ocl, w_ocl = (t.to("ocl").contiguous(memory_format=layout) for t in (x, w))
            where = ([stride] * 2, [padding] * 2, [dilation] * 2, groups)
            run = torch.ops.dlbackend.convolution_rows
            try:
                (exact,) = run("y0 = x0", x_ocl, w_ocl, bias.to("ocl"), *where, [], False)
                extras = [scale.to("ocl"), shift.to("ocl")]
                (got,) = run(rows, x_ocl, w_ocl, bias.to("ocl"), *where, extras, False)
            except RuntimeError as error:
                if "is not applicable" not in str(error):
                    raise
                continue
            took += 1
            assert exact.dtype == torch.int32
            assert torch.equal(exact.cpu(), sums.int())
            assert got.dtype == torch.int8
            assert got.stride() == torch.empty_like(exact, dtype=torch.int8).stride()
            assert (got.cpu().int() - want.int()).abs().max() <= 1  # where the float is next to the middle of two
            assert (got.cpu() == want).float().mean() > 0.99
    if not took:
        pytest.skip(f"{solver} takes no such convolution of int8")


def test_wrong_convolutions_of_integers():
    x, w = integers(torch.int8, 1, 2, 4, 4).to("ocl"), integers(torch.int8, 3, 2, 3, 3).to("ocl")
    where = ([1, 1], [0, 0], [1, 1], 1)
    with pytest.raises(RuntimeError, match="is int32"):
        torch.ops.dlbackend.convolution_rows("y0 = x0", x, w, torch.ones(3, device="ocl"), *where, [], False)
    with pytest.raises(RuntimeError, match="same dtype"):
        torch.ops.dlbackend.convolution_rows("y0 = x0", x.float(), w, None, *where, [], False)
    torch.ops.dlbackend.convolution_rows("y0 = x0", x, w, None, *where, [], False)
    key = next(p for p in dlbackend.solvers.problems() if p.startswith("conv_fwd:int32") and " x=i8 w=i8" in p)
    assert "takes operands of one dtype" in dlbackend.solvers.explain(key)
    with pytest.raises((ValueError, RuntimeError), match="of 8 bits"):
        dlbackend.solvers.explain(key.replace(" w=i8", ""))


def test_keys_name_the_dtypes():
    a, w = torch.randn(5, 96, device="ocl"), integers(torch.int8, 80, 96).to("ocl")
    torch._weight_int8pack_mm(a, w, torch.rand(80, device="ocl"))
    found = [p for p in dlbackend.solvers.problems() if "m=5 n=80 k=96" in p and " b=i8" in p]
    assert found
    assert "takes operands of one dtype" in dlbackend.solvers.explain(found[0])
    with pytest.raises((ValueError, RuntimeError)):
        dlbackend.solvers.explain(found[0].replace("b=i8", "b=f32"))


def test_weights_of_a_compiled_model(monkeypatch):
    """As torchao's weight-only layers: the weight is converted for each product, with a scale behind."""

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.scale = integers(torch.int8, 48, 32).to("ocl"), torch.rand(48, device="ocl")

        def forward(self, x):
            y = torch.mm(x, self.weight.t().to(x.dtype)) * self.scale
            z = F.linear(y, self.weight.to(y.dtype).t())
            return z, self.weight.to(x.dtype).sum(0)

    torch._dynamo.reset()
    layer, x = Layer(), torch.randn(7, 32, device="ocl")
    before = set(dlbackend.solvers.problems())
    with torch.no_grad():
        for got, want in zip(torch.compile(layer)(x), layer(x), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-2)
        dlbackend.solvers.wait()
        torch.compile(layer)(x)
    new = [p for p in dlbackend.solvers.problems() if p not in before and p.startswith("gemm:float32 b=1 m=7")]
    assert len([p for p in new if " b=i8" in p]) >= 2


def test_a_weight_that_the_graph_writes():
    """The product has to read what was converted before the write."""
    weight, x = integers(torch.int8, 24, 16).to("ocl"), torch.randn(5, 16, device="ocl")

    def step(x, weight):
        y = torch.mm(x, weight.t().to(x.dtype)) * 0.5
        weight.add_(1)
        return y

    torch._dynamo.reset()
    want, after = step(x, weight.clone()), weight + 1
    torch.testing.assert_close(torch.compile(step)(x, weight), want, rtol=1e-4, atol=1e-3)
    assert torch.equal(weight, after)


def test_wrong_dtypes():
    a, b = torch.randn(4, 4, device="ocl"), torch.randn(4, 4, device="ocl")
    run = torch.ops.dlbackend.product_rows
    with pytest.raises(RuntimeError, match="one dtype, or one of int8"):
        run("y0 = x0", a, b.half(), None, 0, 1, [])
    with pytest.raises(RuntimeError, match="what is added"):
        run("y0 = x0", a, b.char(), b.half(), 1, 1, [])
    with pytest.raises(RuntimeError, match="what is added"):
        run("y0 = x0", a.char(), b.byte(), b, 1, 1, [])
