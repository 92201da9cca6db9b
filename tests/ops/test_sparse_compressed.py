"""Sparse compressed tensors (CSR, CSC, BSR, BSC) against dense ones: conversions, checks, sums, products."""

import itertools

import pytest
import torch
from common import DEVICE
from common import mostly_zero as matrix

import dlbackend

LAYOUTS = [torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc]
BLOCKED = LAYOUTS[2:]
BLOCK = (2, 3)


@pytest.fixture(autouse=True)
def none_on_the_cpu():
    dlbackend.reset_fallback_report()
    yield
    assert dlbackend.fallback_report() == {}


def compressed(dense: torch.Tensor, layout: torch.layout) -> torch.Tensor:
    return dense.to_sparse(layout=layout, **({"blocksize": BLOCK} if layout in BLOCKED else {}))


def batch(layout: torch.layout, *shape: int) -> torch.Tensor:
    """A dense batch whose matrices have as many elements, or blocks, each."""
    one = matrix(*shape[1:])
    return torch.stack([one, one.flip(0)] if layout in BLOCKED else [one, one.roll(1, 0)]).expand(shape).contiguous()


def parts(x: torch.Tensor) -> list[torch.Tensor]:
    """The tensors that the sparse tensor consists of."""
    if x.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [x.crow_indices(), x.col_indices(), x.values()]
    return [x.ccol_indices(), x.row_indices(), x.values()]


def check(x: torch.Tensor) -> None:
    """PyTorch's checks of what a tensor is made of."""
    compressed_indices, plain_indices, values = parts(x)
    torch._validate_sparse_compressed_tensor_args(compressed_indices, plain_indices, values, x.shape, x.layout)


