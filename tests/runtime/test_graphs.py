"""Graphs that are captured and replayed: what a replay does, memory, random numbers, transfers. The cases are those of
PyTorch's own tests of CUDA's graphs, and what is particular to this device.
"""

import gc
import threading

import pytest
import torch
from common import DEVICE
from fresh_process import fresh_python
from graphs import capture
from torch.nn import functional as F

from dlbackend import kernel_stats


def test_nothing_runs_in_a_capture_and_a_replay_runs_all_of_it():
    x = torch.arange(1000.0, device=DEVICE)
    graph, y = capture(lambda: (x * 2 + 1).sqrt())  # noqa: PLW0108 (what it names is computed anew)
    assert not torch.ocl.is_current_stream_capturing()
    with torch.ocl.graph(again := torch.ocl.OclGraph()):
        assert torch.ocl.is_current_stream_capturing()
        assert torch.ocl.current_stream().is_capturing() if hasattr(torch.Stream, "is_capturing") else True
        x.add_(1)
    assert torch.equal(x.cpu(), torch.arange(1000.0))
    graph.replay()
    assert torch.equal(y.cpu(), (x * 2 + 1).sqrt().cpu())
    again.replay()
    again.replay()
    assert torch.equal(x.cpu(), torch.arange(1000.0) + 2)
    graph.replay()
    assert torch.equal(y.cpu(), (x * 2 + 1).sqrt().cpu())


def test_a_replay_builds_nothing_and_calls_no_op():
    x = torch.randn(64, 64, device=DEVICE)
    graph, y = capture(lambda: F.softmax(x @ x, -1).sum())
    before = kernel_stats()
    with torch.profiler.profile() as profile:
        graph.replay()
        torch.ocl.synchronize()
    assert kernel_stats()["compiled"] == before["compiled"]
    assert kernel_stats()["launches"] > before["launches"]
    assert [e.key for e in profile.key_averages() if e.key.startswith("aten::")] == []
    assert torch.equal(y.cpu(), F.softmax(x @ x, -1).sum().cpu())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("layout", ["dense", "strided", "broadcast", "empty", "scalar"])
def test_kinds_of_tensors(dtype, layout):
    base = torch.rand(12, 10) > 0.5 if dtype == torch.bool else torch.randint(-9, 9, (12, 10)).to(dtype)
    of = {
        "dense": lambda t: t,
        "strided": lambda t: t.t()[1:7, ::2],
        "broadcast": lambda t: t[:, :1].expand(12, 7),
        "empty": lambda t: t[:0],
        "scalar": lambda t: t[1, 1],
    }[layout]
    there = base.to(DEVICE)

    def work():
        x = of(there)
        return torch.where(x == x.clone(), x, x.flip(0) if x.dim() else x).contiguous() * 1

    if layout == "empty":
        graph = torch.ocl.OclGraph()
        with pytest.warns(UserWarning, match="graph is empty"), torch.ocl.graph(graph):
            y = work()
    else:
        graph, y = capture(work)
    there.copy_(base.roll(1, 0))
    graph.replay()
    expected = (of(base.roll(1, 0)) * 1).contiguous()
    assert torch.equal(y.cpu(), expected)


def test_replays_on_the_default_stream_and_on_others():
    x = torch.ones(100, device=DEVICE)
    graph, _ = capture(lambda: x.add_(1), warm=0)
    graph.replay()
    side = torch.ocl.Stream()
    side.wait_stream(torch.ocl.current_stream())
    with torch.ocl.stream(side):
        graph.replay()
    torch.ocl.current_stream().wait_stream(side)
    graph.replay()
    assert x.cpu().eq(4).all()


def test_streams_that_wait_for_the_capture_join_it():
    x, z = torch.ones(1000, device=DEVICE), torch.zeros(1000, device=DEVICE)
    first, second = torch.ocl.Stream(), torch.ocl.Stream()
    graph = torch.ocl.OclGraph()
    with torch.ocl.graph(graph, stream=first):
        y = x * 2
        second.wait_stream(first)
        with torch.ocl.stream(second):
            assert torch.ocl.is_current_stream_capturing()
            w = y + 1
        y.mul_(3)
        first.wait_stream(second)
        z.copy_(w + y)
    with torch.ocl.stream(second):
        assert not torch.ocl.is_current_stream_capturing()
    assert z.cpu().eq(0).all()
    graph.replay()
    assert z.cpu().eq(9).all()
    x.fill_(2)
    graph.replay()
    assert z.cpu().eq(17).all()


