"""Packs as text, which is what the repository keeps, and as the binary that csrc/cl/stores/pack.h reads.

    python cmake/pack_text.py packs/DEVICE.txt build/packs/DEVICE.pack      # what the build does
    python cmake/pack_text.py --to-text DEVICE.pack packs/DEVICE.txt

A text holds find records only, those of one device:

    place NVIDIA CUDA|*|NVIDIA H200|*|*|132|gpu
    head dlbackend-find 1 0.1.0@580.159.04

    gemm:float32 b=1 m=33 ...
      considered gpu_tiled@1 reference@1
      gpu_tiled@1 0,5,0,0,0,0 29.33 4014080 2.14e-07

`place` and `head` hold for the entries behind them, until the next such line: the first line of an entry's key and the
first line of its payload. An entry is the rest of its key, not indented, and the rest of its payload, indented by two
spaces. Entries are sorted by place and key, so that measuring one problem again changes its lines alone.
"""

import struct
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

# csrc/cl/stores/record.h and csrc/cl/stores/pack.cpp; numbers are little-endian.
PACK_MAGIC, RECORD_MAGIC, FIND = b"DLBPACK2", b"DLBREC02", 2
PACK_HEADER = struct.Struct("<8sQ")  # magic, entries; then the hash of both
RECORD_HEADER = struct.Struct("<8sIIQ")  # magic, kind, bytes of key and payload; then three hashes
RECORD_HEADER_BYTES = 64

HASH_START = 0x6C62272E07BB014262B821756295C58D  # csrc/cl/hash.h: FNV-1a of 128 bits
HASH_PRIME = (1 << 88) + 0x13B
HASH_MASK = (1 << 128) - 1
LOW_MASK = (1 << 64) - 1


class Record(NamedTuple):
    """One find record: key and payload are lines of text, as in the store."""

    key: str
    payload: str


def hash128(data: bytes, start: int = HASH_START) -> int:
    """The library's hash of what `start` is the hash of, followed by the data."""
    value = start
    for byte in data:
        value = ((value ^ byte) * HASH_PRIME) & HASH_MASK
    return value


def _hash_bytes(value: int) -> bytes:
    return struct.pack("<QQ", value >> 64, value & LOW_MASK)


def _record_bytes(record: Record) -> bytes:
    key, payload = record.key.encode(), record.payload.encode()
    key_hash = hash128(key)
    header = RECORD_HEADER.pack(RECORD_MAGIC, FIND, len(key), len(payload))
    header += _hash_bytes(key_hash) + _hash_bytes(hash128(payload, key_hash))
    header += struct.pack("<Q", hash128(header) & LOW_MASK)
    return header + key + payload


def to_pack(records: Iterable[Record]) -> bytes:
    """The content of a pack with these records."""
    bodies = [_record_bytes(record) for record in records]
    header = PACK_HEADER.pack(PACK_MAGIC, len(bodies))
    return header + _hash_bytes(hash128(header)) + b"".join(bodies)


def from_pack(content: bytes) -> list[Record]:
    """The records of a sound pack. ValueError where it holds anything but find records."""
    magic, count = PACK_HEADER.unpack_from(content)
    if magic != PACK_MAGIC:
        raise ValueError("not a pack of this version")
    records, at = [], PACK_HEADER.size + 16
    while at < len(content):
        magic, kind, key_size, payload_size = RECORD_HEADER.unpack_from(content, at)
        if magic != RECORD_MAGIC or kind != FIND:
            raise ValueError(f"byte {at}: not a find record")
        key_end = at + RECORD_HEADER_BYTES + key_size
        key, payload = content[at + RECORD_HEADER_BYTES : key_end], content[key_end : key_end + payload_size]
        records.append(Record(key.decode(), payload.decode()))
        at = key_end + payload_size
    if len(records) != count:
        raise ValueError(f"{len(records)} of {count} records are there")
    return records


def to_text(records: Iterable[Record]) -> str:
    """The records as text; from_text() gives them back, sorted by key."""
    lines: list[str] = []
    place = head = ""
    for record in sorted(records):
        own_place, newline, problem = record.key.partition("\n")
        own_head, *rest = record.payload.removesuffix("\n").split("\n")
        if not newline or "\n" in problem or not problem or problem[0] == " " or not record.payload.endswith("\n"):
            raise ValueError(f"this record cannot be written as text: {record.key!r}")
        if own_place != place:
            place, head = own_place, ""
            lines.append(f"place {place}")
        if own_head != head:
            head = own_head
            lines.append(f"head {head}")
        lines += ["", problem, *(f"  {line}" for line in rest)]
    return "\n".join(lines) + "\n" if lines else ""


def from_text(text: str) -> list[Record]:
    """The records of a text, in its order. ValueError names a line that has no meaning."""
    records: list[Record] = []
    place = head = problem = ""
    payload: list[str] = []

    def finish() -> None:
        if problem:
            records.append(Record(f"{place}\n{problem}", "\n".join([head, *payload]) + "\n"))
        payload.clear()

    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("  ") and problem:
            payload.append(line[2:])
            continue
        finish()
        problem = ""
        if line.startswith("place "):
            place, head = line.removeprefix("place "), ""
        elif line.startswith("head "):
            head = line.removeprefix("head ")
        elif line and line[0] != " " and place and head:
            problem = line
        elif line:
            raise ValueError(f"line {number}: {line!r} has no meaning here")
    finish()
    return records


def main(arguments: list[str]) -> None:
    reverse = arguments[:1] == ["--to-text"]
    source, target = map(Path, arguments[reverse:])
    target.parent.mkdir(parents=True, exist_ok=True)
    if reverse:
        target.write_text(to_text(from_pack(source.read_bytes())))
    else:
        target.write_bytes(to_pack(from_text(source.read_text())))


if __name__ == "__main__":
    main(sys.argv[1:])
