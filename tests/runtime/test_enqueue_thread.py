"""The thread of a stream that launches (DLBACKEND_ENQUEUE_THREAD=1): order, late errors, profiles, exits."""

import pytest
from fresh_process import forked_python
from runtime.test_faulty_drivers import layer, library  # noqa: F401

PRELUDE = """
import contextlib, json, os, signal, threading, time, torch, dlbackend
x = torch.arange(1000, dtype=torch.float32).to("ocl")
def launches(): return dlbackend.kernel_stats()["launches"]
def threads():
    found = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(FileNotFoundError):  # it has ended
            if open(f"/proc/self/task/{task}/comm").read() == "ocl submits\\n": found.append(f"/proc/self/task/{task}")
    return found
def the_thread():  # which names itself when it first runs
    while not threads(): time.sleep(0.01)
    [thread] = threads()
    return thread
def many(y, count):
    for _ in range(count): y = y + 1
    return y
torch.ocl.synchronize()
"""


def run(code: str, **variables: str):
    done = forked_python(PRELUDE + code, DLBACKEND_ENQUEUE_THREAD="1", **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_starts_where_launches_follow_each_other():
    run(
        """
for _ in range(10): assert (x + 1).sum().item() == 500500  # the host waits every few launches
assert not threads()
many(x, 20)
the_thread()
""",
        DLBACKEND_COMPILE_PROCESSES="0",  # else it starts with the first launch that waits for a program
    )


def test_it_takes_no_signals():
    run("""
many(x, 20)
[blocked] = [line.split()[1] for line in open(f"{the_thread()}/status") if line.startswith("SigBlk")]
assert int(blocked, 16) >> (signal.SIGINT - 1) & 1
""")


def test_more_launches_than_the_ring_holds():
    run("""
before = launches()
y = many(x, 5000)
assert launches() - before == 5000
assert torch.equal(y.cpu(), torch.arange(1000.0) + 5000)
""")


def test_copies_and_events_keep_their_place():
    run("""
side, event = torch.ocl.Stream(), torch.ocl.Event()
host = torch.empty(1000).pin_memory()
for turn in range(20):
    y = torch.zeros(1000, device="ocl")
    for i in range(12):
        y = y + 1
        y.copy_(y * 2 if i % 3 else (y.cpu() * 2 if i == 6 else y.clone().mul_(2)))
    y[:500] = torch.full((500,), float(turn))
    event.record()
    with torch.ocl.stream(side):
        event.wait()
        z = many(y, 12)
        host.copy_(z, non_blocking=True)
    y.record_stream(side)
    del y
    torch.zeros(1000, device="ocl").add_(5)
    side.synchronize()
    expected = 0
    for i in range(12): expected = (expected + 1) * 2
    assert (host[:500] == turn + 12).all() and (host[500:] == expected + 12).all()
    many(x, 20)
    event.record()
    event.synchronize()
    assert event.query()
    many(x, 20)
    torch.ocl.synchronize()
    assert torch.ocl.current_stream().query()
""")


def test_several_callers_on_one_stream():
    run("""
def work(i, results):
    y = torch.full((3000,), float(i), device="ocl")
    for _ in range(200): y = y * 0.5 + i
    results[i] = y.cpu()
results = {}
callers = [threading.Thread(target=work, args=(i, results)) for i in range(6)]
[caller.start() for caller in callers]; [caller.join() for caller in callers]
for i in range(6):
    expected = torch.full((3000,), float(i))
    for _ in range(200): expected = expected * 0.5 + i
    torch.testing.assert_close(results[i], expected)
""")


def test_training_gives_what_callers_launching_gives():
    code = """
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten(),
                          torch.nn.LazyLinear(10)).to("ocl")
images, labels = torch.randn(4, 3, 12, 12).to("ocl"), torch.arange(4).to("ocl")
net(images)
torch.use_deterministic_algorithms(True)
optimizer = torch.optim.AdamW(net.parameters())
for _ in range(5):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(net(images), labels)
    loss.backward()
    optimizer.step()
print(json.dumps([loss.item()] + [p.sum().item() for p in net.parameters()]))
"""
    done = forked_python(PRELUDE + code, DLBACKEND_ENQUEUE_THREAD="0")
    assert run(code) == done.stdout


def test_buffers_and_programs_that_go_while_launches_are_on_their_way():
    run(
        """
for turn in range(10):
    big = torch.full((1 << 22,), float(turn), device="ocl")
    y = many(big, 15)
    del big
    torch.ocl.empty_cache()
    z = torch.full((1 << 22,), -1.0, device="ocl")
    assert y[0].item() == turn + 15 and y[-1].item() == turn + 15
    del y, z
    for op in (torch.sin, torch.cos, torch.exp, torch.tanh, torch.sqrt): many(op(x), 3)
assert torch.equal(many(x, 30).cpu(), torch.arange(1000.0) + 30)
""",
        DLBACKEND_MAX_PROGRAMS="4",
    )


def test_a_profile_has_every_launch():
    run("""
from torch.profiler import ProfilerActivity, profile
many(x, 50)
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as profiled:
    many(x, 30)
    torch.ocl.synchronize()
device = torch.autograd.DeviceType.PrivateUse1
kernels = [e for e in profiled.events() if e.device_type == device and "pointwise_add" in e.name]
assert len(kernels) == 30, len(kernels)
many(x, 30)
""")


WRONG_INDEX = """
bad = torch.tensor([5000]).to("ocl")
def raises(wait):
    try: wait()
    except IndexError as error: assert "index 5000 is out of bounds" in str(error); return True
    return False
"""


@pytest.mark.parametrize("before", [1, 4000], ids=["few launches", "many launches"])
def test_a_wait_for_less_does_not_lose_what_a_kernel_finds(before):
    """An event is waited for while the launch that finds a wrong index is still on its way."""
    run(
        WRONG_INDEX
        + f"""
x[bad[:0]], many(x, 20)
torch.ocl.synchronize()
event = torch.Event("ocl")
event.record()
many(x, {before})
y = x[bad]
assert raises(event.synchronize) or raises(torch.ocl.synchronize)
torch.ocl.synchronize()
assert y.cpu().numel() == 1
"""
    )


@pytest.mark.parametrize("thread", ["0", "1"])
def test_measuring_does_not_lose_what_a_kernel_finds(thread):
    done = forked_python(
        PRELUDE
        + WRONG_INDEX
        + """
torch.backends.ocl.benchmark = True
a = torch.randn(200, 200).to("ocl")
y = x[bad]
a @ a
assert raises(torch.ocl.synchronize)
""",
        DLBACKEND_ENQUEUE_THREAD=thread,
    )
    assert done.returncode == 0, done.stderr


def test_a_child_of_fork_is_told_at_once():
    run("""
y = many(x, 3000)
child = os.fork()
if child == 0:
    signal.alarm(30)
    try:
        x + 1
    except RuntimeError as error:
        os._exit(0 if "fork" in str(error) else 2)
    os._exit(1)
assert os.waitpid(child, 0)[1] == 0
assert y.cpu()[0].item() == 3000
""")


@pytest.mark.parametrize("ending", ["many(x, 300)", "many(x, 300); os.fork() or os._exit(0); os.wait()"])
def test_a_process_ends_with_launches_on_their_way(ending):
    run(ending)


def test_errors_of_launches_come_late_and_once(layer):  # noqa: F811
    found = layer(
        """
def many(y, count):
    for _ in range(count): y = y.exp()
many(x, 20)
torch.ocl.synchronize()
many(x, 10)  # the thread launches from now on
dlbackend.kernel_stats()  # waits for the thread
os.environ["FAULTY_CALL"] = "clEnqueueNDRangeKernel:2:-5"
errors = []
for action in (lambda: x.exp() is x.sin(), torch.ocl.synchronize, torch.ocl.synchronize, lambda: (x + 1).cpu()):
    try:
        action()
        errors.append("")
    except RuntimeError as error:
        errors.append(str(error))
print(json.dumps(errors))
""",
        DLBACKEND_ENQUEUE_THREAD="1",
    )
    assert found[0] == found[2] == found[3] == ""
    assert "clEnqueueNDRangeKernel failed with CL_OUT_OF_RESOURCES (-5) for kernel pointwise_sin" in found[1]


def test_memory_that_a_launch_lacks(layer):  # noqa: F811
    name = layer(
        """
def many(count):
    for _ in range(count): x.exp()
many(20)
dlbackend.kernel_stats()  # waits for the thread
os.environ["FAULTY_CALL"] = "clEnqueueNDRangeKernel:1:-4"
try:
    x.exp()
    x.cpu()
except torch.OutOfMemoryError as error:
    print(json.dumps(str(error)))
""",
        DLBACKEND_ENQUEUE_THREAD="1",
    )
    assert "pointwise_exp" in name


def test_memory_that_an_earlier_launch_lacks_is_not_taken_for_an_ops_own(layer):  # noqa: F811
    """A sum over rows can be computed by a solver that needs less memory, and would not tell then."""
    found = layer(
        """
a = torch.randn(64, 20000).to("ocl")
for _ in range(30): a.sum(), x.exp(), x.sin()
dlbackend.solvers.wait()
for _ in range(12): x.exp()
dlbackend.kernel_stats()  # waits for the thread
os.environ["FAULTY_CALL"] = "clEnqueueNDRangeKernel:1:-4"
y = x.sin()
dlbackend.kernel_stats()
del os.environ["FAULTY_CALL"]
try:
    a.sum()
    torch.ocl.synchronize()
    print(json.dumps(""))
except torch.OutOfMemoryError as error:
    print(json.dumps(str(error)))
""",
        DLBACKEND_ENQUEUE_THREAD="1",
        DLBACKEND_FIND_MODE="fast",
    )
    assert "pointwise_sin" in found
