// Code that the solvers of attention share: their lists, and how kernels are given a problem.
#pragma once
#include <array>
#include <cstddef>

#include "cl/kernel.h"
#include "kernels/attention/params.h"
#include "primitives/attention/problem.h"
#include "runtime/stream.h"
#include "solver/solver_row.h"

namespace dlb::attention {

using namespace solver;

const Solver<AttentionProblem>* cpu_decode();
const Solver<AttentionProblem>* gpu_decode();
const Solver<AttentionProblem>* cpu_flash();
const Solver<AttentionProblem>* cpu_flash_backward();
const Solver<AttentionProblem>* gpu_wgmma();
const Solver<AttentionProblem>* gpu_wgmma_backward();
const Solver<AttentionProblem>* gpu_mma();
const Solver<AttentionProblem>* gpu_mma_backward();
const Solver<AttentionProblem>* gpu_flash();
const Solver<AttentionProblem>* gpu_flash_backward();
const Solver<AttentionProblem>* reference();
const Solver<AttentionProblem>* reference_backward();

// The argument of all kernels, with where the replays of a graph get the numbers of dropout from.
struct Params : params::AttentionParams {
  const uint64_t* seed_source = nullptr;
  const uint64_t* counter_source = nullptr;
  const params::AttentionParams& plain() const { return *this; }
  std::array<cl::LivePart, 2> live_parts() const {
    return {cl::LivePart{offsetof(params::AttentionParams, seed), seed_source},
            cl::LivePart{offsetof(params::AttentionParams, counter), counter_source}};
  }
};
Params params_of(const AttentionProblem& p, const AttentionOperands& o);

// The bias's buffer, or another where there is none.
inline cl_mem bias_of(const AttentionOperands& o) {
  return o.bias.mem ? o.bias.mem : o.q.mem;
}

// Launches a forward kernel: (q, k, v, bias, out, lse, params, more...).
template <class... More>
void launch_forward(cl::Kernel& kernel, const cl::Range& range, const AttentionOperands& o,
                    const Params& params, Stream& stream, const More&... more) {
  kernel.launch(stream.queue(), range, o.q.mem, o.k.mem, o.v.mem, bias_of(o), o.out.mem, o.lse.mem, params,
                more...);
}

// An invoker of that launch, with nothing more.
std::unique_ptr<Invoker<AttentionProblem>> invoker_of(const AttentionProblem& p, cl::Kernel& kernel,
                                                      const cl::Range& range);

// The two kernels of a backward pass: (q, k, v, bias, grad_out, lse, delta, two results, params, more...).
struct BackwardLaunch {
  cl::Kernel& dq;
  cl::Kernel& dkv;
  cl::Range dq_range, dkv_range;

  template <class... More>
  void run_dq(const AttentionOperands& o, const Params& params, Stream& stream, const More&... more) const {
    const cl_mem scores = o.scores.mem ? o.scores.mem : o.grad_q.mem;
    dq.launch(stream.queue(), dq_range, o.q.mem, o.k.mem, o.v.mem, bias_of(o), o.grad_out.mem, o.lse.mem,
              o.delta.mem, o.grad_q.mem, scores, params, more...);
  }
  template <class... More>
  void run_dkv(const AttentionOperands& o, const Params& params, Stream& stream, const More&... more) const {
    dkv.launch(stream.queue(), dkv_range, o.q.mem, o.k.mem, o.v.mem, bias_of(o), o.grad_out.mem, o.lse.mem,
               o.delta.mem, o.grad_k.mem, o.grad_v.mem, params, more...);
  }
};

// An invoker of both, one after the other.
std::unique_ptr<Invoker<AttentionProblem>> invoker_of(const AttentionProblem& p,
                                                      const BackwardLaunch& launch);

// A work-item for each row of [batch, heads, length], in work-groups of 64 on GPUs, where those behind the
// last row have nothing to do.
cl::Range rows_range(const cl::Device& device, int64_t length, int64_t heads, int64_t batch);

// The conditions that all solvers have for a problem.
Applicability common_applicable(const AttentionProblem& p);

}  // namespace dlb::attention
