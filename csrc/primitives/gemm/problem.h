// The problem of a matrix product, batched or not.
#pragma once
#include "primitives/common/epilogue.h"
#include "primitives/common/factor.h"
#include "primitives/common/operand_dtype.h"
#include "solver/op.h"

namespace dlb::solver {

struct GemmOperands : EpilogueOperands {
  Buffer a, b, c, d;
  Buffer groups;  // the scales and zeros of B's groups
  Factor alpha, beta;
  Bounds bounds{};

  GemmOperands() = default;
  GemmOperands(Buffer a_, Buffer b_, Buffer c_, Buffer d_, const Factor& alpha_, const Factor& beta_,
               const Bounds& bounds_ = {})
      : a(a_), b(b_), c(c_), d(d_), alpha(alpha_), beta(beta_), bounds(bounds_) {}
};

// C[b,i,j] = alpha * sum_k A[b,i,k] * B[b,k,j] + beta * D[b,i,j], within bounds, or what the epilogue makes
// of it. D and, but for an epilogue, C have the problem's dtype, in which is computed; A and B have that,
// int8 or uint8, or for problems of floating point float8 (e4m3fn or e5m2). Any strides, zero (broadcast)
// included for A, B and D. C does not overlap A and B; D may be C itself.
//
// B may have 4 bits (UInt4): then the problem is no batch, neighbours along k lie together, two in a byte
// with the first in the high bits, columns an even number of elements apart, and B's buffer counts bytes.
// Each `group` of neighbours along k, a multiple of 32 that divides k, has a scale and a zero of the
// problem's dtype, [k / group, n, 2] in Operands::groups: an element q stands for (q - 8) * scale + zero.
// `group_pitch`: elements from one group's scales to the next one's, 2 n or more.
struct GemmProblem : Problem {
  using Operands = GemmOperands;
  GemmProblem();  // of gemm_op

  int64_t batch = 1, m = 0, n = 0, k = 0;
  // Element strides of {batch, row, column}; zero where the dimension has one element.
  int64_t a[3] = {}, b[3] = {}, c[3] = {}, d[3] = {};
  int64_t has_d = 0;  // 0: beta is zero and D is not read
  Epilogue epilogue{};
  OperandDtype a_dtype, b_dtype;  // of 8 bits; b: or of 4
  int8_t unused[2] = {};
  int32_t group = 0;  // of B's elements; 0: there are no groups
  int64_t group_pitch = 0;

  double flops() const { return 2.0 * batch * m * n * k; }
  bool is_mixed() const { return a_dtype || b_dtype || epilogue.changes_type(); }
  // Sums of products of integers of 8 bits.
  bool is_int8() const { return dtype == c10::kInt && a_dtype.is_byte() && b_dtype.is_byte(); }
  bool has_groups() const { return group != 0; }
  // Bytes of so many of B's elements.
  double b_bytes(double elements) const;
  // Makes the strides of dimensions with one element zero, so that they do not make two problems of one.
  void normalize();

  // Visits the fields for OpOf; see solver/op.h.
  template <class Self, class Visit>
  static void visit(Self& p, Visit&& v) {
    v("b", p.batch), v("m", p.m), v("n", p.n), v("k", p.k), v("sa", p.a), v("sb", p.b), v("sc", p.c),
        v("sd", p.d);
    v("add", p.has_d), v.if_set("tf32", p.tf32), v.if_set("a", p.a_dtype), v.if_set("b", p.b_dtype),
        v.if_set("group", p.group), v.if_set("pitch", p.group_pitch), v.if_set("then", p.epilogue);
  }
  // Throws std::invalid_argument for operands of 4 bits that no solver could take: a key may say anything.
  void check() const;
  std::vector<Span> spans() const;
  std::vector<CheckWindow<GemmProblem>> check_windows() const;
  GemmProblem reduced() const;
  std::vector<uint64_t> shape_classes() const;
  uint64_t size_bucket() const;
  std::string kernel_variant() const {
    std::string text = variant_of(*this);
    if (a_dtype) text += " a " + a_dtype.key_text();
    if (b_dtype) text += " b " + b_dtype.key_text();
    return text;
  }
};

using GemmSolver = Solver<GemmProblem>;
using GemmInvoker = Invoker<GemmProblem>;

extern const OpOf<GemmProblem> gemm_op;

}  // namespace dlb::solver
