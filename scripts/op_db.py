#!/usr/bin/env python
"""Runs PyTorch's databases of ops, modules, foreach functions and optimizers on the device, against the CPU.

    scripts/op_db.py                               everything (hours)
    scripts/op_db.py --quick --dtype float32       the first samples of each case, in one dtype
    scripts/op_db.py --only add --only nn.Linear   entries of these names, in all databases
    scripts/op_db.py --sample 100 --seed 1         100 entries, chosen by chance
    scripts/op_db.py --minutes 8 --resume          goes on with what the last run into the file left

A case is an entry, a kind of call (forward, gradient, out, inplace, noncontiguous; of modules train and eval, of
optimizers the implementation) and a dtype. Cases that fail and are not in tests/upstream/expected.txt, and listed ones
that do not fail, make the exit status 1. All results go to a file of JSON.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
# Before PyTorch is loaded: a fork keeps no threads, and workers share the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# PyTorch's databases would ask a device that is there how many there are, and nothing forks after that.
os.environ["DLBACKEND_AUTOLOAD"] = "0"

import torch  # noqa: E402
from upstream import cases, listed, workers  # noqa: E402

from dlbackend import outputs  # noqa: E402
from dlbackend.progress import Bar  # noqa: E402


def chosen(options: argparse.Namespace) -> list[cases.Case]:
    found: list[cases.Case] = cases.cases(options.database)
    if options.only:
        found = [case for case in found if case.name in options.only]
    if options.kind:
        found = [case for case in found if case.kind in options.kind]
    if options.dtype:
        found = [case for case in found if case.dtype in options.dtype]
    if options.sample:
        names = sorted({(case.database, case.number) for case in found})
        kept = set(random.Random(options.seed).sample(names, min(options.sample, len(names))))
        found = [case for case in found if (case.database, case.number) in kept]
    return found


def run(selected: list[cases.Case], options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """For each case's id what became of it, as it goes to the file."""
    samples = cases.QUICK_SAMPLES if options.quick else None
    results: dict[str, dict[str, Any]] = {}
    if options.resume and options.out.exists():
        results = json.loads(options.out.read_text())["cases"]
        selected = [case for case in selected if case.id not in results]
    bar, failed = Bar("cases"), 0
    total = len(results) + len({case.id for case in selected})  # two entries may have one name
    log = str(options.out.with_suffix(".log"))
    end = time.monotonic() + 60 * options.minutes

    def work(case: cases.Case) -> cases.Result | None:
        return cases.run_case(case, samples) if time.monotonic() < end else None

    for number, done in workers.run_all(selected, work, options.jobs, options.timeout, log):
        if done is None:
            continue
        case = selected[number]
        result = cases.Result(causes=[done.how]) if isinstance(done, workers.Lost) else done
        known = results.setdefault(case.id, {"outcome": "", "causes": [], "fallbacks": []})
        known["causes"] += result.causes
        known["fallbacks"] = sorted({*known["fallbacks"], *result.fallbacks})
        if known["outcome"] in ("", cases.REFUSED) or result.causes:
            known["outcome"] = result.outcome
        failed += bool(result.causes)
        bar.show(len(results), total, f"{len(results)}/{total}, {failed} failed")
    return results


def kind_of_cause(cause: str) -> str:
    """The kind of a failure, which many ops may share: without numbers, and without the op's name in front."""
    if " differ" in cause:
        return "values differ"
    if cause.startswith(("shape", "dtype")):
        return cause.split()[0] + " differs"
    return re.sub(r"\d+", "N", cause)[:110]


def table(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
                     for row in rows)  # fmt: skip


def totals(results: dict[str, dict[str, Any]], verdict: listed.Verdict) -> dict[str, dict[str, int]]:
    counted: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for name, result in results.items():
        for group in (name.split("::")[0], "all"):
            counts = counted[group]
            counts["cases"] += 1
            counts[result["outcome"]] += 1
            counts["without the CPU"] += result["outcome"] == "passed" and not result["fallbacks"]
            counts["listed"] += name in verdict.known
    return {group: dict(counts) for group, counts in counted.items()}


def report(results: dict[str, dict[str, Any]], sums: dict[str, dict[str, int]]) -> str:
    columns = ("cases", "passed", "without the CPU", "refused", "failed", "listed")
    rows: list[tuple[str, ...]] = [("database", *columns)]
    rows += [(group, *(str(counts.get(column, 0)) for column in columns)) for group, counts in sums.items()]
    failures = [(name, cause) for name, result in sorted(results.items()) for cause in result["causes"]]
    text = ""
    if failures:
        text += table([("failed", "cause"), *failures]) + "\n\n"
        kinds = collections.Counter(kind_of_cause(cause) for _, cause in failures)
        text += table([("times", "kind of cause"), *((str(n), kind) for kind, n in kinds.most_common())]) + "\n\n"
    return text + table(rows)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"no more than {cases.QUICK_SAMPLES} samples of a case")
    parser.add_argument("--only", action="append", metavar="OP", help="entries of this name")
    parser.add_argument("--database", action="append", choices=cases.DATABASES)
    parser.add_argument("--kind", action="append")
    parser.add_argument("--dtype", action="append", choices=cases.DTYPES)
    parser.add_argument("--sample", type=int, metavar="N", help="no more than N entries, chosen by chance")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="worker processes (default: one a core)")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for a case, else it hangs (default: 300)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no case after that time")
    parser.add_argument("--resume", action="store_true", help="leave out cases whose results --out has, and keep those")
    parser.add_argument("--out", type=outputs.file, default=str(ROOT / "build/op_db.json"))
    return parser.parse_args()


def main() -> int:
    options = parsed()
    selected = chosen(options)
    if not selected:
        print("no such case", file=sys.stderr)
        return 2
    start = time.monotonic()
    results = run(selected, options)
    verdict = listed.judge({name: result["outcome"] for name, result in results.items()}, listed.read_list())
    sums = totals(results, verdict)
    arguments = {name: str(value) for name, value in vars(options).items() if value}
    outputs.write_json(
        options.out, {"torch": torch.__version__, "options": arguments, "totals": sums, "cases": results}
    )
    print(report(results, sums))
    print(*listed.complaints(verdict), sep="\n")
    print(f"{len(results)} cases in {time.monotonic() - start:.0f} s; all results are in {options.out}")
    return 0 if verdict.good else 1


if __name__ == "__main__":
    sys.exit(main())
