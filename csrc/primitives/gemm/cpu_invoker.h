// Code that the GEMM solvers for CPU-like devices that compute in float share: how their kernels' arguments
// begin, their program, and an invoker that launches one kernel.
#pragma once
#include "primitives/common/cpu_tile.h"
#include "primitives/gemm/arguments.h"
#include "runtime/fetch_kernel.h"

namespace dlb::solver {

// A kernel of the program that the solvers share. `swap`: it computes the transposed problem.
inline cl::Kernel& cpu_gemm_kernel(cl::Device& device, const GemmProblem& p, bool swap, const char* name) {
  const GemmProblem q = swap ? transposed(p) : p;
  return fetch_with(q.epilogue, device, {"common/cpu_tile.clh", "gemm/cpu_packed.cl", "gemm/cpu_small.cl"},
                    name, cpu_tile_options(device, q.dtype) + operand_options(q));
}

// An invoker of one kernel, which computes the problem or, where `swap` says so, the transposed one. A
// solver's invoker sets range_ and says in run() which arguments follow those that all kernels begin with.
class CpuGemmInvoker : public GemmInvoker {
 protected:
  CpuGemmInvoker(const GemmProblem& problem, bool swap, cl::Kernel& kernel)
      : swap_(swap), problem_(swap ? transposed(problem) : problem), kernel_(kernel) {}

  // Passes the operands, alpha, beta, whether there is a D, and the bounds; then `sizes` as 32-bit numbers,
  // and local memory of so many bytes, and what groups and the epilogue take.
  void launch(Stream& stream, const GemmProblem::Operands& operands, std::initializer_list<int64_t> sizes,
              size_t scratch) {
    kernel_.launch_with(stream.queue(), range_, [&](auto& arguments) {
      const GemmProblem::Operands o = swap_ ? transposed(operands) : operands;
      add_operands(arguments, problem_, o);
      arguments.add(static_cast<float>(o.alpha.re));
      arguments.add(static_cast<float>(o.beta.re));
      arguments.add(static_cast<cl_int>(problem_.has_d));
      arguments.add(o.bounds.low);
      arguments.add(o.bounds.high);
      for (int64_t size : sizes) arguments.add(static_cast<cl_int>(size));
      arguments.add(cl::Local{scratch});
      add_groups(arguments, problem_, o);
      add_epilogue(arguments, problem_.epilogue, o);
    });
  }

  const bool swap_;
  const GemmProblem problem_;
  cl::Range range_;

 private:
  cl::Kernel& kernel_;
};

}  // namespace dlb::solver
