"""Products of matrices of two dtypes: int8 and uint8 beside what is computed in, by every solver that takes them."""

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
    with pytest.raises(RuntimeError, match="one dtype, or one of int8"):
        run("y0 = x0", a.char(), b.byte(), None, 0, 1, [])
