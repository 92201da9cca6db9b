"""Progress bars: on a terminal's stderr, of what takes long; elsewhere nothing is drawn."""

import io
import itertools
from types import SimpleNamespace

import pytest
import torch
from common import DEVICE
from torch import nn

import dlbackend
from dlbackend import progress


class Terminal(io.StringIO):
    """Keeps what was drawn."""

    def isatty(self):
        return True

    def bars(self, what):
        """The states that the bars of `what` went through: filled characters, and the text behind the bar."""
        parts = [part for part in self.getvalue().replace("\n", "\r").split("\r") if part.startswith(what + " [")]
        split = [part.removeprefix(what + " [").split("] ") for part in parts]
        assert all(len(bar) == 30 and set(bar) <= {"#", " "} for bar, _ in split)
        return [(bar.count("#"), about.rstrip()) for bar, about in split]

    def one_line(self):
        return self.getvalue().count("\n") == 1 and self.getvalue().endswith("\n")


@pytest.fixture
def terminal(monkeypatch):
    """Stderr as bars see it, where every look at the clock is a second later."""
    stream = Terminal()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=stream))
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=itertools.count(1).__next__))
    return stream


def test_a_bar_fills_and_ends_its_line(terminal):
    bar = progress.Bar("work")
    bar.show(0, 4, "of a long text")
    bar.show(2, 4, "half")
    bar.show(4, 4, "done")
    assert terminal.bars("work") == [(0, "of a long text"), (15, "half"), (30, "done")]
    lines = terminal.getvalue().split("\r")
    assert len(lines[2]) >= len(lines[1])  # the longer text before it is overwritten
    assert terminal.one_line()


def test_it_is_drawn_ten_times_a_second_at_most_and_at_the_end(terminal, monkeypatch):
    now = [1.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    bar = progress.Bar("work")
    for step in range(1, 101):
        now[0] += 0.01
        bar.show(step, 100, str(step))
    drawn = terminal.bars("work")
    assert 10 <= len(drawn) <= 12
    assert drawn[-1] == (30, "100")


def test_items_are_counted(terminal):
    assert list(progress.progress("abc", "clear")) == ["a", "b", "c"]
    assert terminal.bars("clear") == [(10, "1/3"), (20, "2/3"), (30, "3/3")]


def test_no_terminal_no_bar(capsys):
    assert list(progress.progress([1], "clear")) == [1]
    dlbackend.precompile(nn.Linear(3, 3).to(DEVICE), torch.ones(1, 3))
    assert capsys.readouterr().err == ""


def test_precompile_shows_programs_and_runs(terminal):
    # No other test's expression: its program is not built yet.
    class Net(nn.Linear):
        def forward(self, x):
            return dlbackend.template.pointwise("x0 * s0 + s1", super().forward(x), scalars=(3.25, 1.5))

    found = dlbackend.precompile(Net(3, 3).to(DEVICE), torch.ones(1, 3))
    count = int(found["programs"])
    assert count >= 1
    drawn = terminal.bars("precompile")
    assert (int(30 * count / (count + 2)), f"{count}/{count} programs") in drawn
    assert drawn[-2:] == [
        (int(30 * (count + 1) / (count + 2)), f"{count} programs, run 1/2"),
        (30, f"{count} programs, run 2/2"),
    ]
    assert [filled for filled, _ in drawn] == sorted(filled for filled, _ in drawn)
    assert terminal.one_line()


def test_tune_shows_configurations_and_turns(terminal):
    options = {"layout": "nchw", "fusion": "off", "solvers": "heuristic"}
    dlbackend.tune(nn.Linear(3, 3).eval(), torch.ones(1, 3), precision="fp32,bf16", search="exhaustive", **options)
    drawn = [about for _, about in terminal.bars("tune")]
    assert drawn[0].startswith("1 configurations, best inf ms")
    assert any(about.startswith("2 configurations, best ") for about in drawn)
    assert any(about == "2 configurations take turns" for about in drawn)
    assert terminal.bars("tune")[-1][0] == 30
    assert terminal.one_line()


def test_a_bar_is_gone_when_a_result_is_there(terminal):
    for result in progress.worked_on([1, 2], "work", lambda x: 10 * x, lambda x: f"item {x}"):
        drawn = terminal.getvalue()
        assert f"item {result // 10}" in drawn
        assert drawn.endswith(" \r")
