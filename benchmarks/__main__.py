"""Compares ocl with a peer device, case by case, alternating: `python -m benchmarks --peer cpu --suite pointwise`.

What measuring solvers found elsewhere is not used: ocl runs without packs and on caches that begin empty, and a case is
timed when nothing more is compiled or measured for it. `--own-caches` takes the user's caches and packs instead. Beside
the ratio stand ocl's time, how long its caller was busy, its launches, and what its ops move and compute; roofline is
the least time that the device's measured rates allow for that, over the time that it took.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import statistics
import tempfile
import time
from typing import Any

from benchmarks import host_cost, startup
from benchmarks.case import Case
from benchmarks.cases import SUITES, cases
from benchmarks.fresh_caches import fresh_caches
from dlbackend import outputs
from dlbackend.tools.bench import Worker, alternate, examine, middle, ratio

LONG = ("nets-tf32", "nets-bf16", "nets-autocast", "language", "compiled")  # only where they are named
UNITS = {"GB/s": 1e9, "GFLOP/s": 1e9}


def rate(case: Case, seconds: float) -> float:
    """The figure in the case's unit; larger is better for rates, smaller for times."""
    if case.unit in UNITS:
        return case.work / seconds / UNITS[case.unit]
    return seconds * (1e6 if case.unit == "us" else 1e3)


def compare(case: Case, ocl: Worker, peer: Worker, rounds: int, seconds: float) -> dict[str, Any]:
    """Alternates the two devices; the ratio is the median over rounds of peer time over ocl time.

    Many short rounds: on shared machines the pace changes within seconds, and both devices have to see the same.
    """
    request = {"suite": case.suite, "case": case.name, "seconds": seconds}
    try:
        times = alternate({"ocl": ocl, "peer": peer}, request, rounds)
        own, other = middle(times["ocl"]), middle(times["peer"])
        whole = examine(ocl, request, own.seconds)
    except RuntimeError as error:
        return {"case": case.name, "suite": case.suite, "error": str(error)}
    work = whole.total()
    return {
        "case": case.name,
        "suite": case.suite,
        "unit": case.unit,
        "ocl": rate(case, own.seconds),
        "peer": rate(case, other.seconds),
        "ratio": ratio(times["ocl"], times["peer"]),
        "microseconds": own.seconds * 1e6,
        "host_microseconds": own.host * 1e6,
        "peer_host_microseconds": other.host * 1e6,
        "launches": whole.launches,
        "bytes": work.bytes,
        "operations": work.operations,
        "roofline": work.least / own.seconds,
    }


def show(row: dict[str, Any], goal: float) -> None:
    """Prints one line of the table."""
    if "error" in row:
        print(f"{row['case']:38s} {row['error']}", flush=True)
        return
    verdict = "" if not goal else f"goal {goal:.2f} {'met' if row['ratio'] >= goal else 'MISSED'}"
    print(
        f"{row['case']:38s} {row['ocl']:10.2f} {row['peer']:10.2f} {row['unit']:8s} {row['ratio']:6.2f}x "
        f"{row['microseconds']:10.1f} {row['host_microseconds']:9.1f} {row['launches']:5} {row['bytes'] / 1e6:9.2f} "
        f"{row['operations'] / 1e9:9.3f} {row['roofline']:8.0%}  {verdict}",
        flush=True,
    )


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    about, _, more = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=about, epilog=more)
    parser.add_argument("--peer", default="cpu", help="cpu or cuda")
    parser.add_argument("--device", default="ocl:0")
    usual = ",".join([*(suite for suite in SUITES if suite not in LONG), "startup"])
    parser.add_argument("--suite", default=usual, help=f"comma-separated; {', '.join(LONG)} too where named")
    parser.add_argument("--cases", default="", help="only those whose name this regular expression finds")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of a CPU peer")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.15, help="per case, device and round")
    parser.add_argument("--json", type=outputs.file, metavar="FILE", help="file for the results")
    parser.add_argument("--own-caches", action="store_true", help="with the user's caches and packs")
    return parser.parse_args()


def main() -> None:
    """Runs the suites."""
    options = parse_arguments()
    os.environ["DLB_BENCH_PEER"] = options.peer
    with tempfile.TemporaryDirectory() as folder:
        if options.own_caches:
            print("with the user's caches and packs")
        else:
            os.environ.update(fresh_caches(folder))
            print("without packs, caches empty at the beginning; timed in the steady state")
        run(options)


def run(options: argparse.Namespace) -> None:
    """Measures, prints and writes down what the options ask for."""
    results: list[dict[str, Any]] = []
    try:
        measure(options, results)
    finally:  # an interrupted run keeps what it has
        if options.json:
            caches = "own" if options.own_caches else "fresh, without packs"
            machine = platform.processor() or platform.machine()
            record = {"peer": options.peer, "caches": caches, "machine": machine, "time": time.time()}
            outputs.write_json(options.json, {**record, "results": results})


def measure(options: argparse.Namespace, results: list[dict[str, Any]]) -> None:
    """Measures and prints the suites, and adds their rows to the results."""
    chosen = options.suite.split(",")
    ocl, peer = (
        Worker("-m", "benchmarks.worker", device, str(options.threads)) for device in (options.device, options.peer)
    )
    more = f"{'us':>10s} {'host us':>9s} {'runs':>5s} {'MB':>9s} {'GFLOP':>9s} {'roofline':>8s}"
    print(f"{'case':38s} {'ocl':>10s} {options.peer:>10s} {'unit':8s} {'ratio':>7s} {more}  (above 1: ocl is faster)")
    for suite in chosen:
        first = len(results)
        for case in cases(suite) if suite in SUITES else []:
            if not re.search(options.cases, case.name):
                continue
            results.append(compare(case, ocl, peer, options.rounds, options.seconds))
            show(results[-1], case.goal_cuda if options.peer == "cuda" else case.goal_cpu)
        ratios = [row["ratio"] for row in results[first:] if "ratio" in row]
        if ratios:
            print(f"{suite}: geometric mean of {len(ratios)} {statistics.geometric_mean(ratios):.2f}x", flush=True)
    for worker in (ocl, peer):
        worker.close()
    if "host" in chosen:
        results += host_cost.run(options.device, options.peer)
    if "startup" in chosen:
        results += startup.run(options.device, options.peer)


if __name__ == "__main__":
    main()
