"""scripts/make_pack.py: what one machine compiled and measured for a network, another of its kind begins with."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fresh_process import fresh_python

ROOT = Path(__file__).resolve().parent.parent

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
