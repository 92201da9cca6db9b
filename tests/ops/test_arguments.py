"""Arguments at the edges: empty ones, ones that are refused as on the CPU, ones that overlap themselves."""

import pytest
import torch
import torch.nn.functional as F

import dlbackend


def both(call, *tensors):
    """The outcomes of a call on the CPU and on the device: a tensor on the CPU, or the class of the exception."""
    results = []
    for device in ("cpu", "ocl"):
        try:
            results.append(call(*(t.to(device) for t in tensors)).cpu())
        except Exception as error:
            results.append(type(error))
    return results


@pytest.mark.parametrize("shape", [(0,), (0, 16, 50), (4, 5, 0, 6)])
@pytest.mark.parametrize("reduce", [torch.all, torch.any, torch.sum])
def test_reducing_nothing(reduce, shape):
    # Kernels find elements by dividing by sizes, and no size may then be 0.
    for dtype in (torch.bool, torch.float32):
        x = torch.empty(shape, dtype=dtype)
        assert torch.equal(*both(reduce, x))
        assert torch.equal(*both(lambda t: reduce(torch.isclose(t.float(), t.float()), dim=-2 % t.dim()), x))


def test_gradient_of_empty_pooling():
    for pool in (F.adaptive_avg_pool2d, F.adaptive_avg_pool3d, F.adaptive_max_pool2d):
        x = torch.rand(1, 4, 6, 5, device="ocl", requires_grad=True)
        with pytest.raises(RuntimeError, match="Expected grad_output to have non-zero size for non-batch dimensions"):
            pool(x, 0).sum().backward()
    x = torch.rand(0, 4, 6, 5, device="ocl", requires_grad=True)
    F.adaptive_avg_pool2d(x, 2).sum().backward()
    assert x.grad.shape == x.shape


@pytest.mark.parametrize("axes", [2, 3])
def test_fractional_pooling_refuses_samples(axes):
    pool = F.fractional_max_pool2d if axes == 2 else F.fractional_max_pool3d
    x = torch.rand(2, 3, *[6] * axes, device="ocl")
    samples = torch.rand(2, 3, axes, device="ocl")
    assert pool(x, 2, output_size=2, _random_samples=samples).shape == (2, 3, *[2] * axes)
    for bad in (samples[:1], samples[:, :2], samples[..., :1], samples[0]):
        with pytest.raises(RuntimeError, match="_random_samples"):
            pool(x, 2, output_size=2, _random_samples=bad.contiguous())


def test_embedding_bag_names_the_argument():
    weight, vector = torch.rand(2, 2, device="ocl"), torch.tensor([1, 1], device="ocl")
    for arguments, words in [
        ((weight, vector.view(1, 1, 2), vector), "input has to be a 1D or 2D Tensor"),
        ((weight, vector, vector.view(1, 2)), "offsets has to be a 1D Tensor"),
        ((weight.view(1, 2, 2), vector, vector), "weight has to be a 2D Tensor"),
    ]:
        with pytest.raises(RuntimeError, match=words):
            torch.embedding_bag(*arguments)
    with pytest.raises(RuntimeError, match="expected scalar type Float"):
        F.embedding_bag(vector, weight, vector * 0, mode="sum", per_sample_weights=vector.double())


def test_threshold_in_place_may_overlap():
    values = torch.tensor([[0.2], [0.7]])
    x = values.to("ocl").expand(2, 6)
    assert torch.equal(F.threshold(x, 0.5, 0.5, inplace=True).cpu(), torch.tensor([[0.5], [0.7]]).expand(2, 6))
    with pytest.raises(RuntimeError, match="unsupported operation"):
        F.elu(x, inplace=True)


def test_sparse_added_in_place_must_be_castable():
    dense, sparse = torch.tensor([1, 0, 2]), torch.tensor([0.5, 0.0, 1.0]).to_sparse()
    for a, b in [(dense, sparse), (dense.bool(), sparse), (dense.float(), dense.to_sparse())]:
        for op in (torch.Tensor.add_, torch.Tensor.mul_):
            expected, result = both(lambda x, y, op=op: op(x.clone(), y), a, b)
            assert expected is result if isinstance(expected, type) else torch.equal(expected, result)


def test_exponential_of_infinite_rate():
    x = torch.ones(100, device="ocl")
    assert not x.exponential_(float("inf")).cpu().any()
    assert x.exponential_(1.0).cpu().all()


def test_is_set_to():
    x = torch.empty(3, 4, device="ocl")
    same = torch.tensor([], device="ocl").set_(x)
    assert x.is_set_to(same)
    assert not x.is_set_to(x.clone())
    assert not x.is_set_to(x[:2])
    assert "aten::is_set_to" not in dlbackend.fallback_report()


@pytest.mark.parametrize("name", ["add", "mul"])
def test_strides_of_one_element_beside_a_number(name):
    for memory_format in (torch.channels_last, torch.contiguous_format):
        x = torch.rand(4, 3, 1, 1).to(memory_format=memory_format)
        op = getattr(torch, name)
        assert op(x.to("ocl"), 5).stride() == op(x, 5).stride()


def test_writing_to_expanded_tensors():
    def expanded():
        return torch.zeros(1, device="ocl").expand(6)

    index, mask = torch.tensor([2, 1], device="ocl"), torch.ones(6, dtype=torch.bool, device="ocl")
    for write in (
        lambda: expanded().index_fill_(0, index, 1.0),
        lambda: expanded().index_put_((index,), torch.rand(2, device="ocl")),
        lambda: expanded().masked_fill_(mask, 1.0),
    ):
        with pytest.warns(UserWarning, match="on expanded tensors is deprecated"):
            write()
    with pytest.raises(RuntimeError, match="unsupported operation"):
        index.index_put_((index,), index.clone())


