"""Programs on PoCL are built behind declarations of the functions that they name, instead of the header with all."""

import re
from pathlib import Path

import pytest
from fresh_process import forked_python

from dlbackend import _C

pytestmark = pytest.mark.skipif(
    _C.device_properties(0).platform != "Portable Computing Language", reason="only PoCL reads such a header"
)

ROOT = Path(__file__).resolve().parents[2]
BUILD = """
from dlbackend import _C
print(_C.prefetch(0, [({source!r}, "")]))
"""
WITH_HEADER = "built with the driver's header"


def build(source, folder, **variables):
    """Whether a program builds, and what the process wrote to stderr."""
    fixed = {"DLBACKEND_CACHE_DIR": str(folder), "DLBACKEND_PACKS": "", "DLBACKEND_VERBOSE": "1"}
    done = forked_python(BUILD.format(source=source), **{**fixed, **variables})
    assert done.returncode == 0, done.stderr
    return done.stdout.strip() == "1", done.stderr


def known_names():
    """The names in the table of csrc/cl/builtins.cpp, and some of those that it composes."""
    table = (ROOT / "csrc/cl/builtins.cpp").read_text()
    rows = table[table.index("kRows[]") : table.index("struct Type")]
    names = {word for text in re.findall(r'"([a-z0-9_ ]*)"', rows) for word in text.split()}
    names -= {"const", "convergent", "overloadable"}
    names |= {
        f"atomic_{what}" for what in ("add", "sub", "xchg", "min", "max", "and", "or", "xor", "inc", "dec", "cmpxchg")
    }
    names |= {
        f"atom_{what}" for what in ("add", "sub", "xchg", "min", "max", "and", "or", "xor", "inc", "dec", "cmpxchg")
    }
    names |= {f"vload{n}" for n in (2, 3, 4, 8, 16)} | {f"vstore{n}" for n in (2, 3, 4, 8, 16)}
    names |= {"vload_half", "vload_half4", "vload_half16", "vstore_half", "vstore_half_rte", "vstore_half16_rte"}
    return names | {"convert_float", "convert_double2", "convert_uint16", "convert_ushort4", "convert_long8"}


def declarations(names):
    """(result, name, types of arguments) of the functions of those names in PoCL's own header."""
    headers = [Path(prefix, "share/pocl/include/opencl-c.h") for prefix in ("/usr", "/usr/local")]
    header = next((path for path in headers if path.exists()), None)
    if header is None:
        pytest.skip("PoCL's header is not where it is expected")
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", header.read_text(), flags=re.DOTALL)
    for result, name, arguments in re.findall(r"(\w+)\s+__ovld(?:\s+__\w+)*\s+(\w+)\(([^)]*)\)", text):
        types = [re.sub(r"(?<=\w) \w+$|(?<=\*)\w+$", "", " ".join(one.split())) for one in arguments.split(",")]
        types = [one if one not in ("const", "unsigned") else "int" for one in types]
        values = [one for one in (result, *types) if "*" not in one]
        generic = any("*" in one and not re.search(r"__(global|local|private|constant)", one) for one in types)
        if name in names and not generic and not any(one.startswith("half") for one in values):
            yield result, name, [] if types == ["void"] else types


def test_every_overload_of_the_header_is_declared(tmp_path):
    """A missing one would have arguments converted to the types of another."""
    names = known_names()
    checks, seen = [], set()
    for result, name, types in declarations(names):
        if name.startswith(("vload", "vstore")) or "*" not in "".join(types) or name.startswith("atom"):
            values = ", ".join(f"({one})0" for one in types)
            checks.append(f"check(__builtin_types_compatible_p(__typeof__({name}({values})), {result}));")
            seen.add(name)
    assert names - seen == set()
    assert len(checks) > 1500
    lines = ["#define check(x) typedef char JOIN(check, __LINE__)[(x) ? 1 : -1]", "#define JOIN(a, b) JOIN2(a, b)"]
    lines += ["#define JOIN2(a, b) a##b", "kernel void f(global int* x) {", *checks, "x[0] = 1;", "}"]
    builds, stderr = build("\n".join(lines), tmp_path)
    assert builds, stderr
    assert WITH_HEADER not in stderr


def test_other_functions_are_built_with_the_header(tmp_path):
    builds, stderr = build("kernel void f(global float4* x) { x[0].x = dot(x[1], x[2]); }", tmp_path)
    assert builds, stderr
    assert stderr.count(WITH_HEADER) == 1


def test_names_that_macros_compose(tmp_path):
    source = """
    #define LOAD(n) float##n load(global float* x) { return vload##n(0, x) + convert_float##n((int##n)(1)); }
    LOAD(8)
    kernel void f(global float* x) { vstore8(load(x), 1, x); }
    """
    builds, stderr = build(source, tmp_path)
    assert builds, stderr
    assert WITH_HEADER not in stderr


def test_no_kernel_of_an_iteration_needs_the_header(tmp_path):
    code = """
import torch, dlbackend
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).to("ocl:0")
torch.nn.functional.cross_entropy(net(torch.randn(4, 8).to("ocl:0")), torch.zeros(4).long().to("ocl:0")).backward()
torch.ocl.synchronize()
"""
    fixed = {"DLBACKEND_CACHE_DIR": str(tmp_path), "DLBACKEND_PACKS": "", "DLBACKEND_VERBOSE": "1"}
    done = forked_python(code, **fixed)
    assert done.returncode == 0, done.stderr
    assert ",compiled," in done.stderr
    assert WITH_HEADER not in done.stderr


def test_errors_are_those_of_the_plain_source(tmp_path):
    builds, stderr = build("kernel void f(global float* x) {\n  x[0] = undefined_name;\n}", tmp_path)
    assert not builds
    assert re.search(r":2:\d+: use of undeclared identifier 'undefined_name'", stderr)
