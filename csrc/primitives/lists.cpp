// The ordered lists of GEMM and convolution solvers; launch families (launch_problem.h) bring their own.
#include <cstdlib>

#include "primitives/conv/solvers.h"
#include "primitives/gemm/solvers.h"
#include "solver/solver.h"

namespace dlb::solver {
namespace {

std::vector<const GemmSolver*> with_test_solvers(std::vector<const GemmSolver*> list) {
  if (const char* which = std::getenv("DLBACKEND_TEST_SOLVERS")) {
    const auto faulty = gemm_test_solvers(which);
    list.insert(list.begin(), faulty.begin(), faulty.end());
  }
  return list;
}

}  // namespace

const std::vector<const GemmSolver*>& gemm_solvers() {
  static const std::vector<const GemmSolver*> list = with_test_solvers({
      gemm_cpu_gemv(),    // one or few rows: bound by reading B once, which packing would double
      gemm_cpu_small(),   // small products: nothing is copied that can be read where it lies
      gemm_cpu_bf16(),    // bfloat16 on CPUs with instructions of their own for it
      gemm_cpu_packed(),  // everything else on CPU-like devices
      gemm_gpu_gemv(),    // few rows on GPU-class devices: no tile to fill, only memory to read
      gemm_gpu_mma(),     // 16 bits and TF32 on tensor cores
      gemm_gpu_tiled(),   // everything on GPU-class devices
      gemm_clblast(),     // any device, any driver; seconds to start on a CPU, so only when forced there
      gemm_reference(),   // every dtype and layout, every device; what the others are checked against
  });
  return list;
}

const std::vector<const ConvSolver*>& conv_solvers() {
  static const std::vector<const ConvSolver*> list = {
      conv_cpu_direct(),     // few output channels per group: too narrow for a GEMM's tile
      conv_gemm_1x1(),       // no gather at all, whichever GEMM is best
      conv_cpu_bf16(),       // bfloat16 on CPUs with instructions of their own for it
      conv_cpu_winograd(),   // 3x3 of stride 1 with many channels: fewer multiplications
      conv_cpu_implicit(),   // everything else on CPU-like devices
      conv_gpu_depthwise(),  // one channel per group: too little reuse for a product
      conv_gpu_winograd(),   // 3x3 of stride 1 with many channels on GPU-class devices
      conv_gpu_mma(),        // 16 bits and TF32 on tensor cores
      conv_gpu_implicit(),   // everything else on GPU-class devices
      conv_unfold(),         // a product by any GEMM solver: other dtypes, and what a library does better
      conv_reference(),  // every dtype, layout and size, every device; what the others are checked against
  };
  return list;
}

std::vector<std::string> solver_names(Op op) {
  std::vector<std::string> names;
  const auto add = [&](const auto& list) {
    for (const auto* solver : list) names.push_back(solver->name());
  };
  if (op == Op::kGemm)
    add(gemm_solvers());
  else if (op <= Op::kConvWeightGrad)
    add(conv_solvers());
  else
    add(launch_solvers(op));
  return names;
}

}  // namespace dlb::solver
