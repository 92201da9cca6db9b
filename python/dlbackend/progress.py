"""Progress bars on a terminal's stderr; elsewhere nothing is drawn."""

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


class Bar:
    """A bar that shows() how far something is. Drawn at most ten times a second, and at the end."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._shown = 0.0
        self._length = 0

    def show(self, done: float, total: float, about: str = "") -> None:
        """`done` of `total`; the line ends where both are equal."""
        ended = done >= total
        if not sys.stderr.isatty() or (not ended and time.monotonic() - self._shown < 0.1):
            return
        self._shown = time.monotonic()
        bar = "#" * int(30 * min(done, total) / max(total, 1e-9))
        text = f"{self._what} [{bar:<30}] {about}"
        print("\r" + text.ljust(self._length), end="\n" if ended else "", file=sys.stderr, flush=True)
        self._length = len(text)


def progress(items: Sequence[T], what: str) -> Iterator[T]:
    """The items, with a bar that counts them."""
    bar = Bar(what)
    for done, item in enumerate(items, 1):
        yield item
        bar.show(done, len(items), f"{done}/{len(items)}")
