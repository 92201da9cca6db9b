// The GEMM solvers, one per file of this folder.
#pragma once
#include "solver/solver.h"

namespace dlb::solver {
const GemmSolver* gemm_cpu_gemv();
const GemmSolver* gemm_cpu_packed();
const GemmSolver* gemm_cpu_small();
const GemmSolver* gemm_gpu_tiled();
const GemmSolver* gemm_clblast();
const GemmSolver* gemm_reference();
}  // namespace dlb::solver
