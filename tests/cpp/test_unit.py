"""Runs the unit tests of the library's C++ parts, which scripts/setup.sh and scripts/dev_build.sh build."""

import subprocess
from pathlib import Path

import pytest

BUILD = Path(__file__).parents[2] / "build"
BUILT = [*BUILD.glob("dlbackend_unit_tests"), *BUILD.glob("*/dlbackend_unit_tests")]


@pytest.mark.skipif(not BUILT, reason="not built: scripts/dev_build.sh builds them where doctest-dev is installed")
def test_unit_tests() -> None:
    newest = max(BUILT, key=lambda path: path.stat().st_mtime)
    done = subprocess.run([newest, "--no-colors"], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " 0 failed" in done.stdout
