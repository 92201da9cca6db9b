"""The exported table of ops: complete, consistent with what is registered, and enough to build kernels from."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dlbackend import _C
from dlbackend.template import pointwise, source

ROWS = _C.op_table()
BY_ID = {row["id"]: row for row in ROWS}
COMPUTE = {"float": ["f32", "f64"], "int": ["i32", "u8", "i64"], "bool": ["bool"], "complex": ["c64", "c128"]}
PROMOTIONS = ["common", "float", "bool", "truth", "fixed", "first", "choice", "result", "list", "sum", "dtype"]
REPOSITORY = Path(__file__).resolve().parents[2]


def texts(row):
    for cls, body in row["bodies"].items():
        if isinstance(body, str):
            yield cls, body
        else:
            yield cls, " ".join(body[part] or "" for part in ("step", "combine", "finish", "settle"))


def test_ids_are_unique_identifiers():
    assert len(ROWS) > 200
    assert len(BY_ID) == len(ROWS)
    assert all(re.fullmatch(r"[a-z_][a-z0-9_]*", row["id"]) for row in ROWS)
    assert [row["id"] for row in ROWS] == sorted(BY_ID)


# Ops for all devices, which look up the device's kernel alone.
BY_STUB = {
    "aten::kaiser_window", "aten::kaiser_window.beta", "aten::kaiser_window.periodic", "aten::ldexp.Tensor",
    "aten::ldexp.out", "aten::ldexp_",
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_rows_are_complete(row):
    assert row["kind"] in ("pointwise", "multi_tensor", "reduce", "scan")
    assert row["promotion"] in PROMOTIONS
    assert row["bodies"]
    assert set(row["bodies"]) == set(row["functions"])
    assert set(row["bodies"]) <= set(COMPUTE)
    assert row["outputs"] >= 1
    for _, text in texts(row):
        used = {int(number) for number in re.findall(r"(?<![\w.])x(\d+)\b", text)}
        assert used <= set(range(row["inputs"]))
        assert {int(number) for number in re.findall(r"(?<![\w.])s(\d+)\b", text)} <= set(range(row["scalars"]))
    if row["kind"] in ("reduce", "scan"):
        assert len(row["results"]) == row["outputs"]
        assert all(body["fields"] for body in row["bodies"].values())


def test_overloads_are_registered():
    registered = set(torch._C._dispatch_get_registrations_for_dispatch_key("PrivateUse1"))
    named = {overload for row in ROWS for overload in row["overloads"]}
    assert named - registered == BY_STUB
    parts = [row["id"] for row in ROWS if not row["overloads"]]
    assert parts == ["norm_apply", "norm_apply_backward"]


@pytest.mark.parametrize("cpu", [True, False])
def test_functions_are_defined(cpu):
    """device_functions() gives all that a body calls; each group once, and in order."""
    for row in ROWS:
        for cls, text in texts(row):
            for compute in COMPUTE[cls]:
                front = _C.device_functions(text, compute, [compute, "f16", "bf16"], cpu)
                for name in row["functions"][cls]:
                    assert name in re.findall(r"\bdlb_\w+", text)
                for name in re.findall(r"\bdlb_\w+", text):
                    places = re.findall(
                        rf"^(?:#define|(?:DLB_INLINE|static inline|inline) \w+) {name}\b", front, re.MULTILINE
                    )
                    assert places, (row["id"], name)


def test_an_op_pays_for_what_it_calls():
    plain, exp, sin = (
        source(text, [torch.float32], device="cpu") for text in ("sqrt(x0)", "dlb_exp(x0)", "dlb_sin(x0)")
    )
    assert "dlb_exp" not in plain
    assert "dlb_exp_reduce" in exp
    assert "dlb_power_hi" not in exp
    assert "dlb_power_hi" in sin
    # Memory bounds what calls no such function: its results may go past the cache. Vectors of full width are for all
    # that takes longer than additions and multiplications.
    assert "#define DLB_STREAMS" in plain
    assert "#define DLB_STREAMS" not in exp
    assert "#define DLB_WIDE" in exp
    assert "#define DLB_WIDE" in plain
    assert "#define DLB_WIDE" not in source("x0 * C(2.0) + (x1 < 0 ? (T)1 : x1)", [torch.float32] * 2, device="cpu")
    assert BY_ID["sqrt"]["functions"]["float"] == []
    assert BY_ID["softplus"]["functions"]["float"] == ["dlb_exp", "dlb_log1p"]
    assert sin.count("#define DLB_MA(a, b, c) fma(a, b, c)") == 1


def inline(row, arguments, result):
    """Statements that declare `result` as the row's value of `arguments`."""
    body = row["bodies"]["float"]
    if "y0 =" not in body:
        body = f"y0 = ({body});"
    copies = " ".join(f"const T v{k} = {argument};" for k, argument in enumerate(arguments))
    inputs = " ".join(f"const T x{k} = v{k};" for k in range(len(arguments)))
    return f"T {result}; {{ {copies} {{ {inputs} T y0; {body} {result} = y0; }} }}"


def test_bodies_make_a_fused_kernel():
    torch.manual_seed(0)
    a, b, c = torch.randn(3, 1000).to("ocl").unbind()
    steps = [
        inline(BY_ID["mul"], ["x0", "x1"], "p"),
        inline(BY_ID["gelu"], ["p"], "q"),
        inline(BY_ID["atan2"], ["q", "x2"], "r"),
        inline(BY_ID["mish"], ["r"], "z"),
    ]
    fused = pointwise(" ".join(steps) + " y0 = z;", a, b, c)
    expected = torch.nn.functional.mish(torch.atan2(torch.nn.functional.gelu(a * b), c))
    torch.testing.assert_close(fused.cpu(), expected.cpu(), rtol=1e-6, atol=1e-6)


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the page lists the overloads of torch 2.13")
def test_page_of_supported_ops_is_up_to_date():
    script = REPOSITORY / "scripts/op_coverage.py"
    done = subprocess.run([sys.executable, script, "--check"], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
