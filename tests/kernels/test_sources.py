"""Hand-written kernels: each has an exercise, and those of GPUs keep to what every OpenCL compiler takes."""

import re
from collections.abc import Iterator

import pytest
from kernels import run, strict
from kernels.exercises import EXERCISES, KERNELS, LEFT_OUT, ONE_CLASS

VARIADIC = re.compile(r"#\s*define\s+\w+\([^)]*\.\.\.\s*\)")
FOR_CPUS = re.compile(r"__clang__|\bDLB_CPU\b")  # conditions that hold for compilers made of clang, or on CPUs alone
MOST_LINES = 60  # of a function
LONGER = {  # why is in csrc/kernels/README.md
    "attention/gpu_mma_backward.cl",
    "reduce/reduce_rows_cpu.clh",
    "reduce/scan_group_gpu.clh",
}
PLAIN = "kernel void twice(global float* x) { x[get_global_id(0)] *= 2; }\n"


def for_gpus(text: str) -> Iterator[tuple[int, str]]:
    """The numbered lines, without those that a condition keeps from the compilers of GPUs."""
    branches: list[bool] = []  # of the conditions around the line: whether it is for CPUs alone
    for number, line in enumerate(text.splitlines(), 1):
        directive = re.match(r"#\s*(if\w*|elif|else|endif)\b(.*)", line)
        if directive is None:
            if not any(branches):
                yield number, line
            continue
        word, condition = directive.groups()
        if word.startswith("if"):
            branches.append(bool(FOR_CPUS.search(condition)) and word != "ifndef")
        elif word == "endif":
            branches.pop()
        else:
            branches[-1] = word == "elif" and bool(FOR_CPUS.search(condition))


def test_every_file_has_an_exercise() -> None:
    files = {file.relative_to(KERNELS).as_posix() for file in KERNELS.rglob("*.cl")}
    assert set(EXERCISES) | set(LEFT_OUT) == files
    assert not set(EXERCISES) & set(LEFT_OUT)
    assert set(ONE_CLASS) <= set(EXERCISES)


def test_kernels_are_found_by_name() -> None:
    """run.py demands that these be launched: a form of declaration that it did not see would go unexercised."""
    for file in EXERCISES:
        text = re.sub(r"//.*", "", (KERNELS / file).read_text())
        assert len(re.findall(r"^[^#\n]*\bkernel\b[^;{]*?\bvoid\b", text, re.MULTILINE)) == len(
            run.KERNEL.findall(text)
        ), file
        assert run.kernels_of(file), file


def test_no_variadic_macros_on_gpus() -> None:
    """NVIDIA's compiler refuses them, which no CPU's does."""
    found = [
        f"{file.relative_to(KERNELS)}:{number}"
        for suffix in ("cl", "clh", "h")
        for file in KERNELS.rglob(f"*.{suffix}")
        if not file.name.startswith("cpu_")
        for number, line in for_gpus(file.read_text())
        if VARIADIC.search(line)
    ]
    assert found == []


def test_lines_for_gpus() -> None:
    text = "a|#ifdef __clang__|b|#else|c|#endif|#ifndef DLB_CPU|d|#endif|#if X|#if DLB_CPU|e|#endif|f|#endif"
    assert "".join(line for _, line in for_gpus(text.replace("|", "\n"))) == "acdf"


def functions(text: str) -> Iterator[tuple[int, int]]:
    """The first line of each function and how many it has. Of the branches of a condition each has whole blocks, or
    as many open braces as the others; macros are passed over, with what they stand for.
    """
    depth, begin, macro = 0, 0, False
    branches: list[int] = []  # of the conditions around the line: the depth before it
    for number, line in enumerate(text.splitlines(), 1):
        directive = re.match(r"\s*#\s*(if|el|endif)?", line)
        if macro or directive:
            if directive and directive[1] == "if" and not macro:
                branches.append(depth)
            elif directive and directive[1] == "endif":
                branches.pop()
            elif directive and directive[1] == "el":
                depth = branches[-1]
            macro = line.endswith("\\")
            continue
        code = re.sub(r"//.*", "", line)
        if depth == 0:
            begin = (begin or number) if code.strip() else 0
        depth += code.count("{") - code.count("}")
        if depth == 0 and code.rstrip().endswith(("}", ";")):
            if "}" in code:
                yield begin, number - begin + 1
            begin = 0


def test_functions_are_short() -> None:
    found = {
        (file.relative_to(KERNELS).as_posix(), begin, lines)
        for suffix in ("cl", "clh")
        for file in KERNELS.rglob(f"*.{suffix}")
        for begin, lines in functions(file.read_text())
    }
    assert len(found) > 1000
    long = {name for name, _, lines in found if lines > MOST_LINES}
    assert long == LONGER, sorted(function for function in found if function[2] > MOST_LINES)


def test_lines_of_functions() -> None:
    text = "PACK(x)||// a|static int a(|int b) {|#if X|if (b) {|#else|if (!b) {|#endif|}|#define M { \\|{|}||int x;|"
    text += "void f() { return; }|typedef struct {|int a;|} S;|"
    assert list(functions(text.replace("|", "\n"))) == [(4, 11), (17, 1), (18, 3)]


@pytest.mark.skipif(strict.clang() is None, reason="no clang")
def test_strict_mode_names_extensions() -> None:
    assert strict.complaints(PLAIN) == ""
    assert "variadic" in strict.complaints("#define FIRST(a, ...) a\n" + PLAIN)
    assert "redefined" in strict.complaints("#define A 1\n#define A 2\n" + PLAIN)
    assert strict.complaints(PLAIN.replace("2", "FACTOR")) != ""
    assert strict.complaints(PLAIN.replace("2", "FACTOR"), "-cl-std=CL1.2 -DFACTOR=3") == ""
