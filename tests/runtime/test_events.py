"""Events: recording, waiting, querying, timing, and their errors."""

import time

import pytest
import torch
from common import runs_in_caller

import dlbackend  # noqa: F401

DEVICE = "ocl:0"


# Elements that keep the device busy for longer than the host takes to enqueue an op.
MANY = 1 << (27 if torch.ocl.get_device_properties(0).type == "gpu" else 20)
asynchronous = pytest.mark.skipif(runs_in_caller(), reason="commands run in the call that enqueues them")


def work(rounds=50):
    x = torch.ones(MANY, device=DEVICE)
    for _ in range(rounds):
        x = x * 1.0001
    return x


def test_never_recorded():
    event = torch.ocl.Event()
    assert event.query()
    event.synchronize()
    event.wait()


@asynchronous
def test_query_and_synchronize():
    work(1)
    torch.ocl.synchronize()
    event = torch.ocl.Event()
    work(200)
    event.record()
    done_at_once = event.query()
    event.synchronize()
    assert event.query()
    assert not done_at_once


def test_timing():
    work(2)
    torch.ocl.synchronize()
    start, end = torch.ocl.Event(enable_timing=True), torch.ocl.Event(enable_timing=True)
    began = time.perf_counter()
    start.record()
    work(60)
    end.record()
    end.synchronize()
    wall = (time.perf_counter() - began) * 1e3
    measured = start.elapsed_time(end)
    assert 0 < measured <= wall + 1
    assert measured > 0.3 * wall - 5
    assert end.elapsed_time(start) == pytest.approx(-measured)
    # later work on the timed stream is still right
    assert work(3)[0].item() == pytest.approx(1.0001**3)


def test_elapsed_time_errors():
    plain, timed = torch.ocl.Event(), torch.ocl.Event(enable_timing=True)
    other = torch.ocl.Event(enable_timing=True)
    with pytest.raises((RuntimeError, ValueError)):
        timed.elapsed_time(other)  # not recorded
    plain.record()
    timed.record()
    with pytest.raises((RuntimeError, ValueError)):
        plain.elapsed_time(timed)
    with pytest.raises((RuntimeError, ValueError)):
        timed.elapsed_time(other)


@asynchronous
def test_record_again_moves_the_mark():
    event = torch.ocl.Event()
    event.record()
    event.synchronize()
    work(200)
    event.record()
    assert not event.query()
    event.synchronize()
    assert event.query()


def test_event_of_another_stream_and_generic_event():
    side = torch.ocl.Stream()
    event = torch.Event(DEVICE)
    with torch.ocl.stream(side):
        x = work(30)
        event.record(side)
    event.wait(torch.ocl.current_stream())
    assert x.sub(x[0]).abs().max().item() == 0
    event.synchronize()
    torch.ocl.current_stream().record_event().synchronize()
