"""The functions of dlbackend's own worker, taken from its file: a process that trains on CUDA must not import the
package.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlbackend.tools import training_worker
else:
    file = Path(__file__).parents[1] / "python" / "dlbackend" / "tools" / "training_worker.py"
    spec = importlib.util.spec_from_file_location("training_worker", file)
    training_worker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(training_worker)

Times = training_worker.Times
answer_of = training_worker.answer_of
measure = training_worker.measure
prepare_device = training_worker.prepare_device
search_counts = training_worker.search_counts
serve = training_worker.serve
settle = training_worker.settle
synchronize = training_worker.synchronize
train = training_worker.training_step
