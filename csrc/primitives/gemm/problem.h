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

// The dtype of an operand that differs from the problem's; none by default.
class OperandDtype {
 public:
  OperandDtype() = default;
  explicit OperandDtype(c10::ScalarType type) : code_(static_cast<int8_t>(static_cast<int8_t>(type) + 1)) {}
  explicit operator bool() const { return code_ != 0; }
  c10::ScalarType type() const { return static_cast<c10::ScalarType>(code_ - 1); }
  c10::ScalarType or_else(c10::ScalarType other) const { return code_ ? type() : other; }

  std::string key_text() const { return codegen::name_of(dtype_of(type(), "problem key")); }
  static OperandDtype parse(const std::string& text);

 private:
  int8_t code_ = 0;
};

// C[b,i,j] = alpha * sum_k A[b,i,k] * B[b,k,j] + beta * D[b,i,j], within bounds, or what the epilogue makes
// of it. C and D have the problem's dtype, in which is computed; A and B have that, or int8 or uint8. Any
// strides, zero (broadcast) included for A, B and D. C does not overlap A and B; D may be C itself.
struct GemmProblem : Problem {
  using Operands = GemmOperands;
  GemmProblem();  // of gemm_op

  int64_t batch = 1, m = 0, n = 0, k = 0;
  // Element strides of {batch, row, column}; zero where the dimension has one element.
  int64_t a[3] = {}, b[3] = {}, c[3] = {}, d[3] = {};
  int64_t has_d = 0;  // 0: beta is zero and D is not read
  Epilogue epilogue{};
  OperandDtype a_dtype, b_dtype;  // int8 or uint8
  int8_t unused[6] = {};

  double flops() const { return 2.0 * batch * m * n * k; }
  bool is_mixed() const { return a_dtype || b_dtype; }
  // Makes the strides of dimensions with one element zero, so that they do not make two problems of one.
  void normalize();

  // Visits the fields for OpOf; see solver/op.h.
  template <class Self, class Visit>
  static void visit(Self& p, Visit&& v) {
    v("b", p.batch), v("m", p.m), v("n", p.n), v("k", p.k), v("sa", p.a), v("sb", p.b), v("sc", p.c),
        v("sd", p.d);
    v("add", p.has_d), v.if_set("tf32", p.tf32), v.if_set("a", p.a_dtype), v.if_set("b", p.b_dtype),
        v.if_set("then", p.epilogue);
  }
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
