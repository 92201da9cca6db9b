"""Rows behind products and convolutions: by every solver that takes them, with operands in every place, against the
same calls one by one.
"""

import pytest
import torch
import torch.nn.functional as F
from common import find_record

import dlbackend
from dlbackend import _C

GEMMS = [name.partition(":")[2] for name in _C.solver_names() if name.startswith("gemm:")]
CONVOLUTIONS = [name.partition(":")[2] for name in _C.solver_names() if name.startswith("conv_fwd:")]
NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.float64: "f64"}
# Of the product alone, whose sums solvers add up in other orders; what comes behind is at most a few times as steep.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float64: 1e-12}
PRODUCTS = [  # batch, m, n, k
    (1, 65, 70, 33),
    (3, 20, 37, 50),
    (1, 3, 200, 90),
    (1, 130, 2, 64),
    (1, 40, 48, 2100),
]
CASES = [  # channels, filters, groups, size, filter, stride, padding, dilation
    (8, 20, 1, (19, 37), 3, 1, 1, 1),
    (40, 33, 1, (5, 6), 3, 2, 1, 1),
    (6, 12, 6, (9, 21), 3, 1, 1, 1),
    (70, 40, 1, (6, 7), 1, 1, 0, 1),
]


@pytest.fixture(autouse=True)
def any_solver_again():
    yield
    _C.force_solver("")


def fused(run, *args):
    """What run(*args) returns, and the new problems with rows behind them that ran. Nothing where the forced solver is
    not for the product at all.
    """
    before = set(dlbackend.solvers.problems())
    try:
        results = run(*args)
    except RuntimeError as error:
        if "is not applicable" not in str(error):
            raise
        return [], []
    return results, [p for p in dlbackend.solvers.problems() if p not in before and " then=" in p]


def assert_like(results, product, then, dtype) -> None:
    """`then(product)` in float64 of what the results were made of."""
    for got, want in zip(results, then(product), strict=True) if results else ():
        assert got.dtype == want.dtype or want.dtype == torch.float64
        torch.testing.assert_close(
            got.cpu().double(), want.double(), rtol=0, atol=4 * TOLERANCE[dtype] * product.abs().max().item()
        )


@pytest.mark.parametrize("dtype", list(NAMES))
@pytest.mark.parametrize("solver", GEMMS)
def test_every_gemm_solver(solver, dtype):
    t, took = NAMES[dtype], 0
    rows = (
        f"a = add_alpha.{t}(x0, x1, 1); b = mul.{t}(a, x2); c = silu.{t}(b); y0 = add_alpha.{t}(c, x3, 1); "
        f"y1 = mul.{t}(x0, x4)"
    )
    _C.force_solver(f"gemm:{solver}")
    for batch, m, n, k in PRODUCTS:
        a, b = torch.randn(batch, m, k).to(dtype), torch.randn(batch, k, n).to(dtype)
        add = torch.randn(n).to(dtype)
        column, row, like = torch.randn(n).to(dtype), torch.randn(m, 1).to(dtype), torch.randn(batch, m, n)
        one = torch.tensor(0.5)
        if batch == 1:
            a, b, like = a[0], b[0], like[0]
        product = 0.5 * add.double() - 2 * (a.double() @ b.double())

        def then(x, column=column, row=row, like=like, one=one):
            return F.silu((x + column) * row) + like, x * one

        extras = [e.to("ocl") for e in (column, row, like, one)]
        for left in (a, a.mT.contiguous().mT):
            for right in (b, b.mT.contiguous().mT):
                results, problems = fused(
                    torch.ops.dlbackend.product_rows, rows, left.to("ocl"), right.to("ocl"), add.to("ocl"), 0.5, -2,
                    extras,
                )  # fmt: skip
                took += len(problems)
                assert_like(results, product, then, dtype)
    if not took:
        pytest.skip(f"{solver} takes no rows behind products of this dtype on this device")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("solver", CONVOLUTIONS)
