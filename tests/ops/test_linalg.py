"""Dense linear algebra against the CPU in double precision, in units of the size times epsilon."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from common import on_gpu_class

import dlbackend

# As few kernels as possible are compiled: complex64 has all that real types have and more.
DTYPES = [torch.float32, torch.complex64]
ALL_DTYPES = [*DTYPES, torch.float64, torch.complex128]
# Matrices of one launch, of several blocks, batched, and with nothing in them.
SHAPES = [(1, 1), (8, 8), (70, 70), (2, 3, 5, 5), (0, 0), (3, 0, 0), (0, 4, 4)]


@pytest.fixture(autouse=True)
def without_the_cpu() -> Iterator[None]:
    torch.manual_seed(0)
    dlbackend.reset_fallback_report()
    yield
    assert not dlbackend.fallback_report()


def wide(dtype: torch.dtype) -> torch.dtype:
    return torch.complex128 if dtype.is_complex else torch.float64


def assert_near(actual: torch.Tensor, expected: torch.Tensor, units: float = 30.0) -> None:
    """Within so many units of epsilon, times the matrices' size, of the largest expected value."""
    assert actual.device.type == "ocl"
    assert actual.shape == expected.shape
    if expected.numel() == 0:
        return
    epsilon = torch.finfo(actual.dtype).eps * max([4, *expected.shape[-2:]]) * float(expected.abs().max())
    found = actual.cpu().to(wide(actual.dtype)).resolve_conj()
    assert float((found - expected.to(found.dtype)).abs().max()) <= units * epsilon


def general(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype)


