"""Each run of the tests has folders of its own for all that is cached: nothing is read from or written to the user's,
and all processes of a run share what was compiled once. Tests that need an empty cache make one in `tmp_path`.
DLBACKEND_TEST_FOLDER names a folder to keep between runs.

Workers of pytest-xdist share the cores: PyTorch's own CPU threads, which compute the references, and those of the
processes that tests start are as many as a worker's share. With all cores' threads in each of 15 workers a float64
training step of a net takes minutes.
"""

import atexit
import gc
import os
import shutil
import site
import tempfile
from pathlib import Path

import pytest

WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
if WORKERS > 1:  # read by OpenMP when torch is loaded, which is after this file
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // WORKERS)))


def use_own_folders() -> Path:
    """Points the caches of the library, of drivers and of what the tests import into the run's folder, and HOME to an
    empty folder there, which it returns. Workers and processes that tests start inherit all of it.
    """
    folder = os.environ.get("DLBACKEND_TEST_FOLDER", "")
    if not folder:
        folder = os.environ["DLBACKEND_TEST_FOLDER"] = tempfile.mkdtemp(prefix="dlbackend-tests-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    home = Path(folder, "home")
    home.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("PYTHONUSERBASE", site.getuserbase())  # packages there stay importable
    os.environ["HOME"] = str(home)
    os.environ["DLBACKEND_CACHE_DIR"] = f"{folder}/cache"
    os.environ["CUDA_CACHE_PATH"] = f"{folder}/nvidia"
    os.environ["MPLCONFIGDIR"] = f"{folder}/matplotlib"
    for name in ("POCL_CACHE_DIR", "XDG_CACHE_HOME"):
        os.environ.pop(name, None)
    return home


HOME = use_own_folders()


@pytest.fixture(autouse=True)
def nothing_in_home():
    """No test writes where a user's own files would be."""
    yield
    assert not os.listdir(HOME), "this test, or what it started, wrote to the home folder"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests come first: at the end a worker would be busy with one for minutes, and the others done."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collection_finish() -> None:
    """What is imported and collected by now stays: without looking at it again, at millions of objects, collecting
    garbage takes a tenth of the tests' time less.
    """
    gc.collect()
    gc.freeze()
