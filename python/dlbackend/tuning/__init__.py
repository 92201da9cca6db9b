"""Finding the fastest precision, memory layout, fusion and solvers of a model, and making them again from a JSON file.

tuner.py has tune() and what it returns, search.py decides which configurations are measured, measure.py measures them,
variant.py makes a model in a configuration, and result.py is the JSON with what loading it does. command.py is the
command line. docs/tuning.md describes all of it to users.
"""

from dlbackend.tuning.result import Tuning, load_environment, load_tuning
from dlbackend.tuning.tuner import tune

__all__ = ["Tuning", "load_environment", "load_tuning", "tune"]
