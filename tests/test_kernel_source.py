"""Reading the kernels of a user's OpenCL C: names, parameters, and what is added to the text."""

import pytest
import torch

from dlbackend.ocl.kernel_source import Source, read_source


def read(text: str, options: str = "", **predefined: str) -> Source:
    return read_source(text, options, predefined)


def parameters(text: str, options: str = "", **predefined: str) -> list[tuple[str, str]]:
    found = read(text, options, **predefined).parameters("f")
    return [(parameter.name, parameter.type) for parameter in found]


def test_every_kind_of_parameter():
    text = """kernel void f(global const float* restrict a, __global unsigned int *const b, constant uchar c[],
        local double2* d, unsigned long int e, const float3 g, constant struct Box* h, signed char i,
        volatile global void* j) {}"""
    found = {parameter.name: parameter for parameter in read(text).parameters("f")}
    assert [parameter.type for parameter in found.values()] == [
        "global const float*", "global uint*", "constant uchar*", "local double2*", "ulong", "const float3",
        "constant Box*", "char", "global void*",
    ]  # fmt: skip
    assert [name for name, parameter in found.items() if parameter.written] == ["b", "j"]
    assert [parameter.kind for parameter in found.values()] == [
        "buffer", "buffer", "buffer", "local", "value", "value", "buffer", "value", "buffer"
    ]  # fmt: skip
    assert found["a"].dtypes == (torch.float32,)
    assert found["j"].dtypes == ()
    assert (found["g"].format, found["g"].width) == ("f", 3)
    assert found["h"].dtypes == ()
    assert (found["e"].format, found["i"].format) == ("Q", "b")


def test_what_is_compiled_has_an_offset_for_each_buffer_and_the_lines_of_the_text():
    text = "// kernel void no()\nkernel void f(global float* const x,\n  int n, // (how many)\n  constant int c[])\n"
    text += "{ x[n] = 0; }\n"
    compiled = read(text).text
    assert compiled.splitlines() == [
        "// kernel void no()",
        "kernel void f(global float*  x, ulong dlb_offset_0,",
        "  int n, // (how many)",
        "  global const int c[], ulong dlb_offset_2)",
        "{ x = (global float *)((global char*)x + dlb_offset_0);"
        " c = (global const int*)((global char*)c + dlb_offset_2); x[n] = 0; }",
    ]


def test_declarations_get_the_offset_too():
    assert read("kernel void f(global int* x);").text == "kernel void f(global int* x, ulong dlb_offset_0);"


def test_attributes_comments_and_literals():
    text = """/* kernel void no(int x) {} */ constant char s[] = "kernel void no(";
    kernel __attribute__((reqd_work_group_size(8, 1, 1))) void f(int a /* , int b */)
    __attribute__((vec_type_hint(int)))
    {}"""
    assert parameters(text) == [("a", "int")]
    assert list(read(text).kernels) == ["f"]
    assert "dlb_offset" not in read(text).text


@pytest.mark.parametrize("empty", ["", "void", " /* none */ "])
def test_kernels_without_parameters(empty):
    assert parameters(f"kernel void f({empty}) {{}}") == []


def test_macros_and_typedefs():
    text = """
#define GLOBAL __global
#define PASTED(x) x##_t
typedef unsigned char byte;
typedef GLOBAL const byte* bytes;
#define KERNEL kernel void
KERNEL NAME(GLOBAL T* x, bytes y, byte z) { }
"""
    options = "-DNAME=f -D T=half"
    assert parameters(text, options) == [("x", "global half*"), ("y", "global const uchar*"), ("z", "uchar")]


def test_a_macro_means_what_it_does_where_it_is_used():
    text = "#define T float\nkernel void f(T x) {}\n#undef T\n#define T int\nkernel void g(T x) {}"
    source = read(text)
    assert [source.parameters(name)[0].type for name in "fg"] == ["float", "int"]


CONDITIONS = {
    "1": True, "0": False, "N": True, "N == 4": True, "N != 4": False, "M": False, "defined(N)": True,
    "defined M": False, "!defined(M) && N > 3": True, "N < 3 || (N & 4) == 4": True, "N - 4": False,
    "-N + 5 == 1": True,
    "N * 2 >= 8 && N / 3 == 1 && N % 3 == 1": True, "(1 << 3 | 1) == 9": True, "0x10 >> 4 ^ 1": False,
    "~0 == -1u": True,
    "010 == 8": True, "1 / 0": False, "(": False, "": False,
}  # fmt: skip


@pytest.mark.parametrize("condition", CONDITIONS)
def test_conditions(condition):
    text = f"#if {condition}\nkernel void f(int x) {{}}\n#else\nkernel void f(float x) {{}}\n#endif"
    assert parameters(text, "-DN=4") == [("x", "int" if CONDITIONS[condition] else "float")]


def test_branches():
    text = """
#ifdef cl_khr_fp64
typedef double real;
#elif defined(HALF)
typedef half real;
#else
#if 1
typedef float real;
#endif
#endif
kernel void f(global real* x
#ifndef SHORT
  , real y
#endif
) {}
"""
    assert parameters(text) == [("x", "global float*"), ("y", "float")]
    assert parameters(text, "-DHALF -DSHORT") == [("x", "global half*")]
    assert parameters(text, "-DHALF -DSHORT", cl_khr_fp64="1") == [("x", "global double*")]
    assert parameters(text, "-U cl_khr_fp64", cl_khr_fp64="1")[1] == ("y", "float")
    assert ", ulong dlb_offset_0\n#ifndef" in read(text).text


def test_names_that_are_not_there():
    source = read("kernel void f(int x) {} __kernel void g(image2d_t x) {}")
    with pytest.raises(ValueError, match="there is no kernel 'h' in the source; its kernels: f, g"):
        source.parameters("h")
    with pytest.raises(ValueError, match="kernel g: parameter 'x' is of type image2d_t"):
        source.parameters("g")
    with pytest.raises(ValueError, match="its kernels: none"):
        read("void f(int x) {}").parameters("f")


@pytest.mark.parametrize(
    ("parameter", "message"),
    [
        ("float* x", "private float"),
        ("global float** x", r"global float\*\*"),
        ("global float (*x)[4]", "cannot be read"),
        ("float", "has no name"),
        ("sampler_t s", "sampler_t"),
        ("C int* x", "its own declaration must say"),
        ("struct Box b", "is of type Box; kernels can be given"),
    ],
)
def test_parameters_that_cannot_be_given(parameter, message):
    with pytest.raises(ValueError, match=message):
        read(f"kernel void f({parameter}) {{}}", "-DC=constant").parameters("f")


def test_include_is_refused_where_it_would_be_read():
    with pytest.raises(ValueError, match="#include is not taken"):
        read('# include "x.h"')
    assert read('#if 0\n#include "x.h"\n#endif').kernels == {}


WRONG = [
    "kernel",
    "kernel void f",
    "kernel void f(",
    "kernel void f(int x",
    "kernel void f(int)",
    "#endif",
    "#else",
    "#if",
]


@pytest.mark.parametrize("text", WRONG)
def test_wrong_text_is_left_to_the_compiler(text):
    read(text)
