"""mm, addmm, bmm, baddbmm, addbmm, addmv, mv, dot, vdot, linear, matmul against float64 (or exact) CPU results."""

import functools
import random

import pytest
import torch
import torch.nn.functional as F

import dlbackend  # noqa: F401  (registers the device where it is not installed)

TOLERANCE = {
    torch.float32: 1e-5,
    torch.float64: 1e-12,
    torch.float16: 2e-3,
    torch.bfloat16: 1.6e-2,
    torch.complex64: 1e-5,
    torch.complex128: 1e-12,
}
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


def make(shape, dtype=torch.float32):
    if dtype in INTEGERS:
        return torch.randint(0 if dtype == torch.uint8 else -9, 10, shape, dtype=dtype)
    return torch.randn(shape, dtype=wide(dtype)).to(dtype)


def layout(tensor, seed):
    """The same values with other strides: transposed, with gaps, or as a slice with an offset."""
    choice = random.Random(seed).randrange(4)
    if choice == 1:
        return tensor.mT.contiguous().mT
    if choice == 2:
        wide = tensor.new_zeros((*tensor.shape[:-1], 2 * tensor.shape[-1]))
        wide[..., ::2] = tensor
        return wide[..., ::2]
    if choice == 3:
        larger = tensor.new_zeros((*tensor.shape[:-2], tensor.shape[-2] + 3, tensor.shape[-1] + 2))
        larger[..., 2:-1, 1:-1] = tensor
        return larger[..., 2:-1, 1:-1]
    return tensor


def on_device(tensor):
    """A copy on the device with the same sizes, strides and storage offset."""
    storage = tensor.new_empty(0).set_(tensor.untyped_storage()).to("ocl")
    return storage.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def wide(dtype):
    return torch.complex128 if dtype.is_complex else torch.float64


def check(function, *tensors, dtype):
    got = function(*(on_device(t) for t in tensors))
    assert got.device.type == "ocl"
    assert got.dtype == dtype
    if dtype in INTEGERS:
        torch.testing.assert_close(got.cpu(), function(*tensors))
        return
    expected = function(*(t.to(wide(dtype)) for t in tensors))
    assert got.shape == expected.shape
    # Rounding is bounded by the sum of the terms' magnitudes; the result may be far smaller, by cancellation.
    bound = function(*(t.to(wide(dtype)).abs() for t in tensors)).norm()
    error = (got.cpu().to(wide(dtype)) - expected).norm() / bound.clamp_min(1e-20)
    assert error < TOLERANCE[dtype], error


SIZES = [(1, 1, 1), (5, 7, 3), (33, 65, 17), (64, 64, 64), (1, 130, 70), (130, 1, 70), (4, 40, 300), (100, 3, 520)]


