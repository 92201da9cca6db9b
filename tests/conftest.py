"""Workers of pytest-xdist share the cores: PyTorch's own CPU threads, which compute the references, and those of the
processes that tests start are as many as a worker's share. With all cores' threads in each of 15 workers a float64
training step of a net takes minutes.
"""

import gc
import os

import pytest

WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
if WORKERS > 1:  # read by OpenMP when torch is loaded, which is after this file
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // WORKERS)))
# Measuring rates would build a program in every process with an empty cache; tests of it ask for it.
os.environ.setdefault("DLBACKEND_RATES", "derived")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests come first: at the end a worker would be busy with one for minutes, and the others done."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collection_finish() -> None:
    """What is imported and collected by now stays: without looking at it again, at millions of objects, collecting
    garbage takes a tenth of the tests' time less.
    """
    gc.collect()
    gc.freeze()
