"""The rates that solvers' estimates are made of: derived, measured, stored."""

import json
import math

import pytest
import torch
from fresh_process import fresh_python

import dlbackend
from dlbackend import _C

NAMES = ["bytes", "launch_us", "float32", "float64", "int32", "matrix16", "matrix_tf32"]
LINE = "dlbackend-rates 1 bytes=20000 launch_us=5.25 float32=1e+06 float64=1 int32=2 matrix16=3 matrix_tf32=4\n"
RATES = "import json, torch, dlbackend; from dlbackend import _C; print(json.dumps(_C.device_rates()))"


def rates_in_process(folder, code=RATES, **variables):
    variables = {"DLBACKEND_CACHE_DIR": str(folder), "DLBACKEND_RATES": "measured", "DLBACKEND_PACKS": "", **variables}
    done = fresh_python(code, **variables)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_line_is_read_as_it_is_written():
    rates = _C.parse_rates(LINE)
    assert rates == {**dict(zip(NAMES, [20000, 5.25, 1e6, 1, 2, 3, 4], strict=True)), "measured": True}


@pytest.mark.parametrize(
    "text",
    [
        "",
        LINE.strip(),
        LINE + "x",
        LINE.replace("rates 1", "rates 2"),
        LINE.replace("launch_us=5.25 ", ""),
        LINE.replace("bytes=20000", "bytes=0"),
        LINE.replace("bytes=20000", "bytes=-20000"),
        LINE.replace("bytes=20000", "bytes=inf"),
        LINE.replace("bytes=20000", "bytes=nan"),
        LINE.replace("bytes=20000", "bytes=2,5"),
        LINE.replace("bytes=20000", "bytes="),
        LINE.replace("bytes=20000", "octets=20000"),
    ],
)
def test_unusable_lines_are_ignored(text):
    assert _C.parse_rates(text) is None


@pytest.mark.parametrize("device_class", ["cpu", "gpu"])
def test_derived_rates_are_sensible(tmp_path, device_class):
    rates = rates_in_process(tmp_path, DLBACKEND_EMULATE=f"class={device_class}", DLBACKEND_RATES="derived")
    assert not rates["measured"]
    assert all(math.isfinite(rates[name]) and rates[name] > 0 for name in NAMES)
    assert rates["float64"] < rates["float32"] <= rates["matrix16"]


def test_stored_rates_hold_in_later_processes_only(tmp_path):
    store = (
        f"import json, torch, dlbackend; from dlbackend import _C; before = _C.device_rates()\n"
        f"_C.find_cache().store(_C.rates_key().encode(), {LINE.encode()!r})\n"
        "assert _C.device_rates() == before and not before['measured']\n"
        "print(json.dumps(before))"
    )
    before = rates_in_process(tmp_path, store)
    after = rates_in_process(tmp_path)
    assert after == _C.parse_rates(LINE) != before
    assert rates_in_process(tmp_path, DLBACKEND_RATES="derived") == before
    deterministic = RATES.replace("print", "torch.backends.ocl.deterministic = True; print")
    assert rates_in_process(tmp_path, deterministic) == before


def test_unusable_stored_rates_are_as_none(tmp_path):
    store = RATES.replace("print", "_C.find_cache().store(_C.rates_key().encode(), b'dlbackend-rates 1 x\\n'); print")
    before = rates_in_process(tmp_path, store)
    assert rates_in_process(tmp_path) == before


def test_measuring_stores_for_later_processes(tmp_path):
    measured = rates_in_process(tmp_path, RATES.replace("device_rates", "measure_rates"))
    later = rates_in_process(tmp_path)
    assert measured["measured"]
    assert later["measured"]
    for name in NAMES:
        assert later[name] == pytest.approx(measured[name], rel=1e-4)


@pytest.mark.parametrize("mode", ["hybrid", "fast"])
def test_first_choice_queues_measuring(tmp_path, mode):
    code = (
        "import json, torch, dlbackend; from dlbackend import _C\n"
        "a = torch.ones(64, 64).to('ocl'); a @ a; dlbackend.solvers.wait()\n"
        "print(json.dumps(_C.find_cache().load(_C.rates_key().encode()) is not None))"
    )
    assert rates_in_process(tmp_path, code, DLBACKEND_FIND_MODE=mode) == (mode == "hybrid")


def test_larger_problems_are_estimated_to_take_longer():
    small, large = torch.ones(64, 64).to("ocl"), torch.ones(2048, 2048).to("ocl")
    small @ small, large @ large
    keys = [key for key in dlbackend.solvers.problems() if key.startswith("gemm")]
    least = {}
    for key in keys:
        estimates = {s.solver: s.estimate for s in dlbackend.solvers.solutions(key)}
        assert all(math.isfinite(e) and e > 0 for e in estimates.values())
        assert max(estimates, key=estimates.get).split("@")[0] in ("reference", "clblast")
        least[key] = min(estimates.values())
    assert max(least.values()) > 2 * min(least.values())