def test_other_threads_go_on_during_a_capture():
    """A capture is of one stream: another thread computes, reads and waits on its own."""
    results, errors = [], []
    begun, ended = threading.Event(), threading.Event()

    def other():
        try:
            begun.wait(60)
            for i in range(20):
                results.append((torch.full((100,), float(i), device=DEVICE) * 2).sum().item())
            torch.ocl.synchronize()
        except Exception as error:
            errors.append(error)
        finally:
            ended.set()

    thread = threading.Thread(target=other)
    thread.start()
    x = torch.ones(10, device=DEVICE)
    graph = torch.ocl.OclGraph()
    with torch.ocl.graph(graph, capture_error_mode="thread_local"):
        begun.set()
        assert ended.wait(60)
        y = x + 1
    thread.join()
    assert errors == []
    assert results == [200.0 * i for i in range(20)]
    graph.replay()
    assert y.cpu().eq(2).all()


# --- Memory


def test_memory_of_a_graph_is_no_one_elses():
    """What a capture freed is written by each replay, so that nobody else may get it."""
    x = torch.randn(1 << 16, device=DEVICE)
    graph, y = capture(lambda: (x * 2).exp().sum() + (x * 3).sin().sum())
    others = [torch.full((1 << 16,), float(i), device=DEVICE) for i in range(20)]
    graph.replay()
    assert all(o.eq(i).all() for i, o in enumerate(others))
    assert torch.equal(y.cpu(), ((x * 2).exp().sum() + (x * 3).sin().sum()).cpu())


def test_memory_is_given_back_when_the_graph_goes():
    gc.collect()
    torch.ocl.synchronize()
    torch.ocl.empty_cache()
    before = torch.ocl.memory_reserved()
    x = torch.zeros(1 << 20, device=DEVICE)
    graph = torch.ocl.OclGraph()
    with torch.ocl.graph(graph):
        y = (x + 1) * 2
    del x
    torch.ocl.empty_cache()
    kept = torch.ocl.memory_reserved()
    assert kept > before  # though nothing but y is in use
    graph.reset()
    assert y.shape == (1 << 20,)
    assert torch.ocl.memory_reserved() <= kept
    y.fill_(3)
    assert y.cpu().eq(3).all()
    del y
    torch.ocl.empty_cache()
    assert torch.ocl.memory_reserved() == before


def test_what_lives_at_the_end_outlives_the_graph():
    x = torch.ones(1000, device=DEVICE)
    graph, y = capture(lambda: x + 1)
    graph.replay()
    del graph
    gc.collect()
    fill = [torch.full((1000,), 7.0, device=DEVICE) for _ in range(10)]
    assert y.cpu().eq(2).all()
    assert len(fill) == 10


def test_inputs_that_are_freed_do_no_harm():
    """A replay after that computes with whatever the memory holds, and does not crash."""
    x = torch.ones(40 << 20, device=DEVICE, dtype=torch.uint8)  # a segment of its own
    graph, y = capture(x.sum)
    del x
    torch.ocl.empty_cache()
    graph.replay()
    torch.ocl.synchronize()
    assert y.shape == ()


def test_graphs_share_a_pool():
    pool = torch.ocl.graph_pool_handle()
    x = torch.randn(1 << 18, device=DEVICE)
    first, y = capture(lambda: x * 2 + 1, pool=pool)
    assert first.pool() == pool
    reserved = torch.ocl.memory_reserved()
    second, z = capture(lambda: (y * 3).sin_(), pool=first.pool())  # noqa: PLW0108
    assert torch.ocl.memory_reserved() == reserved  # what the first one freed was enough
    for _ in range(2):
        x.normal_()
        first.replay()
        second.replay()
        assert torch.equal(z.cpu(), ((x * 2 + 1) * 3).sin().cpu())
    first.reset()
    second.replay()
    assert torch.equal(z.cpu(), (y * 3).sin().cpu())


def test_eviction_of_programs_breaks_no_graph():
    result = fresh_python(
        """
import torch, dlbackend
x = torch.arange(100.0, device="ocl")
g = torch.ocl.OclGraph()
(x * 2).sin()
with torch.ocl.graph(g):
    y = (x * 2).sin()
for i in range(40):  # programs of their own
    torch.ocl.compile_kernel(f"kernel void k(global float* x) {{ x[0] = {i}; }}", "k")(torch.zeros(1, device="ocl"),
        global_size=1)
x.add_(1)
assert dlbackend.kernel_stats()["evicted"] > 0
g.replay()
torch.testing.assert_close(y.cpu(), (x.cpu() * 2).sin())
print("right")
""",
        DLBACKEND_MAX_PROGRAMS="8",
    )
    assert result.stdout == "right\n", result.stderr