@pytest.mark.parametrize("dtype", [*TOLERANCE, *INTEGERS], ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_products(dtype, seed):
    for i, (m, n, k) in enumerate(SIZES):
        a, b, c = (layout(make(s, dtype), 10 * seed + 100 * i + j) for j, s in enumerate([(m, k), (k, n), (m, n)]))
        check(torch.mm, a, b, dtype=dtype)
        check(lambda c, a, b: torch.addmm(c, a, b, beta=2, alpha=3), c, a, b, dtype=dtype)
        check(torch.addmm, make((n,), dtype), a, b, dtype=dtype)
        check(torch.addmm, make((m, 1), dtype), a, b, dtype=dtype)


@pytest.mark.parametrize("dtype", [*TOLERANCE, torch.int32], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_batched(dtype, seed):
    for i, (batch, m, n, k) in enumerate([(1, 3, 4, 5), (7, 20, 30, 10), (3, 65, 1, 33), (2, 1, 70, 300)]):
        shapes = [(batch, m, k), (batch, k, n), (batch, m, n)]
        a, b, c = (layout(make(s, dtype), seed + 31 * i + 7 * j) for j, s in enumerate(shapes))
        check(torch.bmm, a, b, dtype=dtype)
        check(lambda c, a, b: torch.baddbmm(c, a, b, beta=2, alpha=3), c, a, b, dtype=dtype)
        check(torch.baddbmm, make((1, n), dtype), a, b, dtype=dtype)
        check(lambda c, a, b: torch.addbmm(c, a, b, beta=2, alpha=3), c[0], a, b, dtype=dtype)
        check(lambda a, b: torch.matmul(a[:, None], b), a, b, dtype=dtype)
        check(lambda a, b: torch.bmm(a[:1].expand(len(b), -1, -1), b), a, b, dtype=dtype)


@pytest.mark.parametrize("dtype", [*TOLERANCE, torch.int64], ids=str)
def test_vectors(dtype):
    for n, k in [(1, 1), (5, 3), (130, 517), (3, 5000)]:
        mat, vec, add = make((n, k), dtype), make((2 * k,), dtype)[::2], make((n,), dtype)
        check(torch.mv, mat, vec, dtype=dtype)
        check(torch.mv, mat.mT.contiguous().mT, vec, dtype=dtype)
        check(lambda c, a, x: torch.addmv(c, a, x, beta=2, alpha=3), add, mat, vec, dtype=dtype)
        check(torch.dot, vec, make((k,), dtype), dtype=dtype)
        check(torch.vdot, vec, make((k,), dtype), dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_linear_and_its_gradients(dtype):
    for shape, outputs, bias in [
        ((8, 20), 30, True),
        ((2, 5, 33), 17, True),
        ((1, 512), 1000, False),
        ((64, 100), 10, True),
    ]:
        x, w = make(shape, dtype), make((outputs, shape[-1]), dtype)
        b = make((outputs,), dtype) if bias else None
        tensors = [t.to("ocl").requires_grad_() for t in (x, w, b) if t is not None]
        reference = [t.double().requires_grad_() for t in (x, w, b) if t is not None]
        grad = make((*shape[:-1], outputs), dtype)
        y, expected = F.linear(*tensors), F.linear(*reference)
        got = [y, *torch.autograd.grad(y, tensors, grad.to("ocl"))]
        want = [expected, *torch.autograd.grad(expected, reference, grad.double())]
        for g, w_ in zip(got, want, strict=True):
            assert ((g.detach().cpu().double() - w_).norm() / w_.norm()).item() < TOLERANCE[dtype]


def test_half_accumulates_in_float():
    a = torch.full((1, 4096), 1.0, dtype=torch.float16)
    b = torch.full((4096, 3), 0.25, dtype=torch.float16)
    assert (a.to("ocl") @ b.to("ocl")).cpu().tolist() == [[1024.0] * 3]


def test_conjugated_and_negated_operands():
    a, b = make((5, 7), torch.complex64), make((7, 6), torch.complex64)
    A, B = a.to("ocl"), b.to("ocl")
    torch.testing.assert_close((A.conj() @ B.conj()).cpu(), a.conj() @ b.conj())
    torch.testing.assert_close(torch.mm(B.mH, A.mH).cpu(), torch.mm(b.mH, a.mH))
    torch.testing.assert_close((torch._neg_view(A) @ B).cpu(), -(a @ b))


def test_out_variants():
    a, b = make((6, 5)), make((5, 4))
    A, B = a.to("ocl"), b.to("ocl")
    for out in (torch.empty(0), torch.empty(6, 4), torch.empty(4, 6).mT, torch.zeros(6, 8)[:, ::2]):
        target = torch.zeros(6, 8, device="ocl")[:, ::2] if out.stride(-1) == 2 else out.to("ocl")
        assert torch.mm(A, B, out=target) is target
        torch.testing.assert_close(target.cpu(), a @ b)
    gaps = torch.full((6, 8), 7.0, device="ocl")
    torch.mm(A, B, out=gaps[:, ::2])
    assert (gaps[:, 1::2] == 7).all().item()
    with pytest.raises(RuntimeError, match="dtype"):
        torch.mm(A, B, out=torch.empty(6, 4, dtype=torch.float64, device="ocl"))
    square = make((5, 5))
    S = square.to("ocl")
    torch.mm(S, S, out=S)  # the operands are read before the result is written
    torch.testing.assert_close(S.cpu(), square @ square)


def test_in_place():
    c, a, b = make((6, 4)), make((6, 5)), make((5, 4))
    C = c.to("ocl")
    C.addmm_(a.to("ocl"), b.to("ocl"), beta=0.5, alpha=2)
    torch.testing.assert_close(C.cpu(), torch.addmm(c, a, b, beta=0.5, alpha=2))
    D = c.to("ocl").mT.contiguous().mT
    D.addmm_(a.to("ocl"), b.to("ocl"))
    torch.testing.assert_close(D.cpu(), torch.addmm(c, a, b))


def test_zero_sizes():
    for m, n, k in [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0)]:
        a, b, c = make((m, k)), make((k, n)), make((m, n))
        torch.testing.assert_close(torch.mm(a.to("ocl"), b.to("ocl")).cpu(), torch.mm(a, b))
        got = torch.addmm(c.to("ocl"), a.to("ocl"), b.to("ocl"), beta=3)
        torch.testing.assert_close(got.cpu(), torch.addmm(c, a, b, beta=3))
        torch.testing.assert_close(torch.bmm(a[None].to("ocl"), b[None].to("ocl")).cpu(), torch.bmm(a[None], b[None]))
    assert torch.dot(torch.empty(0, device="ocl"), torch.empty(0, device="ocl")).item() == 0
    assert torch.bmm(torch.empty(0, 2, 3, device="ocl"), torch.empty(0, 3, 4, device="ocl")).shape == (0, 2, 4)


@pytest.mark.parametrize("fn", [torch.dot, torch.vdot])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
def test_zeros_without_memory(fn, dtype):
    x, zeros = make((3,), dtype).to("ocl"), torch._efficientzerotensor((3,), dtype=dtype, device="ocl")
    for result in (fn(x, zeros), fn(zeros, x)):
        assert result.dtype == dtype
        assert result.clone().item() == 0
    # Derivatives of products with a tensor that has none: d(x·ones) / dx.
    a = x.real
    gradient, tangent = torch.func.jvp(torch.func.grad(lambda x: fn(torch.ones_like(x), x)), (a,), (a,))
    assert gradient.tolist() == [1, 1, 1]
    assert tangent.tolist() == [0, 0, 0]


def test_nan_and_infinity():
    a, b = make((4, 5)), make((5, 6))
    a[0, 0], b[2, 3] = float("nan"), float("inf")
    got, want = (a.to("ocl") @ b.to("ocl")).cpu(), a @ b
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.isinf(), want.isinf())
    ignored = torch.full((4, 6), float("nan"), device="ocl")
    b = torch.nan_to_num(b, posinf=1.0)
    result = torch.addmm(ignored, torch.nan_to_num(a).to("ocl"), b.to("ocl"), beta=0)  # beta = 0 does not read it
    assert result.isfinite().all().item()


def test_errors_are_those_of_the_cpu():
    def both(function):
        with pytest.raises((RuntimeError, IndexError)) as cpu:  # NotImplementedError is a RuntimeError
            function("cpu")
        with pytest.raises(type(cpu.value)):
            function("ocl")

    both(lambda d: torch.mm(torch.ones(2, 3, device=d), torch.ones(2, 3, device=d)))
    both(lambda d: torch.mm(torch.ones(3, device=d), torch.ones(3, 3, device=d)))
    both(lambda d: torch.bmm(torch.ones(2, 2, 3, device=d), torch.ones(3, 3, 2, device=d)))
    both(lambda d: torch.mm(torch.ones(2, 3, device=d), torch.ones(3, 2, dtype=torch.float64, device=d)))
    both(lambda d: torch.mm(torch.ones(2, 2, dtype=torch.bool, device=d), torch.ones(2, 2, dtype=torch.bool, device=d)))
    both(lambda d: torch.addmm(torch.ones(5, device=d), torch.ones(2, 3, device=d), torch.ones(3, 2, device=d)))
    both(lambda d: torch.dot(torch.ones(3, device=d), torch.ones(4, device=d)))
    both(lambda d: torch.dot(torch.ones(3, 1, device=d), torch.ones(3, device=d)))
    both(lambda d: torch.mv(torch.ones(3, 2, device=d), torch.ones(3, device=d)))
    with pytest.raises(RuntimeError, match="expected both vectors to have same dtype, but found Float and Double"):
        torch.vdot(torch.ones(3, device="ocl"), torch.ones(3, dtype=torch.float64, device="ocl"))
    with pytest.raises(RuntimeError, match="same device"):
        torch.mm(torch.ones(2, 2, device="ocl"), torch.ones(2, 2))


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.complex64, torch.complex128, torch.int64, torch.int32, torch.uint8]
)
def test_large_products_of_other_dtypes(dtype):
    """Larger than a block of the solver for CPUs in every direction, of every layout."""
    make = (
        torch.randn if dtype.is_floating_point or dtype.is_complex else lambda *s, dtype: torch.randint(9, s).to(dtype)
    )
    a, b, c = make(2, 211, 300, dtype=dtype), make(2, 300, 273, dtype=dtype), make(2, 211, 273, dtype=dtype)
    expected = torch.baddbmm(c, a, b, beta=2, alpha=3)
    x, y, z = (t.to("ocl") for t in (a, b, c))
    apart = [torch.stack((t, t), -1)[..., 0] for t in (x, y)]
    for left, right in ((x, y), (x.mT.contiguous().mT, y), (x, y.mT.contiguous().mT), apart):
        actual = torch.baddbmm(z, left, right, beta=2, alpha=3)
        tolerance = {torch.complex64: 1e-3}.get(dtype, 1e-10)
        torch.testing.assert_close(actual.cpu(), expected, rtol=tolerance, atol=tolerance)
    assert torch.mm(x[0, :, :0], y[0, :0]).count_nonzero() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.complex64], ids=str)
