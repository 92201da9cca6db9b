#!/usr/bin/env python
"""Calls every overload of ATen on the device with small arguments made of its schema by chance. What it answers is its
own affair, an error too, but not an internal assert, a crash or a hang, unless the CPU answers the same call so.

    PYTHONPATH=python:tests python tests/upstream/overloads.py    all, with the device's kernels
    ... --sample 100 --seed 3                                     100 of them, chosen by chance
    ... --only aten::kaiser_window.beta --seed 3                  one, as a run with that seed calls it
"""

from __future__ import annotations

import argparse
import os
import random
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before PyTorch is loaded: a fork keeps no threads

import torch
from torch.utils._pytree import tree_map
from upstream import workers

import dlbackend  # noqa: F401

DEVICE = "ocl"
DTYPES = [
    torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64,
]  # fmt: skip
INTEGERS = re.compile(r"ind(ex|ices)|target|offset|length|pivot|label|zero_point|batch_sizes|bag|perm|segment|splits")
TRUTHS = re.compile(r"mask|condition|found_inf")
WORDS = ["none", "mean", "sum", "reflect", "constant", "right", "linear", "trunc", "amax", "i,i->i", "ij", "L", "xy"]
# The CPU's kernel reads beyond what it is given, which crashes at times.
LEFT_OUT = re.compile(r"mkldnn_rnn")
FORMATS = [torch.contiguous_format, torch.channels_last, torch.preserve_format]


def overloads() -> list[str]:
    """The names of the overloads that take a tensor or make one, and no object of a class of TorchScript."""

    def is_one(name: str) -> bool:
        types = " ".join(str(argument.type) for argument in schemas()[name].arguments)
        return ("Tensor" in types or "Device" in types) and "__torch__" not in types and not LEFT_OUT.search(name)

    return sorted(filter(is_one, schemas()))


def schemas(known: dict[str, Any] = {}) -> dict[str, Any]:  # noqa: B006
    """The schema of each overload that the dispatcher knows."""
    if not known:
        callable_ = set(torch._C._dispatch_get_all_op_names())
        for schema in torch._C._jit_get_all_schemas():
            name = f"{schema.name}.{schema.overload_name}".rstrip(".")
            if name.startswith("aten::") and name in callable_:
                known[name] = schema
    return known


