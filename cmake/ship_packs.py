"""Puts a release's packs into the package, and fails where one of them is stale. What the build runs:

    python cmake/ship_packs.py VERSION build/packs [PACK...]

A pack is stale where another version of the library measured its find records, or where these name a solver, or a
revision of one, that is no more: processes would measure all of it again. It takes neither the library nor a device:
solvers and revisions are read out of csrc/primitives, where each stands in a file of its own.
"""

import re
import shutil
import struct
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PRIMITIVES = Path(__file__).resolve().parent.parent / "csrc" / "primitives"

# csrc/cl/stores/record.h and csrc/cl/stores/pack.cpp; numbers are little-endian.
PACK_MAGIC, RECORD_MAGIC, FIND = b"DLBPACK2", b"DLBREC02", 2
PACK_HEADER, PACK_HEADER_BYTES = struct.Struct("<8sQ"), 32  # magic, entries; then their hash
RECORD_HEADER, RECORD_HEADER_BYTES = struct.Struct("<8sIIQ"), 64  # magic, kind, bytes of key and payload; then hashes

PAYLOAD = re.compile(r"dlbackend-find 1 ([^\s@]+).*\nconsidered(.*)\n((?:.*\n)*)")  # csrc/solver/find_record.cpp
OP = re.compile(r'"(\w+)", \w*solvers\b')  # in a primitive's solvers.cpp
# A solver's name, or two where a class makes two solvers; behind it, where that is not 1, its revision.
NAME = re.compile(r"(?:const char\* name\(\) const override \{ return|RowSolver<\w+> solver\(\{\.name =)(.*?)[;,]")
REVISION = re.compile(r"(?:int revision\(\) const override \{ return|\.revision =) (\d+)")


class Record(NamedTuple):
    """A find record, as csrc/solver/find_record.h describes it."""

    problem: str
    version: str
    solvers: set[str]  # "name@revision" of those considered and those measured


def find_records(content: bytes) -> Iterator[Record]:
    """The find records of a pack. ValueError where it is damaged; the library checks what is in the records."""
    if len(content) < PACK_HEADER_BYTES or content[:8] != PACK_MAGIC:
        raise ValueError("It is not a pack of this format.")
    _, count = PACK_HEADER.unpack_from(content)
    at = PACK_HEADER_BYTES
    for _ in range(count):
        if at + RECORD_HEADER_BYTES > len(content):
            raise ValueError("It is cut off.")
        magic, kind, key_size, payload_size = RECORD_HEADER.unpack_from(content, at)
        key_at = at + RECORD_HEADER_BYTES
        payload_at, at = key_at + key_size, key_at + key_size + payload_size
        if magic != RECORD_MAGIC or at > len(content):
            raise ValueError("It is damaged.")
        found = kind == FIND and PAYLOAD.match(content[payload_at:at].decode(errors="replace"))
        if not found:
            continue  # a program, or what else is known of a device
        version, considered, results = found.groups()
        problem = content[key_at:payload_at].decode(errors="replace").partition("\n")[2]
        yield Record(problem, version, {*considered.split(), *re.findall(r"^\S+", results, re.MULTILINE)})


def solvers_of_ops(primitives: Path = PRIMITIVES) -> dict[str, set[str]]:
    """The solvers of each op, "name@revision", with those of the other ops of its primitive."""
    found: dict[str, set[str]] = {}
    for table in primitives.glob("*/solvers.cpp"):
        solvers: set[str] = set()
        for file in table.parent.glob("*.cpp"):
            _, *parts = NAME.split(file.read_text())
            for names, behind in zip(parts[::2], parts[1::2], strict=True):
                revision = REVISION.search(behind)
                solvers.update(f"{name}@{revision[1] if revision else 1}" for name in re.findall(r'"(\w+)"', names))
        found.update((op, solvers) for op in OP.findall(table.read_text()))
    return found


def staleness(content: bytes, version: str, solvers: dict[str, set[str]]) -> list[str]:
    """Why a pack must not be shipped, in lines that name the first record of each reason; none for a fresh one."""
    try:
        records = list(find_records(content))
    except ValueError as error:
        return [str(error)]
    if not records:
        return ["It has no find records, by which its age could be told."]
    reasons: dict[str, list[str]] = {}
    for record in records:
        op = record.problem.partition(":")[0]
        if record.version != version:
            reasons.setdefault(f"dlbackend {record.version}, which is {version} now", []).append(record.problem)
        for solver in sorted(record.solvers - solvers.get(op, set())):
            reasons.setdefault(f"the solver {solver} of {op}, which is no more", []).append(record.problem)
    return [
        f"{len(problems)} of {len(records)} records are of {reason}: {textwrap.shorten(problems[0], 60)}"
        for reason, problems in reasons.items()
    ]


def main(version: str, target: str, *packs: str) -> int:
    """Copies the packs into the folder, from which it removes all else. Returns 1, copying none, where one is stale."""
    solvers, folder, failed = solvers_of_ops(), Path(target), False
    shutil.rmtree(folder, ignore_errors=True)
    for pack in map(Path, packs):
        if reasons := staleness(pack.read_bytes(), version, solvers):
            failed = True
            print(f"{pack} is stale.", *reasons, sep="\n  ", file=sys.stderr)
    if failed:
        print("Make it anew with scripts/make_pack.py on such a device, or remove it.", file=sys.stderr)
        return 1
    folder.mkdir(parents=True)
    for name in packs:
        shutil.copy(name, folder)
    (folder / "checked").touch()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
