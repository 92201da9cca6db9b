// Code that the invokers of GEMM solvers for GPU-class devices share: the second kernel, which adds the parts
// of a divided reduction, and the arguments that all first kernels take.
#pragma once
#include "primitives/common/gpu_tile.h"
#include "primitives/gemm/arguments.h"

namespace dlb::solver {

// An invoker whose kernel takes its sizes and strides as `Arguments`, a struct of kernels/gemm/params.h. A
// solver's constructor fills arguments_ but for the offsets; its run() sets those of A and B in a copy.
template <class Arguments>
class GpuGemmInvoker : public GemmInvoker {
 protected:
  // `swap`: the kernel computes the transposed problem.
  GpuGemmInvoker(const GemmProblem& problem, bool swap, cl::Kernel& kernel, cl::Kernel& reduce)
      : swap_(swap),
        dtype_(problem.dtype),
        has_d_(problem.has_d),
        problem_(problem),
        epilogue_(swap ? transposed(problem.epilogue) : problem.epilogue),
        kernel_(kernel),
        reduce_(reduce) {}

  // Divides the reduction of p, oriented as the kernel wants it, into `splits` parts of `groups` work-groups.
  void divide(const GemmProblem& p, int splits, size_t groups, size_t items) {
    range_.dims = 2;
    range_.global[0] = groups * items, range_.local[0] = items;
    range_.global[1] = splits;
    split_ = {0, 0, 0, p.c[0], p.c[1], p.c[2], p.d[0], p.d[1], p.d[2], p.batch, p.m, p.n, splits, 0, 0};
  }

  // For kernels whose work-groups take tiles of all parts in turn: the range has no dimension of parts.
  void takes_turns() { range_.global[1] = 1; }

  // A and B as the kernel takes them.
  const Buffer& left(const GemmProblem::Operands& o) const { return swap_ ? o.b : o.a; }
  const Buffer& right(const GemmProblem::Operands& o) const { return swap_ ? o.a : o.b; }

  // Launches `kernel`, and the addition of its partial results where there are any.
  void launch(Stream& stream, cl::Kernel& kernel, Arguments a, const GemmProblem::Operands& operands,
              MemRef workspace) {
    const Buffer& d = has_d_ ? operands.d : operands.c;
    const Factor beta = has_d_ ? operands.beta : Factor{0, 0, 0};
    a.c_offset = operands.c.offset, a.d_offset = d.offset;
    set_bounds(a, operands.bounds);
    a.partial_offset = static_cast<int64_t>(workspace.offset / partial_bytes(dtype_));
    kernel.launch_with(stream.queue(), range_, [&](auto& list) {
      list.add(left(operands).mem), list.add(right(operands).mem), list.add(operands.c.mem), list.add(d.mem);
      list.add(workspace.mem ? workspace.mem : operands.c.mem);
      add_factor(list, dtype_, operands.alpha), add_factor(list, dtype_, beta);
      list.add(a);
      add_groups(list, problem_, operands);
      add_epilogue(list, epilogue_, operands);
    });
    if (a.splits > 1)
      launch_split_reduce(reduce_, stream.queue(), split_, dtype_, workspace, operands.c, d, operands.alpha,
                          beta, operands.bounds, epilogue_, operands);
  }

  const bool swap_;
  const c10::ScalarType dtype_;
  const bool has_d_;
  const GemmProblem problem_;
  const Epilogue epilogue_;
  cl::Kernel& kernel_;
  Arguments arguments_{};

 private:
  cl::Kernel& reduce_;
  cl::Range range_;
  SplitReduce split_{};
};

}  // namespace dlb::solver
