"""cmake/ship_packs.py: a release's packs get into the package, and a stale one fails the build."""

import subprocess
import sys
from pathlib import Path

import pytest
from stores import write_pack

import dlbackend
from dlbackend import _C

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "cmake"))
import ship_packs  # noqa: E402

VERSION = dlbackend.__version__
LIVE = [name.split(":") for name in _C.solver_revisions()]
PLACE = b"NVIDIA CUDA|*|H100|*|*|132|gpu\n"
PROGRAM = ("program", b"NVIDIA CUDA|ptx|sm_90\n0123", b"dlbackend-ptx 1 580.1\n...")


def record(op: str, solvers: str, taken: str = "reference@1", version: str = f"{VERSION}@580.1") -> tuple:
    text = f"dlbackend-find 1 {version}\nconsidered {solvers}\n{taken} 0,5,0,0,0,0 29.33 4014080 2.14e-07\n"
    return "find", PLACE + f"{op}:float32 m=1 {solvers}".encode(), text.encode()


def solvers_of(op: str) -> str:
    return " ".join(name for of, name in LIVE if of == op)


FRESH = [record("gemm", solvers_of("gemm"), "gpu_tiled@1"), PROGRAM, record("conv_fwd", solvers_of("conv_fwd"))]


def ship(folder: Path, *packs: Path) -> subprocess.CompletedProcess[str]:
    """The script as the build runs it."""
    command = [sys.executable, str(ROOT / "cmake" / "ship_packs.py"), VERSION, str(folder), *map(str, packs)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def test_sources_name_the_librarys_solvers() -> None:
    """What is read out of csrc/primitives is what the library has: each op's solvers and their revisions."""
    read = ship_packs.solvers_of_ops()
    assert set(read) == {op for op, _ in LIVE}
    for op, solvers in read.items():
        live = {name for of, name in LIVE if of == op}
        names = {name.partition("@")[0] for name in live}
        assert {name for name in solvers if name.partition("@")[0] in names} == live, op


def test_fresh_packs_are_shipped_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "build" / "packs"
    folder.mkdir(parents=True)
    (folder / "removed.pack").touch()
    packs = [write_pack(tmp_path / f"{name}.pack", FRESH) for name in "ab"]
    done = ship(folder, *packs)
    assert (done.returncode, done.stderr) == (0, "")
    assert {file.name for file in folder.iterdir()} == {"a.pack", "b.pack", "checked"}
    assert (folder / "a.pack").read_bytes() == packs[0].read_bytes()
    assert ship(folder).returncode == 0
    assert {file.name for file in folder.iterdir()} == {"checked"}


@pytest.mark.parametrize(
    ("stale", "reason"),
    [
        ([record("gemm", "reference@1", version="0.1.0")], "1 of 3 records are of dlbackend 0.1.0, which is"),
        ([record("gemm", "reference@1", version="0.1.0@3.1")], "1 of 3 records are of dlbackend 0.1.0, which is"),
        ([record("gemm", "cpu_small@1")], "the solver cpu_small@1 of gemm, which is no more: gemm:float32 m=1"),
        ([record("max_pool", "", taken="gather@9")], "the solver gather@9 of max_pool"),
        ([record("gemm", "gone@1")] * 4, "4 of 6 records are of the solver gone@1 of gemm"),
        ([record("sort", "reference@1")], "the solver reference@1 of sort"),
    ],
)
def test_a_stale_record_fails_the_build(tmp_path: Path, stale: list[tuple], reason: str) -> None:
    """It says which, and what to do; no pack is shipped."""
    packs = [write_pack(tmp_path / "fresh.pack", FRESH), write_pack(tmp_path / "stale.pack", FRESH + stale)]
    done = ship(tmp_path / "packs", *packs)
    assert done.returncode == 1
    assert f"{packs[1]} is stale.\n" in done.stderr
    assert reason in done.stderr
    assert "fresh.pack" not in done.stderr
    assert "make_pack.py" in done.stderr
    assert not (tmp_path / "packs").exists()


def test_what_has_no_age_or_is_damaged_fails_the_build(tmp_path: Path) -> None:
    pack = write_pack(tmp_path / "x.pack", [PROGRAM, ("find", PLACE + b"rates", b"copy=1")])
    assert "It has no find records" in ship(tmp_path / "packs", pack).stderr
    sound = write_pack(pack, FRESH).read_bytes()
    for content in (b"", b"x" * 100, sound[:-1], sound[:99], sound.replace(b"DLBREC", b"DLBREX")):
        pack.write_bytes(content)
        done = ship(tmp_path / "packs", pack)
        assert (done.returncode, "Traceback" in done.stderr) == (1, False)
        assert f"{pack} is stale.\n  It is " in done.stderr
