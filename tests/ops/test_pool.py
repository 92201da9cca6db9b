"""Max, average and adaptive pooling, forward and backward."""

import pytest
import torch
import torch.nn.functional as F
from common import DEVICE, FLOATS, assert_near, check_op, layouts

MAX = [
    ({"kernel_size": 2}, (2, 3, 8, 9)),
    ({"kernel_size": 3, "stride": 2, "padding": 1}, (2, 3, 15, 140)),
    ({"kernel_size": 3, "stride": 1, "padding": 1, "dilation": 2}, (2, 70, 9, 8)),
    ({"kernel_size": (3, 2), "stride": (2, 3), "padding": (1, 0), "ceil_mode": True}, (3, 8, 11)),
    ({"kernel_size": 3, "stride": 3, "padding": 1, "ceil_mode": True}, (1, 2, 7, 7)),
]
AVG = [
    ({"kernel_size": 2}, (2, 3, 8, 9)),
    ({"kernel_size": 3, "stride": 2, "padding": 1}, (2, 3, 15, 140)),
    ({"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True, "count_include_pad": False}, (2, 70, 8, 8)),
    ({"kernel_size": (3, 2), "stride": (2, 1), "padding": (1, 0), "ceil_mode": True}, (3, 8, 11)),
    ({"kernel_size": 3, "divisor_override": 5}, (1, 2, 7, 7)),
]


def with_indices(fn):
    """Values and indices as one tensor, so that both are compared."""
    return lambda x: torch.cat([t.to(x.dtype) for t in fn(x)])


@pytest.mark.parametrize(("options", "shape"), MAX, ids=str)
def test_max_pool2d(options, shape):
    for x in layouts(torch.randn(shape)).values():
        check_op(lambda x: F.max_pool2d(x, **options), x)
        check_op(with_indices(lambda x: F.max_pool2d(x, return_indices=True, **options)), x, grad=False)


@pytest.mark.parametrize(("options", "shape"), AVG, ids=str)
def test_avg_pool2d(options, shape):
    for x in layouts(torch.randn(shape)).values():
        check_op(lambda x: F.avg_pool2d(x, **options), x)


@pytest.mark.parametrize("shape", [(2, 3, 6, 7, 9), (3, 6, 7, 9)], ids=str)
def test_pool3d(shape):
    for x in layouts(torch.randn(shape)).values():
        check_op(lambda x: F.max_pool3d(x, (2, 3, 3), 2, (1, 1, 0), ceil_mode=True), x)
        check_op(with_indices(lambda x: F.max_pool3d(x, 2, 1, 1, 2, return_indices=True)), x, grad=False)
        check_op(lambda x: F.avg_pool3d(x, (2, 3, 3), 2, (1, 1, 0), True, False), x)


def test_pool1d():
    for x in layouts(torch.randn(3, 4, 50)).values():
        check_op(lambda x: F.max_pool1d(x, 3, 2, 1, ceil_mode=True), x)
        check_op(lambda x: F.avg_pool1d(x, 3, 2, 1, ceil_mode=True), x)
        check_op(lambda x: F.adaptive_avg_pool1d(x, 7), x)
        check_op(lambda x: F.adaptive_max_pool1d(x, 7), x)


@pytest.mark.parametrize(
    ("shape", "size"),
    [((2, 3, 9, 11), (4, 5)), ((2, 70, 3, 5), (7, 2)), ((3, 6, 6), (6, 3)), ((2, 3, 5, 5), (1, 1))],
    ids=str,
)
def test_adaptive_pool2d(shape, size):
    for x in layouts(torch.randn(shape)).values():
        check_op(lambda x: F.adaptive_avg_pool2d(x, size), x)
        check_op(lambda x: F.adaptive_max_pool2d(x, size), x)
        check_op(with_indices(lambda x: F.adaptive_max_pool2d(x, size, True)), x, grad=False)


def test_adaptive_pool3d():
    for x in layouts(torch.randn(2, 3, 5, 6, 7)).values():
        check_op(lambda x: F.adaptive_avg_pool3d(x, (2, 4, 3)), x)
        check_op(lambda x: F.adaptive_max_pool3d(x, (2, 4, 3)), x)


@pytest.mark.parametrize("dtype", FLOATS)
def test_dtypes(dtype):
    for x in layouts(torch.randn(2, 5, 9, 9)).values():
        check_op(lambda x: F.max_pool2d(x, 3, 2, 1), x, dtype=dtype, scale=2)
        check_op(lambda x: F.avg_pool2d(x, 3, 2, 1), x, dtype=dtype, scale=2)
        check_op(lambda x: F.adaptive_avg_pool2d(x, (4, 2)), x, dtype=dtype, scale=2)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_integers(dtype):
    x = torch.randint(0, 100, (2, 3, 6, 6)).to(dtype)
    assert F.max_pool2d(x.to(DEVICE), 3, 2, 1).cpu().equal(F.max_pool2d(x, 3, 2, 1))


@pytest.mark.parametrize("fmt", [torch.contiguous_format, torch.channels_last])
def test_special_values(fmt):
    """NaN and its index propagate, rows of -inf have the index of their first element."""
    x = torch.randn(2, 3, 8, 80)
    x[0, 0, 3, 3] = x[1, 2, 5, 50] = x[1, 2, 5, 51] = float("nan")
    x[0, 1] = -float("inf")
    x = x.contiguous(memory_format=fmt)
    expected = F.max_pool2d(x.double(), 3, 2, 1, return_indices=True)
    actual = F.max_pool2d(x.to(DEVICE), 3, 2, 1, return_indices=True)
    assert_near(actual[0], expected[0])
    assert actual[1].cpu().equal(expected[1])


def test_out_empty_and_errors():
    x = torch.randn(2, 3, 8, 8)
    out, indices = torch.empty(0, device=DEVICE), torch.empty(0, dtype=torch.int64, device=DEVICE)
    torch.ops.aten.max_pool2d_with_indices.out(x.to(DEVICE), [2], [2], out=out, indices=indices)
    assert_near(out, F.max_pool2d(x.double(), 2))
    assert F.max_pool2d(torch.empty(0, 3, 8, 8, device=DEVICE), 2).shape == (0, 3, 4, 4)
    assert F.adaptive_avg_pool2d(torch.empty(0, 3, 8, 8, device=DEVICE), 2).shape == (0, 3, 2, 2)
    for bad in ({"kernel_size": 2, "padding": 2}, {"kernel_size": 20}, {"kernel_size": 2, "stride": 0}):
        with pytest.raises(RuntimeError):
            F.max_pool2d(x.to(DEVICE), **bad)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int32, torch.uint8], ids=str)
def test_a_window_wholly_in_the_padding(dtype):
    """A dilated window can step over the whole input: the least value, and no read beside the tensor."""
    for shape, arguments in [
        ((1, 1, 1, 1), (2, 1, 1, 2)),
        ((2, 3, 1, 3), (2, 1, 1, 2)),
        ((1, 2, 4, 4), (2, 3, 1, 5)),
        ((1, 1, 9, 70), (2, 1, 1, (10, 2))),
    ]:
        x = torch.randint(1, 50, shape).to(dtype)
        wanted, places = F.max_pool2d(x, *arguments, return_indices=True)
        for there in layouts(x.to(DEVICE)).values():
            got, at = F.max_pool2d(there, *arguments, return_indices=True)
            assert torch.equal(got.cpu(), wanted)
            assert torch.equal(at.cpu(), places)
