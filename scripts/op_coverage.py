#!/usr/bin/env python
"""Writes docs/op-coverage.md: which ops run on the device in which dtypes, and which go to the CPU.

    scripts/op_coverage.py          writes the page
    scripts/op_coverage.py --check  exits with 1 where the page is out of date
    scripts/op_coverage.py --probe  first tries hand-written kernels anew (minutes; needs a device), see below

The bodies of ops in the table of rows (docs/op-table.md) say which dtypes they have. Other registrations have to be
tried: --probe runs PyTorch's own sample inputs and keeps what it saw in scripts/op_dtypes.txt. Writing and checking the
page need no device, and take a few seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

import dlbackend  # noqa: F401
from dlbackend import _C

ROOT = Path(__file__).resolve().parent.parent
PAGE, PROBED = ROOT / "docs/op-coverage.md", ROOT / "scripts/op_dtypes.txt"

# The page's columns. Kernels tell the integers apart by size alone, so that one stands for all.
COLUMNS = {
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float64: "f64",
    torch.int64: "int",
    torch.bool: "bool",
    torch.complex64: "complex",
}
# Ops that PyTorch calls within another before a dispatch mode sees them.
INNER = {
    "convolution": "convolution_overrideable",
    "convolution_backward": "convolution_backward_overrideable",
}
SAMPLES = 4  # so many samples of an op and a dtype run: the first ones differ in rank, and so in what they call
NATIVE, CPU = "yes", "CPU"

Support = dict[torch.dtype, str]


def dtype_class(dtype: torch.dtype) -> str:
    if dtype == torch.bool:
        return "bool"
    if dtype.is_complex:
        return "complex"
    return "float" if dtype.is_floating_point else "int"


def computing_class(dtype: torch.dtype, promotion: str) -> str:
    """The body of a row that takes inputs of that dtype."""
    cls = dtype_class(dtype)
    if promotion == "truth-load":
        return "bool"
    if promotion == "float" and cls in ("int", "bool"):
        return "float"
    if promotion == "sum" and cls == "bool":
        return "int"
    return cls


def base_name(overload: str) -> str:
    """The op of an overload: "add" of "aten::add_.Tensor"."""
    name = overload.removeprefix("aten::").split(".")[0]
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def registered() -> set[str]:
    """The ops that this library registers for its device. PyTorch's own registrations for all devices are not there."""
    return set(torch._C._dispatch_get_registrations_for_dispatch_key("PrivateUse1"))


def supported_by_rows() -> dict[str, Support]:
    """For each op what its rows compute, the rows of one op together."""
    found: dict[str, Support] = defaultdict(dict)
    for row in _C.op_table():
        promotion = row["promotion"]
        if row["kind"] == "reduce" and promotion == "truth":
            promotion = "truth-load"  # elements of any dtype are loaded as truth values
        for name in {base_name(overload) for overload in row["overloads"]}:
            for dtype in COLUMNS:
                if computing_class(dtype, promotion) in row["bodies"]:
                    found[name][dtype] = NATIVE
                else:
                    found[name].setdefault(dtype, CPU)
    return found


def read_probed() -> dict[str, Support]:
    found: dict[str, Support] = {}
    by_name = {name: dtype for dtype, name in COLUMNS.items()}
    for line in PROBED.read_text().splitlines() if PROBED.exists() else []:
        if line.startswith("#"):
            continue
        name, *words = line.split()
        found[name] = {by_name[word.lstrip("-")]: CPU if word.startswith("-") else NATIVE for word in words}
    return found


def write_probed(found: dict[str, Support]) -> None:
    lines = [
        "# Written by scripts/op_coverage.py --probe: the dtypes in which ops with hand-written kernels ran on",
        "# the device, and with a minus those in which they went to the CPU. Dtypes that no sample has are missing.",
    ]
    for name in sorted(found):
        words = [("" if found[name][d] == NATIVE else "-") + c for d, c in COLUMNS.items() if d in found[name]]
        lines.append(f"{name} {' '.join(words)}")
    PROBED.write_text("\n".join(lines) + "\n")


