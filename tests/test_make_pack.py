"""scripts/make_pack.py: what one machine measured and compiled for a workload, another of its kind begins with."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fresh_process import fresh_python
from layers import build_layer

import dlbackend

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "cmake"))
import ship_packs  # noqa: E402

RUN = f"""
import sys, torch, dlbackend
sys.path.insert(0, {str(ROOT / "scripts")!r})
import pack_workloads
pack_workloads.digits(torch.device("ocl:0"))
kernels, solvers = dlbackend.kernel_stats(), dlbackend.solvers.stats()
print(kernels["compiled"], kernels["loaded_from_pack"], solvers["misses"], solvers["hits"], solvers["measured"])
"""


def make_pack(pack: Path, **variables: str) -> str:
    """Makes a pack of one workload, which the build would ship; what the script said."""
    script = [sys.executable, str(ROOT / "scripts" / "make_pack.py"), "--workloads", "digits", "--out", str(pack)]
    environment = {**os.environ, **variables}
    done = subprocess.run(script, check=False, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not ship_packs.staleness(pack.read_bytes(), dlbackend.__version__, ship_packs.solvers_of_ops())
    return done.stdout


def run_with(pack: Path, cache: Path, **variables: str) -> list[int]:
    """The numbers that RUN prints, of a process that has the pack alone."""
    caches = {"DLBACKEND_CACHE_DIR": str(cache), "POCL_CACHE_DIR": str(cache / "pocl")}
    (cache / "pocl").mkdir(parents=True)
    run = fresh_python(RUN, DLBACKEND_PACKS=str(pack), **caches, **variables)
    assert run.returncode == 0, run.stderr
    return [int(word) for word in run.stdout.split()]


@pytest.mark.slow
def test_a_machine_with_the_pack_does_not_measure(tmp_path: Path) -> None:
    """Elsewhere than on NVIDIA a pack has choices alone."""
    assert "digits, measuring: " in make_pack(tmp_path / "x.pack")
    _, from_pack, misses, hits, measured = run_with(tmp_path / "x.pack", tmp_path / "cache")
    assert (from_pack, misses, measured) == (0, 0, 0)
    assert hits > 10


@pytest.mark.slow
def test_a_machine_with_the_pack_does_not_compile(tmp_path: Path) -> None:
    """On a driver whose programs others take, which an OpenCL layer simulates, a first iteration compiles nothing. On
    another version of it the programs serve too, and a few more check the choices."""
    layer = {"OPENCL_LAYERS": build_layer(ROOT / "tests" / "portable_layer.c", tmp_path), "PORTABLE_TARGET": "90"}
    layer["PORTABLE_DRIVER"] = "580.10"
    said = make_pack(tmp_path / "x.pack", **layer)
    if "knowing the choices" not in said:
        pytest.skip("this OpenCL loader takes no layers")
    compiled, from_pack, misses, hits, _ = run_with(tmp_path / "x.pack", tmp_path / "a", **layer)
    assert (compiled, misses) == (0, 0)
    assert from_pack > 20
    assert hits > 10
    later = {**layer, "PORTABLE_DRIVER": "590"}
    compiled, from_pack, misses, *_ = run_with(tmp_path / "x.pack", tmp_path / "b", **later)
    assert (from_pack > 20, misses) == (True, 0)
    assert compiled < 10