# --- Random numbers


def test_replays_draw_what_eager_would():
    x = torch.ones(1000, device=DEVICE)

    def work():
        return F.dropout(x, 0.5), torch.randn(77, device=DEVICE), torch.randint(0, 9, (50,), device=DEVICE)

    graph, made = capture(work)
    torch.ocl.manual_seed(5)
    expected = [[t.cpu() for t in work()] for _ in range(3)]
    after = torch.ocl.get_rng_state()
    torch.ocl.manual_seed(5)
    for values in expected:
        graph.replay()
        assert all(torch.equal(t.cpu(), v) for t, v in zip(made, values, strict=True))
    assert torch.equal(torch.ocl.get_rng_state(), after)
    assert not torch.equal(expected[0][0], expected[1][0])


def test_a_capture_draws_nothing_itself():
    torch.ocl.manual_seed(3)
    state = torch.ocl.get_rng_state()
    with torch.ocl.graph(torch.ocl.OclGraph()):
        torch.rand(100, device=DEVICE)
    assert torch.equal(torch.ocl.get_rng_state(), state)


def test_generators_of_ones_own():
    generator = torch.Generator(DEVICE)
    graph = torch.ocl.OclGraph()
    graph.register_generator_state(generator)
    with torch.ocl.graph(graph):
        y = torch.rand(100, device=DEVICE, generator=generator)
    generator.manual_seed(9)
    expected = [torch.rand(100, device=DEVICE, generator=generator).cpu() for _ in range(2)]
    generator.manual_seed(9)
    for values in expected:
        graph.replay()
        assert torch.equal(y.cpu(), values)


def test_state_of_a_generator_cannot_be_read_or_set_in_a_capture():
    with torch.ocl.graph(torch.ocl.OclGraph()):
        torch.rand(10, device=DEVICE)
        with pytest.raises(RuntimeError, match="used in a capture"):
            torch.ocl.manual_seed(1)
        with pytest.raises(RuntimeError, match="used in a capture"):
            torch.ocl.get_rng_state()
    torch.ocl.manual_seed(1)
    torch.ocl.get_rng_state()


@pytest.mark.parametrize("apart", [False, True], ids=["one graph", "two graphs"])
def test_dropout_of_attention(apart):
    """The backward pass drops what the forward pass of the same replay did, also in a graph of its own."""
    q, k, v = (torch.randn(2, 2, 40, 32, device=DEVICE, requires_grad=True) for _ in range(3))
    grad = torch.randn(2, 2, 40, 32, device=DEVICE)

    def forward():
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.4)

    def both():
        out = forward()
        return out, *torch.autograd.grad(out, (q, k, v), grad)

    if apart:
        capture(both)
        first, second = torch.ocl.OclGraph(), torch.ocl.OclGraph()
        with torch.ocl.graph(first):
            out = forward()
        with torch.ocl.graph(second, pool=first.pool()):
            made = out, *torch.autograd.grad(out, (q, k, v), grad)
        graphs = [first, second]
    else:
        graph, made = capture(both)
        graphs = [graph]
    torch.ocl.manual_seed(11)
    expected = [[t.detach().cpu() for t in both()] for _ in range(2)]
    torch.ocl.manual_seed(11)
    for values in expected:
        for graph in graphs:
            graph.replay()
        for got, want in zip(made, values, strict=True):
            assert torch.equal(got.detach().cpu(), want)
    assert not torch.equal(expected[0][0], expected[1][0])


def test_beside_a_thread_that_launches():
    """Launches before and behind a replay go through the stream's thread, and keep their order."""
    result = fresh_python(
        """
import torch, dlbackend
x = torch.zeros(1000, device="ocl")
side = torch.ocl.Stream()
side.wait_stream(torch.ocl.current_stream())
with torch.ocl.stream(side):
    for _ in range(20):
        x.add_(1)
    g = torch.ocl.OclGraph()
    g.capture_begin()
    x.mul_(2)
    g.capture_end()
    for _ in range(20):  # not read between: all of it is on its way
        x.add_(1)
        g.replay()
    side.synchronize()
expected = 20.0
for _ in range(20):
    expected = (expected + 1) * 2
print(x.cpu().eq(expected).all().item())
""",
        DLBACKEND_ENQUEUE_THREAD="1",
    )
    assert result.stdout == "True\n", result.stderr
