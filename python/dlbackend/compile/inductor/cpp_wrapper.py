"""A graph's code in C++: what AOTInductor packages, and torch.compile with torch._inductor.config.cpp_wrapper runs.

The headers that it includes are in csrc/api/aoti.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.codegen.common import IndentedBuffer
from torch._inductor.codegen.cpp_utils import DEVICE_TO_ATEN
from torch._inductor.codegen.cpp_wrapper_cpu import CppWrapperCpu
from torch._inductor.virtualized import V

import dlbackend
from dlbackend.compile.inductor.helpers import ERRORS
from dlbackend.compile.inductor.runtime import start_building
from dlbackend.ocl.kernels import _read

PACKAGE = Path(dlbackend.__file__).parent
_OPS = re.compile(r"\baoti_torch_ocl_(\w+)\(")
_CONSTRUCTED = "this->kernels_ = std::make_unique<AOTInductorModelKernels>();"


def headers() -> Path:
    """The folder of the headers, of an installed package or of the sources."""
    installed = PACKAGE / "include/dlbackend/aoti"
    return installed if installed.is_dir() else PACKAGE.parents[1] / "csrc/api/aoti"


@functools.cache
def headers_hash() -> str:
    """Digits that tell other versions of the headers apart, as Inductor keeps what it compiled with them."""
    texts = b"".join(path.read_bytes() for path in sorted(headers().iterdir()))
    return hashlib.sha256(texts).hexdigest()[:16]


@functools.cache
def _ops() -> frozenset[str]:
    """The ops that C++ calls by a function of their own."""
    return frozenset(_OPS.findall((headers() / "dlb_calls.h").read_text()))


def _replaced(text: str, old: str, new: str) -> str:
    if text.count(old) != 1:
        raise NotImplementedError(f"AOTInductor's C++ of torch {torch.__version__} is another: it has no {old!r}")
    return text.replace(old, new)


class OpenCLCppWrapper(CppWrapperCpu):
    """A graph's code."""

    def __init__(self) -> None:
        self.device = "ocl"
        DEVICE_TO_ATEN.setdefault("ocl", "at::kPrivateUse1")
        super().__init__()  # type: ignore[no-untyped-call]
        self.kernels: dict[str, str] = {}  # names of texts
        self.building: list[Any] = []

    @staticmethod
    def create(*_: Any, **__: Any) -> OpenCLCppWrapper:
        """As PythonWrapperCodegen.create()."""
        return OpenCLCppWrapper()

    @staticmethod
    def get_device_include_path_jit(device: str) -> str:
        """The line that includes a device's header."""
        return "#include <dlb_jit.h>" if device == "ocl" else CppWrapperCpu.get_device_include_path_jit(device)

    @staticmethod
    def get_device_include_path_aot(device: str) -> str:
        """The same for a package."""
        return "#include <dlb_package.h>" if device == "ocl" else CppWrapperCpu.get_device_include_path_aot(device)

    def add_device_include(self, device: str) -> None:
        """Includes a device's header, ours before all others."""
        super().add_device_include("ocl")
        super().add_device_include(device)

    def define_ocl_kernel(self, name: str, device: int, chain: str, text: str) -> None:
        """Puts a kernel into the code, and has it built now, so that its errors are raised here."""
        self.building.append(start_building(name, device, chain, text))
        source, _ = _read(text, "", device)
        letters = "".join(
            "e" if p.name == ERRORS else ("w" if p.written else "r") if p.kind == "buffer" else p.format
            for p in source.parameters(name)
        )
        assert not set(letters) - set("erwiqfd"), letters
        self.header.splice("\n" + "\n".join(f"// {line.lstrip('# ')}" for line in chain.splitlines()))
        self.header.writeline(f'static dlb::aoti::Kernel {name}("{name}", R"OCL(')
        self.header._lines += source.text.splitlines()
        self.header.writeline(f')OCL", "{letters}");')

    def _generate_kernel_call_helper(
        self, kernel_name: str, call_args: Any, *, device: Any = None, **kwargs: Any
    ) -> None:
        device = device or V.graph.get_current_device_or_throw()
        if device.type != "ocl":
            super()._generate_kernel_call_helper(kernel_name, call_args, device=device, **kwargs)
            return
        index = "this->device_idx_" if V.graph.aot_mode else str(device.index or 0)
        arguments, items, group = call_args
        self.writeline(f"{kernel_name}.launch({index}, {{{arguments}}}, {items}, {group});")  # type: ignore[no-untyped-call]

    def codegen_model_constructor(self) -> None:
        """A model's constructor, which builds the kernels."""
        made = IndentedBuffer()
        with self._target_buf("prefix", made):
            super().codegen_model_constructor()  # type: ignore[no-untyped-call]
        text = made.getvalue()
        text = _replaced(text, "  device_str,\n", "  dlb::aoti::known_device(device_str),\n")
        text = _replaced(text, _CONSTRUCTED, f"{_CONSTRUCTED}\n    dlb::aoti::build(this->device_idx_);")
        self.prefix.splice(text)

    def _codegen_entry_impl_prologue(self) -> None:
        if not V.graph.aot_mode:
            index = next(iter(V.graph.device_idxs), 0)
            self.prefix.writeline(f"[[maybe_unused]] static const bool built = (dlb::aoti::build({index}), true);")

    def generate_fallback_kernel(self, node: ir.FallbackKernel) -> None:
        """A call of an op: of those on the device by the dispatcher, whatever the op."""
        device = node.get_device()
        if device is not None and device.type == "cpu":
            super().generate_fallback_kernel(node)
            return
        assert isinstance(node.op_overload, torch._ops.OpOverload)
        self.generate_fallback_kernel_with_runtime_lookup(
            node.get_name(),
            str(node.python_kernel_name),
            lambda: [*node.codegen_args(), *node.codegen_kwargs()],
            node.op_overload,
            node.export_extern_kernel_node(),  # type: ignore[no-untyped-call]
            node.outputs or node.mutation_outputs,
        )

    def generate_fallback_kernel_with_runtime_lookup_aot(
        self, op_overload: Any, raw_args: Sequence[Any], output_args: Any, raw_outputs: Any
    ) -> None:
        """A call by PyTorch's proxy executor. It takes every device in the arguments for CUDA."""
        if any(isinstance(argument, torch.device) and argument.type == "ocl" for argument in raw_args):
            raise NotImplementedError(
                f"AOTInductor cannot call {op_overload} on ocl, as it cannot hand the device to it. Give the result "
                "to the model as an input."
            )
        super().generate_fallback_kernel_with_runtime_lookup_aot(op_overload, raw_args, output_args, raw_outputs)

    def generate_fallback_kernel_with_runtime_lookup_python(
        self,
        buf_name: str,
        python_kernel_name: str,
        op_overload: Any,
        raw_args: Sequence[Any],
        output_args: Sequence[str | None],
        raw_outputs: Any,
    ) -> None:
        """A call by Python, which cpp_wrapper makes of ops that take or return lists."""
        if isinstance(op_overload._schema.returns[0].type, torch.ListType):
            output_args = [*output_args, None]  # one name alone would be that of a tensor which is in no list
        super().generate_fallback_kernel_with_runtime_lookup_python(
            buf_name, python_kernel_name, op_overload, raw_args, output_args, raw_outputs
        )

    def generate(self, is_inference: bool) -> Any:
        """The code. NotImplementedError with the op that cannot be called from C++."""
        made = super().generate(is_inference)  # type: ignore[no-untyped-call]
        for build in self.building:
            if hasattr(build, "result"):
                build.result()
        text = "".join(part.value if hasattr(part, "value") else str(part) for part in made)
        for op in _OPS.findall(text):
            if op not in _ops():
                raise NotImplementedError(
                    f"AOTInductor and cpp_wrapper cannot call {op.removesuffix('_out')} on ocl. Use "
                    "torch.compile(model) without cpp_wrapper, or leave the op out of the model."
                )
        return made
