// The problem of a matrix product, batched or not.
#pragma once
#include "primitives/common/epilogue.h"
#include "primitives/common/factor.h"
#include "solver/op.h"

namespace dlb::solver {

struct GemmOperands : EpilogueOperands {
  Buffer a, b, c, d;
  Factor alpha, beta;
  Bounds bounds{};

  GemmOperands() = default;
  GemmOperands(Buffer a_, Buffer b_, Buffer c_, Buffer d_, const Factor& alpha_, const Factor& beta_,
               const Bounds& bounds_ = {})
      : a(a_), b(b_), c(c_), d(d_), alpha(alpha_), beta(beta_), bounds(bounds_) {}
};

// C[b,i,j] = alpha * sum_k A[b,i,k] * B[b,k,j] + beta * D[b,i,j], within bounds, or what the epilogue makes
// of it. All operands but the epilogue's have one dtype; any strides, zero (broadcast) included for A, B and
// D. C does not overlap A and B; D may be C itself.
struct GemmProblem : Problem {
  using Operands = GemmOperands;
  GemmProblem();  // of gemm_op

  int64_t batch = 1, m = 0, n = 0, k = 0;
  // Element strides of {batch, row, column}; zero where the dimension has one element.
  int64_t a[3] = {}, b[3] = {}, c[3] = {}, d[3] = {};
  int64_t has_d = 0;  // 0: beta is zero and D is not read
  Epilogue epilogue{};

  double flops() const { return 2.0 * batch * m * n * k; }
  // Makes the strides of dimensions with one element zero, so that they do not make two problems of one.
  void normalize();

  // Visits the fields for OpOf; see solver/op.h.
  template <class Self, class Visit>
  static void visit(Self& p, Visit&& v) {
    v("b", p.batch), v("m", p.m), v("n", p.n), v("k", p.k), v("sa", p.a), v("sb", p.b), v("sc", p.c),
        v("sd", p.d);
    v("add", p.has_d), v.if_set("tf32", p.tf32), v.if_set("then", p.epilogue);
  }
  std::vector<Span> spans() const;
  std::vector<CheckWindow<GemmProblem>> check_windows() const;
  GemmProblem reduced() const;
  std::vector<uint64_t> shape_classes() const;
  uint64_t size_bucket() const;
  std::string kernel_variant() const { return variant_of(*this); }
};

using GemmSolver = Solver<GemmProblem>;
using GemmInvoker = Invoker<GemmProblem>;

extern const OpOf<GemmProblem> gemm_op;

}  // namespace dlb::solver
