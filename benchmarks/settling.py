"""The first minute of programs: how fast problems, or networks, are from empty caches while programs are compiled.

    python -m benchmarks.settling                        # about 70 problems, each in a process of its own
    python -m benchmarks.settling --together             # a process for each kind: others were asked for before
    python -m benchmarks.settling --quick --only conv    # a third of the problems whose names contain the word
    python -m benchmarks.settling --networks --peer cuda

Every process begins with empty caches and without packs. A problem is called over and over, and waited for each time,
until nothing has changed for a while; the table holds calls on the way against what it takes in the end. A call that
still runs at a point counts there with all of its time, as a first one that waits for its programs. A network is
trained with SGD; the table has the seconds until a step has ended, on this device and a peer. CPUs take smaller sizes.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.case import Case
from benchmarks.fresh_caches import fresh_caches
from benchmarks.settling_cases import KINDS, networks, problems
from dlbackend import outputs
from dlbackend.progress import worked_on
from dlbackend.tools.bench import Worker, asked

# What is told, of a row's calls or points, and how many times the final time it may take.
GOALS = (("3rd call", "calls", "3", 6.0), ("at 1 s", "points", "1", 3.0), ("at 3 s", "points", "3", 1.3))
GOAL_SHARE = 0.95  # of the problems
MARKS = (1, 10, 50, 100, 200)  # steps of a network
STEPS_ON_CPU = 50


@contextmanager
def empty_caches() -> Iterator[None]:
    """Processes that start meanwhile share caches that begin empty."""
    # A compile process may still write into them when the program that it belonged to has ended.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ.update(fresh_caches(folder))
        yield


@contextmanager
def process(device: str) -> Iterator[Worker]:
    """A new process that answers requests."""
    worker = Worker("-m", "benchmarks.settling_worker", device, str(os.cpu_count() or 1))
    try:
        yield worker
    finally:
        worker.close()


def ratio(row: dict[str, Any], kind: str, point: str) -> float | None:
    """How many times the final time a call took. None where the point was not reached."""
    seconds = row[kind].get(point)
    return None if seconds is None else seconds / row["final"]


def way(before: list[str], after: list[str]) -> str:
    """The solvers at one time and at a later one, each op's once where it did not change."""

    def names(solutions: list[str]) -> str:
        return "+".join(solution.split(" ")[1] for solution in solutions) or "-"

    if before == after:
        return names(after)
    if names(before) == names(after):
        return f"{names(after)}, other configs before"
    return f"{names(before)} -> {names(after)}"


def problem_line(row: dict[str, Any]) -> str:
    """A row of the table."""
    if "error" in row:
        return f"{row['problem']:53s} {row['error']}"
    ratios = [ratio(row, kind, point) for _, kind, point, _ in GOALS]
    cells = ["-" if found is None else f"{found:.2f}" for found in ratios]
    settled = "-" if row["settled"] is None else f"{row['settled']:.1f}"
    solvers = row["solvers"]
    return (
        f"{row['problem']:53s} {row['final'] * 1e3:9.3f} {row['calls']['1'] * 1e3:9.1f} "
        + " ".join(f"{cell:>9s}" for cell in cells)
        + f" {settled:>7s}  {way(solvers.get('1 s', solvers['final']), solvers['final'])}"
    )


def print_shares(rows: list[dict[str, Any]]) -> None:
    """How many of the problems reach each goal, and those that miss it by most."""
    for name, kind, point, most in GOALS:
        ratios = {row["problem"]: found for row in rows if (found := ratio(row, kind, point)) is not None}
        if not ratios:
            continue
        share = sum(found <= most for found in ratios.values()) / len(ratios)
        verdict = "met" if share >= GOAL_SHARE else "MISSED"
        print(
            f"{name} within {most:g} of the final time: {share:.0%} of {len(ratios)}, goal {GOAL_SHARE:.0%} {verdict}"
        )
        worst = sorted((found, problem) for problem, found in ratios.items() if found > most)[:-4:-1]
        for found, problem in worst:
            print(f"  {found:8.2f}  {problem}")


