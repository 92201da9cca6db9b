"""Kernels that need nothing of each other, such as a foreach op's, in one launch."""

from __future__ import annotations

from torch._inductor.virtualized import V

from dlbackend.compile.inductor.helpers import ERRORS
from dlbackend.compile.inductor.kernel import ERRORS_PARAMETER, NAME, OpenCLKernel, program_of, write_launch
from dlbackend.compile.inductor.segments import Form, is_known

MOST_ARGUMENTS = 120  # of eight bytes, of which every OpenCL device takes 1024


class CombinedKernel:
    """A launch of several kernels. Each is a function that some of the work-groups call."""

    def __init__(self) -> None:
        self.kernels: list[OpenCLKernel] = []
        self.count = 0

    def takes(self, kernel: OpenCLKernel) -> bool:
        """Whether the kernel has a place here: its work-items work alone, and their number is known."""
        known = is_known(kernel.result_count()) and kernel.form in (Form.RUNS, Form.ITEMS)
        return known and self.count + len(kernel.arguments()) <= MOST_ARGUMENTS

    def add(self, kernel: OpenCLKernel) -> None:
        """Takes the kernel, which takes() has accepted."""
        self.kernels.append(kernel)
        self.count += len(kernel.arguments())

    def program(self) -> str:
        """The program's text."""
        functions: dict[str, str] = {}  # names by text
        parameters, calls = [], []
        for i, kernel in enumerate(self.kernels):
            own = kernel.parameters()
            size, group, per_item = kernel.sizes(V.graph.wrapper_code)
            index = f"(({kernel.index_dtype})group * {group} + get_local_id(0))" if group > 1 else "group"
            body = "\n".join(kernel.body_lines).replace("get_global_id(0)", index).replace("get_group_id(0)", "group")
            errors = "checked" in kernel.helpers
            inner = [*own, "const int group", *([ERRORS_PARAMETER] if errors else [])]
            text = f"({', '.join(inner)}) {{\n{body}\n}}\n"
            function = functions.setdefault(text, f"{NAME}_{len(functions)}")
            given = own if per_item is None else own[:-1]
            names = [p.split()[-1] for p in given]
            parameters += [f"{p[: -len(n)]}k{i}_{n}" for p, n in zip(given, names, strict=True)]
            values = [f"k{i}_{n}" for n in names] + ([per_item] if per_item is not None else []) + ["group"]
            values += [ERRORS] if errors else []
            calls += [f"if (group < {int(size) // group}) {{", f"{function}({', '.join(values)});", "return;", "}"]
            calls.append(f"group -= {int(size) // group};")
        defined = "".join(f"static inline void {name}{text}" for text, name in functions.items())
        return program_of(self.kernels, NAME, parameters, ["int group = get_group_id(0);", *calls], defined)

    def call_kernel(self, name: str) -> None:
        """Writes the launch into the graph's code."""
        sizes = [kernel.sizes(V.graph.wrapper_code) for kernel in self.kernels]
        arguments = [a for kernel in self.kernels for a in kernel.arguments()]
        write_launch(name, arguments, str(sum(int(size) for size, _, _ in sizes)), sizes[0][1])
