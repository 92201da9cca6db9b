"""Sparse COO and CSR tensors against the CPU: what trains embeddings and sparse layers."""

import copy
import io

import pytest
import torch
from common import DEVICE, assert_near
from common import mostly_zero as matrix
from torch import nn

import dlbackend

DTYPES = [torch.float32, torch.float64, torch.float16, torch.int64, torch.bool, torch.complex64]
NOTHING = torch.sparse_coo_tensor(torch.zeros(2, 0).long(), torch.zeros(0, 3), (5, 6, 3))


@pytest.fixture(autouse=True)
def none_on_the_cpu():
    dlbackend.reset_fallback_report()
    yield
    assert dlbackend.fallback_report() == {}


def repeated(dense_dims: tuple[int, ...] = (), dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A COO tensor of [5, 6, ...] with repeated indices, not coalesced."""
    indices = torch.stack([torch.randint(5, (40,)), torch.randint(6, (40,))])
    return torch.sparse_coo_tensor(indices, matrix(40, *dense_dims, dtype=dtype, density=1), (5, 6, *dense_dims))


def assert_same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """The device's tensor has the CPU's layout and values, to rounding."""
    assert actual.device.type == "ocl"
    assert actual.layout == expected.layout
    assert actual.dtype == expected.dtype
    tolerance = 1e-2 if expected.dtype == torch.float16 else 1e-5
    torch.testing.assert_close(
        actual.detach().to_dense().cpu(), expected.detach().to_dense(), rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dense_dims", [(), (3,)])
def test_coalesce(dtype, dense_dims):
    cpu = repeated(dense_dims, dtype)
    net = cpu.to(DEVICE)
    assert net.is_sparse
    assert not net.is_coalesced()
    expected, actual = cpu.coalesce(), net.coalesce()
    assert actual.is_coalesced()
    assert torch.equal(actual.indices().cpu(), expected.indices())
    assert_same(actual, expected)
    assert_same(net, cpu)


def test_conversions():
    dense = matrix(4, 5, 3)
    net = dense.to(DEVICE)
    for sparse_dim in (1, 2, 3):
        assert_same(net.to_sparse(sparse_dim), dense.to_sparse(sparse_dim))
    for convert in ("to_sparse_csr", "to_sparse_csc"):
        expected, actual = getattr(dense[0], convert)(), getattr(net[0], convert)()
        assert_same(actual, expected)
        assert torch.equal(actual.values().cpu(), expected.values())
        assert_same(actual.to_sparse(), expected.to_sparse())
    coo = dense[0].to_sparse().to(DEVICE)
    assert_same(coo.to_sparse_csr(), dense[0].to_sparse_csr())
    assert_same(coo.cpu().to(DEVICE), dense[0].to_sparse())
    assert_same(coo.to(torch.float64), dense[0].to_sparse().double())
    assert_same(coo.t(), dense[0].to_sparse().t())
    assert torch.sparse_coo_tensor(size=(2, 3), device=DEVICE).to_dense().tolist() == [[0.0] * 3] * 2
    built = torch.sparse_coo_tensor([[0, 1], [2, 0]], [3.0, 4.0], (2, 3), device=DEVICE)
    assert built.to_dense().tolist() == [[0, 0, 3], [4, 0, 0]]
    assert torch.sparse_csr_tensor([0, 1, 2], [2, 0], [3.0, 4.0], device=DEVICE).to_dense()[1, 0] == 4
    with pytest.raises(RuntimeError, match="size"):
        torch.sparse_coo_tensor([[0, 7], [2, 0]], [3.0, 4.0], (2, 3), device=DEVICE, check_invariants=True)


def test_printing_and_saving():
    net = matrix(4, 5).to_sparse().to(DEVICE)
    assert "layout=torch.sparse_coo" in repr(net)
    assert "device='ocl:0'" in repr(net)
    assert "layout=torch.sparse_csr" in repr(net.to_sparse_csr())
    for sparse in (net, net.to_sparse_csr()):
        file = io.BytesIO()
        torch.save(sparse, file)
        file.seek(0)
        assert_same(torch.load(file, weights_only=True), sparse.cpu())
        assert_same(copy.deepcopy(sparse), sparse.cpu())


@pytest.mark.parametrize("dense_dims", [(), (3,)])
def test_arithmetic(dense_dims):
    a, b, dense = repeated(dense_dims), repeated(dense_dims), torch.randn(5, 6, *dense_dims)
    x, y, z = a.to(DEVICE), b.to(DEVICE), dense.to(DEVICE)
    assert_same(x + y, a + b)
    assert_same(torch.sub(x, y, alpha=3), torch.sub(a, b, alpha=3))
    assert_same(torch.add(z, y, alpha=2), torch.add(dense, b, alpha=2))
    assert_same(z.t().contiguous().t().add_(y) if not dense_dims else z.clone().add_(y), dense + b)
    assert_same(x * y, a * b)
    assert_same(x * z, a.coalesce() * dense)
    assert_same(x * 3, a * 3)
    assert_same(x / 2, a / 2)
    assert_same(x.coalesce().sqrt().nan_to_num(), a.coalesce().sqrt().nan_to_num())
    assert_same(-x, -a)
    assert_near(torch.sparse.sum(x), torch.sparse.sum(a.double()), 5)
    assert_same(torch.sparse.sum(x, 0), torch.sparse.sum(a, 0))
    assert_same(z.sparse_mask(x.coalesce()), dense.sparse_mask(a.coalesce()))
    assert_same(y.sparse_mask(x.coalesce()), b.sparse_mask(a.coalesce()))
    in_place = x.clone().add_(y).mul_(2)
    assert_same(in_place, (a + b) * 2)
    with pytest.raises(RuntimeError, match=r"add\(sparse, dense\) is not supported"):
        x + z
    with pytest.raises(RuntimeError, match="sizes"):
        x + torch.zeros(2, 2).to_sparse().to(DEVICE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.int64], ids=str)
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr], ids=str)
def test_products(dtype, layout):
    dense, b = matrix(7, 9, dtype=dtype), matrix(9, 20, dtype=dtype, density=1)
    a = dense.to_sparse(layout=layout).to(DEVICE)
    c = matrix(7, 20, dtype=dtype, density=1)
    torch.testing.assert_close((a @ b.to(DEVICE)).cpu(), dense @ b, rtol=1e-4, atol=1e-4)
    transposed = b.t().contiguous().to(DEVICE).t()
    torch.testing.assert_close((a @ transposed).cpu(), dense @ b, rtol=1e-4, atol=1e-4)
    actual = torch.addmm(c.to(DEVICE), a, b.to(DEVICE), beta=2, alpha=3)
    torch.testing.assert_close(actual.cpu(), torch.addmm(c, dense, b, beta=2, alpha=3), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close((a @ b[:, 0].to(DEVICE)).cpu(), dense @ b[:, 0], rtol=1e-4, atol=1e-4)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        a @ b.to(DEVICE)[:5]


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr], ids=str)
def test_products_and_sums_of_two_sparse_matrices(dtype, layout):
    dense_a, dense_b, dense_c = matrix(9, 7, dtype=dtype), matrix(7, 11, dtype=dtype), matrix(9, 7, dtype=dtype)
    a, b, c = (t.to_sparse(layout=layout).to(DEVICE) for t in (dense_a, dense_b, dense_c))
    product = dense_a @ dense_b
    ab = a @ b
    for actual, expected in (
        (ab, product),
        (torch.addmm(ab, a, b, beta=2, alpha=3), 5 * product),
        (torch.add(a, c, alpha=3), dense_a + 3 * dense_c),
        (a * c, dense_a * dense_c),
        (a.clone().add_(c), dense_a + dense_c),
    ):
        assert actual.layout == layout
        torch.testing.assert_close(actual.to_dense().cpu(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close((dense_c.to(DEVICE) + a).cpu(), dense_c + dense_a)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        a @ c
    if layout == torch.sparse_coo:
        with pytest.raises(RuntimeError, match="is not supported"):
            a + dense_c.to(DEVICE)


def test_products_of_sparse_matrices_have_gradients_and_may_be_empty():
    a, b = matrix(9, 7).to_sparse(), matrix(7, 11).to_sparse()
    found = []
    for device in ("cpu", DEVICE):
        leaves = [t.detach().to(device).requires_grad_() for t in (a, b)]
        torch.sparse.sum(torch.sparse.mm(*leaves)).backward()
        found.append([t.grad.to_dense().cpu() for t in leaves])
    for actual, expected in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    nothing = torch.zeros(7, 3).to_sparse().to(DEVICE)
    assert (a.to(DEVICE) @ nothing).to_dense().cpu().equal(torch.zeros(9, 3))


@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin"])
def test_products_with_a_reduce(reduce):
    dense, b = matrix(7, 9), matrix(9, 20, density=1)
    dense[3] = 0
    weight, found = torch.randn(7, 20), []
    for device in ("cpu", DEVICE):
        leaves = [dense.to_sparse_csr().to(device).requires_grad_(), b.detach().to(device).requires_grad_()]
        out = torch.sparse.mm(*leaves, reduce)
        (out * weight.to(device)).sum().backward()
        found.append([out.detach().cpu(), leaves[0].grad.to_dense().cpu(), leaves[1].grad.cpu()])
    for actual, expected in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def test_batched_product():
    dense, b = matrix(3, 5, 6), torch.randn(3, 6, 4)
    torch.testing.assert_close((torch.bmm(dense.to_sparse().to(DEVICE), b.to(DEVICE))).cpu(), torch.bmm(dense, b))


def test_sampled_product():
    where, a, b = matrix(7, 9), torch.randn(7, 5), torch.randn(5, 9)
    csr = where.to_sparse_csr()
    expected = torch.sparse.sampled_addmm(csr, a, b, beta=0.5, alpha=2)
    actual = torch.sparse.sampled_addmm(csr.to(DEVICE), a.to(DEVICE), b.to(DEVICE), beta=0.5, alpha=2)
    assert_same(actual, expected)
    grads = []
    for device in ("cpu", DEVICE):
        x, y = (t.clone().to(device).requires_grad_() for t in (a, b))
        torch.sparse.sampled_addmm(csr.to(device), x, y).to_dense().square().sum().backward()
        grads.append((x.grad, y.grad))
    for actual, expected in zip(grads[1], grads[0], strict=True):
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-4)


def test_gradients():
    dense, b = matrix(7, 9), torch.randn(9, 4)
    grads = []
    for device in ("cpu", DEVICE):
        a = dense.to_sparse().to(device).requires_grad_()
        x = b.clone().to(device).requires_grad_()
        torch.sparse.mm(a, x).square().sum().backward()
        grads.append((a.grad, x.grad))
        y = dense.clone().to(device).requires_grad_()
        torch.sparse.sum(y.to_sparse() * 2, 1).to_dense().square().sum().backward()
        grads[-1] += (y.grad,)
    for actual, expected in zip(grads[1], grads[0], strict=True):
        assert_same(actual, expected)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "sparse_adam": lambda p: torch.optim.SparseAdam(p, lr=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_embedding_is_trained(name):
    torch.manual_seed(0)
    cpu = nn.Embedding(20, 6, sparse=True)
    net = copy.deepcopy(cpu).to(DEVICE)
    for embedding in (cpu, net):
        optimizer = OPTIMIZERS[name](embedding.parameters())
        for step in range(3):
            optimizer.zero_grad()
            index = torch.tensor([3, 5, 3, step, 19], device=embedding.weight.device)
            embedding(index).square().sum().backward()
            assert embedding.weight.grad.is_sparse
            optimizer.step()
    torch.testing.assert_close(net.weight.cpu(), cpu.weight, rtol=1e-5, atol=1e-5)


def test_embedding_bag():
    cpu = nn.EmbeddingBag(20, 6, sparse=True, mode="sum")
    net = copy.deepcopy(cpu).to(DEVICE)
    index, offsets = torch.tensor([3, 5, 3, 1, 19]), torch.tensor([0, 2])
    cpu(index, offsets).square().sum().backward()
    net(index.to(DEVICE), offsets.to(DEVICE)).square().sum().backward()
    assert_same(net.weight.grad, cpu.weight.grad)


def with_gradient(function, x: torch.Tensor, device: str) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The function of a COO tensor on the device, and the gradient of the sum of its squares."""
    x = x.detach().to(device).requires_grad_()
    y = function(x)
    y.to_dense().square().sum().backward()
    return y, x.grad


@pytest.mark.parametrize("function", [torch.sparse.softmax, torch.sparse.log_softmax])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_softmax(function, dim):
    x = repeated((3,), torch.float64)
    for of in (x, x.float(), NOTHING):
        pairs = (with_gradient(lambda t: function(t, dim), of, device) for device in (DEVICE, "cpu"))
        for actual, expected in zip(*pairs, strict=True):
            assert torch.equal(actual.coalesce().indices().cpu(), expected.coalesce().indices())
            assert_same(actual, expected)


def test_softmax_of_infinities_and_what_the_cpu_refuses():
    inf, nan = torch.inf, torch.nan
    values = torch.tensor([[-inf, 1, inf, 2, nan], [-inf, -inf, 3, 4, 5]])
    x = torch.sparse_coo_tensor(torch.tensor([[0, 0], [0, 1]]), values, (2, 2, 5))
    actual, expected = torch.sparse.softmax(x.to(DEVICE), 1), torch.sparse.softmax(x, 1)
    torch.testing.assert_close(actual.to_dense().cpu(), expected.to_dense(), equal_nan=True)
    for dtype in (torch.float16, torch.int64, torch.complex64):
        with pytest.raises(NotImplementedError, match='"softmax" not implemented'):
            torch.sparse.softmax(x.to(dtype).to(DEVICE), 1)
    half = matrix(5, 6, dtype=torch.float16).to_sparse()
    assert_same(torch.sparse.softmax(half.to(DEVICE), 1, dtype=torch.float32), torch.sparse.softmax(half.float(), 1))


def test_gradient_of_softmax_where_gradient_and_result_have_other_elements():
    x, grad = matrix(5, 6).to_sparse(), matrix(5, 6).to_sparse()
    for name in ("_sparse_softmax", "_sparse_log_softmax"):
        y = getattr(torch.ops.aten, name).default(x, 1, False)
        backward = getattr(torch.ops.aten, name + "_backward_data")
        assert_same(backward(grad.to(DEVICE), y.to(DEVICE), 1, x.to(DEVICE)), backward(grad, y, 1, x))


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("index", [[2, 0], [1, 1, -1, 0, 1], []])
def test_index_select(dim, index):
    index = torch.tensor(index, dtype=torch.long)
    chosen = index.abs() if dim == 2 else index  # of dense dimensions the CPU refuses negative ones
    for x in (repeated((3,)), repeated((3,), torch.bool).coalesce(), NOTHING):
        actual, expected = x.to(DEVICE).index_select(dim, chosen.to(DEVICE)), x.index_select(dim, chosen)
        assert_same(actual, expected)
        if actual.is_coalesced():
            assert torch.equal(actual.indices().cpu(), expected.coalesce().indices())


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_gradient_of_index_select(dim):
    """On the CPU there is none: PyTorch has no index_add_ of sparse tensors there. So the dense one's is taken."""
    x, index = repeated((3,)), torch.tensor([2, 0, 2])
    dense = x.to_dense().requires_grad_()
    dense.index_select(dim, index).square().sum().backward()
    y, grad = with_gradient(lambda t: t.index_select(dim, index.to(DEVICE)), x.coalesce(), DEVICE)
    assert_same(y, x.index_select(dim, index))
    kept = dense.grad.sparse_mask(x.coalesce())
    assert_same(grad.to_dense().sparse_mask(x.coalesce().to(DEVICE)), kept)
    added = x.to(DEVICE).index_add_(dim, index.to(DEVICE), y.detach(), alpha=2)
    assert_same(added, dense.detach().index_add(dim, index, y.detach().to_dense().cpu(), alpha=2).to_sparse(2))


def test_index_select_refuses_as_the_cpu_does():
    x = matrix(5, 6).to_sparse()
    for dim, index in ((0, [5]), (1, [-7]), (0, [[1]]), (2, [0]), (0, [0.0])):
        for device in ("cpu", DEVICE):
            with pytest.raises(IndexError, match=r"index|Dimension"):
                x.to(device).index_select(dim, torch.tensor(index, device=device))


def test_nothing_that_the_cpu_has_a_kernel_for_runs_there():
    rest = set()
    for layout in ("Sparse", "SparseCsr"):
        names = torch._C._dispatch_get_registrations_for_dispatch_key(layout + "CPU")
        own = layout + "PrivateUse1"
        rest |= {name for name in names if not torch._C._dispatch_has_kernel_for_dispatch_key(name, own)}
    assert rest == {"aten::is_pinned", "aten::_pin_memory"}  # of memory of the host


def test_products_of_which_only_rows_are_there():
    a, b, c = repeated(), torch.randn(6, 4), matrix(5, 4).to_sparse()
    x, y, z = (t.to(DEVICE) for t in (a, b, c))
    actual, expected = torch.hspmm(x, y), torch.hspmm(a, b)
    assert actual.sparse_dim() == expected.sparse_dim() == 1
    assert torch.equal(actual.indices().cpu(), expected.coalesce().indices())
    assert_same(actual, expected)
    assert_same(torch.hspmm(x, y, out=torch.hspmm(z, y[:4, :2].contiguous())), expected)
    assert_same(torch.sspaddmm(z, x, y, beta=2, alpha=3), torch.sspaddmm(c, a, b, beta=2, alpha=3))
    nothing = torch.zeros(5, 6).to_sparse()
    assert_same(torch.hspmm(nothing.to(DEVICE), y), torch.hspmm(nothing, b))
    for device in ("cpu", DEVICE):
        with pytest.raises(RuntimeError, match=r"hspmm|match"):
            torch.hspmm(a.to(device), b[:3].to(device))


def test_floor_division():
    x = repeated(dtype=torch.int64)
    assert_same(x.to(DEVICE) // 2, x // 2)
    assert_same(x.to(DEVICE).floor_divide_(2), x.clone().floor_divide_(2))


def gradient(function, x: torch.Tensor, device: str) -> torch.Tensor:
    """That of the sum of what the function gives for a COO tensor, dense."""
    x = x.detach().to(device).requires_grad_()
    function(x).to_dense().sum().backward()
    assert x.grad is not None
    return x.grad.to_dense().cpu()


def test_gradients_of_tensors_that_are_not_coalesced():
    """An index that is there twice has the gradient once."""
    x = torch.sparse_coo_tensor([[0, 0, 1], [0, 0, 1]], [1.0, 2.0, 3.0], (2, 2))
    grad = gradient(lambda a: torch.sparse.mm(a, a.detach()), x, DEVICE)
    assert grad.tolist() == [[3, 0], [0, 3]]
    assert gradient(lambda a: torch.sparse.sum(a, dim=0), x, DEVICE).tolist() == [[1, 0], [0, 1]]
    other, dense = repeated().detach(), torch.randn(5, 6)
    for function in (
        lambda a: torch.sparse.mm(a, other.to(a.device).t()),
        lambda a: torch.sparse.mm(other.to(a.device).t(), a),
        lambda a: torch.sparse.mm(a, dense.to(a.device).t()),
        lambda a: torch.sparse.sum(a, dim=1),
        lambda a: torch.sparse.sum(a * 2),
        lambda a: dense.to(a.device) + a,
        lambda a: a.sparse_mask(other.to(a.device)),
        lambda a: other.to(a.device).sparse_mask(a.detach()) + a,
        lambda a: a.coalesce() * 3,
    ):
        x = repeated()
        torch.testing.assert_close(gradient(function, x, DEVICE), gradient(function, x, "cpu"), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("dense_dims", [(), (3,)])
def test_mask_projection(dense_dims, accumulate):
    """The elements of the tensor stay as they are, by number and order; those that the mask has not become zero."""
    mask, few = repeated(dense_dims), matrix(5, 6, *dense_dims).to_sparse(2)
    for x in (repeated(dense_dims), few):
        for by in (mask, few):
            actual, expected = (
                t._sparse_mask_projection(m, accumulate) for t, m in ((x.to(DEVICE), by.to(DEVICE)), (x, by))
            )
            assert torch.equal(actual._indices().cpu(), x._indices())
            assert_same(actual, expected)


def test_sums_in_place_do_not_grow():
    x = torch.randn(10).to_sparse()
    net = x.to(DEVICE)
    for _ in range(3):
        net.add_(net)
    assert net.is_coalesced()
    assert net._nnz() == 10
    assert_same(net, x * 8)
    total, addend = repeated((3,)).to(DEVICE), repeated((3,))
    expected = total.to_dense().cpu() + 5 * addend.to_dense()
    for _ in range(5):
        total.add_(addend.to(DEVICE))
    assert total._nnz() <= 30 + 40
    torch.testing.assert_close(total.to_dense().cpu(), expected, rtol=1e-5, atol=1e-5)


def test_gradients_of_embeddings_accumulate_in_bounded_memory():
    net = nn.Embedding(7, 2, sparse=True).to(DEVICE)
    index = torch.tensor([3, 5, 3], device=DEVICE)
    for _ in range(10):
        net(index).sum().backward()
    assert net.weight.grad._nnz() <= 7
    assert net.weight.grad.to_dense()[:, 0].tolist() == [0, 0, 0, 20, 0, 10, 0]


def test_sums_with_nothing_have_the_dense_dimensions_of_the_other():
    x, zeros = repeated((3,)), torch.sparse_coo_tensor(size=(5, 6, 3))
    for a, b in ((x, zeros), (zeros, x)):
        actual, expected = torch.add(a.to(DEVICE), b.to(DEVICE), alpha=2), torch.add(a, b, alpha=2)
        assert (actual.sparse_dim(), actual._nnz()) == (expected.sparse_dim(), expected._nnz())
        assert_same(actual, expected)


def test_products_of_sparse_tensors_that_broadcast():
    x, y = repeated((3,)), repeated((1,))
    assert_same(x.to(DEVICE) * y.to(DEVICE), x * y)
    number = torch.sparse_coo_tensor(torch.zeros(0, 3), [1.0, 2.0, 3.0], ())
    factor = torch.tensor(2.0).to_sparse()
    with torch.sparse.check_sparse_tensor_invariants():
        assert_same(number.to(DEVICE) * torch.ones(2, 3, device=DEVICE), number * torch.ones(2, 3))
    for a, b in ((number, factor), (factor, number), (number, x), (x, factor)):
        actual, expected = a.to(DEVICE) * b.to(DEVICE), a * b
        assert actual._nnz() == expected._nnz()
        assert_same(actual, expected)
    with pytest.raises(RuntimeError, match="sizes"):
        x.to(DEVICE) * torch.zeros(2, 6, 3).to_sparse(2).to(DEVICE)


@pytest.mark.parametrize("shapes", [((5, 6), (2, 5, 6)), ((1, 6), (5, 6)), ((5, 1), (3, 5, 6)), ((5, 6), (5, 1))])
def test_products_with_dense_tensors_that_broadcast(shapes):
    x, dense = matrix(*shapes[0], density=0.6).to_sparse(), torch.randn(shapes[1])
    for a, b in ((x, dense), (dense, x)):
        actual = a.to(DEVICE) * b.to(DEVICE)
        assert actual.is_sparse
        # The CPU's product of a tensor that broadcasts from one row or column lacks elements.
        torch.testing.assert_close(actual.to_dense().cpu(), x.to_dense() * dense)


@pytest.mark.parametrize("layout", [torch.strided, torch.sparse_csr])
def test_addmm_of_two_sparse_matrices_without_the_addend(layout):
    a = torch.eye(3).to_sparse_csr()
    nothing = torch.full((3, 3), torch.nan)
    addend = nothing if layout == torch.strided else nothing.to_sparse(layout=layout)
    expected = torch.addmm(addend, a, a, beta=0, alpha=2)
    found = torch.addmm(*(t.to(DEVICE) for t in (addend, a, a)), beta=0, alpha=2)
    assert found.layout == expected.layout
    assert torch.equal(found.to_dense().cpu(), expected.to_dense())


def test_from_rows_to_columns():
    x = matrix(5, 7)
    expected = x.to_sparse_csr().to_sparse_csc()
    found = x.to(DEVICE).to_sparse_csr().to_sparse_csc()
    assert found.layout == torch.sparse_csc
    assert torch.equal(found.to_dense().cpu(), x)
    for part in (torch.Tensor.ccol_indices, torch.Tensor.row_indices, torch.Tensor.values):
        assert torch.equal(part(found).cpu(), part(expected))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.float32])
def test_differences_of_signed_and_unsigned_numbers(dtype):
    a, b = torch.tensor([[0, 5], [1, 0]], dtype=dtype), torch.tensor([[4, 0], [3, 0]], dtype=torch.uint8)
    wanted = torch.tensor([[-4, 5], [-2, 0]]).to(torch.result_type(a, b))
    for result in (a.to(DEVICE).to_sparse() - b.to(DEVICE).to_sparse(), a.to(DEVICE) - b.to(DEVICE).to_sparse()):
        torch.testing.assert_close(result.to_dense().cpu(), wanted, rtol=0, atol=0)