def test_refused_as_on_the_cpu():
    for call, words in [
        (lambda: torch.rand(3)[torch.tensor([1], device="ocl")], r"indices should be either on cpu .*\(cpu\)"),
        (lambda: F.pad(torch.rand(3, 0, 9, 9, device="ocl"), (2, 2, 2, 2), mode="reflect"), "3D or 4D"),
        (
            lambda: F.multilabel_margin_loss(torch.rand(1, device="ocl"), torch.zeros(1, 1, device="ocl").long()),
            "inconsistent target size",
        ),
    ]:
        with pytest.raises(RuntimeError, match=words):
            call()
    assert F.pad(torch.rand(0, 3, 9, 9, device="ocl"), (2, 2, 2, 2), mode="reflect").shape == (0, 3, 13, 13)


def test_what_the_cpu_refuses_too_is_no_fallback():
    dlbackend.reset_fallback_report()
    x = torch.arange(-2, 3, device="ocl")
    for activation in (F.elu, F.celu, F.selu, F.softplus, F.hardswish, F.logsigmoid):
        assert both(activation, x) == [NotImplementedError] * 2, activation
    with pytest.raises(NotImplementedError, match="\"elu_cpu\" not implemented for 'Long'"):
        F.elu(x)
    assert dlbackend.fallback_report() == {}


FIRST, NOTHING = torch.tensor([0]), torch.empty(0)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, i: x.index_select(0, i),
        lambda x, i: x.index_add(0, i, torch.ones_like(i).to(x)),
        lambda x, i: x.index_copy(0, i, torch.ones_like(i).to(x)),
        lambda x, i: x.index_fill(0, i, 1.0),
        lambda x, i: x.reshape(0, 3).index_fill(0, i, 1.0),
        lambda x, i: x.reshape(3, 0).index_select(0, i),
        lambda x, i: x.reshape(3, 0).index_fill(0, i, 1.0),
        lambda x, i: x.reshape(3, 2, 0).copy_(x.reshape(0, 2, 3)),
        lambda x, i: x.reshape(0, 2).copy_(torch.empty(3).to(x)),
        lambda x, i: x.reshape(0, 2).copy_(torch.empty(1, 2).to(x)),
    ],
)
def test_tensors_without_elements(call):
    expected, found = both(call, NOTHING, FIRST)
    assert (expected if isinstance(expected, type) else expected.shape) == (
        found if isinstance(found, type) else found.shape
    )


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.heaviside(x, x.half()),
        lambda x: torch.heaviside(x, x, out=x.new_empty(3)),
        lambda x: torch.heaviside(x, x, out=x.new_empty(3, dtype=torch.double)),
        lambda x: torch.heaviside(x, x, out=x.new_empty(3, dtype=torch.int)),
        lambda x: torch.heaviside(x.int(), x.int(), out=x.new_empty(3)),
        lambda x: torch.heaviside(x, x, out=x.new_empty(3, dtype=torch.complex64)),
        lambda x: x.clone().heaviside_(x.double()),
        lambda x: torch.heaviside(x, torch.tensor(0.5)),
        lambda x: torch.heaviside(x, torch.tensor(0.5, dtype=torch.double)),
        lambda x: torch.median(x, 0, out=(x.new_empty(0, dtype=torch.double), x.new_empty(0, dtype=torch.long)))[0],
        lambda x: torch.median(x, 0, out=(x.new_empty(0), x.new_empty(0, dtype=torch.int)))[0],
        lambda x: torch.kthvalue(x, 2, 0, out=(x.new_empty(0, dtype=torch.int), x.new_empty(0, dtype=torch.long)))[0],
        lambda x: torch.fft.rfft(x.double(), out=x.new_empty(0, dtype=torch.complex64)),
        lambda x: torch.fft.fft(x.to(torch.complex128), out=x.new_empty(0, dtype=torch.complex64)),
        lambda x: torch.fft.irfft(x.to(torch.complex128), out=x.new_empty(0)),
    ],
)
def test_results_of_other_dtypes(call):
    expected, found = both(call, torch.tensor([3.0, 1.0, 2.0]))
    if isinstance(expected, type):
        assert found is expected
    else:
        torch.testing.assert_close(found, expected)


def test_heaviside_says_what_it_lacks():
    x = torch.tensor([3.0, 1.0], device="ocl")
    for call, lacks in (
        (lambda: torch.heaviside(x, x.half(), out=torch.empty_like(x)), "tensors with different dtypes"),
        (lambda: torch.heaviside(x, x, out=x.new_empty(2, dtype=torch.complex64)), "complex tensors"),
    ):
        with pytest.raises(RuntimeError, match=f"not yet implemented for {lacks}"):
            call()


def test_where_of_two_numbers_on_the_cpu():
    x = torch.tensor([1.0, -1.0], device="ocl")
    assert torch.where(x > 0, torch.tensor(1.0), torch.tensor(0.5)).tolist() == [1.0, 0.5]


def test_glu_forward_mode():
    x, tangent = torch.randn(2, 4, 6, dtype=torch.double)
    dlbackend.reset_fallback_report()
    expected, found = both(lambda a, b: torch.func.jvp(F.glu, (a,), (b,))[1], x, tangent)
    torch.testing.assert_close(found, expected)
    assert dlbackend.fallback_report() == {}
