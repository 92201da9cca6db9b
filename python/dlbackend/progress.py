"""Progress bars on stderr where that is a terminal. Elsewhere nothing is drawn."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Bar:
    """A bar that shows() how far something is. Drawn at most ten times a second, and at the end."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._shown = 0.0
        self._length = 0

    def show(self, done: float, total: float, about: str = "") -> None:
        """Shows that `done` of `total` is done, and ends the line where both are equal."""
        ended = done >= total
        if not sys.stderr.isatty() or (not ended and time.monotonic() - self._shown < 0.1):
            return
        self._shown = time.monotonic()
        bar = "#" * int(30 * min(done, total) / max(total, 1e-9))
        text = f"{self._what} [{bar:<30}] {about}"
        print("\r" + text.ljust(self._length), end="\n" if ended else "", file=sys.stderr, flush=True)
        self._length = len(text)

    def clear(self) -> None:
        """Takes the bar away, for a line of output in its place. The next show() draws it again."""
        if self._length:
            print("\r" + " " * self._length + "\r", end="", file=sys.stderr, flush=True)
        self._length, self._shown = 0, 0.0


def worked_on(items: Sequence[T], what: str, work: Callable[[T], R], name: Callable[[T], str]) -> Iterator[R]:
    """Yields work(item) of each item. A bar shows the item's name meanwhile; it is gone when a result is yielded."""
    bar = Bar(what)
    for done, item in enumerate(items):
        bar.show(done, len(items), f"{done + 1}/{len(items)} {name(item)}")
        result = work(item)
        bar.clear()
        yield result


def progress(items: Sequence[T], what: str) -> Iterator[T]:
    """Yields the items, and draws a bar that counts them."""
    bar = Bar(what)
    for done, item in enumerate(items, 1):
        yield item
        bar.show(done, len(items), f"{done}/{len(items)}")
