"""scripts/make_pack.py: what one machine compiled and measured for a network, another of its kind begins with."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fresh_process import fresh_python
from layers import build_layer
from stores import store_in

from dlbackend import _C

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import make_pack  # noqa: E402

RUN = """
import torch, dlbackend
from benchmarks.cases import inference_step
inference_step("squeezenet1_1", 1, torch.device("ocl:0"))()
torch.ocl.synchronize()
print(dlbackend.kernel_stats()["compiled"], dlbackend.solvers.stats()["misses"], dlbackend.solvers.stats()["hits"])
"""


@pytest.mark.slow
def test_a_machine_with_the_pack_neither_compiles_nor_measures(tmp_path):
    pack = tmp_path / "all.pack"
    script = [sys.executable, str(ROOT / "scripts" / "make_pack.py"), "--nets", "squeezenet1_1", "--training", "--out"]
    done = subprocess.run([*script, str(pack)], check=False, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " problems new, " in done.stdout
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    caches = {"DLBACKEND_CACHE_DIR": str(tmp_path / "cache"), "POCL_CACHE_DIR": str(tmp_path / "pocl")}
    run = fresh_python(RUN, DLBACKEND_PACKS=str(pack), PYTHONPATH=paths, **caches)
    assert run.returncode == 0, run.stderr
    compiled, misses, hits = map(int, run.stdout.split())
    assert (compiled, misses) == (0, 0)
    assert hits > 10


def test_what_was_measured_is_written_as_text(tmp_path):
    """For every version of the driver; without programs, and without other devices' results."""
    tag = _C.device_properties(0).cache_tag
    record = b"dlbackend-find 1 0.1.0\nconsidered x@1\nx@1 0,0 1.5 0 0\n"
    find = store_in(tmp_path / "find", "find")
    find.store(f"{tag}|2|cpu\ngemm:own".encode(), record)
    find.store(b"platform|1|Other|1|1|2|cpu\ngemm:others", record)
    store_in(tmp_path / "programs").store(f"{tag}\n\nkernel void f()".encode(), b"binary")
    environment = {**os.environ, "DLBACKEND_CACHE_DIR": str(tmp_path), "DLBACKEND_PACKS": ""}
    assert make_pack.export(argparse.Namespace(find=True, programs=False), tmp_path / "x.txt", environment) == 0
    place, head, *rest = (tmp_path / "x.txt").read_text().splitlines()
    assert place.startswith("place ")
    assert place.endswith("|*|*|2|cpu")
    assert head.startswith("head dlbackend-find 1 0.1.0@")
    assert rest == ["", "gemm:own", "  considered x@1", "  x@1 0,0 1.5 0 0"]


@pytest.mark.slow
def test_programs_of_first_iterations(tmp_path):
    """On a driver whose programs others take, which an OpenCL layer simulates, a first iteration compiles nothing."""
    layer = {"OPENCL_LAYERS": build_layer(ROOT / "tests" / "portable_layer.c", tmp_path), "PORTABLE_TARGET": "90"}
    script = [sys.executable, str(ROOT / "scripts" / "make_pack.py"), "--programs", "--workloads", "digits", "--out"]
    environment = {**os.environ, **layer, "PORTABLE_DRIVER": "580.10"}
    done = subprocess.run(
        [*script, str(tmp_path / "x.pack")], check=False, env=environment, capture_output=True, text=True, timeout=500
    )
    if "0 of " in done.stdout:
        pytest.skip("this OpenCL loader takes no layers")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "digits, knowing nothing: " in done.stdout
    fixed = {"DLBACKEND_CACHE_DIR": str(tmp_path / "cache"), "DLBACKEND_PACKS": str(tmp_path / "x.pack")}
    code = f"""
import sys, torch, dlbackend
sys.path.insert(0, {str(ROOT / "scripts")!r})
import pack_workloads
pack_workloads.digits(torch.device("ocl:0"))
print(dlbackend.kernel_stats()["compiled"], dlbackend.kernel_stats()["loaded_from_pack"])
"""
    run = fresh_python(code, PORTABLE_DRIVER="590", **layer, **fixed)
    assert run.returncode == 0, run.stderr
    compiled, loaded = map(int, run.stdout.split())
    assert compiled == 0
    assert loaded > 20
