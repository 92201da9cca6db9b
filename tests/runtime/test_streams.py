"""Streams: independence, ordering by events, the current stream of each thread, queries and waiting."""

import threading

import pytest
import torch
from common import runs_in_caller

import dlbackend  # noqa: F401

DEVICE = "ocl:0"


# Elements that keep the device busy for longer than the host takes to enqueue an op.
MANY = 1 << (27 if torch.ocl.get_device_properties(0).type == "gpu" else 20)
asynchronous = pytest.mark.skipif(runs_in_caller(), reason="commands run in the call that enqueues them")


def long_work(x, rounds=60):
    for _ in range(rounds):
        x = x * 1.0001 + 0.1
    return x


def test_default_and_side_streams():
    default = torch.ocl.default_stream()
    assert torch.ocl.current_stream() == default
    assert default.stream_id == 0
    side = torch.ocl.Stream()
    assert side != default
    assert side.device == torch.device(DEVICE)
    with torch.ocl.stream(side):
        assert torch.ocl.current_stream() == side
        with torch.ocl.stream(None):
            assert torch.ocl.current_stream() == side
        a = torch.ones(10, device=DEVICE)
    assert torch.ocl.current_stream() == default
    side.synchronize()
    assert a.sum().item() == 10
    torch.ocl.set_stream(side)
    try:
        assert torch.ocl.current_stream() == side
        assert torch.accelerator.current_stream() == side
    finally:
        torch.ocl.set_stream(default)


def test_streams_of_the_pool_are_distinct():
    assert len({torch.ocl.Stream().stream_id for _ in range(32)}) == 32
    assert 0 not in {torch.ocl.Stream().stream_id for _ in range(40)}


def test_synchronize_waits_for_all_streams_before_it_raises():
    x, i = torch.ones(3, device=DEVICE), torch.tensor([5], device=DEVICE)
    many = torch.ones(MANY, device=DEVICE)
    torch.ocl.synchronize()
    side = torch.ocl.Stream()
    with torch.ocl.stream(side):
        torch.nn.functional.embedding(i, torch.ones(3, 2, device=DEVICE))
        long_work(many)
    x.index_select(0, i)
    with pytest.raises(IndexError, match="index_select"):
        torch.ocl.synchronize()
    assert side.query()
    torch.ocl.synchronize()  # the side stream's error was the second, and is not raised later


@asynchronous
def test_a_side_stream_does_not_wait_for_the_default_one():
    """One that did would never be ready first; where all cores are busy, one that does not may be late sometimes."""
    x = torch.ones(MANY, device=DEVICE)
    side = torch.ocl.Stream()
    with torch.ocl.stream(side):
        y = torch.ones(8, device=DEVICE) + 1

    def is_first() -> bool:
        torch.ocl.synchronize()
        long = long_work(x, 400)
        with torch.ocl.stream(side):
            z = y + 1
            side.synchronize()
            default_still_busy = not torch.ocl.default_stream().query()
        assert z.tolist() == [3.0] * 8
        del long
        return default_still_busy

    assert any(is_first() for _ in range(3)), "the side stream waited for the default stream's work"


def test_wait_event_orders_streams():
    side = torch.ocl.Stream()
    for _ in range(5):
        x = torch.zeros(1 << 18, device=DEVICE)
        side.wait_stream(torch.ocl.current_stream())
        with torch.ocl.stream(side):
            x.copy_(long_work(x, 20))
            done = side.record_event()
        torch.ocl.current_stream().wait_event(done)
        y = x + 1  # reads what the side stream wrote
        expected = long_work(torch.zeros(4), 20) + 1
        torch.testing.assert_close(y[:4].cpu(), expected)
        torch.testing.assert_close(y[-4:].cpu(), expected)


def test_wait_stream():
    side = torch.ocl.Stream()
    x = torch.arange(1 << 18, dtype=torch.float32, device=DEVICE)
    side.wait_stream(torch.ocl.current_stream())
    with torch.ocl.stream(side):
        y = long_work(x, 30)
    torch.ocl.current_stream().wait_stream(side)
    total = (y - long_work(x, 30)).abs().max()
    assert total.item() == 0


@asynchronous
def test_query_and_synchronize():
    stream = torch.ocl.current_stream()
    x = long_work(torch.ones(MANY, device=DEVICE), 200)
    busy = not stream.query()
    stream.synchronize()
    assert busy
    assert stream.query()
    assert x.shape == (MANY,)
    torch.ocl.synchronize()
    torch.accelerator.synchronize()


def test_current_stream_is_per_thread():
    side = torch.ocl.Stream()
    seen = []
    with torch.ocl.stream(side):
        thread = threading.Thread(target=lambda: seen.append(torch.ocl.current_stream()))
        thread.start()
        thread.join()
    assert seen == [torch.ocl.default_stream()]


def test_stream_identity_round_trip():
    side = torch.ocl.Stream()
    again = torch.ocl.Stream(stream_id=side.stream_id, device_index=side.device_index, device_type=side.device_type)
    assert again == side
    assert hash(again) == hash(side)
    generic = torch.Stream(DEVICE)
    with generic:
        a = torch.ones(3, device=DEVICE)
    generic.synchronize()
    assert a.tolist() == [1, 1, 1]


def test_backward_runs_on_the_streams_of_forward():
    side = torch.ocl.Stream()
    x = torch.ones(1000, device=DEVICE, requires_grad=True)
    side.wait_stream(torch.ocl.current_stream())
    with torch.ocl.stream(side):
        y = (x * 3).exp()
    torch.ocl.current_stream().wait_stream(side)
    (y * 2).sum().backward()
    expected = torch.full((1000,), 6 * torch.tensor(3.0).exp().item())
    torch.testing.assert_close(x.grad.cpu(), expected)


def test_bad_stream_arguments():
    with pytest.raises((RuntimeError, ValueError)):
        torch.ocl.Stream("cpu")
    with pytest.raises(RuntimeError, match="does not exist"):
        torch.ocl.Stream("ocl:99")
    with pytest.raises((RuntimeError, ValueError)):
        torch.ocl.current_stream("cuda")
