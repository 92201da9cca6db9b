"""Mistakes of users raise what the CPU raises, with a message that says what to do, and leave the device working."""

import itertools

import mixed_devices
import pytest
import torch
from torch.nn import functional as F

import dlbackend
from dlbackend.template import pointwise

DEVICE = "ocl:0"


@pytest.fixture(autouse=True)
def _still_works():
    yield
    assert (torch.ones(3, device=DEVICE) + 1).tolist() == [2, 2, 2]


def finished(fn, device):
    fn(device)
    torch.ocl.synchronize()


NAN = float("nan")


def indices(values, device):
    return torch.tensor(values, dtype=torch.int64, device=device)


def bag(offsets, device, **options):
    table = torch.ones(4, 2, device=device)
    return F.embedding_bag(indices([0, 1, 2], device), table, indices(offsets, device), mode="sum", **options)


def transposed(device, **options):
    return F.conv_transpose2d(torch.ones(1, 1, 5, 5, device=device), torch.ones(1, 1, 3, 3, device=device), **options)


def pooled(device, size=4, kernel=2, **options):
    return F.max_pool3d(torch.ones(1, 1, size, size, size, device=device), kernel, **options)


def pooled_backward(device, grad=(1, 1, 2, 2, 2), places=(1, 1, 2, 2, 2), dtype=torch.float32, kernel=2, padding=0):
    x, windows = torch.ones(1, 1, 4, 4, 4, device=device), ([kernel] * 3, [2] * 3, [padding] * 3, [1] * 3, False)
    grad, places = torch.ones(grad, dtype=dtype, device=device), torch.zeros(places, dtype=torch.int64, device=device)
    return torch.ops.aten.max_pool3d_with_indices_backward(grad, x, *windows, places)


def shifted(device):
    """Two matrices of which each has a part of the other."""
    memory = torch.ones(5, 4, device=device)
    return memory[:4], memory[1:]


def added(fn, device):
    (a, out), square = shifted(device), torch.ones(4, 4, device=device)
    return fn(a, square, out)


def one_place(*sizes, device):
    return torch.ones(1, device=device).expand(*sizes)


def repeated(device, output_size):
    return torch.ones(3, device=device).repeat_interleave(indices([1, 2, 3], device), output_size=output_size)


def both(fn):
    """The exceptions of `fn(device)` on the CPU and on the device, which must be of one type."""
    errors = []
    for device in ("cpu", DEVICE):
        with pytest.raises(Exception) as caught:  # noqa: PT011  the type is compared below
            finished(fn, device)
        errors.append(caught.value)
    assert type(errors[1]) is type(errors[0]), errors
    return errors


