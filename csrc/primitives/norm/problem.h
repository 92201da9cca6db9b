// The problems that batch, group and layer norm consist of: passes over the data, the application of
// coefficients, and a layer norm as a whole.
#pragma once
#include "primitives/common/memory_problem.h"

namespace dlb::norm {

// types[] of normalisations' problems has the dtype of weights and running statistics in the place of in4,
// which has no elements, because kernels are made for it.
constexpr size_t kNormParamType = 4;

// A pass over x that gives two numbers for each row, which is what shares one mean: `count` elements in runs
// of `length` neighbours. Row r starts at
//   r / inner_rows * outer_stride + r % inner_rows * inner_stride
// and its runs are segment_stride apart. With `columns`, rows are interleaved: element i of row r is at
// i * segment_stride + r.
//   norm_stats: in0: x. out0: [2][rows], the means and the variances.
//   norm_sums:  in0: x, in1: grad_output, in2: the mean, in3: rstd where mean_group is 0.
//               out0: [2][rows], the sums of grad_output and of grad_output * (x - mean).
// A mean is shared by mean_group rows. Where that is 0 (the gradients of a layer norm's weights), mean and
// rstd belong to the position in the row, and the second sum is of grad_output * (x - mean) * rstd.
struct NormPassProblem : solver::MemoryProblemOf<NormPassProblem> {
  int64_t outer_stride = 0, inner_stride = 0, segment_stride = 0;
  int64_t inner_rows = 1, rows = 1, length = 1, count = 1, mean_group = 1, columns = 0;

  bool is_sums() const;
  // x of norm_stats is positive, so that no mean, which errors are relative to, is zero by chance.
  std::vector<solver::Span> spans() const { return spans_of(is_sums() ? 0 : 1); }
  // The whole problem, unless that is too much for one work-item per row.
  std::vector<solver::CheckWindow<NormPassProblem>> check_windows() const;
  template <class Self, class Visit>
  static void visit_sizes(Self& p, Visit&& v) {
    v("outer_stride", p.outer_stride), v("inner_stride", p.inner_stride);
    v("segment_stride", p.segment_stride), v("inner_rows", p.inner_rows), v("rows", p.rows);
    v("length", p.length), v("count", p.count), v("mean_group", p.mean_group), v("columns", p.columns);
  }
};

// Coefficients applied to x, which is dense and [outer][rows][inner]; there is one of each kind per row.
//   norm_apply:     in0: x, in2: [3][rows], mean, scale and shift. out0: (x - mean) * scale + shift.
//   norm_apply_bwd: in0: x, in1: grad_output, in2: [4][rows], mean, k0, k1 and k2.
//                   out0: grad_output * k0 - (k1 + (x - mean) * k2).
struct NormApplyProblem : solver::MemoryProblemOf<NormApplyProblem> {
  int64_t outer = 1, rows = 1, inner = 1;

  bool is_backward() const;
  template <class Self, class Visit>
  static void visit_sizes(Self& p, Visit&& v) {
    v("outer", p.outer), v("rows", p.rows), v("inner", p.inner);
  }
};

// A layer norm of `rows` rows of `length` elements.
//   layer_norm:     in0: x, in1: weight, in2: bias. out0: y, out1: the means, out2: rstd.
//   layer_norm_bwd: in0: x, in1: weight, in2: grad_output, in3: the means, in4: rstd. out0: the input's
//                   gradient.
// The type of an absent weight is that of the other parameters. eps: the bits of the double.
struct LayerNormProblem : solver::MemoryProblemOf<LayerNormProblem> {
  int64_t rows = 1, length = 1, eps = 0;

  bool is_backward() const;
  // x is positive forward, as norm_stats' is.
  std::vector<solver::Span> spans() const { return spans_of(is_backward() ? 0 : 1); }
  // Some rows at both ends; none where one alone is too much for one work-item.
  std::vector<solver::CheckWindow<LayerNormProblem>> check_windows() const;
  template <class Self, class Visit>
  static void visit_sizes(Self& p, Visit&& v) {
    v("rows", p.rows), v("length", p.length), v("eps", p.eps);
  }
};

extern const solver::OpOf<LayerNormProblem> layer_norm_op, layer_norm_bwd_op;
extern const solver::OpOf<NormPassProblem> norm_stats_op, norm_sums_op;
extern const solver::OpOf<NormApplyProblem> norm_apply_op, norm_apply_bwd_op;

inline bool NormPassProblem::is_sums() const {
  return op == &norm_sums_op;
}
inline bool LayerNormProblem::is_backward() const {
  return op == &layer_norm_bwd_op;
}
inline bool NormApplyProblem::is_backward() const {
  return op == &norm_apply_bwd_op;
}

}  // namespace dlb::norm
