"""torch.profiler and torch.autograd.profiler: the device's kernels, their times, ops and solvers, and memory."""

import json
import threading
import time

import pytest
import torch
from fresh_process import forked_python
from torch.profiler import ProfilerActivity, profile

import dlbackend
from dlbackend import _C

DEVICE = "ocl:0"
BOTH = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]
IS_GPU = torch.ocl.get_device_properties(0).type == "gpu"


def on_device(profiled):
    """The device's rows of a profile's averages, by name."""
    rows = profiled.key_averages()
    return {row.key: row for row in rows if row.device_type == torch.autograd.DeviceType.PrivateUse1}


def op(profiled, name):
    return next(row for row in profiled.key_averages() if row.key == name)


def trace(profiled, tmp_path):
    """The complete events of the exported trace, by category."""
    path = tmp_path / "trace.json"
    profiled.export_chrome_trace(str(path))
    events = {}
    for event in json.loads(path.read_text())["traceEvents"]:
        events.setdefault(event.get("cat", event["ph"]), []).append(event)
    return events


def is_profiling(stream=0):
    return _C.stream_is_profiling(0, stream)


def test_kernels_have_names_times_and_ops():
    x = torch.randn(1 << 16, device=DEVICE)
    with profile(activities=BOTH) as p:
        for _ in range(5):
            x.relu()
    kernel = on_device(p)["pointwise_relu"]
    assert kernel.count == 5
    assert kernel.self_device_time_total > 0
    relu = op(p, "aten::relu")
    assert relu.device_time_total == pytest.approx(kernel.self_device_time_total)
    assert op(p, "clEnqueueNDRangeKernel").count == 5
    assert "OCL total" in p.key_averages().table()


def test_device_time_is_that_of_a_busy_loop():
    size = 4096 if IS_GPU else 512
    a = torch.randn(size, size, device=DEVICE)
    torch.backends.ocl.find_mode, mode = "fast", torch.backends.ocl.find_mode
    try:
        a @ a
        torch.ocl.synchronize()
        with profile(activities=BOTH) as p:
            began = time.perf_counter()
            for _ in range(20):
                a @ a
            torch.ocl.synchronize()
            wall = (time.perf_counter() - began) * 1e6
    finally:
        torch.backends.ocl.find_mode = mode
    total = sum(row.self_device_time_total for row in on_device(p).values())
    assert 0.5 * wall < total <= 1.02 * wall  # a loaded host leaves gaps between kernels
    assert op(p, "aten::mm").device_time_total >= 0.99 * total


def test_solvers_kernels_carry_its_name(tmp_path):
    x, w = torch.randn(2, 3, 8, 8, device=DEVICE), torch.randn(4, 3, 3, 3, device=DEVICE)
    dlbackend.solvers.force("conv_fwd:reference")
    try:
        with profile(activities=BOTH) as p:
            torch.nn.functional.conv2d(x, w)
    finally:
        dlbackend.solvers.force("")
    (name,) = [name for name in on_device(p) if "[reference]" in name]
    own = on_device(p)[name].device_time_total
    assert op(p, "ocl::conv_fwd::reference").device_time_total == pytest.approx(own)
    assert op(p, "aten::conv2d").device_time_total >= own
    (kernel,) = [e for e in trace(p, tmp_path)["kernel"] if e["name"] == name]
    assert kernel["args"]["solver"] == "reference"


def test_trace_has_a_track_of_the_device(tmp_path):
    x = torch.randn(1 << 16).to(DEVICE)
    side = torch.ocl.Stream()
    torch.ocl.synchronize()
    with profile(activities=BOTH) as p:
        x.exp()
        with torch.ocl.stream(side):
            x.sin()
        side.synchronize()
        x.cpu()
        x.zero_()
    events = trace(p, tmp_path)
    kernels = {e["name"]: e for e in events["kernel"]}
    exp, sin = kernels["pointwise_exp"], kernels["pointwise_sin"]
    assert (exp["pid"], exp["tid"]) == (0, 0)
    assert (sin["pid"], sin["tid"]) == (0, side.stream_id)
    assert exp["args"]["global size"][0] > 0
    (read,) = [e for e in events["gpu_memcpy"] if e["name"] == "Memcpy DtoH"]
    assert read["args"]["bytes"] == x.numel() * 4
    labels = {e["args"]["name"] for e in events["M"] if e["name"] == "process_name" and e["pid"] == 0}
    assert "ocl:0" in labels

    # A kernel starts after it was enqueued, the op encloses the enqueueing, and arrows join the two.
    host = {e["args"]["correlation"]: e for e in events["privateuse1_runtime"]}
    ops = {e["args"]["External id"]: e for e in events["cpu_op"]}
    slack = 100  # us: how well the two clocks are known
    for event in events["kernel"] + events["gpu_memcpy"]:
        enqueued = host[event["args"]["correlation"]]
        assert event["ts"] >= enqueued["ts"] - slack
        caller = ops[event["args"]["External id"]]
        assert caller["ts"] <= enqueued["ts"] + 1
        assert enqueued["ts"] + enqueued["dur"] <= caller["ts"] + caller["dur"] + 1
    assert ops[exp["args"]["External id"]]["name"] == "aten::exp"
    arrows = {e["id"] for e in events["ac2g"] if e["ph"] == "f"}
    assert {exp["args"]["correlation"], sin["args"]["correlation"]} <= arrows
    end = max(e["ts"] + e["dur"] for e in events["kernel"] + events["gpu_memcpy"])
    last = max(e["ts"] + e["dur"] for e in events["cpu_op"] + events["privateuse1_runtime"])
    assert end <= last + 1e6


