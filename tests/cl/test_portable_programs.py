"""Programs of packs that hold for other versions of a driver and for other GPUs: simulated by an OpenCL layer
(portable_layer.c) whose program binaries look like NVIDIA's.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from fresh_process import fresh_python
from layers import build_layer

from dlbackend import _C

SOURCE = Path(__file__).parents[1] / "portable_layer.c"

# Programs of one kernel and of several.
CODE = """
import torch, dlbackend
x = torch.ones(99, device="ocl:0")
assert (x + x).cumsum(0).sum().item() == 9900
stats = dlbackend.kernel_stats()
print(int(stats["compiled"]), int(stats["loaded"]), int(stats["loaded_from_pack"]))
"""


@pytest.fixture(scope="module")
def layer(tmp_path_factory):
    """The variables that have a process use the layer."""
    return {"OPENCL_LAYERS": build_layer(SOURCE, tmp_path_factory.mktemp("layer"))}


@pytest.fixture(scope="module")
def run(layer, tmp_path_factory):
    """Runs code, as a GPU of that target with that driver, on an empty cache of its own.

    PoCL's own cache is shared: it makes the runs short and has no part in what is counted.
    """
    driver_cache = tmp_path_factory.mktemp("pocl")

    def call(code=CODE, packs="", driver="580.10", target=90, cache=None, **variables):
        fixed = {"PORTABLE_DRIVER": driver, "PORTABLE_TARGET": str(target), "POCL_CACHE_DIR": str(driver_cache)}
        folder = str(cache or tmp_path_factory.mktemp("cache"))
        done = fresh_python(code, DLBACKEND_CACHE_DIR=folder, DLBACKEND_PACKS=str(packs), **layer, **fixed, **variables)
        assert done.returncode == 0, done.stderr
        call.stderr = done.stderr
        return tuple(map(int, done.stdout.split()))

    if not run_has_layer(call):
        pytest.skip("this OpenCL loader takes no layers")
    return call


def run_has_layer(call):
    return call("from dlbackend import _C; print(int(_C.device_properties(0).driver_version == '580.10'))") == (1,)


EXPORT = """
import sys
from dlbackend.__main__ import main
sys.argv = ["dlbackend", "cache", "export", "--programs", "--any-driver", {pack!r}]
sys.stdout = sys.stderr
print(main(), file=sys.__stdout__)
"""


@pytest.fixture(scope="module")
def pack(run, tmp_path_factory):
    """A pack of what CODE compiled. It has the number of programs as `programs`."""
    folder = tmp_path_factory.mktemp("made")
    compiled, loaded, _ = run(cache=folder / "cache")
    assert compiled >= 3
    assert loaded == 0
    path = folder / "made.pack"
    assert run(EXPORT.format(pack=str(path)), cache=folder / "cache") == (0,)
    run.programs = compiled
    return path


@pytest.mark.parametrize(("driver", "target"), [("580.10", 90), ("581", 91), ("1000.1", 121)])
def test_the_same_and_later_drivers_and_gpus_compile_nothing(run, pack, driver, target):
    assert run(packs=pack, driver=driver, target=target) == (0, run.programs, run.programs)
    assert run.stderr == ""


@pytest.mark.parametrize(("driver", "target"), [("580.9.7", 90), ("580.10", 89)])
def test_earlier_drivers_and_gpus_compile(run, pack, driver, target):
    assert run(packs=pack, driver=driver, target=target) == (run.programs, 0, 0)
    assert run.stderr == ""


def test_a_driver_that_refuses_compiles(run, pack):
    refused = run(packs=pack, PORTABLE_REFUSES="1", DLBACKEND_VERBOSE="1")
    assert refused == (run.programs, 0, 0)
    assert run.stderr.count("the driver does not take it") == run.programs


def test_other_drivers_do_not_look(pack, tmp_path):
    done = fresh_python(CODE, DLBACKEND_CACHE_DIR=str(tmp_path), DLBACKEND_PACKS=str(pack))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[1:] == ["0", "0"]
    assert done.stderr == ""


def test_texts_that_are_something_else(run, pack, tmp_path):
    """Sound entries under the right keys whose content is not what the key says are left out."""
    entries = [_C.Pack(str(pack)).read(index) for index in range(len(_C.Pack(str(pack)).items()))]
    contents = (
        b"",
        b"\n",
        b"no text",
        b"dlbackend-ptx 1 580.10",
        b"dlbackend-ptx 1 580.10\n.version 8.0\n.target sm_999\n",
    )
    for number, content in enumerate(contents):
        writer = _C.PackWriter(str(tmp_path / f"{number}.pack"))
        for _, kind, key, payload in entries:
            writer.add(kind, key, content if number < 4 else content + payload)
        writer.finish()
    foreign = ":".join(str(tmp_path / f"{number}.pack") for number in range(len(contents)))
    assert run(packs=foreign) == (run.programs, 0, 0)
    assert run.stderr == ""
    assert run(packs=f"{foreign}:{pack}") == (0, run.programs, run.programs)


def test_damaged_packs_are_left_out(run, pack, tmp_path):
    content = bytearray(pack.read_bytes())
    for at in range(150, len(content), 997):
        content[at] ^= 0x10
    damaged = tmp_path / "damaged.pack"
    damaged.write_bytes(content)
    compiled, _, from_pack = run(packs=damaged)
    assert compiled + from_pack == run.programs
    assert compiled > 0
    assert run.stderr.count("what is sound in it is used") == 1


def test_the_store_says_that_a_packs_program_has_machine_code(run, pack, tmp_path):
    """Other processes have the driver make that code."""
    processes = {"DLBACKEND_COMPILE_PROCESSES": "2", "DLBACKEND_ENQUEUE_THREAD": "1"}
    assert run(packs=pack, cache=tmp_path / "cache", **processes) == (0, run.programs, run.programs)
    assert run(cache=tmp_path / "cache", **processes) == (0, run.programs, 0)


def test_a_pack_lists_its_kernels(pack):
    command = [sys.executable, "-m", "dlbackend", "cache", "list", str(pack)]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "sm_90" in listed
    assert "some_kernel" in listed
