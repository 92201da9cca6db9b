"""What the tests of compiled graphs share."""

import pytest
import torch

import dlbackend.compile
import dlbackend.compile.inductor
from dlbackend.compile.fuse import fuse


@pytest.fixture(autouse=True)
def fresh_dynamo(monkeypatch):
    monkeypatch.setattr(dlbackend.compile.inductor, "_warned", False)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def graphs(monkeypatch):
    """The targets of the calls in each graph that is compiled from here on."""
    found = []

    def fuse_and_note(module):
        fused = fuse(module)
        found.append([n.target for n in fused.graph.nodes if n.op == "call_function"])
        return fused

    monkeypatch.setattr(dlbackend.compile, "fuse", fuse_and_note)
    return found