def definite(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    a = general(shape, dtype)
    return a @ a.mH + shape[-1] * torch.eye(shape[-1], dtype=dtype)


def identity_like(a: torch.Tensor) -> torch.Tensor:
    return torch.eye(a.shape[-1], dtype=a.dtype, device="cpu").expand(a.shape)


@pytest.mark.parametrize("dtype", DTYPES)
def test_cholesky(dtype: torch.dtype) -> None:
    for shape in SHAPES:
        a = definite(shape, dtype)
        b = general((*shape[:-1], 20), dtype)
        for upper in (False, True):
            factor = torch.linalg.cholesky(a.to("ocl"), upper=upper)
            assert_near(factor, torch.linalg.cholesky(a.to(wide(dtype)), upper=upper))
            assert_near(
                torch.cholesky_solve(b.to("ocl"), factor, upper=upper),
                torch.linalg.solve(a.to(wide(dtype)), b.to(wide(dtype))),
            )
            assert_near(torch.cholesky_inverse(factor, upper=upper), torch.linalg.inv(a.to(wide(dtype))))


@pytest.mark.parametrize("n", [3, 21, 90])
def test_cholesky_solve_takes_a_factor_of_any_diagonal(n: int) -> None:
    """That of a Cholesky factor is real, but not while gradients are checked."""
    lower = torch.linalg.cholesky(definite((2, n, n), torch.complex64))
    lower.diagonal(dim1=-2, dim2=-1).mul_(0.8 + 0.6j)
    b = general((2, n, 5), torch.complex64)
    for upper in (False, True):
        factor = lower.mH.contiguous() if upper else lower
        exact = lower.to(torch.complex128)
        assert_near(
            torch.cholesky_solve(b.to("ocl"), factor.to("ocl"), upper=upper),
            torch.linalg.solve(exact @ exact.mH, b.to(torch.complex128)),
        )


def test_cholesky_says_where_a_matrix_is_not_definite() -> None:
    a = torch.eye(100).repeat(3, 1, 1)
    a[1, 80, 80] = -1
    a[2, 2, 2] = 0
    assert torch.linalg.cholesky_ex(a.to("ocl")).info.tolist() == [0, 81, 3]
    with pytest.raises(torch.linalg.LinAlgError, match=r"Batch element 1\): The factorization could not be completed"):
        torch.linalg.cholesky(a.to("ocl"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_triangular_solves(dtype: torch.dtype) -> None:
    for shape in SHAPES:
        a = general(shape, dtype) / 4 + shape[-1] * torch.eye(shape[-1], dtype=dtype)
        b = general((*shape[:-1], 3), dtype)
        for memory in (a, a.mT.contiguous().mT, a.conj()):
            for upper in (False, True):
                for left in (False, True):
                    t = memory.triu() if upper else memory.tril()
                    side = b if left else b.mT
                    expected = torch.linalg.solve_triangular(
                        t.to(wide(dtype)), side.to(wide(dtype)), upper=upper, left=left
                    )
                    assert_near(
                        torch.linalg.solve_triangular(t.to("ocl"), side.to("ocl"), upper=upper, left=left), expected
                    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_lu(dtype: torch.dtype) -> None:
    for shape in [*SHAPES, (90, 40), (40, 90), (150, 90), (2, 90, 150)]:
        a = general(shape, dtype)
        factors, pivots, info = torch.linalg.lu_factor_ex(a.to("ocl"))
        expected = torch.linalg.lu_factor_ex(a.to(wide(dtype)))
        assert torch.equal(pivots.cpu(), expected.pivots)
        assert torch.equal(info.cpu(), expected.info)
        assert_near(factors, expected.LU, 300)
        p, lower, upper = torch.linalg.lu(a.to("ocl"))
        assert_near(p @ lower @ upper, a)


def test_the_first_of_equal_pivots_is_taken() -> None:
    for shape in ((300, 6), (9, 8, 8), (2, 40, 40), (3, 90, 90)):
        # Whole numbers and small halves: no element is rounded, so that many are exactly as large.
        a = torch.randint(0, 2, shape).mul(2).sub(1).float().tril(3)
        exact = a.double().reshape(-1, *shape[-2:])
        expected = []
        for matrix in exact:
            for j in range(4):
                at = j + int((matrix[j:, j].abs() == matrix[j:, j].abs().max()).nonzero()[0, 0])
                matrix[[j, at]] = matrix[[at, j]]
                matrix[j + 1 :, j] /= matrix[j, j]
                matrix[j + 1 :, j + 1 :] -= matrix[j + 1 :, j : j + 1] * matrix[j, j + 1 :]
                expected.append(at + 1)
        pivots = torch.linalg.lu_factor_ex(a.to("ocl")).pivots.cpu()[..., :4]
        assert pivots.flatten().tolist() == expected


@pytest.mark.parametrize("rows", [300, pytest.param(1100, marks=pytest.mark.slow)])
def test_lu_of_tall_matrices(rows: int) -> None:
    a = general((rows, 20), torch.float32)
    factors, pivots = torch.linalg.lu_factor(a.to("ocl"))
    expected = torch.linalg.lu_factor(a.double())
    assert torch.equal(pivots.cpu(), expected.pivots)
    assert_near(factors, expected.LU)


def test_large_factorizations_take_few_launches() -> None:
    a = definite((512, 512), torch.float32).to("ocl")
    b = torch.randn(512, 3).to("ocl")

    def launches(call: Callable[[], Any]) -> int:
        before = dlbackend.kernel_stats()["launches"]
        call()
        return int(dlbackend.kernel_stats()["launches"] - before)

    gpu = on_gpu_class()
    assert launches(lambda: torch.linalg.lu_factor_ex(a)) <= (3 * 512 / 16 if gpu else 1) + 6
    assert launches(lambda: torch.linalg.solve_triangular(a, b, upper=True)) <= (512 / 64 if gpu else 2) + 6
    if gpu:
        assert launches(lambda: torch.linalg.cholesky_ex(a)) <= 2 * 512 / 64 + 6


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [4, 70])
def test_solves_with_lu_broadcast_factors(dtype: torch.dtype, n: int) -> None:
    for batch, sides in [((), (2, 1, 3)), ((1, 3, 1), (2, 1, 3)), ((1,), (5,)), ((2, 3), ())]:
        a, b = definite((*batch, n, n), dtype), general((*sides, n, 2), dtype)
        exact, side = a.to(wide(dtype)), b.to(wide(dtype))
        if sides:
            assert_near(torch.linalg.solve(a.to("ocl"), b.to("ocl"), left=True), torch.linalg.solve(exact, side))
        lu, pivots = torch.linalg.lu_factor(a.to("ocl"))
        assert_near(torch.linalg.lu_solve(lu, pivots, b.to("ocl")), torch.linalg.solve(exact, side))
        adjoint = torch.linalg.lu_solve(lu, pivots, b.to("ocl"), adjoint=True)
        assert_near(adjoint, torch.linalg.solve(exact.mH, side))


@pytest.mark.parametrize("dtype", DTYPES)
def test_solve_inverse_and_determinant(dtype: torch.dtype) -> None:
    for shape in SHAPES:
        a, b = definite(shape, dtype), general((*shape[:-1], 18), dtype)
        on_device, exact, side = a.to("ocl"), a.to(wide(dtype)), b.to(wide(dtype))
        assert_near(torch.linalg.solve(on_device, b.to("ocl")), torch.linalg.solve(exact, side))
        assert_near(
            torch.linalg.solve(on_device.mT, b.mT.to("ocl"), left=False),
            torch.linalg.solve(exact.mT, side.mT, left=False),
        )
        lu, pivots = torch.linalg.lu_factor(on_device)
        assert_near(torch.linalg.lu_solve(lu, pivots, b.to("ocl"), adjoint=True), torch.linalg.solve(exact.mH, side))
        assert_near(torch.linalg.inv(on_device), torch.linalg.inv(exact))
        sign, logarithm = torch.linalg.slogdet(on_device)
        assert_near(sign, torch.linalg.slogdet(exact)[0])
        assert_near(logarithm, torch.linalg.slogdet(exact)[1])
        if shape[-1] < 20:
            assert_near(torch.linalg.det(general(shape, dtype).copy_(a).to("ocl")), torch.linalg.det(exact))


def test_singular_matrices() -> None:
    for n in (100, 5):
        a = torch.ones(2, n, n)
        a[0] += torch.eye(n)
        assert torch.linalg.lu_factor_ex(a.to("ocl")).info.tolist() == [0, 2]
    late = torch.eye(100)
    late[50, 50] = late[80, 80] = 0
    assert torch.linalg.lu_factor_ex(late.to("ocl")).info == 51
    assert torch.linalg.det(a.to("ocl")).cpu()[1] == 0
    assert torch.linalg.slogdet(a.to("ocl")).logabsdet.cpu()[1] == -float("inf")
    with pytest.raises(torch.linalg.LinAlgError, match="input matrix is singular"):
        torch.linalg.solve(a.to("ocl"), a.to("ocl"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_qr_of_tiny_numbers(dtype: torch.dtype) -> None:
    scale = torch.tensor([1.0, 2.0**-60, 2.0**-125, 2.0**-140, 2.0**-149, 0.0])
    a = torch.ones(7, 6, dtype=dtype).tril() * scale
    q, r = torch.linalg.qr(a.to("ocl"))
    assert_near(q.mH @ q, identity_like(a.mH @ a))
    assert_near(q @ r, a.to(wide(dtype)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_qr(dtype: torch.dtype) -> None:
    for shape in [*SHAPES, (90, 40), (100, 70), (40, 90)]:
        a = general(shape, dtype)
        for mode in ("reduced", "complete"):
            q, r = torch.linalg.qr(a.to("ocl"), mode)
            expected = torch.linalg.qr(a.to(wide(dtype)), mode)
            assert q.shape == expected.Q.shape
            assert_near(r, expected.R)
            assert_near(q @ r, a)
            assert_near(q.mH @ q, identity_like((q.mH @ q).cpu()))


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_with_reflectors(dtype: torch.dtype) -> None:
    a = general((2, 70, 40), dtype)
    reflectors, tau = torch.geqrf(a.to("ocl"))
    exact = [t.cpu().to(wide(dtype)) for t in (reflectors, tau)]
    assert_near(torch.linalg.householder_product(reflectors, tau), torch.linalg.householder_product(*exact))
    for left in (False, True):
        for transpose in (False, True):
            other = general((2, 70, 6) if left else (2, 6, 70), dtype)
            expected = torch.ormqr(*exact, other.to(wide(dtype)), left, transpose)  # type: ignore[arg-type, call-arg]
            assert_near(torch.ormqr(reflectors, tau, other.to("ocl"), left, transpose), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_ldl(dtype: torch.dtype) -> None:
    for hermitian in {False, dtype.is_complex}:
        a = general((3, 20, 20), dtype)
        a = a + (a.mH if hermitian else a.mT)
        b = general((3, 20, 4), dtype)
        factors, pivots, _ = torch.linalg.ldl_factor_ex(a.to("ocl"), hermitian=hermitian)
        expected = torch.linalg.ldl_factor_ex(a.to(wide(dtype)), hermitian=hermitian)
        assert torch.equal(pivots.cpu(), expected.pivots)
        assert (pivots.cpu() < 0).any()  # there are blocks of two rows
        assert_near(factors.tril(), expected.LD.tril(), 300)
        assert_near(a.to("ocl") @ torch.linalg.ldl_solve(factors, pivots, b.to("ocl"), hermitian=hermitian), b, 1000)


@pytest.mark.parametrize("dtype", DTYPES)
def test_eigh(dtype: torch.dtype) -> None:
    for shape in SHAPES:
        a = general(shape, dtype)
        a = a + a.mH
        for triangle in "LU":
            kept = a.tril() if triangle == "L" else a.triu()
            values, vectors = torch.linalg.eigh(kept.to("ocl"), UPLO=triangle)
            expected = torch.linalg.eigvalsh(a.to(wide(dtype)))
            assert_near(values, expected)
            assert_near(torch.linalg.eigvalsh(kept.to("ocl"), UPLO=triangle), expected)
            assert_near(vectors @ (values.unsqueeze(-1) * vectors.mH), a)
            assert_near(vectors.mH @ vectors, identity_like(a))


def check_svd(a: torch.Tensor) -> None:
    dtype = a.dtype
    expected = torch.linalg.svdvals(a.to(wide(dtype)))
    assert_near(torch.linalg.svdvals(a.to("ocl")), expected)
    for full in (False, True):
        u, s, vh = torch.linalg.svd(a.to("ocl"), full_matrices=full)
        k = s.shape[-1]
        assert_near(s, expected)
        assert_near((u[..., :k] * s.unsqueeze(-2)) @ vh[..., :k, :], a)
        assert_near(u.mH @ u, identity_like((u.mH @ u).cpu()))
        assert_near(vh @ vh.mH, identity_like((vh @ vh.mH).cpu()))


@pytest.mark.parametrize("dtype", DTYPES)
def test_svd(dtype: torch.dtype) -> None:
    for shape in [(1, 1), (8, 8), (2, 3, 5, 5), (0, 0), (3, 0, 0), (40, 33), (70, 8), (8, 70), (2, 65, 65), (90, 200)]:
        check_svd(general(shape, dtype))


def test_svd_of_matrices_without_full_rank() -> None:
    check_svd(torch.zeros(4, 3))
    check_svd(torch.ones(6, 6))
    check_svd(torch.randn(9, 2) @ torch.randn(2, 9))
    check_svd(torch.randn(5, 5) * 1e-30)
    check_svd(torch.randn(5, 5) * 1e30)
    for large in (torch.zeros(40, 30), torch.ones(50, 50), torch.eye(33), torch.randn(60, 4) @ torch.randn(4, 50)):
        check_svd(large)
    check_svd(torch.randn(40, 40).triu(1))
    check_svd(torch.diag(torch.logspace(0, -30, 40)))


def test_numbers_that_are_not_finite() -> None:
    a = torch.eye(3)
    a[1, 1] = float("nan")
    with pytest.raises(torch.linalg.LinAlgError, match="non-finite"):
        torch.linalg.svd(a.to("ocl"))
    with pytest.raises(torch.linalg.LinAlgError):
        torch.linalg.eigh(a.to("ocl"))


@pytest.mark.parametrize("driver", ["gels", "gelsy", "gelsd", "gelss"])
def test_lstsq(driver: str) -> None:
    for rows, columns in ((8, 3), (3, 8), (5, 5)):
        a, b = torch.randn(2, rows, columns), torch.randn(2, rows, 2)
        found = torch.linalg.lstsq(a.to("ocl"), b.to("ocl"), driver=driver)
        expected = torch.linalg.lstsq(a.double(), b.double(), driver=driver)
        assert_near(found.solution, expected.solution, 1000)
        assert_near(found.residuals, expected.residuals, 1000)
        assert_near(found.singular_values, expected.singular_values)
        assert torch.equal(found.rank.cpu(), expected.rank)


def test_lstsq_without_full_rank() -> None:
    a, b = torch.randn(7, 2) @ torch.randn(2, 4), torch.randn(7)
    found = torch.linalg.lstsq(a.to("ocl"), b.to("ocl"))
    assert found.rank.item() == 2
    assert_near(found.solution, torch.linalg.lstsq(a.double(), b.double(), rcond=1e-5).solution, 1000)
    with pytest.raises(RuntimeError, match="driver"):
        torch.linalg.lstsq(a.to("ocl"), b.to("ocl"), driver="fastest")


@pytest.mark.parametrize("dtype", DTYPES)
def test_matrix_exp(dtype: torch.dtype) -> None:
    for shape in SHAPES:
        a = general(shape, dtype)
        if len(shape) == 4:
            a[0, 1] *= 20
            a[1, 0] /= 1000
        # Each matrix of a batch has a norm of its own.
        found = torch.linalg.matrix_exp(a.to("ocl")).view(torch.Size(shape[:-2]).numel(), *shape[-2:])
        expected = torch.linalg.matrix_exp(a.to(wide(dtype))).view(found.shape)
        for number in range(len(found)):
            assert_near(found[number], expected[number], 100)


def test_cross() -> None:
    for dtype in (torch.float32, torch.int64, torch.complex64):
        a = torch.randn(4, 3, 5).mul(10).to(dtype)
        b = torch.randn(3, 1).mul(10).to(dtype).expand(4, 3, 5)
        expected = torch.linalg.cross(a, b, dim=1)
        torch.testing.assert_close(
            torch.linalg.cross(a.to("ocl"), b.to("ocl"), dim=1).cpu(), expected, rtol=1e-5, atol=1e-4
        )
        shared = a.to("ocl")
        torch.linalg.cross(shared, b.to("ocl"), dim=1, out=shared)
        torch.testing.assert_close(shared.cpu(), expected, rtol=1e-5, atol=1e-4)


def test_results_have_the_strides_of_the_cpu() -> None:
    a = torch.randn(3, 6, 4)
    square = a @ a.mT + torch.eye(6)
    for call, argument in (
        (torch.linalg.qr, a),
        (torch.linalg.svd, a),
        (torch.linalg.eigh, square),
        (torch.linalg.lu_factor, square),
        (torch.linalg.cholesky_ex, square),
        (torch.linalg.inv_ex, square),
    ):
        results: Any = zip(call(argument.to("ocl")), call(argument), strict=True)
        assert all(device.stride() == cpu.stride() for device, cpu in results)


def test_out_of_any_layout() -> None:
    a = definite((2, 6, 6), torch.float32)
    room = torch.zeros(2, 6, 6, 2, device="ocl")[..., 0]
    torch.linalg.cholesky(a.to("ocl"), out=room)
    assert_near(room, torch.linalg.cholesky(a.double()))
    wrong = torch.empty(2, 6, 6, dtype=torch.float64, device="ocl")
    with pytest.raises(RuntimeError, match=r"dtype|type"):
        torch.linalg.inv(a.to("ocl"), out=wrong)


@pytest.mark.parametrize(
    "name", ["cholesky", "det", "slogdet", "inv", "qr", "eigh", "svdvals", "solve", "matrix_exp", "pinv"]
)
def test_gradients(name: str) -> None:
    a = definite((2, 5, 5), torch.float32)
    weights: list[torch.Tensor] = []

    def gradient(leaf: torch.Tensor) -> torch.Tensor:
        leaf = leaf.detach().requires_grad_()
        symmetric = (leaf + leaf.mT) / 2
        arguments = (symmetric, leaf[..., :2]) if name == "solve" else (symmetric / 5,)
        result = getattr(torch.linalg, name)(*arguments)
        result = result[1].abs() if name == "eigh" else result[-1] if isinstance(result, tuple) else result
        if not weights:
            weights.append(torch.randn(result.shape))
        (result * weights[0].to(result)).sum().backward()
        assert leaf.grad is not None
        return leaf.grad

    expected = gradient(a.double())
    assert_near(gradient(a.to("ocl")), expected, 3000)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_large(dtype: torch.dtype) -> None:
    a, b = definite((300, 300), dtype), general((300, 40), dtype)
    on_device, exact = a.to("ocl"), a.to(wide(dtype))
    assert_near(torch.linalg.cholesky(on_device), torch.linalg.cholesky(exact))
    assert_near(torch.linalg.solve(on_device, b.to("ocl")), torch.linalg.solve(exact, b.to(wide(dtype))))
    q, r = torch.linalg.qr(on_device)
    assert_near(q @ r, a)
    values, vectors = torch.linalg.eigh(on_device)
    assert_near(vectors @ (values.unsqueeze(-1) * vectors.mH), a)
    check_svd(general((100, 90), dtype))
