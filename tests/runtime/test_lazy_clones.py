"""Lazy clones, `torch._lazy_clone`: tensors that share memory until one of them is written."""

from collections.abc import Callable

import pytest
import torch

import dlbackend  # noqa: F401

DEVICE = "ocl:0"


def numbers() -> torch.Tensor:
    return torch.arange(12.0).view(3, 4)


def is_shared(*tensors: torch.Tensor) -> list[bool]:
    return [torch._C._is_cow_tensor(t) for t in tensors]


def test_memory_is_shared_until_a_write() -> None:
    a = numbers().to(DEVICE)
    before, where = torch.ocl.memory_allocated(), a.data_ptr()
    b = a._lazy_clone()
    total = a + b
    assert is_shared(a, b) == [True, True]
    assert torch.ocl.memory_allocated() - before == 512  # the sum's
    view = a[1]
    view += 1
    assert is_shared(a, b) == [False, True]
    assert b.data_ptr() == where != a.data_ptr()
    b.mul_(2)  # the last one keeps the memory
    assert is_shared(a, b) == [False, False]
    assert b.data_ptr() == where
    assert a.cpu().equal(numbers().index_add(0, torch.tensor([1]), torch.ones(1, 4)))
    assert b.cpu().equal(2 * numbers())
    assert total.cpu().equal(2 * numbers())
    del a, b, view, total
    assert torch.ocl.memory_allocated() == before - 512


ROW = torch.tensor([2])
WRITES: dict[str, Callable[[torch.Tensor, torch.device], object]] = {
    "add_": lambda t, d: t.add_(1),
    "fill_": lambda t, d: t.fill_(7),
    "zero_": lambda t, d: t.zero_(),
    "copy_": lambda t, d: t.copy_(torch.ones(3, 4)),
    "transposed copy_": lambda t, d: t.view(4, 3).t().copy_(torch.full((3, 4), 2.0, device=d)),
    "index_put_": lambda t, d: t.index_put_((ROW.to(d),), torch.ones(4, device=d)),
    "index_put_ that adds": lambda t, d: t.index_put_((ROW.to(d),), torch.ones(4, device=d), accumulate=True),
    "index_fill_": lambda t, d: t.index_fill_(0, ROW.to(d), 9.0),
    "scatter_": lambda t, d: t.scatter_(1, torch.zeros(3, 1, dtype=torch.long, device=d), 5.0),
    "masked_fill_": lambda t, d: t.masked_fill_(t > 3, 0.5),
    "masked_scatter_": lambda t, d: t.masked_scatter_(t > 3, t * 10),
    "cumsum_": lambda t, d: t.cumsum_(1),
    "mm out": lambda t, d: torch.mm(torch.ones(3, 2, device=d), torch.ones(2, 4, device=d), out=t),
    "addmm_": lambda t, d: t.addmm_(torch.ones(3, 2, device=d), torch.ones(2, 4, device=d)),
    "sum out": lambda t, d: torch.sum(torch.ones(2, 3, 4, device=d), 0, out=t),
    "sort out": lambda t, d: torch.sort(-t.clone(), out=(t, torch.empty(3, 4, dtype=torch.long, device=d))),
    "cat out": lambda t, d: torch.cat([torch.ones(1, 4, device=d), torch.zeros(2, 4, device=d)], out=t),
    "softmax out": lambda t, d: torch.softmax(torch.ones(3, 4, device=d), 1, out=t),
    "foreach": lambda t, d: torch._foreach_add_([t, torch.ones(2, device=d)], 3.0),
    "arange out": lambda t, d: torch.arange(12, 24, out=t.view(12)),
    "resize_": lambda t, d: t.resize_(3, 5).fill_(1),
    "to the CPU and back": lambda t, d: t.copy_(t.cpu() + 1),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_write_to_one_leaves_the_other(name: str) -> None:
    expected = numbers()
    WRITES[name](expected, torch.device("cpu"))
    for written in (0, 1):
        tensors = [numbers().to(DEVICE)]
        tensors.append(tensors[0]._lazy_clone())
        WRITES[name](tensors[written], torch.device(DEVICE))
        assert tensors[written].cpu().equal(expected)
        assert tensors[1 - written].cpu().equal(numbers())


def test_a_fused_optimizer_writes_to_lazily_cloned_parameters() -> None:
    kept = torch.ones(5, device=DEVICE)
    parameter = torch.nn.Parameter(kept._lazy_clone())
    parameter.grad = torch.ones(5, device=DEVICE)
    torch.optim.SGD([parameter], lr=0.5, fused=True).step()
    assert parameter.tolist() == [0.5] * 5
    assert kept.tolist() == [1.0] * 5


def test_reads_by_ops_without_an_iterator() -> None:
    a = numbers().to(DEVICE)
    b = a._lazy_clone()
    assert (a @ b.t()).cpu().equal(numbers() @ numbers().t())
    assert torch.cat([a, b]).cpu().equal(torch.cat([numbers(), numbers()]))
    assert b.sum().item() == 66


def test_a_recorded_stream_delays_reuse() -> None:
    a = torch.ones(1 << 21, device=DEVICE)
    where, b = a.data_ptr(), a._lazy_clone()
    side = torch.ocl.Stream()
    side.wait_stream(torch.ocl.current_stream())
    with torch.ocl.stream(side):
        total = torch.zeros_like(a)
        for _ in range(20):
            total += b
    b.record_stream(side)
    used = side.record_event()
    del a, b
    c = torch.full((1 << 21,), 7.0, device=DEVICE)
    if not used.query():
        assert c.data_ptr() != where
    side.synchronize()
    assert total.cpu().eq(20).all()


def test_empty_and_chained_clones() -> None:
    empty = torch.empty(0, 3, device=DEVICE)._lazy_clone()
    assert empty.cpu().shape == (0, 3)
    empty.resize_(2).fill_(4)
    assert empty.tolist() == [4, 4]
    chain = [numbers().to(DEVICE)]
    for _ in range(3):
        chain.append(chain[-1]._lazy_clone())
    for i, tensor in enumerate(chain):
        tensor.add_(i)
    for i, tensor in enumerate(chain):
        assert tensor.cpu().equal(numbers() + i)
