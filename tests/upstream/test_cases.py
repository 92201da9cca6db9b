"""A sample of the cases of scripts/op_db.py, chosen by a seed."""

import random

import pytest
import torch
from upstream import cases, comparing, listed, stable

SEED = 7
QUICK, SLOW = 10, 60
ALL = [case for case in cases.cases() if (case.database, case.dtype) != ("op_db", "complex64")]
CHOSEN = random.Random(SEED).sample(ALL, QUICK + SLOW)
LISTED = listed.read_list()


def test_there_are_cases_of_all_databases():
    found = {case.database for case in ALL}
    assert found == set(cases.DATABASES)
    assert len(ALL) > 8000
    kinds = {case.kind for case in ALL}
    assert kinds >= {"forward", "gradient", "out", "inplace", "noncontiguous", "train", "eval", "forloop", "fused"}


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.id, marks=[pytest.mark.slow] * (n >= QUICK)) for n, case in enumerate(CHOSEN)],
)
def test_sample(case):
    result = cases.run_case(case, samples=2)
    assert bool(result.causes) == (case.id in LISTED), result.causes


def compared(on_cpu, on_device, values=True):
    """compare() of a call with these results."""

    def call(copies):
        result = on_cpu if copies(torch.empty(1)).device.type == "cpu" else on_device
        if isinstance(result, Exception):
            raise result
        return [result()] if callable(result) else [result]

    return comparing.compare(call, values)


def test_what_differs_is_named():
    one = torch.ones(3)
    assert compared(one, one.to("ocl")) == ""
    assert "values of result 0" in compared(one, (2 * one).to("ocl"))
    assert compared(one, (2 * one).to("ocl"), values=False) == ""
    assert compared(one, torch.ones(2, device="ocl")).startswith("shape")
    assert compared(one, one.double().to("ocl")).startswith("dtype")
    assert compared(one, ValueError("no")) == "raises ValueError: no"
    assert compared(ValueError("no"), one.to("ocl")) == "takes what the CPU refuses (ValueError: no)"
    assert compared(ValueError("no"), ValueError("never")) == comparing.REFUSED
    assert compared(NotImplementedError(), one.to("ocl")) == comparing.REFUSED


def test_values_of_random_ops_are_not_compared():
    assert compared(lambda: torch.rand(9), lambda: torch.rand(9, device="ocl")) == ""
    assert compared(lambda: torch.rand(9), lambda: torch.rand(8, device="ocl")).startswith("shape")


def test_the_device_may_be_as_inexact_as_the_cpu_and_no_more():
    exact = torch.full((4,), 100.0, dtype=torch.float64)
    expected = exact.float() + 0.01
    assert comparing.as_exact_as_cpu(exact.float() - 0.02, expected, exact)
    assert not comparing.as_exact_as_cpu(exact.float() - 0.2, expected, exact)
    assert not comparing.as_exact_as_cpu(torch.tensor([100, 100, 100, torch.nan]), expected, exact)
    nothing = torch.full((4,), torch.nan)
    assert comparing.as_exact_as_cpu(exact.float() * (1 + 1e-6), nothing, exact)
    assert not comparing.as_exact_as_cpu(exact.float() * (1 + 1e-3), nothing, exact)


def test_copies_have_the_gaps_and_the_offset():
    x = torch.arange(40.0)[3:].as_strided((3, 4), (10, 2), 5)
    for device in ("cpu", comparing.DEVICE):
        there = comparing.copied(x, device)
        assert (there.device.type, there.stride(), there.storage_offset()) == (device[:3], (10, 2), 5)
        assert there.as_strided((40,), (1,), 0).cpu().equal(torch.arange(40.0))


def test_stable_forms_are_what_the_device_gives():
    x = torch.randint(3, (4, 20))
    for name, arguments in {"sort": (), "argsort": (), "msort": (), "topk": (5,), "kthvalue": (4,)}.items():
        actual = getattr(torch, name)(x.to(comparing.DEVICE), *arguments)
        expected = stable.STABLE[name](x, *arguments)
        for a, e in zip(comparing.tensors(actual), comparing.tensors(expected), strict=True):
            assert a is not None
            assert e is not None
            assert a.cpu().equal(e), name