def measure_problems(cases: list[Case], large: bool, options: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    """Measures and prints the problems, and adds their rows."""

    def row(worker: Worker, case: Case) -> dict[str, Any]:
        request = {"large": large, "seconds": options.seconds, "search": options.search}
        found = worker.ask({"problem": case.name, **request})
        return {"problem": case.name, "kind": case.suite, **found}

    def alone(case: Case) -> dict[str, Any]:
        with empty_caches(), process(options.device) as worker:
            return row(worker, case)

    def show(found: dict[str, Any]) -> None:
        rows.append(found)
        print(problem_line(found), flush=True)

    titles = " ".join(f"{name:>9s}" for name, *_ in GOALS)
    print("the 3rd call, and calls at 1 and 3 s, in final times; when the last change was seen, in seconds")
    print(f"{'problem':53s} {'final ms':>9s} {'1st, ms':>9s} {titles} {'settled':>7s}  solvers at 1 s -> in the end")
    if options.together:
        for kind in KINDS:
            of_kind = [case for case in cases if case.suite == kind]
            if of_kind:
                with empty_caches(), process(options.device) as worker:
                    for found in worked_on(of_kind, kind, lambda case: row(worker, case), lambda case: case.name):
                        show(found)
    else:
        for found in worked_on(cases, "problems", alone, lambda case: case.name):
            show(found)
    print_shares([found for found in rows if "error" not in found])


def network_row(case: Case, large: bool, marks: list[int], options: argparse.Namespace) -> dict[str, Any]:
    """Trains on the device, once more in a process that finds the first one's caches, and on the peer."""
    request = {"network": case.name, "large": large, "marks": marks}
    row: dict[str, Any] = {"network": case.name}
    try:
        with empty_caches():
            with process(options.device) as worker:
                row["ocl"] = asked(options.device, worker, request)
            with process(options.device) as worker:
                row["next"] = asked("next process", worker, {**request, "marks": [1]})
        if options.peer:
            with empty_caches(), process(options.peer) as worker:
                row["peer"] = asked(options.peer, worker, request)
    except RuntimeError as error:
        row["error"] = str(error)
    return row


def print_network(row: dict[str, Any], marks: list[int], options: argparse.Namespace) -> None:
    """Lines of the table for a network."""

    def line(what: str, values: list[float], more: str = "") -> None:
        print(f"{row['network']:24s} {what:8s} " + " ".join(f"{value:9.2f}" for value in values) + more, flush=True)

    for device, name in ((options.device, "ocl"), (options.peer, "peer")):
        if name in row:
            found = row[name]
            more = f" {found['processor'][str(marks[-1])]:11.1f}"
            if name == "ocl":
                more += f" {found['compiled']:9.0f} {found['compile_seconds']:10.1f}"
                more += f" {row['next']['seconds']['1']:13.2f}" if "next" in row else ""
            line(device, [found["seconds"][str(mark)] for mark in marks], more)
    if "peer" in row:
        row["ratio"] = {mark: seconds / row["ocl"]["seconds"][mark] for mark, seconds in row["peer"]["seconds"].items()}
        line("ratio", list(row["ratio"].values()))
    if "error" in row:
        print(f"{row['network']:24s} not measured: {row['error']}", flush=True)


def measure_networks(cases: list[Case], large: bool, options: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    """Measures and prints the networks, and adds their rows."""
    steps = options.steps or (MARKS[-1] if large else STEPS_ON_CPU)
    marks = [*(mark for mark in MARKS if mark < steps), steps]
    heads = " ".join(f"{'step ' + str(mark):>9s}" for mark in marks)
    print("seconds until a step has ended; the ratio is above 1 where ocl is faster")
    print(
        f"{'network':24s} {'device':8s} {heads} {'processor s':>11s} {'programs':>9s} {'compiling s':>10s} next, step 1"
    )
    for row in worked_on(cases, "networks", lambda c: network_row(c, large, marks, options), lambda c: c.name):
        print_network(row, marks, options)
        rows.append(row)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m benchmarks.settling", description=__doc__, formatter_class=form)
    parser.add_argument("--networks", action="store_true", help="networks in place of problems")
    parser.add_argument("--device", default="ocl:0")
    parser.add_argument("--only", default="", metavar="WORD", help="those whose name contains this")
    parser.add_argument("--quick", action="store_true", help="a third of them")
    parser.add_argument("--together", action="store_true", help="all problems of a kind in one process")
    parser.add_argument("--seconds", type=float, default=12, help="of calls of a problem, at most")
    parser.add_argument(
        "--search", type=float, default=5, help="seconds in which a search may end before the final time is taken"
    )
    parser.add_argument("--steps", type=int, help=f"of a network; {MARKS[-1]}, on CPUs {STEPS_ON_CPU}")
    parser.add_argument("--peer", default="cpu", help="of networks: cpu, cuda, or '' for none")
    parser.add_argument("--json", type=outputs.file, metavar="FILE", help="file for the results")
    return parser.parse_args()


def main() -> None:
    """Measures what the options ask for."""
    options = parse_arguments()
    with empty_caches(), process(options.device) as worker:
        about = asked(options.device, worker, {"about": True})
    cases = (networks if options.networks else problems)(about["large"])
    cases = [case for case in cases if options.only in case.name][:: 3 if options.quick else 1]
    if not cases:
        raise SystemExit(f"no name contains {options.only!r}")
    print(f"{about['name']}, driver {about['driver']}, {'large' if about['large'] else 'small'} sizes")
    rows: list[dict[str, Any]] = []
    try:
        (measure_networks if options.networks else measure_problems)(cases, about["large"], options, rows)
    finally:  # an interrupted run keeps what it has
        if options.json:
            outputs.write_json(options.json, {"device": about, "together": options.together, "results": rows})


if __name__ == "__main__":
    main()
