// The ordered lists of attention solvers: the only place that names them all.
#include "primitives/attention/attention.h"

namespace dlb::attention {
namespace {

std::vector<const Solver<AttentionProblem>*> forward_solvers() {
  return {
      cpu_decode(),  // few queries on CPU-like devices: keys are read once, as they lie
      cpu_flash(),   // CPU-like devices
      gpu_decode(),  // few queries on GPU-class devices: keys are divided into parts
      gpu_wgmma(),   // 16 bits on the tensor cores of Hopper GPUs
      gpu_mma(),     // tensor cores
      gpu_flash(),   // GPU-class devices
      reference(),   // every problem, every device; what the others are checked against
  };
}

std::vector<const Solver<AttentionProblem>*> backward_solvers() {
  return {
      cpu_flash_backward(),  // CPU-like devices
      gpu_wgmma_backward(),  // 16 bits on the tensor cores of Hopper GPUs
      gpu_mma_backward(),    // tensor cores
      gpu_flash_backward(),  // GPU-class devices
      reference_backward(),  // every problem, every device; what the others are checked against
  };
}

}  // namespace

const OpOf<AttentionProblem> attention_op("attention", forward_solvers, Tf32Setting::kMatmul);
const OpOf<AttentionProblem> attention_backward_op("attention_bwd", backward_solvers, Tf32Setting::kMatmul);

}  // namespace dlb::attention