class Arguments:
    """The arguments of a call, made on the CPU. All tensors of a call have much in common: so some calls succeed."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        sizes = rng.choice([[1], [1, 2], [0, 1, 2, 3]])
        self.shape = [rng.choice(sizes) for _ in range(rng.choice([0, 1, 2, 2, 3, 4, 4, 5]))]
        self.dtype = torch.float32 if rng.random() < 0.6 else rng.choice(DTYPES)
        self.length = rng.choice([1, 1, 2, 3])  # of lists of tensors

    def tensor(self, name: str, written: bool) -> torch.Tensor:
        shape, chance = self.shape, self.rng.random()
        if written and chance < 0.5:
            shape = [0]
        elif chance < 0.1:
            shape = shape[1:]
        elif chance < 0.25:
            shape = [self.rng.choice([0, 1, 2, 3]) for _ in range(self.rng.choice([0, 1, 1, 2, 3]))]
        generator = torch.Generator().manual_seed(self.rng.getrandbits(32))
        if INTEGERS.search(name):
            return torch.randint(0, 2, shape, generator=generator)
        if TRUTHS.search(name):
            return torch.randint(0, 2, shape, generator=generator) > 0
        dtype = self.dtype if self.rng.random() < 0.95 else self.rng.choice(DTYPES)
        return (torch.rand(shape, generator=generator) * 2).to(dtype)

    def integer(self, name: str) -> int:
        if name.startswith("dim") and self.shape:
            return self.rng.randrange(-1, len(self.shape))
        return self.rng.choice([-1, 0, 1, 1, 1, 2, 3])

    def integers(self, count: int | None) -> list[int]:
        if count is None and self.rng.random() < 0.3:
            return list(self.shape)
        rank = len(self.shape)
        length = self.rng.choice([count or rank, count or rank, rank, max(0, rank - 2), 1])
        values = self.rng.choice([[0], [1], [1, 2], [0, 1], [-1, 0, 1, 2, 3]])
        return [self.rng.choice(values) for _ in range(length)]

    def simple(self, kind: str, name: str, count: int | None, written: bool) -> Any:
        """A value of a type that is neither optional nor a list of what is no number."""
        makers: dict[str, Callable[[], Any]] = {
            "Tensor": lambda: self.tensor(name, written),
            "int": lambda: self.integer(name),
            "bool": lambda: self.rng.random() < 0.5,
            "float": lambda: self.rng.choice([0.0, 0.5, 1.0, 2.0, -1.0]),
            "number": lambda: self.rng.choice([0, 1, 2, -1, 0.5, 2.0]),
            "str": lambda: self.rng.choice(WORDS),
            "Device": lambda: torch.device("cpu"),
            "Layout": lambda: torch.strided,
            "MemoryFormat": lambda: self.rng.choice(FORMATS),
            "ScalarType": lambda: self.dtype if self.rng.random() < 0.7 else self.rng.choice(DTYPES),
            "Generator": torch.Generator,
            "Storage": lambda: self.tensor(name, written).untyped_storage(),
            "Stream": lambda: None,
            "List[int]": lambda: self.integers(count),
        }
        return makers[kind]()

    def value(self, argument: Any) -> Any:
        kind, name = str(argument.real_type), argument.name
        written = argument.alias_info is not None and argument.alias_info.is_write and argument.kwarg_only
        if kind == "Optional[Device]":  # None would be the CPU
            return torch.device("cpu")
        if argument.has_default_value() and self.rng.random() < 0.6:
            return argument.default_value
        if kind.startswith("Optional["):
            if self.rng.random() < 0.5:
                return None
            kind = kind[len("Optional[") : -1]
        if kind.startswith("List[") and kind != "List[int]":
            length = argument.N or self.length
            kind = kind[len("List[") : -1].removeprefix("Optional[").removesuffix("]")
            return [self.simple(kind, name, None, written) for _ in range(length)]
        return self.simple(kind, name, argument.N, written)


def call(name: str, seed: int, attempt: int, device: str) -> None:
    """One call on the device or the CPU; the same seed and attempt give the same arguments."""
    rng = random.Random(f"{seed} {name} {attempt}")
    arguments = Arguments(rng)
    stray = rng.random() < 0.1  # some tensors stay on the CPU, for which there may be an error, but no crash

    def there(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value if stray and rng.random() < 0.3 else value.to(device)
        if isinstance(value, torch.device):
            return torch.device(device)
        if isinstance(value, torch.Generator):
            return torch.Generator(device=device).manual_seed(seed)
        if isinstance(value, torch.UntypedStorage):
            return (
                value
                if device == "cpu"
                else torch.empty(value.nbytes(), dtype=torch.uint8, device=device).untyped_storage()
            )
        return value

    positional, named = [], {}
    for argument in schemas()[name].arguments:
        value = tree_map(there, arguments.value(argument))
        if argument.kwarg_only:
            named[argument.name] = value
        else:
            positional.append(value)
    base, _, overload = name.removeprefix("aten::").partition(".")
    getattr(getattr(torch.ops.aten, base), overload or "default")(*positional, **named)
    if device != "cpu":
        torch.ocl.synchronize()


def asserts(name: str, seed: int, attempt: int, device: str) -> str:
    """The internal assert that the call ends with, "" where it does otherwise."""
    try:
        call(name, seed, attempt, device)
    except Exception as error:
        if "INTERNAL ASSERT" in str(error):
            return " ".join(str(error).split())[:300]
    return ""


def run_overload(name: str, seed: int, attempts: list[int], device: str) -> list[str]:
    """The faults of some attempts."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for attempt in attempts:
            said = asserts(name, seed, attempt, device)
            if said and not (device != "cpu" and asserts(name, seed, attempt, "cpu")):
                found.append(f"attempt {attempt}: {said}")
    return found


def run(
    names: list[str], seed: int, attempts: int, jobs: int, timeout: float, log: str = os.devnull
) -> Iterator[tuple[str, str]]:
    """Pairs of an overload and what is wrong with it. This process must not have opened a device."""
    lost = []
    every = list(range(attempts))
    for number, result in workers.run_all(
        names, lambda name: run_overload(name, seed, every, DEVICE), jobs, timeout, log
    ):
        if isinstance(result, workers.Lost):
            lost.append(names[number])
        else:
            yield from ((names[number], problem) for problem in result)
    # Find the attempt, and whether the CPU is lost with the same one.
    single = [(name, attempt) for name in lost for attempt in every]
    suspects: dict[tuple[str, int], str] = {}
    for device in (DEVICE, "cpu"):
        work = lambda item, device=device: run_overload(item[0], seed, [item[1]], device)  # noqa: E731
        items = single if device == DEVICE else list(suspects)
        for number, result in workers.run_all(items, work, jobs, timeout, log):
            if isinstance(result, workers.Lost) and device == DEVICE:
                suspects[items[number]] = result.how
            elif isinstance(result, workers.Lost):
                del suspects[items[number]]
    yield from ((name, f"attempt {attempt}: {how}") for (name, attempt), how in suspects.items())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="OVERLOAD")
    parser.add_argument("--sample", type=int, metavar="N", help="no more than N overloads, chosen by chance")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--attempts", type=int, default=3, help="calls of each overload (default: 3)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for an overload, else it hangs")
    parser.add_argument("--log", default=os.devnull, help="a file for what workers wrote before they crashed")
    options = parser.parse_args()
    names = options.only or overloads()
    if options.sample:
        names = random.Random(options.seed).sample(names, min(options.sample, len(names)))
    failed = 0
    for name, problem in run(names, options.seed, options.attempts, options.jobs, options.timeout, options.log):
        print(name, problem, flush=True)
        failed += 1
    print(f"{len(names)} overloads, {failed} problems")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
