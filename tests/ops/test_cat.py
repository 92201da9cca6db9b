"""cat and stack: dtypes, layouts, promotion, many inputs."""

import pytest
import torch
from exact import DEVICE, DTYPES, check_same, to_device, values


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dims(dtype: torch.dtype) -> None:
    a, b = values((3, 4, 5), dtype), values((3, 2, 5), dtype, 1)
    check_same(lambda *t: torch.cat(t, 1), a, b, a)
    check_same(lambda *t: torch.cat(t, -1), a, a.flip(0))
    check_same(lambda *t: torch.cat(t), b, b)
    check_same(lambda *t: torch.stack(t, 2), b, b, b)


def test_more_inputs_than_one_launch_takes() -> None:
    check_same(lambda *t: torch.cat(t, 1), *[values((2, i % 4, 3), torch.float32, i) for i in range(21)])
    check_same(lambda *t: torch.cat(t), *[values((1,), torch.float32, i) for i in range(33)])


def test_promotion_and_empty() -> None:
    a = values((2, 3), torch.float32)
    check_same(lambda *t: torch.cat(t), a, a.half(), a.long())
    check_same(lambda *t: torch.cat(t), torch.empty(0), a, torch.empty(0, 3))
    check_same(lambda *t: torch.cat(t, 1), torch.empty(2, 0), torch.empty(2, 0))


def test_layouts() -> None:
    a = [values((2, 8, 3, 4), torch.float32, i).contiguous(memory_format=torch.channels_last) for i in range(3)]
    check_same(lambda *t: torch.cat(t, 1), *a)
    assert torch.cat([to_device(t) for t in a], 1).is_contiguous(memory_format=torch.channels_last)
    x = values((6, 7, 5), torch.float32)
    check_same(lambda t: torch.cat([t[:, 1::2], t[:, ::3]], 1), x)
    check_same(lambda t: torch.cat([t.transpose(0, 2), t.transpose(0, 2)], 1), x)
    check_same(lambda t: torch.cat([t.expand(4, 6, 7, 5), t.expand(2, 6, 7, 5)]), x)
    check_same(lambda t: torch.cat([t[1:3], t[4:]]), x)
    check_same(lambda t: torch.cat([t.to(torch.complex64).conj(), t.to(torch.complex64)]), x)


def test_out() -> None:
    a = values((3, 4), torch.float32)
    d = to_device(a)
    out = torch.empty(4, 6, device=DEVICE).t()
    assert torch.cat([d, d], 0, out=out) is out
    torch.testing.assert_close(out.cpu(), torch.cat([a, a]))
    with pytest.raises(RuntimeError, match="single memory location"):
        torch.cat([d, d], 0, out=d)


def test_shapes_that_do_not_fit() -> None:
    with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
        torch.cat([torch.ones(2, 3, device=DEVICE), torch.ones(2, 4, device=DEVICE)])
