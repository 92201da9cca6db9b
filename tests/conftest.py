"""Each run of the tests has folders of its own for all that is cached: nothing is read from or written to the user's,
and all processes of a run share what was compiled once. Tests that need an empty cache make one in `tmp_path`.
DLBACKEND_TEST_FOLDER names a folder to keep between runs.

Workers of pytest-xdist share the cores: PyTorch's own CPU threads, which compute the references, and those of the
processes that tests start are as many as a worker's share. With all cores' threads in each of 15 workers a float64
training step of a net takes minutes.
"""

import atexit
import collections
import gc
import os
import shutil
import site
import tempfile
from collections.abc import Iterator
from pathlib import Path

import _pytest.runner
import drivers
import pytest

WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
if WORKERS > 1:  # read by OpenMP when torch is loaded, which is after this file
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // WORKERS)))
# Measuring rates would build a program in every process with an empty cache; tests of it ask for it.
os.environ.setdefault("DLBACKEND_RATES", "derived")
# Launches run what is optimised, as users' do in the end, and not first what is not (docs/programs.md); tests of that
# ask for it.
if "tiers=" not in os.environ.get("DLBACKEND_EMULATE", ""):
    os.environ["DLBACKEND_EMULATE"] = ",".join(filter(None, [os.environ.get("DLBACKEND_EMULATE"), "tiers=0"]))


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
    os.environ["TRITON_HOME"] = f"{folder}/triton"  # torch.compile asks it for devices, where it is installed
    os.environ["XDG_CACHE_HOME"] = f"{folder}/others"  # where PoCL writes when something but dlbackend asks for devices
    os.environ.pop("POCL_CACHE_DIR", None)
    return home


HOME = use_own_folders()
# pytest puts each test's name into the environment, whose array moves as it grows. Where a background thread has PoCL
# start its linker at that moment, the start fails with "Bad address", and PoCL ends the process.
_pytest.runner._update_current_test_var = lambda item, when: None


@pytest.fixture(autouse=True)
def nothing_in_home():
    """No test writes where a user's own files would be: neither to the home folder nor to the default cache folder."""
    yield
    default = HOME.parent / "others" / "dlbackend"
    written = [*os.listdir(HOME), *default.glob("*")]
    if written:
        shutil.rmtree(default, ignore_errors=True)  # the next test shall not be blamed
        shutil.rmtree(HOME)
        HOME.mkdir()
    assert not written, "this test, or what it started, wrote to the home folder"


@pytest.fixture
def background_at_rest():
    """For tests that count launches or bytes: solutions that earlier tests asked for are built and checked on a thread
    of their own, which launches and allocates too.
    """
    import dlbackend

    dlbackend.solvers.wait()


QUICK = "torch.float32"


def further_dtypes(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """The tests of functions that take a `dtype`, for others than float32; where a function is not tested with that,
    for others than its first. Each dtype has kernels of its own, half a second to compile.
    """
    tests = collections.defaultdict(list)
    for item in items:
        if "dtype" in getattr(getattr(item, "callspec", None), "params", {}):
            tests[item.nodeid.partition("[")[0]].append(item)
    for group in tests.values():
        dtypes = [str(item.callspec.params["dtype"]) for item in group]
        quick = QUICK if QUICK in dtypes else dtypes[0]
        yield from (item for item, dtype in zip(group, dtypes, strict=True) if dtype != quick)


def mark_quick_form(items: list[pytest.Item]) -> None:
    """The tests of the quick form (tests/drivers.py) get its marker. A file of it of which none is chosen is an error:
    its tests have other names by now.
    """
    chosen: collections.Counter[str] = collections.Counter()
    for item in items:
        is_chosen = drivers.is_chosen(item.nodeid)
        chosen[drivers.file_of(item.nodeid)] += is_chosen
        if is_chosen:
            item.add_marker(pytest.mark.drivers)
    lost = [path for path in drivers.QUICK_FORM if path in chosen and not chosen[path]]
    if lost:
        raise pytest.UsageError(f"tests/drivers.py chooses no test of {', '.join(lost)}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests with further dtypes are slow. Slow tests come first: at the end a worker would be busy with one for
    minutes, and the others done.
    """
    for item in further_dtypes(items):
        item.add_marker(pytest.mark.slow)
    if config.option.markexpr == "drivers":
        mark_quick_form(items)
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collection_finish() -> None:
    """Exempts all that is imported and collected by now from the garbage collector: without looking at these millions
    of objects again, tests take a tenth less time.
    """
    gc.collect()
    gc.freeze()
