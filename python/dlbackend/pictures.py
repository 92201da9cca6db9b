"""The library that draws the pictures which tools write on request."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figure_class() -> "type[Figure]":
    """matplotlib's figure without a window; ImportError with what to do where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("the picture needs matplotlib: pip install matplotlib (or dlbackend[examples])") from error
    return Figure
