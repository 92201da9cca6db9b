"""What a capture refuses, what it leaves behind, errors of kernels in replays, and calls in the wrong order."""

import gc

import pytest
import torch
from common import DEVICE
from graphs import REFUSED, capture
from torch.nn import functional as F


def test_pinned_memory_can_be_copied_from_and_to():
    here, back = torch.arange(10.0).pin_memory(), torch.zeros(10).pin_memory()
    x = torch.zeros(10, device=DEVICE)
    graph = torch.ocl.OclGraph()
    with torch.ocl.graph(graph):
        x.copy_(here, non_blocking=True)
        back.copy_(x * 2, non_blocking=True)
    for i in range(2):
        here.fill_(i + 1)
        graph.replay()
        torch.ocl.synchronize()
        assert back.eq(2 * (i + 1)).all()


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("item", lambda x: x.sum().item()),
        ("cpu", lambda x: x.cpu()),
        ("condition", lambda x: bool(x[0] > 0)),
        ("from the host", lambda x: x.copy_(torch.ones(10))),
        ("tensor", lambda x: torch.tensor([1.0], device=DEVICE)),
        ("synchronize", lambda x: torch.ocl.synchronize()),
        ("stream", lambda x: torch.ocl.current_stream().synchronize()),
        ("query", lambda x: torch.ocl.current_stream().query()),
        ("nonzero", lambda x: x.nonzero()),
    ],
)
def test_what_needs_the_host_is_refused(name, what):
    x = torch.ones(10, device=DEVICE)
    graph = torch.ocl.OclGraph()
    with pytest.raises(RuntimeError, match=REFUSED), torch.ocl.graph(graph):
        what(x + 1)
    assert not torch.ocl.is_current_stream_capturing()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()
    assert (x + 1).sum().item() == 20  # the device is as usable as before
    with torch.ocl.graph(graph):
        y = x + 1
    graph.replay()
    assert y.cpu().eq(2).all()


def test_a_refusal_that_is_caught_still_voids_the_capture():
    x = torch.ones(10, device=DEVICE)
    graph = torch.ocl.OclGraph()

    def go_on():
        with torch.ocl.graph(graph):
            y = x + 1
            with pytest.raises(RuntimeError, match=REFUSED):
                y.sum().item()

    with pytest.raises(RuntimeError, match="holds no graph"):
        go_on()


def test_events_of_a_capture_cannot_be_waited_for():
    event = torch.ocl.Event()
    with torch.ocl.graph(torch.ocl.OclGraph()):
        torch.ones(3, device=DEVICE).add_(1)
        event.record()
        with pytest.raises(RuntimeError, match="recorded in a capturing stream"):
            event.query()
    with pytest.raises(RuntimeError, match="recorded in a capturing stream"):
        event.synchronize()
    event.record()
    event.synchronize()
    assert event.query()


def test_errors_that_kernels_find_are_reported_after_a_replay():
    table, index = torch.randn(10, 4, device=DEVICE), torch.tensor([1, 2], device=DEVICE)
    graph, y = capture(lambda: F.embedding(index, table))
    torch.ocl.synchronize()
    graph.replay()
    torch.ocl.synchronize()
    index.fill_(77)
    graph.replay()
    with pytest.raises(IndexError, match="77"):
        torch.ocl.synchronize()
    index.fill_(3)
    side = torch.ocl.Stream()
    torch.ocl.synchronize()
    with torch.ocl.stream(side):
        graph.replay()
        side.synchronize()
        index.fill_(55)
        graph.replay()
        with pytest.raises(IndexError, match="55"):
            side.synchronize()
    index.fill_(4)
    graph.replay()
    assert torch.equal(y.cpu(), table[4].expand(2, 4).cpu())


def test_calls_in_the_wrong_order():
    graph = torch.ocl.OclGraph()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.pool()
    with pytest.raises(RuntimeError, match="without capture_begin"):
        graph.capture_end()
    with pytest.raises(RuntimeError, match="non-default stream"):
        graph.capture_begin()
    with pytest.raises(RuntimeError, match="Unknown capture error mode"):
        graph.capture_begin(capture_error_mode="strict")
    x = torch.ones(3, device=DEVICE)
    with torch.ocl.graph(graph):
        y = x + 1
        with pytest.raises(RuntimeError, match="already"):
            torch.ocl.OclGraph().capture_begin()
    with pytest.raises(RuntimeError, match="already owns a captured graph"), torch.ocl.graph(graph):
        pass
    graph.replay()
    assert y.cpu().eq(2).all()
    graph.reset()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()


def test_a_capture_ends_where_it_began():
    graph, side = torch.ocl.OclGraph(), torch.ocl.Stream()
    x = torch.ones(3, device=DEVICE)
    with torch.ocl.stream(side):
        graph.capture_begin()
        y = x + 1
    with pytest.raises(RuntimeError, match="same stream it began on"):
        graph.capture_end()
    with torch.ocl.stream(side):
        graph.capture_end()
    graph.replay()
    assert y.cpu().eq(2).all()


def test_a_graph_that_goes_while_it_captures_leaves_the_stream_usable():
    side = torch.ocl.Stream()
    with torch.ocl.stream(side):
        graph = torch.ocl.OclGraph()
        graph.capture_begin()
        torch.ones(3, device=DEVICE).add_(1)
        del graph
        gc.collect()
        assert not torch.ocl.is_current_stream_capturing()
        assert torch.ones(3, device=DEVICE).add_(1).sum().item() == 6


def test_a_replay_within_a_capture_is_refused():
    x = torch.ones(3, device=DEVICE)
    graph, _ = capture(lambda: x + 1)
    with pytest.raises(RuntimeError, match=REFUSED), torch.ocl.graph(torch.ocl.OclGraph()):
        graph.replay()


def test_debug_dump_names_the_kernels(tmp_path):
    x = torch.ones(30, device=DEVICE)
    graph, _ = capture(x.exp)
    graph.enable_debug_mode()
    graph.debug_dump(str(tmp_path / "graph.txt"))
    assert "exp" in (tmp_path / "graph.txt").read_text()


@pytest.mark.skipif(not hasattr(torch.accelerator, "Graph"), reason="newer versions of PyTorch have it")
def test_torch_accelerator_graph():
    x = torch.zeros(100, device=DEVICE)
    stream = torch.Stream(DEVICE)
    graph = torch.accelerator.Graph()
    with stream, graph:
        x += 1
    graph.replay()
    graph.replay()
    torch.accelerator.synchronize()
    assert x.cpu().eq(2).all()
    other = torch.accelerator.Graph(pool=graph.pool())
    with stream, other:
        x *= 3
    other.replay()
    assert x.cpu().eq(6).all()
