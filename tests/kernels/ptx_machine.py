"""Interprets PTX for Hopper GPUs, so that kernels of wgmma, mbarriers and the copy engine can be run without one.

It knows only what such kernels of this project are made of; anything else is an error. A warp runs one instruction
after the other for all its lanes (those at the lowest address first), and warps take turns. The hardware does some
things at a time of its own; they are done at once or as late as is allowed, and a kernel must be right with both:

- `late_products`: sums of wgmma are computed when a wait_group asks for them, from what registers and local memory then
  hold, so that a stage which is given back too early is seen; else when the instruction is issued;
- `late_copies`: the copy engine copies when no warp can go on any more; else at once.

A wait that nothing can end raises Hang. Layouts are those of the PTX ISA: "Register Fragments for wgmma.mma_async",
"Shared Memory Matrix Layout" with 128-byte swizzling, "Tensor Memory Access".
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

Array = Any  # of 32 lanes
LANES = np.arange(32)
TYPES = {
    "pred": np.bool_, "b8": np.uint8, "u8": np.uint8, "s8": np.int8, "b16": np.uint16, "u16": np.uint16,
    "s16": np.int16,
    "b32": np.uint32, "u32": np.uint32, "s32": np.int32, "f32": np.float32,
    "b64": np.uint64, "u64": np.uint64, "s64": np.int64,
}  # fmt: skip
TOGETHER = ("wgmma.", "bar.", "shfl.", "setmaxnreg.", "tensormap.cp")
SHARED_BASE = 1024  # address of the work-group's local memory


class Hang(Exception):
    """No warp can go on."""


class Yield(Exception):
    """The instruction waits: it is run again later."""


# --- The text --------------------------------------------------------------------------------------------------------


class Program:
    """A kernel's statements: (predicate or None, whether it is negated, opcode, operands), with registers by number."""

    def __init__(self, text: str, kernel: str) -> None:
        text = re.sub(r"//[^\n]*", "", text)
        found = re.search(rf"\.entry\s+{kernel}\(", text)
        assert found, kernel
        head, body = text[found.start() :].split("{", 1)
        body = body.split(".entry")[0]
        self.parameters: dict[str, tuple[int, int]] = {}  # name: (place, bytes)
        self.shared: dict[str, int] = {}
        self.shared_bytes = 0
        place = 0
        for parameter in re.findall(r"\.param\s+([^,\n]+)", head):
            name = parameter.split()[-1]
            array = re.match(r"(\w+)\[(\d+)\]", name)
            size = int(array[2]) if array else np.dtype(TYPES[parameter.split()[0].lstrip(".")]).itemsize
            align = 8 if array else size
            place = (place + align - 1) // align * align
            self.parameters[array[1] if array else name] = (place, size)
            place += size
        self.parameter_bytes = place
        self.types: list[Any] = []
        self.statements: list[tuple[int | None, bool, str, list[Any]]] = []
        for size, name, count in re.findall(r"\.shared\s+\.align\s+(\d+)\s+\.b8\s+([$\w]+)\[(\d+)\]", text):
            if re.search(re.escape(name) + r"\b", body):
                assert int(size) <= SHARED_BASE
                start = -(-self.shared_bytes // int(size)) * int(size)
                self.shared[name], self.shared_bytes = SHARED_BASE + start, start + int(count)
        self._parse(body)

    def _parse(self, body: str) -> None:
        scopes: list[tuple[dict[str, int], dict[str, int]]] = [({}, {})]  # registers, labels
        targets: list[tuple[int, str, list[dict[str, int]]]] = []
        buffer, at = "", 0
        while at < len(body):
            c = body[at]
            if c == "{" and not buffer.strip():
                scopes.append(({}, {}))
            elif c == "{":
                end = body.index("}", at)
                buffer += body[at : end + 1]
                at = end
            elif c == "}":
                if len(scopes) == 1:
                    break
                scopes.pop()
            elif c == ":" and re.fullmatch(r"\s*[$\w]+\s*", buffer) and body[at + 1] != ":":
                scopes[-1][1][buffer.strip()] = len(self.statements)
                buffer = ""
            elif c == ";":
                self._statement(buffer.strip(), scopes, targets)
                buffer = ""
            else:
                buffer += c
            at += 1
        for where, label, labels in targets:
            found = next(scope[label] for scope in reversed(labels) if label in scope)
            self.statements[where][3].append(found)

    def _statement(self, text: str, scopes: list[Any], targets: list[Any]) -> None:
        if not text or text.startswith((".loc", ".pragma")):
            return
        if text.startswith(".reg"):
            kind, names = text.split(None, 2)[1:]
            for name in names.split(","):
                ranged = re.fullmatch(r"\s*([%\w]+)<(\d+)>\s*", name)
                for n in [f"{ranged[1]}{i}" for i in range(int(ranged[2]))] if ranged else [name.strip()]:
                    scopes[-1][0][n] = len(self.types)
                    self.types.append(TYPES[kind[1:]])
            return
        if text.startswith(".shared") or text.startswith(".local"):
            assert text.startswith(".shared"), text
            return
        guard, negated = None, False
        if text[0] == "@":
            word, text = text.split(None, 1)
            negated = word[1] == "!"
            guard = self._register(word[2:] if negated else word[1:], scopes)
        opcode, _, rest = text.partition(" ")
        opcode, rest = opcode.strip(), rest.strip()
        if "\t" in opcode:
            opcode, _, more = opcode.partition("\t")
            rest = (more + " " + rest).strip()
        if opcode.startswith("bra"):
            targets.append((len(self.statements), rest, [labels for _, labels in scopes]))
            self.statements.append((guard, negated, "bra", []))
            return
        operands = [self._operand(o.strip(), scopes) for o in split_operands(rest)] if rest else []
        self.statements.append((guard, negated, opcode, operands))

    def _register(self, name: str, scopes: list[Any]) -> int | None:
        return next((registers[name] for registers, _ in reversed(scopes) if name in registers), None)

    def _operand(self, text: str, scopes: list[Any]) -> Any:
        """("r", register), ("i", integer), ("f", float), ("m", base, offset), ("s", special one), ("v", list)."""
        if text == "_":
            return ("_",)
        if text[0] == "{":
            return ("v", [self._operand(o.strip(), scopes) for o in split_operands(text[1:-1])])
        if text[0] == "[":
            inside = [o.strip() for o in split_operands(text[1:-1])]
            if len(inside) > 1:
                return ("m", self._operand(inside[0], scopes), self._operand(inside[1], scopes))
            base, _, offset = inside[0].partition("+")
            return ("m", self._operand(base.strip(), scopes), ("i", eval(offset) if offset else 0))
        register = self._register(text, scopes)
        if register is not None:
            return ("r", register)
        if text.startswith("0f"):
            return ("f", np.array([int(text[2:], 16)], np.uint32).view(np.float32)[0])
        if text in self.shared:
            return ("i", self.shared[text])
        if text in self.parameters:
            return ("i", self.parameters[text][0])
        if text.startswith("%"):
            return ("s", text)
        return ("i", int(eval(text.rstrip("U"))))


def split_operands(text: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c in "{[(") - (c in "}])")
        if c == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [*parts, text[start:]]


# --- The machine -----------------------------------------------------------------------------------------------------


class Warp:
    def __init__(self, number: int, group: Group) -> None:
        self.number, self.group = number, group
        self.registers = [np.zeros(32, t) for t in group.program.types]
        self.places: dict[int, Array] = {0: np.ones(32, bool)}  # lanes by the statement that they are at
        self.open: list[Callable[[], None]] = []  # products that no group has yet
        self.groups: deque[list[Callable[[], None]]] = deque()
        self.barrier: int | None = None  # a named one that it waits for

    def run(self) -> bool:
        """Goes on until it waits or ends; whether it did anything."""
        did = False
        waiting: set[int] = set()
        while self.barrier is None:
            ready = (
                at for at in sorted(self.places) if at not in waiting and (len(self.places) == 1 or not self.joins(at))
            )
            at = next(ready, None)
            if at is None:
                break
            try:
                self.step(at)
                did = True
            except Yield:
                waiting.add(at)
        return did

    def joins(self, at: int) -> bool:
        """Whether the statement is for all lanes together, which wait there for each other."""
        return self.group.program.statements[at][2].startswith(TOGETHER)

    def move(self, lanes: Array, to: int) -> None:
        if lanes.any():
            self.places[to] = self.places[to] | lanes if to in self.places else lanes

    def step(self, at: int) -> None:
        lanes = self.places[at]
        guard, negated, opcode, operands = self.group.program.statements[at]
        active = lanes if guard is None else lanes & (self.registers[guard] ^ negated)
        if opcode == "bra":
            del self.places[at]
            self.move(lanes & ~active, at + 1)
            self.move(active, operands[0])
            return
        if opcode == "ret":
            del self.places[at]
            self.move(lanes & ~active, at + 1)
            return
        if active.any():
            self.group.execute(self, opcode, operands, active)
        del self.places[at]
        self.move(lanes, at + 1)

    def get(self, operand: Any, kind: Any) -> Array:
        if operand[0] == "r":
            value = self.registers[operand[1]]
            if value.dtype == np.bool_ or kind is np.bool_:
                return value
            if value.dtype.itemsize != np.dtype(kind).itemsize:
                return value.astype(f"u{value.dtype.itemsize}").astype(kind)
            return value.view(kind)
        if operand[0] == "i":
            bits = np.dtype(kind).itemsize * 8
            if kind is np.float32:
                return np.full(32, np.float32(operand[1]))
            return np.full(32, operand[1] % (1 << bits), f"u{bits // 8}").view(kind)
        if operand[0] == "f":
            return np.full(32, operand[1], np.float32).view(kind)
        assert operand[0] == "s", operand
        special = {
            "%tid.x": self.number * 32 + LANES, "%ctaid.x": self.group.number, "%ctaid.y": 0, "%ctaid.z": 0,
            "%nctaid.x": self.group.machine.groups, "%ntid.x": self.group.items,
        }[operand[1]]  # fmt: skip
        return np.broadcast_to(np.asarray(special, np.uint32), 32).view(kind)

    def set(self, operand: Any, value: Array, lanes: Array) -> None:
        if operand[0] == "_":
            return
        register = self.registers[operand[1]]
        value = np.asarray(value)
        if value.dtype != register.dtype:
            if value.dtype.itemsize == register.dtype.itemsize:
                value = value.view(register.dtype)
            else:
                value = value.astype(register.dtype)
        if lanes.all():
            self.registers[operand[1]] = np.array(np.broadcast_to(value, 32))
        else:
            copy = register.copy()
            copy[lanes] = np.broadcast_to(value, 32)[lanes]
            self.registers[operand[1]] = copy


class Barrier:
    """An mbarrier."""

    def __init__(self, count: int) -> None:
        self.count = self.pending = count
        self.bytes = self.phase = 0

    def settle(self) -> None:
        assert self.pending >= 0, "more arrivals than the barrier expects"
        if self.pending == 0 and self.bytes == 0:
            self.pending, self.phase = self.count, self.phase + 1


class Machine:
    """A device: its memory, and `groups` work-groups of one kernel, one after the other."""

    def __init__(
        self, text: str, kernel: str, groups: int, items: int, *, late_products: bool, late_copies: bool
    ) -> None:
        self.program = Program(text, kernel)
        self.groups, self.items = groups, items
        self.late_products, self.late_copies = late_products, late_copies
        self.memory = np.zeros(0, np.uint8)
        self.maps: dict[int, dict[str, int]] = {}

    def allocate(self, data: Array, align: int = 1024) -> int:
        """Memory with that content; its address."""
        start = (len(self.memory) + align - 1) // align * align + align
        data = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
        memory = np.full(start + len(data), 0xFF, np.uint8)
        memory[: len(self.memory)] = self.memory
        memory[start:] = data
        self.memory = memory
        return start

    def read(self, address: int, count: int, kind: Any) -> Array:
        return self.memory[address : address + count * np.dtype(kind).itemsize].view(kind).copy()

    def launch(self, *arguments: Any) -> None:
        """Runs the kernel with arguments of numbers and bytes."""
        self.parameters = np.zeros(self.program.parameter_bytes, np.uint8)
        for (place, size), argument in zip(self.program.parameters.values(), arguments, strict=True):
            if isinstance(argument, bytes):
                data = argument
            elif isinstance(argument, float):
                data = np.float32(argument).tobytes()
            else:
                data = argument.to_bytes(size, "little")
            assert len(data) == size, (place, size, len(data))
            self.parameters[place : place + size] = np.frombuffer(data, np.uint8)
        for number in range(self.groups):
            Group(self, number).run()


class Group:
    """A work-group."""

    def __init__(self, machine: Machine, number: int) -> None:
        self.machine, self.number, self.program, self.items = machine, number, machine.program, machine.items
        self.shared = np.full(SHARED_BASE + self.program.shared_bytes, 0xFF, np.uint8)
        self.barriers: dict[int, Barrier] = {}
        self.local_maps: dict[int, dict[str, int]] = {}
        self.named: dict[int, list[int]] = {}  # arrived work-items, and warps that wait
        self.copies: deque[Callable[[], None]] = deque()
        self.warps = [Warp(i, self) for i in range(self.items // 32)]

    def run(self) -> None:
        while any(warp.places for warp in self.warps):
            did = [warp.run() for warp in self.warps]
            if not any(did):
                if not self.copies:
                    raise Hang({w.number: sorted(w.places) for w in self.warps if w.places})
                self.copies.popleft()()
        for warp in self.warps:
            assert not any((warp.open, *warp.groups)), "products that nothing waits for"
        assert not self.copies, "copies that nothing waits for"

    def execute(self, warp: Warp, opcode: str, o: list[Any], lanes: Array) -> None:
        parts = opcode.split(".")
        for prefix, run in OPCODES.items():
            if opcode.startswith(prefix):
                with np.errstate(all="ignore"):
                    run(self, warp, parts, o, lanes)
                return
        raise NotImplementedError(opcode)

    # -- memory

    def _addresses(self, warp: Warp, operand: Any) -> Array:
        return warp.get(operand[1], np.uint64).astype(np.int64) + (operand[2][1] if operand[2][0] == "i" else 0)

    def load(self, warp: Warp, parts: list[str], o: list[Any], lanes: Array) -> None:
        kind = TYPES[parts[-1]]
        size = np.dtype(kind).itemsize
        targets = o[0][1] if o[0][0] == "v" else [o[0]]
        memory = {"param": self.machine.parameters, "global": self.machine.memory, "shared": self.shared}[parts[1]]
        addresses = self._addresses(warp, o[1])
        for i, target in enumerate(targets):
            at = np.where(lanes, addresses + i * size, 0)
            assert (at % size == 0).all(), "an address that is not aligned"
            assert ((at >= 0) & (at + size <= len(memory))).all(), (parts, at[lanes])
            value: Array = memory[at[:, None] + np.arange(size)].reshape(-1).view(kind)
            if target[0] == "r" and self.program.types[target[1]](0).itemsize > size:
                value = value.astype(np.int64 if kind in (np.int8, np.int16, np.int32) else np.uint64)
            warp.set(target, value, lanes)

    def store(self, warp: Warp, parts: list[str], o: list[Any], lanes: Array) -> None:
        kind = TYPES[parts[-1]]
        size = np.dtype(kind).itemsize
        assert parts[1] in ("global", "shared"), parts
        memory = self.machine.memory if parts[1] == "global" else self.shared
        values = o[1][1] if o[1][0] == "v" else [o[1]]
        addresses = self._addresses(warp, o[0])
        for i, value in enumerate(values):
            data = np.ascontiguousarray(warp.get(value, kind)).view(np.uint8).reshape(32, size)[lanes]
            at = (addresses + i * size)[lanes]
            assert (at % (size * len(values)) == i * size).all(), "an address that is not aligned"
            assert ((at >= 0) & (at + size <= len(memory))).all(), (parts, at)
            memory[at[:, None] + np.arange(size)] = data

    # -- barriers

    def mbarrier(self, warp: Warp, parts: list[str], o: list[Any], lanes: Array) -> None:
        if parts[1] == "init":
            for lane in np.flatnonzero(lanes):
                self.barriers[int(self._addresses(warp, o[0])[lane])] = Barrier(int(warp.get(o[1], np.uint32)[lane]))
        elif parts[1] == "try_wait":
            addresses, parity = self._addresses(warp, o[1]), warp.get(o[2], np.uint32)
            done = np.array(
                [self.barriers[int(addresses[i])].phase % 2 != parity[i] if lanes[i] else False for i in LANES]
            )
            if not done[lanes].any():
                raise Yield
            warp.set(o[0], done, lanes)
        else:
            for lane in np.flatnonzero(lanes):
                barrier = self.barriers[int(self._addresses(warp, o[1])[lane])]
                if parts[2] == "expect_tx":
                    barrier.bytes += int(warp.get(o[2], np.uint32)[lane])
                barrier.pending -= 1
                barrier.settle()

    def named_barrier(self, warp: Warp, parts: list[str], o: list[Any], lanes: Array) -> None:
        if parts[1] == "warp":
            return
        assert lanes.all(), "a barrier in a branch"
        number = int(warp.get(o[0], np.uint32)[0])
        count = int(warp.get(o[1], np.uint32)[0]) if len(o) > 1 else self.items
        state = self.named.setdefault(number, [0])
        state[0] += 32
        if parts[1] == "sync":
            state.append(warp.number)
            warp.barrier = number
        assert state[0] <= count, "more arrivals than the named barrier expects"
        if state[0] == count:
            for waiting in state[1:]:
                self.warps[waiting].barrier = None
            self.named[number] = [0]

    # -- the copy engine

    def replace_map(self, warp: Warp, parts: list[str], o: list[Any], lanes: Array) -> None:
        for lane in np.flatnonzero(lanes):
            address = int(self._addresses(warp, o[0])[lane])
            fields = self.local_maps.setdefault(address, {})
            if address == address // 128 * 128 and not fields:
                assert not self.shared[address : address + 128].any(), "a map that was not cleared"
            index = str(o[1][1]) if len(o) > 2 else ""
            fields[parts[3] + index] = int(warp.get(o[-1], np.uint64 if parts[-1] == "b64" else np.uint32)[lane])

    def publish_map(self, warp: Warp, parts: list[str], o: list[Any], lanes: Array) -> None:
        assert lanes.all()
        to, source = int(self._addresses(warp, o[0])[0]), int(self._addresses(warp, o[1])[0])
        assert to % 128 == 0
        assert source % 128 == 0
        self.machine.maps[to] = dict(self.local_maps[source])

    def copy_box(self, warp: Warp, parts: list[str], o: list[Any], lanes: Array) -> None:
        (lane,) = np.flatnonzero(lanes)
        rank = int(parts[4][0])
        to = int(self._addresses(warp, o[0])[lane])
        fields = self.machine.maps[int(warp.get(o[1][1], np.uint64)[lane])]
        corner = [int(warp.get(x, np.int32)[lane]) for x in o[1][2][1]]
        barrier = self.barriers[int(self._addresses(warp, o[2])[lane])]

        def copy() -> None:
            data = box(self.machine.memory, fields, corner, rank)
            at = to + np.arange(len(data))
            self.shared[at ^ (at >> 7 & 7) << 4] = data
            barrier.bytes -= len(data)
            assert barrier.bytes >= 0, "bytes that the barrier does not expect"
            barrier.settle()

        assert to % 1024 == 0
        if self.machine.late_copies:
            self.copies.append(copy)
        else:
            copy()

    # -- products

    def wgmma(self, warp: Warp, parts: list[str], o: list[Any], lanes: Array) -> None:
        assert lanes.all(), "an instruction of warpgroups in a branch"
        if parts[1] == "fence":
            return
        if parts[1] == "commit_group":
            warp.groups.append(warp.open)
            warp.open = []
        elif parts[1] == "wait_group":
            left = int(o[0][1])
            while len(warp.groups) > left:
                for product in warp.groups.popleft():
                    product()
        else:
            self.begin_product(warp, parts, o)

    def begin_product(self, warp: Warp, parts: list[str], o: list[Any]) -> None:
        columns, depth = map(int, re.fullmatch(r"m64n(\d+)k(\d+)", parts[4]).groups())  # type: ignore[union-attr]
        kinds = parts[6:8]
        size = SIZES[kinds[0]]
        number = np.int32 if parts[5] == "s32" else np.float32
        assert (number is np.int32) == (kinds[0] in ("s8", "u8"))
        assert depth * size == 32
        sums, left, right, adds, *rest = o
        signs = [int(x[1]) for x in rest[:2]]
        major = [int(x[1]) for x in rest[2:]]
        assert signs == ([] if number is np.int32 else [1, 1])
        assert len(major) <= 2 * (size == 2)
        from_registers = left[0] == "v"
        if from_registers:
            major = [0, *major]
        major += [0] * (2 - len(major))
        right_at = int(warp.get(right, np.uint64)[0])
        left_at = 0 if from_registers else int(warp.get(left, np.uint64)[0])
        add = bool(warp.get(adds, np.bool_)[0])
        assert len(sums[1]) == columns // 2

        def product() -> None:
            if from_registers:
                a = left_fragment(np.stack([warp.get(x, np.uint32) for x in left[1]]), kinds[0])
            else:
                rows = np.arange(16) + 16 * (warp.number % 4)
                a = matrix(self.shared, left_at, rows, depth, size, major[0], kinds[0])
            b = matrix(self.shared, right_at, np.arange(columns), depth, size, major[1], kinds[1])
            result = (a.astype(np.float64) @ b.astype(np.float64).T).astype(number)
            for i, register in enumerate(sums[1]):
                value = result[LANES // 4 + i // 2 % 2 * 8, i // 4 * 8 + LANES % 4 * 2 + i % 2]
                value = value + warp.get(register, number) if add else value
                warp.set(register, fewer_bits(value) if kinds[0] in FLOAT8 else value, np.ones(32, bool))

        if self.machine.late_products:
            warp.open.append(product)
        else:
            product()


SIZES = {"s8": 1, "u8": 1, "e4m3": 1, "e5m2": 1, "f16": 2, "bf16": 2, "tf32": 4}
FLOAT8 = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def fewer_bits(sums: Array) -> Array:
    """Sums of products of float8 as tensor cores keep them: with 14 bits, cut off."""
    return (sums.view(np.uint32) & 0xFFFFFC00).view(np.float32)


def to_number(bits: Array, kind: str) -> Array:
    if kind in FLOAT8:
        return torch.from_numpy(bits).view(FLOAT8[kind]).float().numpy()
    if kind in ("s8", "u8"):
        return bits.view(TYPES[kind])
    if kind == "f16":
        return bits.view(np.float16).astype(np.float32)
    if kind == "bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return (bits & 0xFFFFE000).astype(np.uint32).view(np.float32)


def left_fragment(words: Array, kind: str) -> Array:
    """16 x 16 of a left operand in four registers."""
    a = np.zeros((16, 16), np.uint16)
    for word in range(4):
        for half in range(2):
            a[LANES // 4 + word % 2 * 8, word // 2 * 8 + LANES % 4 * 2 + half] = words[word] >> 16 * half & 0xFFFF
    return to_number(a, kind)


def matrix(shared: Array, descriptor: int, rows: Array, depth: int, size: int, along_rows: int, kind: str) -> Array:
    """rows x depth of an operand in local memory."""
    assert descriptor >> 62 == 1, "not in 128-byte lines"
    start, leading, stride = ((descriptor >> at & 0x3FFF) << 4 for at in (0, 16, 32))
    r, k = rows[:, None], np.arange(depth)[None]
    if along_rows:
        assert size == 2
        at = start + r // 64 * leading + k // 8 * stride + k % 8 * 128 + r % 64 * size
    else:
        at = start + r // 8 * stride + r % 8 * 128 + k * size
    at ^= (at >> 7 & 7) << 4
    data = shared[at[..., None] + np.arange(size)].reshape(len(rows), depth * size)
    return to_number(np.ascontiguousarray(data).view(f"u{size}"), kind)


def box(memory: Array, fields: dict[str, int], corner: list[int], rank: int) -> Array:
    """The copy of a box as the copy engine makes it: lines of 128 bytes, zeros beyond the edges."""
    assert fields["rank"] == rank - 1
    assert fields["swizzle_mode"] == 3
    assert fields["interleave_layout"] == 0
    size = {0: 1, 6: 2, 7: 4, 10: 2}[fields["elemtype"]]
    counts = [fields[f"box_dim{i}"] for i in range(rank)]
    assert counts[0] * size == 128
    assert max(counts) <= 256
    assert fields["global_address"] % 16 == 0
    assert corner[0] * size % 16 == 0
    strides = [size] + [fields[f"global_stride{i}"] for i in range(rank - 1)]
    assert all(s % 16 == 0 and 0 < s < 1 << 40 for s in strides[1:])
    steps = [fields[f"element_stride{i}"] for i in range(rank)]
    assert steps[0] == 1
    assert all(1 <= step <= 8 for step in steps)
    assert all(fields[f"global_dim{i}"] > 0 for i in range(rank))
    axes = [corner[i] + np.arange(0, counts[i], steps[i]) for i in reversed(range(rank))]
    places = np.meshgrid(*axes, indexing="ij")[::-1]
    exists = np.logical_and.reduce([(x >= 0) & (x < fields[f"global_dim{i}"]) for i, x in enumerate(places)])
    at = fields["global_address"] + sum(x.astype(np.int64) * s for x, s in zip(places, strides, strict=True))
    at = np.where(exists, at, 0).reshape(-1)
    data = memory[at[:, None] + np.arange(size)]
    data[~exists.reshape(-1)] = 0
    return data.reshape(-1)


# --- Plain instructions ----------------------------------------------------------------------------------------------

COMPARE = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def compare(group: Group, warp: Warp, parts: list[str], o: list[Any], lanes: Array) -> None:
    name, kind = parts[1], TYPES[parts[-1]]
    a, b = (warp.get(x, kind) for x in o[1:3])
    if name in COMPARE:
        value = COMPARE[name](a, b)
    elif name in ("nan", "num"):
        value = (np.isnan(a) | np.isnan(b)) == (name == "nan")
    elif name[:2] in COMPARE and name.endswith("u"):
        value = COMPARE[name[:2]](a, b) | np.isnan(a) | np.isnan(b)
    else:
        value = {"lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal}[name](a, b)
    warp.set(o[0], value, lanes)


def select(group: Group, warp: Warp, parts: list[str], o: list[Any], lanes: Array) -> None:
    kind = TYPES[parts[-1]]
    warp.set(o[0], np.where(warp.get(o[3], np.bool_), warp.get(o[1], kind), warp.get(o[2], kind)), lanes)


def binary(function: Callable[..., Array]) -> Callable[..., None]:
    def run(group: Group, warp: Warp, parts: list[str], o: list[Any], lanes: Array) -> None:
        kind = TYPES[parts[-1]]
        warp.set(o[0], function(*(warp.get(x, kind) for x in o[1:])), lanes)

    return run


def shift(left: bool) -> Callable[..., None]:
    def run(group: Group, warp: Warp, parts: list[str], o: list[Any], lanes: Array) -> None:
        kind = TYPES[parts[-1]]
        bits, value = np.dtype(kind).itemsize * 8, warp.get(o[1], kind)
        by = np.minimum(warp.get(o[2], np.uint32), bits - 1).astype(kind)
        gone = warp.get(o[2], np.uint32) >= bits
        result = value << by if left else value >> by
        warp.set(o[0], np.where(gone & (left or value >= 0), kind(0), result), lanes)

    return run


def multiply(group: Group, warp: Warp, parts: list[str], o: list[Any], lanes: Array) -> None:
    kind = TYPES[parts[-1]]
    a, b = (warp.get(x, kind) for x in o[1:3])
    added = warp.get(o[3], kind) if len(o) > 3 and "wide" not in parts else None
    if kind is np.float32:
        value = a * b
    elif "wide" in parts:
        size = np.dtype(kind).itemsize
        wide = np.dtype(f"{np.dtype(kind).kind}{2 * size}")
        value = a.astype(wide) * b.astype(wide)
        if len(o) > 3:
            value = value + warp.get(o[3], wide)
    elif "hi" in parts:
        value = (a.astype(np.int64 if kind is np.int32 else np.uint64) * b >> 32).astype(kind)
    else:
        value = a * b
    warp.set(o[0], value if added is None else value + added, lanes)


def divide(group: Group, warp: Warp, parts: list[str], o: list[Any], lanes: Array) -> None:
    kind = TYPES[parts[-1]]
    a, b = (warp.get(x, kind) for x in o[1:3])
    if kind is np.float32:
        value = a / b
    else:
        b = np.where(lanes, b, 1)
        quotient = (
            np.abs(a.astype(np.int64))
            // np.abs(b.astype(np.int64))
            * np.sign(a.astype(np.int64))
            * np.sign(b.astype(np.int64))
        )
        value = (quotient if parts[0] == "div" else a.astype(np.int64) - quotient * b.astype(np.int64)).astype(kind)
    warp.set(o[0], value, lanes)


def fused(a: Array, b: Array, c: Array) -> Array:
    return (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(np.float32)


def unary(function: Callable[[Array], Array]) -> Callable[..., None]:
    def run(group: Group, warp: Warp, parts: list[str], o: list[Any], lanes: Array) -> None:
        kind = TYPES[parts[-1]]
        value = function(warp.get(o[1], kind))
        warp.set(o[0], value.astype(kind), lanes)

    return run


def move(group: Group, warp: Warp, parts: list[str], o: list[Any], lanes: Array) -> None:
    kind = TYPES[parts[-1]]
    if o[0][0] == "v":
        whole = warp.get(o[1], kind)
        each = np.dtype(kind).itemsize // len(o[0][1])
        pieces = np.ascontiguousarray(whole).view(f"u{each}").reshape(32, -1)
        for i, target in enumerate(o[0][1]):
            warp.set(target, pieces[:, i], lanes)
    elif o[1][0] == "v":
        each = np.dtype(kind).itemsize // len(o[1][1])
        pieces = np.stack([warp.get(x, np.dtype(f"u{each}").type) for x in o[1][1]], 1)
        warp.set(o[0], np.ascontiguousarray(pieces).view(kind).reshape(32), lanes)
    else:
        warp.set(o[0], warp.get(o[1], kind).copy(), lanes)


def bf16_bits(x: Array) -> Array:
    bits = np.ascontiguousarray(x).view(np.uint32)
    return np.where(np.isnan(x), 0x7FFF, (bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint32)


def convert(group: Group, warp: Warp, parts: list[str], o: list[Any], lanes: Array) -> None:
    if parts[2] in ("bf16x2", "f16x2"):
        high, low = (warp.get(x, np.float32) for x in o[1:3])
        as_bits = (
            bf16_bits if parts[2] == "bf16x2" else lambda x: x.astype(np.float16).view(np.uint16).astype(np.uint32)
        )
        warp.set(o[0], as_bits(high) << 16 | as_bits(low), lanes)
        return
    if parts[-1] == "f16":
        warp.set(o[0], warp.get(o[1], np.uint16).view(np.float16).astype(np.float32), lanes)
        return
    to, source = TYPES[parts[-2]], TYPES[parts[-1]]
    value = warp.get(o[1], source)
    if np.dtype(to).kind != "f" and np.dtype(source).kind == "f":
        value = np.trunc(value) if "rzi" in parts else np.rint(value)
    value = value.astype(to)
    register = group.program.types[o[0][1]]
    if np.dtype(register).itemsize > np.dtype(to).itemsize:
        value = value.astype(np.int64 if np.dtype(to).kind == "i" else np.uint64).astype(register)
    warp.set(o[0], value, lanes)


def shuffle(group: Group, warp: Warp, parts: list[str], o: list[Any], lanes: Array) -> None:
    assert parts[2] == "bfly"
    assert lanes.all(), "a shuffle in a branch"
    warp.set(o[0], warp.get(o[1], np.uint32)[LANES ^ warp.get(o[2], np.uint32)], lanes)


def extract(group: Group, warp: Warp, parts: list[str], o: list[Any], lanes: Array) -> None:
    assert parts[-1] == "u32"
    value, first, count = (warp.get(x, np.uint32).astype(np.uint64) for x in o[1:])
    warp.set(o[0], (value >> first & (np.uint64(1) << count) - np.uint64(1)).astype(np.uint32), lanes)


def nothing(group: Group, warp: Warp, parts: list[str], o: list[Any], lanes: Array) -> None:
    pass


def registers(group: Group, warp: Warp, parts: list[str], o: list[Any], lanes: Array) -> None:
    assert lanes.all()


OPCODES: dict[str, Callable[..., None]] = {
    "wgmma.": Group.wgmma, "mbarrier.": Group.mbarrier, "bar.": Group.named_barrier,
    "ld.": Group.load, "st.": Group.store,
    "tensormap.replace": Group.replace_map, "tensormap.cp_fenceproxy": Group.publish_map, "fence.proxy": nothing,
    "cp.async.bulk.tensor": Group.copy_box, "setmaxnreg": registers,
    "setp.": compare, "selp.": select, "shl.": shift(True), "shr.": shift(False), "mov.": move, "cvt.": convert,
    "cvta.": move, "bfe.": extract, "shfl.": shuffle, "mul.": multiply, "mad.": multiply,
    "div.": divide, "rem.": divide,
    "add.": binary(np.add), "sub.": binary(np.subtract), "min.": binary(np.fmin), "max.": binary(np.fmax),
    "and.": binary(np.bitwise_and), "or.": binary(np.bitwise_or), "xor.": binary(np.bitwise_xor), "fma.": binary(fused),
    "not.": unary(np.invert), "neg.": unary(np.negative), "abs.": unary(np.abs),
    "ex2.": unary(np.exp2), "lg2.": unary(np.log2),
    "rcp.": unary(lambda x: 1 / x), "sqrt.": unary(np.sqrt),
}  # fmt: skip
