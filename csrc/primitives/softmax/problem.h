// Softmax problems: softmax and log_softmax over one dimension, and their gradients.
#pragma once
#include "codegen/dtype.h"
#include "primitives/common/memory_problem.h"

namespace dlb::softmax {

// Operands, all contiguous with outer x dim x inner elements: in0, the input (backward: the result's
// gradient); in1, backward only, the forward pass's result; out0, the result (backward: the input's
// gradient).
struct SoftmaxProblem : solver::MemoryProblemOf<SoftmaxProblem> {
  int64_t outer = 1, dim = 1, inner = 1;  // sizes before the dimension, of it, and behind it
  int64_t log = 0;                        // 1: log_softmax

  template <class Self, class Visit>
  static void visit_sizes(Self& p, Visit&& v) {
    v("outer", p.outer), v("dim", p.dim), v("inner", p.inner), v("log", p.log);
  }
  bool is_backward() const;
  int64_t elements() const { return outer * dim * inner; }
  // Some rows at both ends; none where one alone is too much for one work-item.
  std::vector<solver::CheckWindow<SoftmaxProblem>> check_windows() const;
};

extern const solver::OpOf<SoftmaxProblem> softmax_op, softmax_backward_op;

// The type that a problem is computed in.
codegen::DType compute_of(const SoftmaxProblem& problem);

// Solves the problem on the stream: as solver::run() where choosing pays, else by the first choice.
void run(const SoftmaxProblem& problem, const solver::MemoryOperands& operands, Stream& stream);

}  // namespace dlb::softmax