def test_every_conv_solver(solver, dtype):
    t, took = NAMES[dtype], 0
    rows = f"a = mul.{t}(x0, x1); b = add_alpha.{t}(a, x2, 1); y0 = relu.{t}(b); y1 = x0"
    _C.force_solver(f"conv_fwd:{solver}")
    for c, k, groups, size, f, stride, padding, dilation in CASES:
        x, w, bias = (torch.randn(*s).to(dtype) for s in ((2, c, *size), (k, c // groups, f, f), (k,)))
        geometry = ([stride] * 2, [padding] * 2, [dilation] * 2, groups)
        product = F.conv2d(x.double(), w.double(), bias.double(), *geometry)
        scale = torch.randn(k, 1, 1)
        residual = torch.randn(product.shape).to(dtype)

        def then(y, scale=scale, residual=residual):
            return torch.relu(y * scale + residual), y

        for layout in (torch.contiguous_format, torch.channels_last):
            place = [v.to("ocl", memory_format=layout) for v in (x, w)]
            extras = [scale.to("ocl"), residual.to("ocl", memory_format=layout)]
            results, problems = fused(
                torch.ops.dlbackend.convolution_rows, rows, *place, bias.to("ocl"), *geometry, extras
            )
            took += len(problems)
            assert all(r.is_contiguous(memory_format=layout) for r in results)
            assert_like(results, product, then, dtype)
    if not took:
        pytest.skip(f"{solver} takes no rows behind convolutions of this dtype on this device")


def test_rows_are_those_of_their_own_launches():
    """The result is rounded before its rows, as it is in memory."""
    a, b = torch.randn(64, 96, device="ocl").bfloat16(), torch.randn(96, 80, device="ocl").bfloat16()
    bias, other = torch.randn(80, device="ocl").bfloat16(), torch.randn(64, 80, device="ocl").bfloat16()
    rows = "v = gelu_tanh.bf16(x0); w = mul.bf16(v, x1); y0 = sub_alpha.bf16(w, 1.5, 1)"
    want = F.gelu(torch.addmm(bias, a, b), approximate="tanh") * other - 1.5
    for _ in range(3):  # apart, and then by what was built behind
        (got,) = torch.ops.dlbackend.product_rows(rows, a, b, bias, 1, 1, [other])
        dlbackend.solvers.wait()
        assert torch.equal(got, want)
    assert any(" then=bf16|bf16@result|v=gelu_tanh" in problem for problem in dlbackend.solvers.problems())


def test_keys_name_the_rows():
    a = torch.randn(40, 40, device="ocl")
    torch.ops.dlbackend.product_rows("y0 = tanh.f32(x0)", a, a, None, 0, 1, [])
    (problem,) = [
        p for p in dlbackend.solvers.problems() if "m=40 n=40" in p and p.endswith("then=f32|y0=tanh.f32(x0)")
    ]
    assert "applicable" in dlbackend.solvers.explain(problem)
    solutions = dlbackend.solvers.tune(problem)
    assert [s for s in solutions if s.taken and s.error is not None]
    with pytest.raises((ValueError, RuntimeError)):
        dlbackend.solvers.explain(problem.replace("tanh", "no_row"))


def test_operands_that_lie_elsewhere():
    """Broadcast rows of an image, other dtypes, gaps, a number on the device."""
    x, w = torch.randn(2, 5, 9, 8, device="ocl"), torch.randn(7, 5, 3, 3, device="ocl")
    y = F.conv2d(x, w, padding=1)
    rows = "a = add_alpha.f32(x0, x1, 1); b = mul.f32(a, x2); c = where.f32(x3, b, x0); y0 = add_alpha.f32(c, x4, 1)"
    extras = [
        torch.randn(9, 1, device="ocl"),
        torch.randint(-3, 3, (2, 7, 9, 16), device="ocl")[..., ::2],
        torch.rand(2, 7, 9, 8, device="ocl") > 0.5,
        torch.tensor(2.0, device="ocl", dtype=torch.float16),
    ]
    want = torch.where(extras[2], (y + extras[0]) * extras[1], y) + extras[3]
    (got,) = torch.ops.dlbackend.convolution_rows(rows, x, w, None, [1, 1], [1, 1], [1, 1], 1, extras)
    # The convolution alone may run by a solver that adds up in another order.
    torch.testing.assert_close(got, want, rtol=0, atol=4 * TOLERANCE[torch.float32] * want.abs().max().item())


@pytest.mark.parametrize("product_takes", [1, 10**7])
def test_rows_run_apart_where_that_is_faster(product_takes, background_at_rest):
    """As the measured times of a product with its rows, and of the product alone, have it."""
    a, b, bias = (torch.randn(s, device="ocl") for s in ((300, 30), (30, 150), (300, 150)))
    rows = "v0 = add_alpha.f32(x0, x1, 1); y0 = tanh.f32(v0)"

    def together():
        return torch.ops.dlbackend.product_rows(rows, a, b, None, 0, 1, [bias])[0]

    known = set(dlbackend.solvers.problems())
    expected = torch.tanh(a @ b + bias)
    together()
    dlbackend.solvers.wait()
    mine = {" then=" in p: p for p in set(dlbackend.solvers.problems()) - known}
    place = _C.find_place(0)
    try:
        for has_rows, problem in mine.items():
            found = dlbackend.solvers.tune(problem)
            taken = next(s for s in found if not s.solver.startswith("reference"))  # behind which rows never run
            _C.load_find_record(place, problem, find_record(found, taken, 10**6 if has_rows else product_takes))
        with torch.backends.ocl.flags(find_mode="fast"):  # the records are final
            for _ in range(2):  # with its rows, and the product alone, so that both choices are there
                together()
            dlbackend.solvers.wait()
            before = dlbackend.kernel_stats()["launches"]
            together()
            assert dlbackend.kernel_stats()["launches"] - before == (2 if product_takes == 1 else 1)
            torch.testing.assert_close(together(), expected)
    finally:
        _C.drop_find_records()


@pytest.mark.parametrize(
    ("rows", "extra"),
    [
        ("v = where.f32(x1, x0, 0.0); y0 = v; y1 = gt.f32(x1, 0.5)", torch.rand(40, 24) > 0.5),
        ("v = log.f32(x0); y0 = mul.f32(v, x1)", torch.randn(40, 24)),  # NaN of half the values
        ("v = mul.f32(x0, x1); y0 = v; y1 = copy.i64(x1)", torch.randint(0, 200, (24,), dtype=torch.uint8)),
    ],
)
def test_rows_that_trials_can_check(rows, extra):
    """Operands without arithmetic, and values that are no numbers, do not keep solvers from being verified."""
    a, b = torch.randn(40, 30, device="ocl"), torch.randn(30, 24, device="ocl")
    before = dlbackend.solvers.stats()["rejected"]
    run = torch.ops.dlbackend.product_rows
    first = run(rows, a, b, None, 0, 1, [extra.to("ocl")])
    for _ in range(2):
        dlbackend.solvers.wait()
        again = run(rows, a, b, None, 0, 1, [extra.to("ocl")])
    for x, y in zip(first, again, strict=True):
        torch.testing.assert_close(x, y, equal_nan=True)
    (problem,) = [p for p in dlbackend.solvers.problems() if p.endswith(rows.replace(" ", "")) and "m=40 n=24" in p]
    (taken,) = [s for s in dlbackend.solvers.solutions(problem) if s.taken]
    assert not taken.solver.startswith("reference")
    assert dlbackend.solvers.stats()["rejected"] == before


def test_empty_results_and_sums():
    none = torch.randn(0, 4, device="ocl")
    (got,) = torch.ops.dlbackend.product_rows("y0 = exp.f32(x0)", none, none.mT, None, 0, 1, [])
    assert got.shape == (0, 0)
    (got,) = torch.ops.dlbackend.product_rows("y0 = exp.f32(x0)", none.mT, none, None, 0, 1, [])
    assert torch.equal(got.cpu(), torch.ones(4, 4))


@pytest.mark.parametrize(
    ("rows", "count", "error", "words"),
    [
        ("y0 = sum.f32(x0)", 0, ValueError, "no reductions"),
        ("y0 = add_alpha.f32(x0, x1, s0)", 1, ValueError, "no scalars"),
        ("y0 = x0; y1 = x0; y2 = x0", 0, ValueError, "two results"),
        ("y0 = add_alpha.f32(x0, x1, 1)", 0, ValueError, "take 2 inputs"),
        ("y0 = x0", 1, ValueError, "1 other operands"),
        ("y0 = nothing.f32(x0)", 0, ValueError, "nothing"),
    ],
)
def test_rows_that_cannot_be(rows, count, error, words):
    a = torch.randn(4, 4, device="ocl")
    with pytest.raises(error, match=words):
        torch.ops.dlbackend.product_rows(rows, a, a, None, 0, 1, [a] * count)


@pytest.mark.parametrize("solver", GEMMS)
def test_rows_of_another_dtype(solver):
    _C.force_solver(f"gemm:{solver}")
    a, b, shift = torch.randn(20, 33), torch.randn(33, 41), torch.randn(41)
    rows = "v = add_alpha.f32(x0, x1, 1); y0 = copy.f16(v); y1 = gt.f32(v, 1.0)"
    try:
        got, above = torch.ops.dlbackend.product_rows(rows, a.to("ocl"), b.to("ocl"), None, 0, 1, [shift.to("ocl")])
    except RuntimeError as error:
        if "is not applicable" not in str(error):
            raise
        pytest.skip(f"{solver} is not for this device")
    want = a.double() @ b.double() + shift.double()
    assert got.dtype == torch.float16
    assert above.dtype == torch.bool
    torch.testing.assert_close(got.cpu().double(), want, rtol=1e-3, atol=1e-3)
    assert torch.equal(above.cpu()[(want - 1).abs() > 1e-4], (want > 1)[(want - 1).abs() > 1e-4])


def test_five_operands_are_too_many_for_a_kernel():
    a = torch.randn(16, 16, device="ocl")
    rows = "; ".join(["v0 = x0", *(f"v{i} = add_alpha.f32(v{i - 1}, x{i}, 1)" for i in range(1, 6)), "y0 = v5"])
    (got,) = torch.ops.dlbackend.product_rows(rows, a, a, None, 0, 1, [a] * 5)
    torch.testing.assert_close(got, a @ a + 5 * a)


def test_addmm_activation():
    bias, a, b = torch.randn(30), torch.randn(20, 50), torch.randn(50, 30)
    for use_gelu in (False, True):
        want = torch._addmm_activation(bias, a, b, beta=2, alpha=0.5, use_gelu=use_gelu)
        got = torch._addmm_activation(bias.to("ocl"), a.to("ocl"), b.to("ocl"), beta=2, alpha=0.5, use_gelu=use_gelu)
        torch.testing.assert_close(got.cpu(), want)
