// The convolution solvers, one per file of this folder.
#pragma once
#include "primitives/conv/problem.h"

namespace dlb::solver {
const ConvSolver* conv_cpu_bf16();
const ConvSolver* conv_cpu_direct();
const ConvSolver* conv_cpu_int8();
const ConvSolver* conv_gemm_1x1();
const ConvSolver* conv_cpu_implicit();
const ConvSolver* conv_cpu_winograd();
const ConvSolver* conv_gpu_depthwise();
const ConvSolver* conv_gpu_mma();
const ConvSolver* conv_gpu_implicit();
const ConvSolver* conv_gpu_plain();
const ConvSolver* conv_gpu_wgmma();
const ConvSolver* conv_gpu_winograd();
const ConvSolver* conv_fft();
const ConvSolver* conv_unfold();
const ConvSolver* conv_reference();
}  // namespace dlb::solver
