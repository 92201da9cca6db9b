"""The scheduler's backend: which nodes become kernels, and how a graph's code names them."""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch._inductor.codegen.common import BackendFeature
from torch._inductor.codegen.simd import SIMDScheduling
from torch._inductor.codegen.simd_kernel_features import SIMDKernelFeatures
from torch._inductor.codegen.wrapper import PythonWrapperCodegen, SubgraphPythonWrapperCodegen
from torch._inductor.utils import get_kernel_metadata
from torch._inductor.virtualized import V
from torch.utils._ordered_set import OrderedSet

from dlbackend.compile.inductor.combined import CombinedKernel
from dlbackend.compile.inductor.kernel import NAME, OpenCLKernel


class OpenCLScheduling(SIMDScheduling):
    """Kernels of one dimension of results and one that is reduced; loops find rows in them by themselves."""

    kernel_type = OpenCLKernel

    @classmethod
    def get_backend_features(cls, device: torch.device) -> OrderedSet[BackendFeature]:
        """What the kernels can do beside the least."""
        names = ("FOREACH", "INPLACE_BUFFERS", "TUPLE_REDUCTION", "PREFER_STORE_LOOP_ORDER")
        return OrderedSet(BackendFeature[n] for n in names if n in BackendFeature.__members__)

    @classmethod
    def get_tiling_and_scores(
        cls, node_schedule: Any, numel: Any, reduction_numel: Any = sympy.S.One, coalesce_analysis: Any = None
    ) -> tuple[dict[str, sympy.Expr], None]:
        """One dimension of each kind."""
        return cls.create_tiling([numel], [reduction_numel]), None

    @classmethod
    def select_tiling(cls, node_schedule: Any, numel: Any, *args: Any, **kwargs: Any) -> dict[str, sympy.Expr]:
        """As get_tiling_and_scores()."""
        return cls.get_tiling_and_scores(node_schedule, numel, *args, **kwargs)[0]

    def codegen_combo_kernel(self, combo_kernel_node: Any) -> None:
        """Nodes that need nothing of each other: as many in one launch as its arguments allow."""
        launches: list[OpenCLKernel | CombinedKernel] = []
        together = CombinedKernel()
        for node in combo_kernel_node.get_subkernel_nodes():
            nodes = node.get_nodes()
            _, (numel, reduced) = max(nodes, key=lambda n: int(n.is_reduction())).group
            schedule = self.generate_node_schedule(nodes, numel, reduced)  # type: ignore[no-untyped-call]
            features = SIMDKernelFeatures(schedule, numel, reduced)
            kernel = OpenCLKernel(self.select_tiling(schedule, numel, reduced), features=features)
            self.process_kernel(kernel, schedule)
            with V.set_kernel_handler(kernel):
                kernel.finish()
            if not together.takes(kernel):
                together = CombinedKernel()
            if not together.takes(kernel):
                launches.append(kernel)
                continue
            if not together.kernels:
                launches.append(together)
            together.add(kernel)
        for launched in launches:
            name = self.define_kernel(launched.program(), [combo_kernel_node], launched)
            self.codegen_comment(combo_kernel_node.snodes, name)
            launched.call_kernel(name)
        self.free_buffers_in_scheduler()

    def define_kernel(self, src_code: str, node_schedule: Any, kernel: Any) -> str:
        """The name of the kernel with this text, which is written into the graph's code where it is new."""
        wrapper: Any = V.graph.wrapper_code
        names = wrapper.kernels if V.graph.cpp_wrapper else wrapper.src_to_kernel
        known: str | None = names.get(src_code)
        if known is not None:
            return known
        name = f"ocl_fused_{wrapper.next_kernel_suffix()}"
        names[src_code] = name
        origins, detailed = get_kernel_metadata(node_schedule, wrapper)
        device = V.graph.get_current_device_or_throw().index or 0
        text = src_code.replace(NAME, name)
        chain = "\n".join(line for line in f"{origins}\n{detailed}".splitlines() if line.strip())
        if V.graph.cpp_wrapper:
            wrapper.define_ocl_kernel(name, device, chain, text)
            return name
        wrapper.header.splice(f"\n{chain}\n")
        wrapper.header.writeline(f"{name} = start_building({name!r}, {device}, {chain!r}, r'''")
        wrapper.header._lines += text.replace("'''", "' ' '").splitlines()
        wrapper.header.writeline("''')")
        return name


class OpenCLWrapper(PythonWrapperCodegen):
    """A graph's code."""

    @staticmethod
    def create(is_subgraph: bool, subgraph_name: Any, parent_wrapper: Any, partition_signatures: Any = None) -> Any:
        """As PythonWrapperCodegen.create()."""
        if is_subgraph:
            return SubgraphPythonWrapperCodegen(subgraph_name, parent_wrapper, partition_signatures)
        return OpenCLWrapper()  # type: ignore[no-untyped-call]

    def write_header(self) -> None:
        """Imports what graphs on ocl call."""
        super().write_header()
        self.header.splice(
            "from dlbackend.compile.inductor.runtime import empty_strided_ocl, run_length, start_building"
        )
