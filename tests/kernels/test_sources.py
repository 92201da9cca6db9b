"""Hand-written kernels: each has an exercise, and those of GPUs keep to what every OpenCL compiler takes."""

import re
from collections.abc import Iterator

import pytest
from kernels import run, strict
from kernels.exercises import EXERCISES, KERNELS, LEFT_OUT, ONE_CLASS

VARIADIC = re.compile(r"#\s*define\s+\w+\([^)]*\.\.\.\s*\)")
FOR_CPUS = re.compile(r"__clang__|\bDLB_CPU\b")  # conditions that hold for compilers made of clang, or on CPUs alone
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


@pytest.mark.skipif(strict.clang() is None, reason="no clang")
def test_strict_mode_names_extensions() -> None:
    assert strict.complaints(PLAIN) == ""
    assert "variadic" in strict.complaints("#define FIRST(a, ...) a\n" + PLAIN)
    assert "redefined" in strict.complaints("#define A 1\n#define A 2\n" + PLAIN)
    assert strict.complaints(PLAIN.replace("2", "FACTOR")) != ""
    assert strict.complaints(PLAIN.replace("2", "FACTOR"), "-cl-std=CL1.2 -DFACTOR=3") == ""
