"""Packs as text: what the repository keeps, and the binary packs that the build makes of it for the package."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import dlbackend
from dlbackend import _C

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "cmake"))
import pack_text  # noqa: E402
from pack_text import Record  # noqa: E402

TEXTS = sorted((ROOT / "packs").glob("*.txt"))
RECORDS = [
    Record("a place\ngemm:1", "head 1\nconsidered x@1\nx@1 0 1.5 0 0\n"),
    Record("a place\ngemm:2", "head 1\n"),
    Record("a place\ngemm:3", "head 2\nconsidered\n\n  indented\n"),
    Record("b place\ngemm:1", "head 2\nconsidered größe\n"),
]


def read_pack(path: Path) -> list[Record]:
    """The records as the library reads them; fails for any that is not sound."""
    pack = _C.Pack(str(path))
    assert not pack.faults()
    found = []
    for index in range(len(pack.items())):
        fault, kind, key, payload = pack.read(index)
        assert (fault, kind) == ("", "find")
        found.append(Record(key.decode(), payload.decode()))
    return found


def test_there_are_texts() -> None:
    assert len(TEXTS) >= 4


@pytest.mark.parametrize("text", TEXTS, ids=lambda path: path.stem)
def test_the_package_has_what_a_text_says(text: Path) -> None:
    """One pack a text, with its records and no others; the text is as the writer writes it, sorted."""
    if text.with_suffix(".pack").exists():
        pytest.skip("a release ships the pack that lies beside the text")
    records = pack_text.from_text(text.read_text())
    assert len(records) > 100
    assert pack_text.to_text(records) == text.read_text()
    assert sorted(read_pack(Path(dlbackend.__file__).parent / "packs" / f"{text.stem}.pack")) == sorted(records)


def test_the_package_has_no_texts() -> None:
    names = os.listdir(Path(dlbackend.__file__).parent / "packs")
    assert {Path(name).suffix for name in names} == {".pack"}


def test_records_come_back_from_text_and_pack(tmp_path: Path) -> None:
    text, pack = tmp_path / "x.txt", tmp_path / "made" / "x.pack"
    text.write_text(pack_text.to_text(reversed(RECORDS)))
    convert = [sys.executable, str(ROOT / "cmake" / "pack_text.py")]
    subprocess.run([*convert, str(text), str(pack)], check=True)
    assert sorted(read_pack(pack)) == RECORDS
    subprocess.run([*convert, "--to-text", str(pack), str(tmp_path / "again.txt")], check=True)
    assert (tmp_path / "again.txt").read_text() == text.read_text()
    assert text.read_text().count("place ") == 2
    assert pack_text.from_text("") == [] == pack_text.from_pack(pack_text.to_pack([]))


@pytest.mark.parametrize(
    "record", [Record("no problem", "head\n"), Record("p\nq", "no end"), Record("p\n q", "head\n")]
)
def test_what_cannot_be_text_is_refused(record: Record) -> None:
    with pytest.raises(ValueError, match="cannot be written as text"):
        pack_text.to_text([record])


@pytest.mark.parametrize(
    "text", ["gemm:1\n", "place p\ngemm:1\n", "place p\nhead h\n  lost\n", "place p\nhead h\n x\n"]
)
def test_lines_without_a_meaning_are_named(text: str) -> None:
    with pytest.raises(ValueError, match=f"line {text.count(chr(10))}"):
        pack_text.from_text(text)


def test_programs_and_damage_are_refused(tmp_path: Path) -> None:
    writer = _C.PackWriter(str(tmp_path / "x.pack"))
    writer.add("program", b"key", b"binary")
    writer.finish()
    sound = pack_text.to_pack(RECORDS)
    for content in ((tmp_path / "x.pack").read_bytes(), b"x" * 100, sound[: -len(RECORDS[-1].payload.encode()) - 80]):
        with pytest.raises(ValueError, match=r"not a|records are there"):
            pack_text.from_pack(content)