def test_factors_that_the_cpu_refuses(dtype):
    shapes = {
        "addmm": ((2, 3), (3, 2)),
        "addbmm": ((4, 2, 3), (4, 3, 2)),
        "addmv": ((2, 3), (3,)),
        "addr": ((2,), (2,)),
    }
    for name, of in shapes.items():
        addend = (2,) if name == "addmv" else (2, 2)
        cpu = [torch.ones(shape, dtype=dtype) for shape in (addend, *of)]
        for factor in (1e39, 70000.0, 2 + 1j):
            for which in ("alpha", "beta"):
                call = functools.partial(getattr(torch, name), **{which: factor})
                try:
                    expected = call(*cpu)
                except RuntimeError:
                    with pytest.raises(RuntimeError, match="without overflow"):
                        call(*(t.to("ocl") for t in cpu))
                else:
                    actual = call(*(t.to("ocl") for t in cpu)).cpu()
                    torch.testing.assert_close(actual, expected, rtol=1e-2, atol=1e-2)


def test_addr_refuses_factors_that_do_not_fit():
    ints = torch.ones(3, 3, dtype=torch.int64), torch.arange(3), torch.arange(3)
    for tensors, factors in (
        (ints, {"beta": 2.0}),
        (ints, {"alpha": 1.0}),
        (ints, {"beta": True}),
        ([t.float() for t in ints], {"alpha": True}),
    ):
        for device in ("cpu", "ocl"):
            with pytest.raises(RuntimeError, match=r"must not be a floating point|only supported for Boolean"):
                torch.addr(*(t.to(device) for t in tensors), **factors)
    expected = torch.addr(*ints, beta=2, alpha=3)
    assert torch.equal(torch.addr(*(t.to("ocl") for t in ints), beta=2, alpha=3).cpu(), expected)
