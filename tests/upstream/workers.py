"""Runs many pieces of work in forked processes, and goes on where one of them crashes or hangs."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Lost:
    """Stands for the result of work that gave none: "crash (SIGSEGV)", "exit (3)" or "hang (60 s)"."""

    how: str


class Worker:
    """A process that works on one piece at a time. Its output goes to the end of the file `log`."""

    def __init__(self, work: Callable[[Any], Any], log: str) -> None:
        self.pipe, other = FORK.Pipe()
        self.process = FORK.Process(target=self._serve, args=(work, other, log), daemon=True)
        self.process.start()
        other.close()  # so that the pipe ends with the process
        self.number = -1
        self.deadline = float("inf")

    @staticmethod
    def _serve(work: Callable[[Any], Any], pipe: Connection, log: str) -> None:
        file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.dup2(file, 1)
        os.dup2(file, 2)
        while True:
            pipe.send(work(pipe.recv()))

    def give(self, number: int, item: Any, timeout: float) -> None:
        self.number, self.deadline = number, time.monotonic() + timeout
        self.pipe.send(item)

    def result(self) -> Any:
        """The result of a worker that has answered or ended."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            status = self.process.exitcode or 0
            return Lost(f"crash ({signal.Signals(-status).name})" if status < 0 else f"exit ({status})")

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def run_all(
    items: Iterable[Any], work: Callable[[Any], Any], jobs: int, timeout: float, log: str = os.devnull
) -> Iterator[tuple[int, Any]]:
    """Pairs of an item's number and what `work(item)` returned, or Lost, in the order in which they are done. This
    process must not have opened a device or started threads. `timeout` is the seconds that one item may take.
    """
    waiting = iter(enumerate(items))
    workers: list[Worker] = []

    def go_on(worker: Worker | None) -> None:
        """Gives that worker, or a new one where it is None, the next item. Without one it stops."""
        following = next(waiting, None)
        if following is not None:
            worker = worker or Worker(work, log)
            worker.give(*following, timeout)
            workers.append(worker)
        elif worker:
            worker.stop()

    try:
        for _ in range(jobs):
            go_on(None)
        while workers:
            nearest = min(worker.deadline for worker in workers) - time.monotonic()
            ready = wait([worker.pipe for worker in workers], max(0.0, nearest))
            for worker in list(workers):
                if worker.pipe in ready:
                    result = worker.result()
                elif time.monotonic() > worker.deadline:
                    result = Lost(f"hang ({timeout:g} s)")
                else:
                    continue
                workers.remove(worker)
                yield worker.number, result
                if isinstance(result, Lost):
                    worker.stop()
                    go_on(None)
                else:
                    go_on(worker)
    finally:
        for worker in workers:
            worker.stop()