def assert_is(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """The device's compressed tensor is made of what the CPU's is made of, and passes PyTorch's checks."""
    assert actual.layout == expected.layout
    assert actual.shape == expected.shape
    for a, e in zip(parts(actual), parts(expected), strict=True):
        assert a.device.type == "ocl"
        tolerance = 1e-2 if e.dtype == torch.float16 else 1e-5
        torch.testing.assert_close(a.cpu(), e, rtol=tolerance, atol=tolerance)
    check(actual)


def near(actual: torch.Tensor, expected: torch.Tensor) -> None:
    dense = actual.to_dense() if actual.layout != torch.strided else actual
    torch.testing.assert_close(dense.cpu(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("shape", [(4, 6), (2, 4, 6), (0, 6), (4, 6, 2)], ids=str)
def test_from_dense(layout, shape):
    if shape == (4, 6, 2):
        dense, more = matrix(*shape), {"dense_dim": 1}
    else:
        dense, more = (batch(layout, *shape) if len(shape) == 3 else matrix(*shape)), {}
    if layout in BLOCKED:
        more["blocksize"] = BLOCK
    expected = dense.to_sparse(layout=layout, **more)
    with torch.sparse.check_sparse_tensor_invariants():
        actual = dense.to(DEVICE).to_sparse(layout=layout, **more)
    assert_is(actual, expected)
    assert all(part.is_contiguous() for part in parts(actual)[:2])
    near(actual, dense)


@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
def test_from_one_layout_to_another(index):
    dense = matrix(4, 6)
    for start, to in itertools.permutations(LAYOUTS, 2):
        if start in BLOCKED and to not in BLOCKED:
            with pytest.raises(RuntimeError, match="expected SparseCsr or SparseCsc layout"):
                compressed(compressed(dense.to(DEVICE), start), to)
            continue
        x = compressed(dense, start)
        x = torch.sparse_compressed_tensor(*(p.to(index) for p in parts(x)[:2]), x.values(), x.shape, layout=start)
        assert_is(compressed(x.to(DEVICE), to), compressed(x, to))
    coo = dense.to_sparse()
    for to in LAYOUTS:
        assert_is(compressed(coo.to(DEVICE), to), compressed(coo, to))
    for start, to in ((LAYOUTS[0], LAYOUTS[1]), (LAYOUTS[2], LAYOUTS[3])):
        batched = compressed(batch(start, 2, 4, 6), start)
        assert_is(compressed(batched.to(DEVICE), to), compressed(batched, to))
        assert_is(compressed(compressed(batched.to(DEVICE), to), start), batched)


def test_into_blocks_refuses_as_the_cpu_does():
    for device in ("cpu", DEVICE):
        csr = matrix(4, 6).to_sparse_csr().to(device)
        for block, message in (((3, 3), "divisible"), ((0, 3), "positive"), ((2, 3, 1), "size 2")):
            with pytest.raises(RuntimeError, match=message):
                csr.to_sparse_bsr(block)
        with pytest.raises(RuntimeError, match="SparseCsr to SparseBsr for batched inputs"):
            batch(torch.sparse_csr, 2, 4, 6).to_sparse_csr().to(device).to_sparse_bsr(BLOCK)


@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize(
    "wrong",
    [
        ([0, 1, 2], [0, 3], "`0 <= col_indices < ncols`"),
        ([0, 1, 2], [0, -1], "`0 <= col_indices < ncols`"),
        ([1, 1, 2], [0, 1], r"`crow_indices\[..., 0\] == 0`"),
        ([0, 1, 1], [0, 1], r"`crow_indices\[..., -1\] == nnz`"),
        ([0, 2, 1, 2], [0, 1], r"`0 <= crow_indices\[..., 1:\] - crow_indices\[..., :-1\] <= ncols`"),
        ([0, 2, 2], [1, 1], "are sorted and distinct"),
        ([0, 2, 2], [2, 1], "are sorted and distinct"),
        ([0, 2], [0, 1], "crow_indices"),
    ],
)
def test_invariants_are_checked(wrong, index):
    begins, places, message = wrong
    lines = max(2, len(begins) - 1)
    for device in ("cpu", DEVICE):
        made_of = torch.tensor(begins, dtype=index), torch.tensor(places, dtype=index), torch.tensor([3.0, 4.0])
        made_of = [t.to(device) for t in made_of]
        with pytest.raises(RuntimeError, match=message):
            torch.sparse_csr_tensor(*made_of, (lines, 3), check_invariants=True)
        if begins != [0, 2]:
            swapped = message.replace("col", "temp").replace("crow", "ccol").replace("temp", "row")
            with pytest.raises(RuntimeError, match=swapped.replace("ncols", "nrows").replace("ccolumn", "crow")):
                torch.sparse_csc_tensor(*made_of, (3, lines), check_invariants=True)


def test_invariants_of_batches_and_of_coalesced_tensors_are_checked():
    begins = torch.tensor([[0, 1, 2], [0, 0, 2]], device=DEVICE)
    values = torch.ones(2, 2, device=DEVICE)
    good, bad = torch.tensor([[2, 0], [0, 2]], device=DEVICE), torch.tensor([[2, 0], [2, 0]], device=DEVICE)
    x = torch.sparse_csr_tensor(begins, good, values, (2, 2, 3), check_invariants=True)
    assert x.to_dense().tolist() == [[[0, 0, 1], [1, 0, 0]], [[0, 0, 0], [1, 0, 1]]]
    with pytest.raises(RuntimeError, match="sorted and distinct"):
        torch.sparse_csr_tensor(begins, bad, values, (2, 2, 3), check_invariants=True)
    for indices, right in (([[0, 1], [2, 0]], True), ([[0, 0], [2, 0]], False), ([[0, 0], [2, 2]], False)):
        made_of = torch.tensor(indices, device=DEVICE), torch.ones(2, device=DEVICE), (2, 3)
        if right:
            assert torch.sparse_coo_tensor(*made_of, check_invariants=True, is_coalesced=True).is_coalesced()
        else:
            with pytest.raises(RuntimeError, match="uncoalesced"):
                torch.sparse_coo_tensor(*made_of, check_invariants=True, is_coalesced=True)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_numbers_times_any_layout(layout):
    x = compressed(matrix(4, 6), layout)
    for of in (x, compressed(batch(layout, 2, 4, 6), layout)):
        net = of.to(DEVICE)
        assert_is(net * 2, of * 2)
        assert_is(torch.tensor(2.5) * net, torch.tensor(2.5) * of)
        assert_is(net * torch.tensor(3.0, device=DEVICE), of * 3)
        assert net.mul_(2.0) is net
        assert_is(net, of * 2)
    integers = compressed(matrix(4, 6, dtype=torch.int64), layout)
    assert_is(integers.to(DEVICE) * 2.5, integers * 2.5)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_sums(layout):
    a, b = matrix(4, 6), matrix(4, 6)
    x, y = (compressed(t.to(DEVICE), layout) for t in (a, b))
    for actual in (x + y, torch.add(x, y, out=compressed(b.to(DEVICE), layout)), x.clone().add_(y)):
        assert actual.layout == layout
        near(actual, a + b)
        check(actual)
    near(torch.add(x, y, alpha=3), a + 3 * b)
    near(torch.add(x, y, alpha=2, out=x), a + 2 * b)
    x = compressed(a.to(DEVICE), layout)
    for actual, expected in (
        (b.to(DEVICE) + x, a + b),
        (x + b.to(DEVICE), a + b),
        (torch.add(x, b.to(DEVICE), alpha=2), b + 2 * a),  # alpha is the sparse one's on the CPU too
        (torch.add(b.to(DEVICE), x, alpha=2), b + 2 * a),
        (b.to(DEVICE).clone().add_(x), a + b),
    ):
        assert actual.layout == torch.strided
        near(actual, expected)
    dense = batch(layout, 2, 4, 6)
    z = compressed(dense.to(DEVICE), layout)
    near(z + z, 2 * dense)
    near(dense.to(DEVICE) + z, 2 * dense)
    with pytest.raises(RuntimeError, match="same shape"):
        x + compressed(matrix(2, 6).to(DEVICE), layout)


def test_products_of_elements():
    a, b = matrix(4, 6), matrix(4, 6)
    x, y = a.to_sparse_csr(), b.to_sparse_csr()
    net = x.to(DEVICE)
    assert_is(net * y.to(DEVICE), x * y)
    assert_is(net * b.to(DEVICE), x * b)
    assert_is(b.to(DEVICE) * net, b * x)
    assert_is(torch.mul(net, y.to(DEVICE), out=y.to(DEVICE)), x * y)
    assert_is(net.clone().mul_(b.to(DEVICE)), x * b)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_select_copy(layout):
    dense = batch(layout, 2, 4, 6)
    one, many = compressed(dense[0], layout), compressed(dense, layout)
    for dim, index in ((0, 1), (1, 2), (0, -1)):
        actual, expected = (torch.select_copy(t, dim, index) for t in (one.to(DEVICE), one))
        assert actual.layout == expected.layout == torch.sparse_coo
        near(actual, dense[0].select(dim, index))
    assert_is(torch.select_copy(many.to(DEVICE), 0, 1), torch.select_copy(many, 0, 1))
    assert_is(many.to(DEVICE)[1], many[1])


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_sparse_mask(layout):
    values = batch(layout, 2, 4, 6) + 1
    for dense in (values, values[0]):
        mask = compressed(batch(layout, 2, 4, 6) if dense.dim() == 3 else matrix(4, 6), layout)
        assert_is(dense.to(DEVICE).sparse_mask(mask.to(DEVICE)), dense.sparse_mask(mask))
    coo = matrix(4, 6).to_sparse()
    assert_is(coo.to(DEVICE).sparse_mask(mask.to(DEVICE)), coo.sparse_mask(mask))
    if layout == torch.sparse_csr:
        csr = matrix(4, 6).to_sparse_csr()
        assert_is(csr.to(DEVICE).sparse_mask(mask.to(DEVICE)), csr.sparse_mask(mask))


@pytest.mark.parametrize("function", [torch._sparse_csr_sum, torch._sparse_csr_prod])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.float16, torch.complex64], ids=str)
def test_reductions(function, dtype):
    for dense in (matrix(5, 7), torch.zeros(5, 7), torch.zeros(0, 7)):
        x = (dense * 2).to(dtype).to_sparse_csr()
        for dims in ((0,), (1,), (0, 1), ()):
            actual, expected = (function(t, dims, keepdim=True) for t in (x.to(DEVICE), x))
            assert actual.dtype == expected.dtype
            if x._nnz() == 0:  # there the CPU's values may have no dimension
                assert (actual._nnz(), actual.shape) == (0, expected.shape)
            else:
                assert_is(actual, expected)
    x = matrix(5, 7).to_sparse_csr()
    assert_is(x.to(DEVICE).sum(dim=(0,), keepdim=True), x.sum(dim=(0,), keepdim=True))
    for device in ("cpu", DEVICE):
        with pytest.raises(RuntimeError, match="keepdim=False is unsupported"):
            x.to(device).sum(dim=0)
        with pytest.raises(RuntimeError, match="CSR"):
            x.to(device).to_sparse_csc().sum(dim=0, keepdim=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_products_with_dense(layout, dtype):
    a, b, c = matrix(4, 6, dtype=dtype), matrix(6, 5, dtype=dtype, density=1), matrix(4, 5, dtype=dtype, density=1)
    x, y, z = compressed(a, layout).to(DEVICE), b.to(DEVICE), c.to(DEVICE)
    near(x @ y, a @ b)
    near(torch.mm(x, y, out=torch.empty_like(z)), a @ b)
    near(torch.addmm(z, x, y, beta=2, alpha=3), 2 * c + 3 * (a @ b))
    near(torch.addmm(z[0], x, y), c[0] + a @ b)
    near(torch.addmm(torch.full_like(z, torch.nan), x, y, beta=0), a @ b)
    near(torch.addmv(z[:, 0], x, y[:, 0], alpha=2), c[:, 0] + 2 * (a @ b[:, 0]))
    near(x @ y[:, 0], a @ b[:, 0])
    near(z.t() @ x, c.t() @ a)
    near(torch.addmm(y.t(), z.t(), x, beta=2, alpha=3), 2 * b.t() + 3 * (c.t() @ a))
    near(z.clone().addmm_(x, y), c + a @ b)
    if dtype.is_complex:  # lazily conjugated
        near(x @ y.conj(), a @ b.conj())
        near(z.mH @ x, c.mH @ a)
        near(torch.addmm(z.conj(), x, y, beta=2j, alpha=3j), 2j * c.conj() + 3j * (a @ b))
        near(z.clone().conj().addmm_(x, y), c.conj() + a @ b)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        x @ z


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_batched_products(layout):
    a, b = batch(layout, 2, 4, 6), torch.randn(2, 6, 5)
    near(torch.bmm(compressed(a.to(DEVICE), layout), b.to(DEVICE)), a @ b)


def test_batched_sampled_product():
    where, a, b = batch(torch.sparse_csr, 2, 4, 6).to_sparse_csr(), torch.randn(2, 4, 3), torch.randn(2, 3, 6)
    for by in (where, where[0]):  # one matrix counts for the whole batch
        expected = torch.sparse.sampled_addmm(by, a, b, beta=0.5, alpha=2)
        assert_is(torch.sparse.sampled_addmm(by.to(DEVICE), a.to(DEVICE), b.to(DEVICE), beta=0.5, alpha=2), expected)
    nothing = torch.sparse.sampled_addmm(
        where.to(DEVICE), *(torch.ones(2, n, m, device=DEVICE) for n, m in ((4, 0), (0, 6)))
    )
    near(nothing, where.to_dense())


def test_products_of_two_layouts():
    a, b, c = matrix(4, 6), matrix(6, 6), matrix(4, 6)
    for one, other in itertools.product(LAYOUTS, LAYOUTS):
        product = compressed(a.to(DEVICE), one) @ compressed(b.to(DEVICE), other)
        assert product.layout == torch.sparse_csr
        near(product, a @ b)
    for layout in LAYOUTS:
        x, y, z = (compressed(t.to(DEVICE), layout) for t in (a, b, c))
        total = torch.addmm(z, x, y, beta=2, alpha=3)
        assert total.layout == layout
        near(total, 2 * c + 3 * (a @ b))
        near(torch.addmm(c.to(DEVICE), x, y, alpha=3), c + 3 * (a @ b))


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64], ids=str)
@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_bsr], ids=str)
def test_triangular_solve(layout, dtype):
    a, b = matrix(6, 6, dtype=dtype) + 4 * torch.eye(6, dtype=dtype), matrix(6, 3, dtype=dtype, density=1)
    x, y = compressed(a, layout).to(DEVICE), b.to(DEVICE)
    for upper, transpose, unit in itertools.product((False, True), repeat=3):
        expected, _ = torch.triangular_solve(b, a, upper, transpose, unit)
        actual, other = torch.triangular_solve(y, x, upper, transpose, unit)
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-4)
        assert other.numel() == 0
    out = torch.empty(3, 6, dtype=dtype, device=DEVICE).t(), torch.empty(0, dtype=dtype, device=DEVICE)
    torch.triangular_solve(y, x, out=out)
    torch.testing.assert_close(out[0].cpu(), torch.triangular_solve(b, a)[0], rtol=1e-4, atol=1e-4)
    nothing = compressed(torch.zeros_like(a), layout)
    for device in ("cpu", DEVICE):
        assert torch.triangular_solve(b.to(device), nothing.to(device), unitriangular=True)[0].isnan().all()
        with pytest.raises(ValueError, match="layout"):
            torch.triangular_solve(b.to(device), a.to_sparse_csc().to(device))


def test_layouts_are_named_where_a_product_is_refused():
    hybrid = matrix(4, 6).to_sparse(1).to(DEVICE)
    with pytest.raises(RuntimeError, match="1 sparse and 1 dense dimensions"):
        hybrid @ torch.randn(6, 2, device=DEVICE)
