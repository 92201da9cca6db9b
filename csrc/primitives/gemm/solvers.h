// The GEMM solvers, one per file of this folder.
#pragma once
#include "primitives/gemm/problem.h"
#include "solver/device_rates.h"

namespace dlb::solver {
const GemmSolver* gemm_cpu_bf16();
const GemmSolver* gemm_cpu_blocked();
const GemmSolver* gemm_cpu_gemv();
const GemmSolver* gemm_cpu_int8();
const GemmSolver* gemm_cpu_packed();
const GemmSolver* gemm_cpu_small();
const GemmSolver* gemm_gpu_gemv();
const GemmSolver* gemm_gpu_mma();
const GemmSolver* gemm_gpu_plain();
const GemmSolver* gemm_gpu_wgmma();
const GemmSolver* gemm_gpu_tiled();
const GemmSolver* gemm_clblast();
const GemmSolver* gemm_reference();
// The first config of "gpu_tiled" by these rates.
Config gemm_gpu_tiled_config(const GemmProblem& problem, const cl::Device& device, const DeviceRates& rates);
}  // namespace dlb::solver