def test_backward_and_nested_ops():
    net = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).to(DEVICE)
    x = torch.randn(32, 16, device=DEVICE)
    with profile(activities=BOTH) as p:
        with torch.profiler.record_function("forward"):
            loss = net(x).square().mean()
        loss.backward()
    total = sum(row.self_device_time_total for row in on_device(p).values())
    backward = op(p, "autograd::engine::evaluate_function: AddmmBackward0")
    assert 0 < backward.device_time_total < total
    assert 0 < op(p, "forward").device_time_total < total
    # Every kernel belongs to an op, and is counted once.
    own = sum(row.self_device_time_total for row in p.key_averages() if row.key not in on_device(p))
    assert own == pytest.approx(total)


def test_twice_and_off_leaves_no_profiling_queue():
    script = """
import torch
from torch.profiler import ProfilerActivity, profile
from dlbackend import _C
x = torch.randn(1000, device="ocl:0")
side = torch.ocl.Stream()
with torch.ocl.stream(side):
    x + 1
for _ in range(2):
    assert not _C.stream_is_profiling(0, 0)
    with profile(activities=[ProfilerActivity.CPU]):
        x + 1
        assert not _C.stream_is_profiling(0, 0)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as p:
        assert _C.stream_is_profiling(0, 0) and _C.stream_is_profiling(0, side.stream_id)
        late = torch.ocl.Stream()
        with torch.ocl.stream(late):
            x * 2
        x * 3
    (kernel,) = [row for row in p.key_averages() if row.key == "pointwise_mul"]
    assert kernel.count == 2, kernel
    for stream in (0, side.stream_id, late.stream_id):
        assert not _C.stream_is_profiling(0, stream)
# A timed event keeps its stream on a queue with times, also when it is recorded while profiling.
with profile(activities=[ProfilerActivity.PrivateUse1]):
    event = torch.ocl.Event(enable_timing=True)
    event.record()
assert _C.stream_is_profiling(0, 0) and not _C.stream_is_profiling(0, side.stream_id)
with profile(activities=[ProfilerActivity.PrivateUse1]) as p:
    x * 3
assert _C.stream_is_profiling(0, 0)
assert [row.key for row in p.key_averages() if row.self_device_time_total] == ["pointwise_mul"]
end = torch.ocl.Event(enable_timing=True)
end.record()
end.synchronize()
assert event.elapsed_time(end) > 0
print("fine")
"""
    result = forked_python(script)
    assert "fine" in result.stdout, result.stderr


def test_work_in_flight_keeps_its_order():
    many = 1 << (24 if IS_GPU else 18)
    x = torch.zeros(many, device=DEVICE)
    event = torch.ocl.Event()
    for _ in range(60):
        x += 1
    event.record()
    with profile(activities=BOTH) as p:
        for _ in range(60):
            x += 1
        event.synchronize()
        side = torch.ocl.Stream()
        side.wait_stream(torch.ocl.current_stream())
        with torch.ocl.stream(side):
            doubled = x * 2
        x.record_stream(side)
    for _ in range(60):
        x += 1
    assert x.eq(180).all().item()
    assert doubled.eq(240).all().item()
    assert on_device(p)["pointwise_add_alpha"].count == 60


def test_threads_keep_their_order_while_profiles_come_and_go():
    stop, wrong, rounds = threading.Event(), [], []

    def work():
        x = torch.zeros(1000, device=DEVICE)
        while not stop.is_set():
            x.zero_()
            for _ in range(30):
                x.add_(1).mul_(1)
            rounds.append(1)
            if not x.eq(30).all().item():
                wrong.append(x.cpu())

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(25):
            with profile(activities=[ProfilerActivity.PrivateUse1]):
                time.sleep(0.01)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert rounds
    assert not wrong


def test_profile_memory():
    with profile(activities=BOTH, profile_memory=True) as p:
        x = torch.empty(1 << 20, device=DEVICE)
        del x
    assert op(p, "aten::empty").self_device_memory_usage == 4 << 20
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as host:
        torch.empty(1 << 18, device=DEVICE)
    assert op(host, "aten::empty").self_device_memory_usage == 1 << 20
    freed = [e for e in p.events() if e.name == "[memory]" and e.device_memory_usage == -(4 << 20)]
    assert len(freed) == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA beside")
def test_beside_cuda():
    """Launches of both in one trace have ids of their own, without which PyTorch refuses the trace."""
    torch.zeros(4, device="cuda").add_(1)
    with profile(activities=[*ProfilerActivity.__members__.values()]) as profiled:
        for _ in range(200):
            torch.zeros(4, device="cuda").add_(1)
            torch.zeros(4, device=DEVICE).add_(1)
    assert sum(row.count for row in on_device(profiled).values()) >= 200


def test_schedule():
    x = torch.randn(1000, device=DEVICE)
    seen = []
    with profile(
        activities=BOTH,
        schedule=torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=2),
        on_trace_ready=lambda p: seen.append(on_device(p)["pointwise_mul"].count),
    ) as p:
        for _ in range(8):
            x * 2
            p.step()
    assert seen == [2, 2]


@pytest.mark.parametrize("kineto", [False, True])
def test_autograd_profiler(kineto):
    x = torch.randn(1 << 16, device=DEVICE)
    x.exp()
    torch.ocl.synchronize()
    began = time.perf_counter()
    with torch.autograd.profiler.profile(use_device="ocl", use_kineto=kineto) as p:
        for _ in range(5):
            x.exp()
        torch.ocl.synchronize()
    wall = (time.perf_counter() - began) * 1e6
    assert 0 < op(p, "aten::exp").self_device_time_total <= wall