def probe(wanted: Iterable[str]) -> dict[str, Support]:
    """Runs samples of every OpInfo in every dtype, and notes for each op that it calls whether that fell back."""
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves, tree_map_only

    wanted = set(wanted)
    found: dict[str, Support] = defaultdict(dict)

    class Note(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = base_name(str(func._schema.name))
            name = INNER.get(name, name)
            before = dict(_C.fallback_report())
            result = func(*args, **(kwargs or {}))
            tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
            on_device = [t for t in tensors if t.device.type == "ocl"]
            if name in wanted and on_device and on_device[0].dtype in COLUMNS:
                fell_back = _C.fallback_report() != before
                if not fell_back or found[name].get(on_device[0].dtype) != NATIVE:
                    found[name][on_device[0].dtype] = CPU if fell_back else NATIVE
            return result

    def run(op: Any, sample: Any) -> None:
        """Forward and, where the sample wants gradients, backward."""
        arguments = tree_map_only(
            torch.Tensor,
            lambda t: t.detach().to("ocl").requires_grad_(t.requires_grad),
            (sample.input, sample.args, sample.kwargs),
        )
        note: Any = Note
        with note():
            results = tree_leaves(op(arguments[0], *arguments[1], **arguments[2]))
            differentiable = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
            if differentiable:
                torch.autograd.backward(differentiable, [torch.ones_like(r) for r in differentiable])

    infos: list[Any] = list(op_db)
    for number, op in enumerate(infos):
        for dtype in COLUMNS:
            if dtype not in op.supported_dtypes("cpu"):
                continue
            for grad in {False, dtype.is_floating_point and op.supports_autograd}:
                samples: list[Any] = []
                with contextlib.suppress(Exception):  # what PyTorch, the CPU or the device refuses says nothing
                    samples = list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=grad), SAMPLES))
                for sample in samples:
                    with contextlib.suppress(Exception):
                        run(op, sample)
        if sys.stderr.isatty():
            print(f"\r{number + 1} of {len(infos)} {op.name:60.60}", end="", file=sys.stderr)
    return found


def page(rows: dict[str, Support], probed: dict[str, Support], names: set[str]) -> str:
    table = sorted(names)
    text = f"""# Supported ops

Written by `scripts/op_coverage.py`; do not edit. These are all {len(table)} ops that are registered for the device. An
op that is not among them is either made of them by PyTorch or computed on the CPU.

- `{NATIVE}`: a kernel on the device. f64, and complex numbers of it, need a device that has float64. `int` stands for
  all integers from 8 to 64 bits.
- `{CPU}`: no kernel for the dtype. PyTorch computes the op on the CPU, with copies there and back, which
  `dlbackend.fallback_report()` counts, where it defines the op for the dtype at all.
- empty: no sample of PyTorch's tests runs the op in the dtype.

*rows* is the number of rows of [the table of ops](op-table.md) that the op's overloads choose from; 0 means a
hand-written kernel, or no kernel at all, as for views.

| op | rows | {" | ".join(COLUMNS.values())} |
| --- | --- | {" | ".join("---" for _ in COLUMNS)} |
"""
    bodies: dict[str, int] = defaultdict(int)
    for row in _C.op_table():
        for name in {base_name(overload) for overload in row["overloads"]}:
            bodies[name] += 1
    for name in table:
        support = rows.get(name) or probed.get(name, {})
        cells = [support.get(dtype, "") for dtype in COLUMNS]
        text += f"| {name} | {bodies[name]} | {' | '.join(cells)} |\n"
    return text.replace(" |  |", " | |").replace(" |  |", " | |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--probe", action="store_true")
    options = parser.parse_args()
    rows = supported_by_rows()
    names = {base_name(overload) for overload in registered() if overload.startswith("aten::")}
    if options.probe:
        write_probed(probe(names - set(rows)))
    text = page(rows, read_probed(), names)
    if options.check:
        if PAGE.exists() and PAGE.read_text() == text:
            return 0
        print("docs/op-coverage.md is out of date: run scripts/op_coverage.py", file=sys.stderr)
        return 1
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
