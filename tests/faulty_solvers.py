"""GEMM solvers that are wrong, slow or do not build, for tests that they lose (tests/cpp/faulty_solvers.cpp)."""

from pathlib import Path

import pytest

BUILD = Path(__file__).parents[1] / "build"
NAME = "libdlbackend_faulty_solvers.so"
BUILT = [*BUILD.glob(NAME), *BUILD.glob(f"*/{NAME}")]


def with_faulty_solvers(names: str, code: str) -> str:
    """Code that runs `code` where these solvers come before the library's own: "test_wrong,test_late". Skips the test
    where the library with them is not built.
    """
    if not BUILT:
        pytest.skip("not built: scripts/setup.sh test builds the library of faulty solvers")
    newest = max(BUILT, key=lambda path: path.stat().st_mtime)
    load = f"import ctypes, dlbackend; ctypes.CDLL({str(newest)!r}).dlb_add_faulty_solvers({names.encode()!r})"
    return f"{load}\n{code}"
