"""python -m dlbackend bench: a table of small networks, its JSON and its picture."""

import json
import sys

import pytest

from dlbackend.__main__ import main
from dlbackend.tools import bench
from dlbackend.tools.training_worker import Times

NETS = """
from torch import nn


def small():
    return nn.Sequential(nn.Conv2d(3, 4, 3, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, 1000))


def broken():
    raise ValueError("no such thing")
"""


@pytest.fixture
def run(monkeypatch, tmp_path):
    (tmp_path / "mynets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["dlbackend", "bench", "--batch", "2", "--size", "16", *arguments])
        return main()

    return run


def test_devices_side_by_side(run, tmp_path, capsys):
    files = ["--json", "bench.json", "--picture", "bench.png"]
    measured = ["--only", "mynets:small", "--devices", "ocl:0,cpu", "--rounds", "3", "--seconds", "0.02"]
    assert run(*measured, *files, "--breakdown") == 0
    out = capsys.readouterr().out
    assert "mynets:small" in out
    assert "convolution_backward" in out
    record = json.loads((tmp_path / "bench.json").read_text())
    (row,) = record["nets"]
    assert record["devices"] == ["ocl:0", "cpu"]
    assert set(row["milliseconds"]) == {"ocl:0", "cpu"}
    assert all(value > 0 for value in row["milliseconds"].values())
    assert row["ratio"]["cpu"] > 0
    assert 0 < row["host_milliseconds"]["ocl:0"] <= row["milliseconds"]["ocl:0"]
    assert row["roofline"]["ops"]["aten::convolution"]["operations"] == 2 * 2 * 4 * 4 * 4 * 27
    whole = sum(work["seconds"] for work in row["roofline"]["ops"].values()) + row["roofline"]["idle"]
    assert whole >= 0.999e-3 * row["milliseconds"]["ocl:0"]
    assert (tmp_path / "bench.png").stat().st_size > 1000


def test_what_cannot_be_measured_is_said_and_fails(run, capsys):
    assert run("--only", "mynets:broken", "--devices", "cpu") == 1
    assert "ValueError: no such thing" in capsys.readouterr().out


def test_ratio_is_the_median_over_rounds():
    own, peer = ([Times(seconds, 0.0) for seconds in row] for row in ((1.0, 2.0, 1.0), (2.0, 2.0, 3.0)))
    assert bench.ratio(own, peer) == 2.0


def test_a_process_that_ends_is_an_error():
    worker = bench.Worker("-c", "")
    with pytest.raises(RuntimeError, match="here: the process ended"):
        bench.alternate({"here": worker}, {}, 1)
