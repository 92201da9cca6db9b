"""State that every test of solvers leaves behind as it was."""

import pytest

from dlbackend import _C


@pytest.fixture(autouse=True)
def give_choice_back():
    yield
    _C.force_solver("")
