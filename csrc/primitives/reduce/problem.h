// Reduction problems: large reductions of one input to one or two results, by an op that registered
// (primitives/reduce/reduce.h).
#pragma once
#include "codegen/reduce.h"
#include "primitives/common/memory_problem.h"

namespace dlb::reduction {

// in0: the input, out0 and out1: the results; `scalar`: the op's scalar argument, if it has one. `variant` is
// the op's name. Kept dimensions come first, then the reduced ones, each innermost first, after collapsing.
struct ReduceProblem : solver::MemoryProblemOf<ReduceProblem> {
  static constexpr size_t kRank = 5;  // kept and reduced dimensions together

  int64_t sizes[kRank] = {};
  int64_t out_strides[2][kRank] = {},
          in_strides[kRank] = {};  // elements; of reduced dimensions 0 in the results
  int64_t kept = 0, dims = 0;      // dimensions that are kept, and all of them
  int64_t aligned = 0;             // 1: the input begins at a multiple of four elements

  template <class Self, class Visit>
  static void visit_sizes(Self& p, Visit&& v) {
    v("size", p.sizes), v("out", p.out_strides[0]), v("out2", p.out_strides[1]), v("in", p.in_strides);
    v("kept", p.kept), v("dims", p.dims), v("aligned", p.aligned);
  }
  size_t results() const { return has_result(1) ? 2 : 1; }
  // The input is positive, so that no mean, which errors are relative to, is zero by chance.
  std::vector<solver::Span> spans() const { return spans_of(1); }
  // The op that registered by this name; null where none did.
  const codegen::ReduceOp* reduce_op() const;
};

extern const solver::OpOf<ReduceProblem> reduce_op;

}  // namespace dlb::reduction
