// The ordered list of convolution solvers, which serves the three directions: the only place that names them
// all.
#include "primitives/conv/solvers.h"

namespace dlb::solver {
namespace {

ConvProblem prototype(ConvDirection direction) {
  ConvProblem p;
  p.direction = direction;
  return p;
}

const OpOf<ConvProblem> kOps[] = {
    {"conv_fwd", conv_solvers, Tf32Setting::kConvolution, prototype(ConvDirection::kForward)},
    {"conv_bwd_data", conv_solvers, Tf32Setting::kConvolution, prototype(ConvDirection::kInputGrad)},
    {"conv_bwd_weight", conv_solvers, Tf32Setting::kConvolution, prototype(ConvDirection::kWeightGrad)},
};

}  // namespace

std::vector<const ConvSolver*> conv_solvers() {
  return {
      conv_cpu_direct(),     // few output channels per group: too narrow for a GEMM's tile
      conv_gemm_1x1(),       // no gather at all, whichever GEMM is best
      conv_cpu_bf16(),       // bfloat16 on CPUs with instructions of their own for it
      conv_cpu_int8(),       // integers of 8 bits on CPUs
      conv_cpu_winograd(),   // 3x3 of stride 1 with many channels: fewer multiplications
      conv_cpu_implicit(),   // everything else on CPU-like devices
      conv_gpu_depthwise(),  // one channel per group: too little reuse for a product
      conv_gpu_winograd(),   // 3x3 of stride 1 with many channels on GPU-class devices
      conv_gpu_wgmma(),      // Hopper's tensor cores, for float32 at its own precision too
      conv_gpu_mma(),        // 16 bits and TF32 on tensor cores
      conv_gpu_implicit(),   // everything else on GPU-class devices
      conv_gpu_plain(),      // what runs while better kernels are compiled
      conv_fft(),            // large filters of stride 1: a result's cost does not depend on their size
      conv_unfold(),         // a product by any GEMM solver: other dtypes, and what a library does better
      conv_reference(),  // every dtype, layout and size, every device; what the others are checked against
  };
}

const OpOf<ConvProblem>& conv_op(ConvDirection direction) {
  return kOps[static_cast<size_t>(direction)];
}

}  // namespace dlb::solver