CALLS = {
    "shapes that do not broadcast": lambda d: torch.ones(3, device=d) + torch.ones(4, device=d),
    "shapes of a product": lambda d: torch.ones(3, 4, device=d) @ torch.ones(3, 4, device=d),
    "channels of a convolution": lambda d: F.conv2d(torch.ones(1, 3, 8, 8, device=d), torch.ones(4, 2, 3, 3, device=d)),
    "kernel larger than the input": lambda d: (
        F.conv2d(torch.ones(1, 1, 2, 2, device=d), torch.ones(1, 1, 3, 3, device=d))
    ),
    "window larger than the input": lambda d: F.max_pool2d(torch.ones(1, 1, 2, 2, device=d), 5),
    "dtypes of a product": lambda d: torch.ones(2, 2, device=d) @ torch.ones(2, 2, device=d, dtype=torch.int64),
    "float into integer in place": lambda d: torch.ones(2, dtype=torch.int32, device=d).add_(0.5),
    "dtype of out": lambda d: torch.add(torch.ones(2, device=d), 1, out=torch.ones(2, dtype=torch.int32, device=d)),
    "softmax of integers": lambda d: torch.softmax(torch.ones(3, dtype=torch.int32, device=d), 0),
    "a dimension that is not there": lambda d: torch.ones(2, 3, device=d).sum(2),
    "reducing nothing": lambda d: torch.ones(0, device=d).max(),
    "an expanded output": lambda d: torch.ones(1, device=d).expand(3).add_(1),
    "a view of the wrong size": lambda d: torch.ones(6, device=d).view(4),
    "an index out of range": lambda d: torch.ones(3, device=d)[torch.tensor([5], device=d)].cpu(),
    "an index for index_select": lambda d: torch.ones(3, device=d).index_select(0, torch.tensor([-1], device=d)).cpu(),
    "a word out of the vocabulary": lambda d: (
        F.embedding(torch.tensor([7], device=d), torch.ones(4, 2, device=d)).cpu()
    ),
    "a class out of range": lambda d: F.nll_loss(torch.ones(2, 3, device=d), torch.tensor([0, 3], device=d)).cpu(),
    "boolean subtraction": lambda d: (
        torch.ones(2, dtype=torch.bool, device=d) - torch.ones(2, dtype=torch.bool, device=d)
    ),
    "integer division into integers": lambda d: torch.ones(2, dtype=torch.int32, device=d).div_(2),
    "a probability": lambda d: F.dropout(torch.ones(2, device=d), 1.5),
    "probabilities above one": lambda d: torch.bernoulli(torch.full((3,), 1.5, device=d)),
    "probabilities that are no numbers": lambda d: torch.zeros(1, device=d).bernoulli_(torch.full((1,), NAN, device=d)),
    "probabilities of integers": lambda d: torch.bernoulli(torch.ones(3, dtype=torch.int64, device=d)),
    "an offset beyond the indices": lambda d: bag([0, 99], d),
    "an offset beyond the indices, last": lambda d: bag([0, 99], d, include_last_offset=True),
    "a first offset above 0": lambda d: bag([1, 2], d),
    "bags' weights of another dtype": lambda d: bag([0, 2], d, per_sample_weights=torch.ones(3, device=d).double()),
    "offsets without indices": lambda d: F.embedding_bag(indices([], d), torch.ones(4, 2, device=d), indices([1], d)),
    "no dilation": lambda d: F.conv2d(torch.ones(1, 1, 5, 5, device=d), torch.ones(1, 1, 3, 3, device=d), dilation=0),
    "no dilation of one dimension": lambda d: (
        F.conv2d(torch.ones(1, 1, 5, 5, device=d), torch.ones(1, 1, 3, 3, device=d), dilation=(1, 0))
    ),
    "output padding": lambda d: transposed(d, stride=2, output_padding=2),
    "output padding of one dimension": lambda d: transposed(d, stride=(3, 1), output_padding=2),
    "integers of a normal distribution": lambda d: torch.randn(3, dtype=torch.int64, device=d),
    "booleans of a normal distribution": lambda d: torch.randn(3, dtype=torch.bool, device=d),
    "uniform integers": lambda d: torch.rand(3, dtype=torch.int64, device=d),
    "means that are integers": lambda d: torch.normal(torch.ones(3, dtype=torch.int64, device=d), 1.0),
    "log-normal integers": lambda d: torch.ones(3, dtype=torch.int32, device=d).log_normal_(),
    "exponential integers": lambda d: torch.ones(3, dtype=torch.int32, device=d).exponential_(),
    "geometric booleans": lambda d: torch.ones(3, dtype=torch.bool, device=d).geometric_(0.5),
    "complex from bernoulli_": lambda d: torch.ones(3, dtype=torch.complex64, device=d).bernoulli_(0.5),
    "complex from random_": lambda d: torch.ones(3, dtype=torch.complex64, device=d).random_(),
    "a permutation of booleans": lambda d: torch.randperm(3, dtype=torch.bool, device=d),
    "counting floats": lambda d: torch.bincount(torch.ones(3, device=d)),
    "counting rows": lambda d: torch.bincount(torch.ones(3, 2, dtype=torch.int64, device=d)),
    "repeats beyond the size given": lambda d: repeated(d, 5),
    "repeats below the size given": lambda d: repeated(d, 7),
    "3-d windows larger than the input": lambda d: pooled(d, size=2, kernel=3),
    "3-d windows that dilation makes larger than the input": lambda d: pooled(d, dilation=4),
    "more 3-d padding than half a window": lambda d: pooled(d, padding=2),
    "no 3-d stride": lambda d: pooled(d, stride=0),
    "a 3-d input without a channel": lambda d: F.max_pool3d(torch.ones(1, 0, 4, 4, 4, device=d), 2),
    "fewer gradients than indices": lambda d: pooled_backward(d, grad=(1, 1, 2, 2, 1)),
    "fewer indices than gradients": lambda d: pooled_backward(d, places=(1, 1, 2, 2, 1)),
    "gradients of another channel": lambda d: pooled_backward(d, grad=(1, 2, 2, 2, 2), places=(1, 2, 2, 2, 2)),
    "gradients of no batch": lambda d: pooled_backward(d, grad=(1, 2, 2, 2), places=(1, 2, 2, 2)),
    "gradients of another dtype": lambda d: pooled_backward(d, dtype=torch.float64),
    "more padding than half a window, backward": lambda d: pooled_backward(d, padding=2),
    "a transposed convolution that leaves nothing": lambda d: transposed(d, padding=4),
    "a sum into a part of what is added": lambda d: added(lambda a, m, o: torch.addmm(a, m, m, out=o), d),
    "sums into a part of what is added": lambda d: (
        added(lambda a, m, o: torch.baddbmm(a[None], m[None], m[None], out=o[None]), d)
    ),
    "averages in one place": lambda d: (
        torch.ops.aten.avg_pool2d.out(torch.ones(1, 1, 4, 4, device=d), 2, out=one_place(1, 1, 2, 2, device=d))
    ),
    "a sorted row in one place": lambda d: (
        torch.sort(torch.ones(4, device=d), out=(one_place(4, device=d), indices([0] * 4, d)))
    ),
    "gathered in one place": lambda d: (
        torch.gather(torch.ones(4, device=d), 0, indices([0] * 4, d), out=one_place(4, device=d))
    ),
    "a product in one place": lambda d: torch.mm(*2 * [torch.ones(4, 4, device=d)], out=one_place(4, 4, device=d)),
    "an outer product added in place to a number": lambda d: (
        torch.ones((), device=d).addr_(torch.ones(5, device=d), torch.ones(4, device=d))
    ),
    "an outer product of another size in place": lambda d: (
        torch.ones(1, 1, device=d).addr_(torch.ones(2, device=d), torch.ones(2, device=d))
    ),
    "indices into nothing": lambda d: (
        torch.ones(0, 0, device=d).index_reduce(1, indices([0], d), torch.ones(0, 1, device=d), "prod")
    ),
    "slopes of another dtype": lambda d: (
        torch.ops.aten._prelu_kernel(torch.ones(2, device=d), torch.ones(2, device=d).double())
    ),
    "a factor that is no matrix": lambda d: (
        torch.ops.aten._cholesky_solve_helper(torch.ones(1, device=d), torch.ones((), device=d), True)
    ),
    "weights of another dtype": lambda d: (
        F.nll_loss(torch.ones(2, 3, device=d), torch.tensor([0, 1], device=d), torch.ones(3, device=d).double())
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", CALLS)
def test_same_type_as_on_the_cpu(what):
    both(CALLS[what])


@pytest.mark.parametrize("what", mixed_devices.CALLS)
def test_a_tensor_left_on_the_cpu(what):
    with pytest.raises(RuntimeError, match=mixed_devices.WORDS):
        finished(lambda there: mixed_devices.CALLS[what](DEVICE, there), "cpu")


def test_a_target_left_on_the_cpu_is_named():
    scores, target = torch.ones(2, 3, device=DEVICE), torch.tensor([0, 1])
    with pytest.raises(RuntimeError, match=r"Expected all tensors to be on the same device.*ocl.* and cpu!"):
        F.cross_entropy(scores, target)


def norm(name, dtypes, device):
    """The normalisation `name` of an input, weight, bias and running statistics of those dtypes (or None)."""
    x = torch.ones(2, 4, 3, dtype=dtypes[0], device=device)
    weight, bias, mean, var = (
        None if dtype is None else torch.ones(4, dtype=dtype, device=device) for dtype in (*dtypes[1:], dtypes[3])
    )
    if name == "layer":
        return F.layer_norm(x.transpose(1, 2), (4,), weight, bias)
    if name == "group":
        return F.group_norm(x, 2, weight, bias)
    return F.batch_norm(x, mean, var, weight, bias, training=True)


@pytest.mark.parametrize("name", ["layer", "group", "batch"])
def test_dtypes_of_normalisations(name):
    """Other dtypes than the input's: float parameters beside half and bfloat16, as the CPU has it."""
    params = (None, torch.float32, torch.float16, torch.float64)
    for dtypes in itertools.product((torch.float32, torch.bfloat16, torch.float64), params, params, params):
        if name != "batch" and dtypes[3] is not None:
            continue
        try:
            norm(name, dtypes, "cpu")
        except RuntimeError:
            with pytest.raises(RuntimeError, match="expected parameters of dtype"):
                norm(name, dtypes, DEVICE)
        else:
            assert norm(name, dtypes, DEVICE).dtype == dtypes[0], dtypes


def test_errors_the_device_finds_name_the_op():
    x, i = torch.ones(3, device=DEVICE), torch.tensor([5], device=DEVICE)
    y = x[i]
    with pytest.raises(IndexError, match="index"):
        y.cpu()
    x.index_select(0, i)
    with pytest.raises(IndexError, match="index_select"):
        torch.ocl.synchronize()
    event = torch.ocl.Event()
    F.embedding(i, torch.ones(4, 2, device=DEVICE))
    event.record()
    with pytest.raises(IndexError, match="index_select: index 5"):  # what embedding calls
        event.synchronize()
    torch.ocl.synchronize()  # told once


def test_tensors_of_two_devices():
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(3, device=DEVICE) + torch.ones(3)
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(3, 3, device=DEVICE) @ torch.ones(3, 3)
    assert (torch.ones(3, device=DEVICE) + torch.tensor(2)).tolist() == [3, 3, 3]  # 0-dim CPU tensors are scalars


def test_no_such_device():
    count = torch.ocl.device_count()
    with pytest.raises(RuntimeError, match=rf"ocl:{count}.*dlbackend info"):
        torch.ones(2, device=f"ocl:{count}")


def test_out_of_memory():
    with pytest.raises(torch.OutOfMemoryError, match=r"GiB|MiB|bytes"):
        torch.empty(1 << 50, device=DEVICE)


def test_a_kernel_that_does_not_build():
    x = torch.ones(3, device=DEVICE)
    with pytest.raises(RuntimeError) as caught:
        pointwise("x0 + no_such_variable", x)
    assert "no_such_variable" in str(caught.value)
    assert ".cl" in str(caught.value)  # the file with the numbered source
    with pytest.raises(RuntimeError, match="no_such_variable"):  # remembered, not built again
        pointwise("x0 + no_such_variable", x)
    assert dlbackend.kernel_stats()["launches"] >= 0


@pytest.mark.parametrize(
    ("grad", "stride", "groups", "said"),
    [
        ((1, 2, 3, 3), [0, 0], 1, "stride must be positive"),
        ((1, 2, 3, 3), [1], 1, "of 2 elements"),
        ((1, 2, 3, 3), [1, 1], 0, "groups"),
        ((1, 2, 3, 3), [1, 1], 2, "channels"),
        ((1, 2, 3, 2), [1, 1], 1, r"gradient of size \[1, 2, 3, 3\]"),
    ],
)
def test_gradients_of_a_convolution_that_there_is_not(grad, stride, groups, said):
    """Calls that PyTorch's own code would not let through."""
    x, w = torch.ones(1, 2, 5, 5, device=DEVICE), torch.ones(2, 2, 3, 3, device=DEVICE)
    backward = torch.ops.aten.convolution_backward_overrideable
    with pytest.raises(RuntimeError, match=said):
        backward(torch.ones(grad, device=DEVICE), x, w, stride, [0, 0], [1, 1], False, [0, 0], groups, [True] * 3)


def test_statistics_of_what_has_no_channels():
    x = torch.ones((), device=DEVICE)
    with pytest.raises(RuntimeError, match="2 or more dimensions"):
        torch.ops.aten.batch_norm_backward_elemt(x, x, x, x, None, x, x, x)


def test_group_norm_of_other_sizes():
    x = torch.ones(1, 2, 3, device=DEVICE)
    for size in ((1, 4, 3), (2, 2, 3), (1, 2, 9)):
        with pytest.raises(RuntimeError, match=r"expected . x . x . elements"):
            torch.ops.aten.native_group_norm(x, None, None, *size, 1, 1e-5)
    with pytest.raises(RuntimeError, match="expected 1 x 2 x 1 elements"):
        torch.ops.aten.native_group_norm_backward(x, x, x[0, 0], x[0, 0], None, 1, 2, 3, 2, [True] * 3)
