// The problem of a convolution: its forward pass and both gradients.
#pragma once
#include "primitives/common/epilogue.h"
#include "primitives/common/factor.h"
#include "primitives/common/operand_dtype.h"
#include "solver/op.h"

namespace dlb::solver {

enum class ConvDirection : int8_t { kForward, kInputGrad, kWeightGrad };

struct ConvOperands : EpilogueOperands {
  Buffer x, w, y, bias;
  Bounds bounds{};  // of the forward pass
};

// y[n,k,o] (+ bias[k]) = sum over c, f of x[n,c,o*stride-padding+f*dilation] * w[k,c,f] within each group,
// and its two gradients. There are always depth, height and width: fewer spatial dimensions have ones in
// front.
//   kForward:    reads x, w, bias; writes y, within bounds, or what the epilogue makes of it
//   kInputGrad:  reads y, w, bias (of x's channels; a transposed convolution's); writes x
//   kWeightGrad: reads x, y; writes w
// Operands have the problem's dtype. In the forward pass of int32, x and w may be int8 or uint8, both of
// them, and y may be of the dtype that the epilogue makes.
struct ConvProblem : Problem {
  using Operands = ConvOperands;

  // Element strides of {n, c, d, h, w}, {k, c in group, d, h, w}, {n, k, d, h, w}.
  int64_t xs[5] = {}, ws[5] = {}, ys[5] = {};
  int32_t n = 0, c = 0, k = 0, groups = 1;  // images, input and output channels (of all groups)
  int32_t in[3] = {1, 1, 1}, out[3] = {1, 1, 1}, filter[3] = {1, 1, 1};
  int32_t stride[3] = {1, 1, 1}, padding[3] = {}, dilation[3] = {1, 1, 1};
  ConvDirection direction = ConvDirection::kForward;
  int8_t has_bias = 0;
  int8_t constant_w = 0;          // 1, of the forward pass: w is the same from one run to the next
  OperandDtype x_dtype, w_dtype;  // int8 or uint8
  int8_t unused[3] = {};
  Epilogue epilogue{};  // of the forward pass

  int64_t taps() const { return int64_t(filter[0]) * filter[1] * filter[2]; }
  int64_t out_pixels() const { return int64_t(out[0]) * out[1] * out[2]; }
  int64_t in_pixels() const { return int64_t(in[0]) * in[1] * in[2]; }
  double flops() const { return 2.0 * n * k * (c / groups) * taps() * out_pixels(); }
  // Brings equal problems to one form: trivial dimensions in front, with strides of zero.
  void normalize();
  // The same convolution in another direction.
  ConvProblem in_direction(ConvDirection other) const;

  // Visits the fields for OpOf; see solver/op.h.
  template <class Self, class Visit>
  static void visit(Self& p, Visit&& v) {
    v("n", p.n), v("c", p.c), v("k", p.k), v("g", p.groups), v("in", p.in), v("out", p.out), v("f", p.filter);
    v("s", p.stride), v("p", p.padding), v("d", p.dilation), v("sx", p.xs), v("sw", p.ws), v("sy", p.ys);
    v("bias", p.has_bias), v.if_set("tf32", p.tf32), v.if_set("constant", p.constant_w);
    v.if_set("x", p.x_dtype), v.if_set("w", p.w_dtype), v.if_set("then", p.epilogue);
  }
  std::vector<Span> spans() const;
  std::vector<CheckWindow<ConvProblem>> check_windows() const;
  ConvProblem reduced() const;
  std::vector<uint64_t> shape_classes() const;
  uint64_t size_bucket() const;
  std::string kernel_variant() const {
    std::string text = variant_of(*this);
    if (x_dtype) text += " x " + x_dtype.key_text();
    if (w_dtype) text += " w " + w_dtype.key_text();
    return text;
  }
  bool is_mixed() const { return x_dtype || w_dtype || epilogue.changes_type(); }
  // Throws std::invalid_argument for operands of dtypes that no solver could take.
  void check() const;
};

using ConvSolver = Solver<ConvProblem>;
using ConvInvoker = Invoker<ConvProblem>;

// "conv_fwd", "conv_bwd_data", "conv_bwd_weight". One list of solvers serves the three directions.
const OpOf<ConvProblem>& conv_op(ConvDirection direction);
// In order of preference, the reference last.
std::vector<const ConvSolver*> conv_solvers();

}  // namespace dlb::solver
