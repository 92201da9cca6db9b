"""What tests of captured graphs share."""

from collections.abc import Callable
from typing import Any

import torch

REFUSED = "operation not permitted when stream is capturing"


def capture(work: Callable[[], object], warm: int = 2, **options: Any) -> tuple[Any, Any]:
    """A graph of what the function does, after it ran on a side stream, and what it returned then."""
    side = torch.ocl.Stream()
    side.wait_stream(torch.ocl.current_stream())
    with torch.ocl.stream(side):
        for _ in range(warm):
            work()
    torch.ocl.current_stream().wait_stream(side)
    graph = torch.ocl.OclGraph()
    with torch.ocl.graph(graph, **options):
        made = work()
    return graph, made
