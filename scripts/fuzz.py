#!/usr/bin/env python
"""Compares calls of PyTorch's ops with inputs of random sizes and layouts on the device and on the CPU.

    scripts/fuzz.py --minutes 60                 an hour, on all cores; the seeds begin with a random one
    scripts/fuzz.py --seed 123 --count 1         one call again
    scripts/fuzz.py --only add --dtype float32   calls of one op

A seed is a number that says which op of PyTorch's database is called, how (forward, gradient, out, inplace), in which
dtype, and with which inputs: sizes 0 and 1 among them, dimensions in any order in memory, gaps, offsets, elements that
overlap or are repeated (stride 0), one tensor for several arguments. Results are right as for scripts/op_db.py. For
each wrong one, and each crash or hang, a line has the command that repeats it; then the exit status is 1.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import os
import random
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
# As in scripts/op_db.py.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ["DLBACKEND_AUTOLOAD"] = "0"

from upstream import cases, comparing, fuzzing, listed, workers  # noqa: E402

from dlbackend.progress import Bar  # noqa: E402


def chosen(options: argparse.Namespace) -> list[cases.Case]:
    """The cases that may be called: all but those known to fail."""
    known = listed.read_list()
    return [
        case
        for case in cases.cases(["op_db"])
        if case.kind != "noncontiguous"  # forward, in one of many layouts
        and case.id not in known
        and (not options.only or case.name in options.only)
        and (not options.kind or case.kind in options.kind)
        and (not options.dtype or case.dtype in options.dtype)
    ]


def repeating(seed: int, options: argparse.Namespace) -> str:
    filters = [(f"--{name}", value) for name in ("only", "kind", "dtype") for value in getattr(options, name) or ()]
    return shlex.join(["scripts/fuzz.py", "--seed", str(seed), "--count", "1", *itertools.chain(*filters)])


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no call after that time")
    parser.add_argument("--count", type=int, help="so many calls (default: 100 if there are no --minutes)")
    parser.add_argument("--seed", type=int, help="the first call's; those after it count up (default: by chance)")
    parser.add_argument("--only", action="append", metavar="OP", help="entries of this name")
    parser.add_argument("--kind", action="append")
    parser.add_argument("--dtype", action="append", choices=cases.DTYPES)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="worker processes (default: one a core)")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for a call, else it hangs (default: 120)")
    parser.add_argument(
        "--log", type=Path, default=ROOT / "build/fuzz.log", help="what workers write before they crash"
    )
    return parser.parse_args()


def main() -> int:
    options = parsed()
    options.log.parent.mkdir(parents=True, exist_ok=True)
    found = chosen(options)
    if not found:
        print("no such case", file=sys.stderr)
        return 2
    first = random.SystemRandom().randrange(10**9) if options.seed is None else options.seed
    count = options.count or (100 if options.minutes == float("inf") else None)
    start = time.monotonic()
    bar, counts = Bar("calls"), collections.Counter[str]()

    def seeds() -> Iterator[int]:
        for number in itertools.count() if count is None else range(count):
            if time.monotonic() - start > 60 * options.minutes:
                return
            yield first + number

    print(f"seeds from {first}", flush=True)
    work = lambda seed: fuzzing.run_seed(seed, found)  # noqa: E731
    for number, done in workers.run_all(seeds(), work, options.jobs, options.timeout, str(options.log)):
        seed = first + number
        call = fuzzing.Found(seed, fuzzing.choose(found, seed).id, done.how) if isinstance(done, workers.Lost) else done
        outcome = {"": "passed", comparing.REFUSED: "refused"}.get(call.cause, "failed")
        counts[outcome] += 1
        if outcome == "failed":
            bar.clear()
            print(f"{call.what}: {call.cause}\n    {repeating(seed, options)}", flush=True)
        progress, all_of_it = (counts.total(), count) if count else ((time.monotonic() - start) / 60, options.minutes)
        bar.show(progress, all_of_it, f"{counts.total()} calls, {counts['failed']} failed")
    totals = ", ".join(f"{counts[outcome]} {outcome}" for outcome in ("passed", "refused", "failed"))
    print(f"{counts.total()} calls in {time.monotonic() - start:.0f} s: {totals}")
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
