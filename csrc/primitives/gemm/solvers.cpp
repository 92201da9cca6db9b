// The ordered list of GEMM solvers: the only place that names them all.
#include "primitives/gemm/solvers.h"

namespace dlb::solver {
namespace {

std::vector<const GemmSolver*> gemm_solvers() {
  return {
      gemm_cpu_gemv(),     // one or few rows: bound by reading B once, which packing would double
      gemm_cpu_small(),    // small products: nothing is copied that can be read where it lies
      gemm_cpu_bf16(),     // bfloat16 on CPUs with instructions of their own for it
      gemm_cpu_int8(),     // integers of 8 bits on CPUs
      gemm_cpu_packed(),   // everything else on CPU-like devices
      gemm_cpu_blocked(),  // and in the dtypes that do not compute in float
      gemm_gpu_gemv(),     // few rows on GPU-class devices: no tile to fill, only memory to read
      gemm_gpu_wgmma(),    // Hopper's tensor cores, for float32 at its own precision too
      gemm_gpu_mma(),      // 16 bits and TF32 on tensor cores
      gemm_gpu_tiled(),    // everything on GPU-class devices
      gemm_gpu_plain(),    // what runs while better kernels are compiled
      gemm_clblast(),      // any device, any driver; seconds to start on a CPU, so only when forced there
      gemm_reference(),    // every dtype and layout, every device; what the others are checked against
  };
}

}  // namespace

const OpOf<GemmProblem> gemm_op("gemm", gemm_solvers, Tf32Setting::kMatmul);

}  // namespace dlb::solver
