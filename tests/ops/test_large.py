"""More than 2^31 elements: offsets and counts that do not fit 32 bits."""

import pytest
import torch

import dlbackend  # noqa: F401

DEVICE = "ocl:0"
COUNT = 2**31 + 9

properties = torch.ocl.get_device_properties(0)
pytestmark = pytest.mark.skipif(
    min(properties.max_alloc, properties.total_memory // 4) < COUNT, reason="the device has too little memory"
)


@pytest.fixture(scope="module")
def x():
    made = torch.zeros(COUNT, dtype=torch.uint8, device=DEVICE)
    made[-9:] = torch.arange(1, 10, dtype=torch.uint8)
    made[2**31 - 1] = 50
    yield made
    del made
    torch.ocl.empty_cache()


def test_pointwise_and_copies(x):
    y = x + 1
    assert y[-9:].tolist() == list(range(2, 11))
    assert y[2**31 - 2 : 2**31].tolist() == [1, 51]
    y[1::2] = 7  # strided: every second element
    assert y[-4:].tolist() == [7, 8, 7, 10]


def test_reductions(x):
    assert x.sum().item() == 95
    assert x.max().item() == 50
    assert x.argmax().item() == 2**31 - 1
    assert x.count_nonzero().item() == 10


def test_indexing(x):
    assert x[torch.tensor([2**31 + 8, 2**31 - 1], device=DEVICE)].tolist() == [9, 50]
    assert x.narrow(0, 2**31, 9).cpu().tolist() == list(range(1, 10))
