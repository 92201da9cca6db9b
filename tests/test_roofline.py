"""python -m dlbackend bench: bytes, operations and least times of ops, and what each took of a step."""

import pytest
import torch
import torch.nn.functional as F
from common import DEVICE
from torch import nn

from dlbackend import _C
from dlbackend.tools import roofline
from dlbackend.tools.roofline import Roofline, Work

ON = torch.device(DEVICE)
RATES = {"bytes": 1e3, "float32": 1e6, "float64": 1e5, "matrix16": 8e6, "matrix_tf32": 6e6}  # per microsecond


def work_of(function, rates=RATES):
    with roofline.Counter(ON, rates) as counter:
        function()
    return counter.ops


def test_each_tensor_is_moved_once():
    a, b = torch.randn(30, 40, device=ON), torch.randn(40, device=ON)
    assert work_of(lambda: a + b)["aten::add"].bytes == 4 * (1200 + 40 + 1200)
    assert work_of(lambda: a + b.expand(30, 40))["aten::add"].bytes == 4 * (1200 + 40 + 1200)
    assert work_of(lambda: a.mul_(2))["aten::mul_"].bytes == 4 * 2400
    assert work_of(a.zero_)["aten::zero_"].bytes == 4 * 1200
    assert work_of(lambda: torch.add(a, b, out=torch.empty_like(a)))["aten::add"].bytes == 4 * (1200 + 40 + 1200)
    assert work_of(lambda: torch._foreach_add_([a, b], 1.0))["aten::_foreach_add_"].bytes == 8 * 1240
    assert work_of(a.cpu)["aten::_to_copy"].bytes == 4 * 1200  # the other side is not this device's memory
    assert not work_of(lambda: a.t()[3:].unsqueeze(0))


def test_a_gather_reads_what_it_returns():
    table, ids = torch.randn(1000, 8, device=ON), torch.arange(5, device=ON)
    assert work_of(lambda: F.embedding(ids, table))["aten::embedding"].bytes == 2 * 4 * 40 + 8 * 5
    assert work_of(lambda: table[ids])["aten::index"].bytes == 2 * 4 * 40 + 8 * 5


def test_operations():
    a, b = torch.randn(20, 30, device=ON), torch.randn(30, 40, device=ON)
    assert work_of(lambda: a @ b)["aten::mm"].operations == 2 * 20 * 30 * 40
    z = torch.randn(20, 20, dtype=torch.complex64, device=ON)
    assert work_of(lambda: z @ z)["aten::mm"].operations == 4 * 2 * 20**3
    x, w = torch.randn(2, 3, 8, 8, device=ON), torch.randn(4, 3, 3, 3, device=ON)
    assert work_of(lambda: F.conv2d(x, w))["aten::convolution"].operations == 2 * 2 * 4 * 36 * 27
    for groups in (1, 4):
        conv = nn.Conv2d(4, 8, 3, groups=groups, bias=False, device=ON)
        loss = conv(torch.randn(2, 4, 8, 8, device=ON, requires_grad=True)).sum()
        once = 2 * (2 * 8 * 36) * (4 // groups * 9)
        assert work_of(loss.backward)["aten::convolution_backward"].operations == 2 * once
    q, k = torch.randn(1, 4, 10, 16, device=ON), torch.randn(1, 2, 12, 16, device=ON)
    (fused,) = work_of(lambda: F.scaled_dot_product_attention(q, k, k, enable_gqa=True)).values()
    assert fused.operations == 2 * (2 * 4 * 10 * 12 * 16)
    q = q.detach().requires_grad_()
    out = F.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True)
    (fused,) = work_of(lambda: F.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True)).values()
    assert fused.operations == 2 * (2 * 4 * (10 * 11 // 2) * 16)
    backward = next(work for name, work in work_of(out.sum().backward).items() if "attention" in name)
    assert backward.operations == 5 * (2 * 4 * (10 * 11 // 2) * 16)


def test_the_least_time_is_that_of_memory_or_of_operations():
    small, big = torch.randn(8, 8, device=ON), torch.randn(512, 512, device=ON)
    bound_by_memory = work_of(lambda: small @ small)["aten::mm"]
    assert bound_by_memory.least == pytest.approx(3 * 4 * 64 / 1e9)
    product = 2 * 512**3
    assert work_of(lambda: big @ big)["aten::mm"].least == pytest.approx(max(product / 2e12, 12 * 512**2 / 1e9))
    slow = {**RATES, "float32": 1.0, "matrix_tf32": 1.0, "matrix16": 4.0}
    assert work_of(lambda: big @ big, slow)["aten::mm"].least == pytest.approx(product / 1e6)
    half = big.half()
    assert work_of(lambda: half @ half, slow)["aten::mm"].least == pytest.approx(product / 4e6)


@pytest.mark.parametrize("estimated", [1.0, 1e12])
def test_rates_are_those_of_long_copies_and_large_products_if_higher(estimated, monkeypatch):
    units = {"bytes": estimated, "matrix16": estimated, "matrix_tf32": estimated}
    monkeypatch.setattr(_C, "measure_rates", lambda index: {**RATES, "float32": 0.5, **units})
    roofline.rates_of.cache_clear()
    rates = roofline.rates_of(0)
    roofline.rates_of.cache_clear()
    assert rates["float64"] == RATES["float64"]
    least = {"bytes": 100, "matrix16": 1000, "matrix_tf32": 1000}  # 0.1 GB/s and 1 GFLOP/s: any device has them
    for name, bound in least.items():
        assert rates[name] == estimated if estimated > 1 else rates[name] > bound


def test_the_ops_of_a_step_add_up_to_it():
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)).to(ON)
    x = torch.randn(32, 64, device=ON)

    def step():
        model(x).sum().backward()

    step()
    for seconds in (1e-7, 10.0):  # less than the kernels take, and more
        found = roofline.examine(step, ON, seconds)
        assert found.total().seconds == pytest.approx(seconds)
        assert (found.idle > 0) == (seconds > 1)
    assert found.ops["aten::addmm"].calls == 2
    assert found.ops["aten::addmm"].seconds > 0
    assert found.ops["aten::threshold_backward"].seconds > 0  # backward passes run on a thread of their own
    assert found.launches >= 6
    assert all(work.calls > 0 for work in found.ops.values())


def test_the_table_adds_up():
    ops = {f"aten::op{i}": Work(1, 1e6, 1e9, 1e-3, 2e-3) for i in range(5)}
    head, *rows, idle, whole = roofline.lines(Roofline(ops, 7, 10e-3), most=3)
    assert head.split()[0] == "op"
    assert [row.split()[0] for row in rows] == ["op0", "op1", "op2", "2"]
    assert rows[-1].split()[1:5] == ["others", "2", "4.000", "20.0%"]
    assert idle.split()[:5] == ["no", "kernel", "runs", "0", "10.000"]
    assert whole.split()[:6] == ["step,", "7", "launches", "5", "20.000", "100.0%"]
    assert whole.split()[-1] == "25%"
    record = {"ops": {"aten::op0": vars(Work(1))}, "launches": 2, "idle": 0.5}
    assert roofline.from_record(record).total().seconds == 0.5
