// Products with quantized weights: integers times integers, and floating point times integers with scales,
// which are converted while they are loaded.
#include <ATen/native/Resize.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include "ops/common/structured.h"
#include "ops/common/then.h"
#include "ops/matmul/product.h"

namespace dlb {
namespace {

using at::Tensor;

void check_matrix(const Tensor& t, const char* op, const char* name, at::ScalarType type) {
  TORCH_CHECK(t.dim() == 2, op, ": Expected ", name, " to be of dimension 2 but got ", t.dim());
  TORCH_CHECK(t.scalar_type() == type, op, ": Expected ", name, " dtype to be ", type, " but got ",
              t.scalar_type());
}

// [m, k] and [k, n] of int8 to int32 [m, n].
Tensor& int_mm_out(const Tensor& self, const Tensor& mat2, Tensor& out) {
  check_matrix(self, "_int_mm", "self", at::kChar);
  check_matrix(mat2, "_int_mm", "mat2", at::kChar);
  TORCH_CHECK(self.size(1) == mat2.size(0), "_int_mm: self.size(1) needs to match mat2.size(0) but got ",
              self.size(1), " and ", mat2.size(0));
  TORCH_CHECK(out.scalar_type() == at::kInt, "Expected result dtype to be of type kInt but got ",
              out.scalar_type());
  const at::DimVector sizes{self.size(0), mat2.size(1)};
  at::native::resize_output(out, sizes);
  product_into("_int_mm", out, self, mat2, Tensor(), 0, 1);
  return out;
}

Tensor int_mm(const Tensor& self, const Tensor& mat2) {
  Tensor out = at::empty({0}, self.options().dtype(at::kInt));
  return int_mm_out(self, mat2, out);
}

// [m, k] of floats and [n, k] of int8 with a scale for each of its rows to [m, n].
Tensor int8pack_mm(const Tensor& self, const Tensor& weight, const Tensor& scales) {
  TORCH_CHECK(at::isFloatingType(self.scalar_type()),
              "_weight_int8pack_mm: Expected self to be floating, but got ", self.scalar_type());
  TORCH_CHECK(self.dim() == 2 && self.is_contiguous(),
              "_weight_int8pack_mm: Expected self to be a contiguous 2D tensor");
  check_matrix(weight, "_weight_int8pack_mm", "the weight", at::kChar);
  TORCH_CHECK(weight.size(1) == self.size(1), "_weight_int8pack_mm: Expected the weight's size(1) to be ",
              self.size(1), " but got ", weight.size(1));
  TORCH_CHECK(scales.dim() == 1 && scales.size(0) == weight.size(0),
              "_weight_int8pack_mm: Expected scales to be 1d tensor with size ", weight.size(0));
  static const FusedRows kScaled("y0 = mul.T(x0, x1)");
  const Tensor out = at::empty({self.size(0), weight.size(0)}, self.options());
  const Tensor scale = scales.to(self.scalar_type());
  const Then then(kScaled.of(self.scalar_type()), scale, out, 1, 0);
  product_into("_weight_int8pack_mm", out, self, weight.t(), Tensor(), 0, 1, &then);
  return out;
}

// Whether a scale is one number, or (rows or columns of the result) has one for each.
bool is_scale(const Tensor& scale, at::IntArrayRef each) {
  return scale.scalar_type() == at::kFloat &&
         (scale.numel() == 1 || (scale.sizes() == each && scale.is_contiguous()));
}

// The rows behind a product of float8: scales, perhaps a bias, and the dtype of the result.
const FusedOp& scaling_rows(bool biased, at::ScalarType type) {
  static const auto rows = [](bool bias, const std::string& to) {
    const std::string end =
        bias ? "z = add_alpha.T(w, x3, 1); y0 = copy." + to + "(z)" : "y0 = copy." + to + "(w)";
    return FusedRows("v = mul.T(x0, x1); w = mul.T(v, x2); " + end);
  };
  static const FusedRows kRows[][2] = {{rows(false, "f32"), rows(true, "f32")},
                                       {rows(false, "f16"), rows(true, "f16")},
                                       {rows(false, "bf16"), rows(true, "bf16")}};
  return kRows[type == at::kHalf ? 1 : type == at::kBFloat16 ? 2 : 0][biased].of(at::kFloat);
}

// [m, k] and [k, n] of float8 times their scales, plus the bias, to [m, n]: of one number each, or for the
// rows of the first and the columns of the second. `scale_result` is for results of float8. Sums are never
// those of tensor cores alone, so use_fast_accum changes nothing.
Tensor& scaled_mm_out(const Tensor& self, const Tensor& mat2, const Tensor& scale_a, const Tensor& scale_b,
                      const std::optional<Tensor>& bias, const std::optional<Tensor>& scale_result,
                      std::optional<at::ScalarType> out_dtype, bool /*use_fast_accum*/, Tensor& out) {
  const auto is_float8 = [](const Tensor& t) {
    return t.scalar_type() == at::kFloat8_e4m3fn || t.scalar_type() == at::kFloat8_e5m2;
  };
  TORCH_CHECK(self.dim() == 2 && mat2.dim() == 2, "_scaled_mm: expected matrices, but got ", self.dim(),
              " and ", mat2.dim(), " dimensions");
  TORCH_CHECK(self.size(1) == mat2.size(0), "mat_a and mat_b shapes cannot be multiplied (", self.size(0),
              "x", self.size(1), " and ", mat2.size(0), "x", mat2.size(1), ")");
  const int64_t m = self.size(0), n = mat2.size(1);
  TORCH_CHECK_VALUE(
      is_float8(self) && is_float8(mat2) && is_scale(scale_a, {m, 1}) && is_scale(scale_b, {1, n}),
      "_scaled_mm: Invalid scaling configuration: matrices of float8_e4m3fn or float8_e5m2 take scales "
      "of float32, of one element or of [",
      m, ", 1] and [1, ", n, "], but got ", self.scalar_type(), " with ", scale_a.sizes(), " and ",
      mat2.scalar_type(), " with ", scale_b.sizes());
  const at::ScalarType type = out_dtype.value_or(out.scalar_type());
  TORCH_CHECK(out.scalar_type() == type, "_scaled_mm: out is of ", out.scalar_type(), ", but out_dtype is ",
              type);
  TORCH_CHECK(!bias || (bias->dim() == 1 && bias->size(0) == n), "_scaled_mm: expected a bias of ", n,
              " elements");
  at::native::resize_output(out, {m, n});
  const bool direct = type == at::kFloat || type == at::kHalf || type == at::kBFloat16;
  const Tensor y = direct ? out : at::empty({m, n}, self.options().dtype(at::kFloat));
  std::vector<Tensor> extras{scale_a, scale_b};
  if (bias) extras.push_back(bias->to(at::kFloat));
  const Then then(scaling_rows(bias.has_value(), y.scalar_type()), extras, y, 1, 0, at::kFloat);
  product_into("_scaled_mm", y, self, mat2, Tensor(), 0, 1, &then);
  if (y.is_same(out)) return out;
  if (scale_result && is_float8(out)) y.mul_(*scale_result);
  out.copy_(y);
  return out;
}

Tensor scaled_mm(const Tensor& self, const Tensor& mat2, const Tensor& scale_a, const Tensor& scale_b,
                 const std::optional<Tensor>& bias, const std::optional<Tensor>& scale_result,
                 std::optional<at::ScalarType> out_dtype, bool use_fast_accum) {
  Tensor out = at::empty({0}, self.options().dtype(out_dtype.value_or(self.scalar_type())));
  return scaled_mm_out(self, mat2, scale_a, scale_b, bias, scale_result, out_dtype, use_fast_accum, out);
}

constexpr int64_t kTile = 8, kPairs = 8;  // rows of a tile, and elements of an int32

// The packed weight has the shapes that PyTorch defines for CUDA or the CPU, but keeps its elements in order.
//
// Weight [n, k / 2] of pairs of 4-bit numbers, uint8 with the first of a pair in the high bits, to int32 of
// the shape that PyTorch defines for `tiles` (2, 4 or 8).
Tensor to_int4pack(const Tensor& self, int64_t tiles) {
  check_matrix(self, "_convert_weight_to_int4pack", "the weight", at::kByte);
  TORCH_CHECK(tiles == 2 || tiles == 4 || tiles == 8,
              "_convert_weight_to_int4pack: innerKTiles need to be 2, 4, or 8");
  const int64_t n = self.size(0), k = self.size(1) * 2;
  TORCH_CHECK(n % kTile == 0 && k % (tiles * 16) == 0, "_convert_weight_to_int4pack: the weight's rows, ", n,
              ", must be a multiple of 8 and its columns, ", k, ", one of ", tiles * 16);
  return self.contiguous().clone().view(at::kInt).view({n / kTile, k / (tiles * 16), 32, tiles / 2});
}

// Weight [n, k] of numbers from 0 to 15, int32, to pairs [n, k / 2].
Tensor to_int4pack_for_cpu(const Tensor& self, int64_t tiles) {
  check_matrix(self, "_convert_weight_to_int4pack_for_cpu", "the weight", at::kInt);
  TORCH_CHECK(self.size(0) % 16 == 0 && self.size(1) % 2 == 0,
              "_convert_weight_to_int4pack_for_cpu: the weight's rows, ", self.size(0),
              ", must be a multiple of 16 and its columns, ", self.size(1), ", one of 2");
  const Tensor bytes = self.to(at::kByte);
  return bytes.slice(1, 0, std::nullopt, 2)
      .bitwise_left_shift(4)
      .bitwise_or_(bytes.slice(1, 1, std::nullopt, 2).bitwise_and(15));
}

void check_groups(const char* op, const Tensor& self, const Tensor& pairs, int64_t group,
                  const Tensor& parameters) {
  const int64_t n = pairs.size(0), k = self.size(1);
  TORCH_CHECK(2 * pairs.size(1) == k && k % group == 0, op, ": the weight's columns must be ", k,
              ", a multiple of ", group, ", but there are ", 2 * pairs.size(1));
  TORCH_CHECK(parameters.dim() == 3 && parameters.size(0) == k / group && parameters.size(1) == n &&
                  parameters.size(2) == 2,
              op, ": Expected qScaleAndZeros to be of shape [", k / group, ", ", n, ", 2], but got ",
              parameters.sizes());
  TORCH_CHECK(self.device() == pairs.device() && self.device() == parameters.device(), op,
              ": expected all tensors on ", self.device(), ", but they are on ", pairs.device(), " and ",
              parameters.device());
}

// [m, k] of floats times pairs [n, k / 2], whose numbers q mean (q - 8) * scale + zero with `parameters`
// [k / group, n, 2], to [m, n].
Tensor of_groups(const char* op, const Tensor& self, const Tensor& pairs, int64_t group,
                 const Tensor& parameters) {
  TORCH_CHECK(self.dim() == 2, op, ": Expected self to be a 2D tensor");
  TORCH_CHECK(self.scalar_type() == at::kFloat || self.scalar_type() == at::kHalf ||
                  self.scalar_type() == at::kBFloat16,
              op, ": Expected self to be float32, float16 or bfloat16, but got ", self.scalar_type());
  TORCH_CHECK(group == 32 || group == 64 || group == 128 || group == 256, op,
              ": Expected qGroupSize to be 32, 64, 128 or 256, got ", group);
  check_groups(op, self, pairs, group, parameters);
  const Tensor out = at::empty({self.size(0), pairs.size(0)}, self.options());
  product_of_groups_into(op, out, self, pairs, group, parameters.to(self.scalar_type()));
  return out;
}

// Of a weight that to_int4pack() has packed.
Tensor int4pack_mm(const Tensor& self, const Tensor& packed, int64_t group, const Tensor& parameters) {
  TORCH_CHECK(packed.dim() == 4 && packed.scalar_type() == at::kInt && packed.is_contiguous(),
              "_weight_int4pack_mm: Expected the weight to be packed by _convert_weight_to_int4pack");
  const int64_t n = packed.size(0) * kTile;
  const Tensor pairs = packed.view({-1}).view(at::kByte).view({n, n ? packed.numel() * kPairs / 2 / n : 0});
  return of_groups("_weight_int4pack_mm", self, pairs, group, parameters);
}

// Of a weight that to_int4pack_for_cpu() has packed.
Tensor int4pack_mm_for_cpu(const Tensor& self, const Tensor& packed, int64_t group,
                           const Tensor& parameters) {
  check_matrix(packed, "_weight_int4pack_mm_for_cpu", "the weight", at::kByte);
  return of_groups("_weight_int4pack_mm_for_cpu", self, packed, group, parameters);
}

// The rows of `text` behind the product of int4pack_mm_for_cpu(), of groups of any multiple of 32.
std::vector<Tensor> group_product_rows(std::string text, const Tensor& self, const Tensor& pairs,
                                       int64_t group, const Tensor& parameters, at::TensorList extras) {
  constexpr const char* kOp = "group_product_rows";
  check_matrix(pairs, kOp, "the weight", at::kByte);
  TORCH_CHECK(self.dim() == 2 && self.scalar_type() == parameters.scalar_type(), kOp,
              ": Expected a matrix of the scales' dtype, ", parameters.scalar_type(), ", but got ",
              self.scalar_type(), " of ", self.dim(), " dimensions");
  TORCH_CHECK(self.scalar_type() == at::kFloat || self.scalar_type() == at::kHalf ||
                  self.scalar_type() == at::kBFloat16,
              kOp, ": Expected float32, float16 or bfloat16, but got ", self.scalar_type());
  TORCH_CHECK(group >= 32 && group % 32 == 0, kOp, ": Expected groups of a multiple of 32, got ", group);
  check_groups(kOp, self, pairs, group, parameters);
  const Tensor out = at::empty({self.size(0), pairs.size(0)}, self.options());
  const Then then(fused_op_of(text), extras, out, 1, 0);
  if (!out.is_meta()) product_of_groups_into(kOp, out, self, pairs, group, parameters, &then);
  return then.with(out);
}

// Of weights whose inputs are rounded to 8 bits for each product.
void check_dynamic(const char* op, int64_t group, int64_t in, int64_t out) {
  TORCH_CHECK(in > 0 && in % 32 == 0 && out > 0 && group >= 32 && group % 32 == 0 && in % group == 0, op,
              ": Expected groups of a multiple of 32 that divides in_features, got ", group, " of ", in);
}

// Weight [out, in / 2] of pairs of 4-bit numbers, uint8 with the first of a pair in the low bits, and a scale
// for each group of each output, to bytes: the pairs as kernels have them, [in / group, out, 2] float32
// scales and zeros, and the bias.
Tensor to_dynamic_4bit(const Tensor& weights, const Tensor& scales, const std::optional<Tensor>& bias,
                       int64_t group, int64_t in, int64_t out) {
  constexpr const char* kOp = "_dyn_quant_pack_4bit_weight";
  TORCH_CHECK(weights.scalar_type() == at::kByte, kOp, ": expect weight to be kByte.");
  check_dynamic(kOp, group, in, out);
  TORCH_CHECK(weights.numel() == out * in / 2 && scales.numel() == out * (in / group), kOp, ": Expected ",
              out * in / 2, " bytes of weights and ", out * (in / group), " scales, got ", weights.numel(),
              " and ", scales.numel());
  const Tensor pairs = weights.reshape({-1});
  const Tensor turned = pairs.bitwise_left_shift(4).bitwise_or_(pairs.bitwise_right_shift(4));
  const Tensor scale = scales.to(at::kFloat).reshape({out, in / group}).t();
  std::vector<Tensor> parts{turned, at::stack({scale, at::zeros_like(scale)}, 2).view({-1}).view(at::kByte)};
  if (bias) parts.push_back(bias->to(at::kFloat).reshape({out}).contiguous().view(at::kByte));
  return at::cat(parts);
}

// The numbers, in float32, that the rows of x stand for when each is rounded to 8 bits with a scale and a
// zero of its own.
Tensor rounded_rows(const Tensor& x) {
  const Tensor least = x.amin({1}, true).clamp_max_(0), greatest = x.amax({1}, true).clamp_min_(0);
  const Tensor range = greatest.sub(least);
  const Tensor scale = range.reciprocal().mul_(255).masked_fill_(range.eq(0), 1);
  const Tensor low = least.mul(scale), high = greatest.mul(scale);
  const Tensor zero =
      at::where(low.add(high).gt(1), low.neg().sub_(128), high.neg().add_(127)).clamp_(-128, 127).round_();
  const Tensor steps = x.mul(scale);
  const Tensor q = steps.abs().add_(0.5).floor_().copysign_(steps).add_(zero).clamp_(-128, 127);
  return q.sub_(zero).div_(scale);
}

// [m, in] of float32 or bfloat16 times the weight that to_dynamic_4bit() has packed, to [m, out].
Tensor dynamic_4bit_mm(const Tensor& input, const Tensor& packed, int64_t group, int64_t in, int64_t out) {
  constexpr const char* kOp = "_dyn_quant_matmul_4bit";
  TORCH_CHECK(input.scalar_type() == at::kFloat || input.scalar_type() == at::kBFloat16, kOp,
              ": expect input to be float32 or bfloat16, but got ", input.scalar_type());
  TORCH_CHECK(input.dim() == 2 && input.size(1) == in, kOp, ": Expected an input of ", in, " columns, got ",
              input.sizes());
  check_dynamic(kOp, group, in, out);
  const int64_t pairs = out * in / 2, scales = 8 * out * (in / group);
  const bool has_bias = packed.numel() == pairs + scales + 4 * out;
  TORCH_CHECK(packed.scalar_type() == at::kByte && (has_bias || packed.numel() == pairs + scales), kOp,
              ": Expected weights packed by _dyn_quant_pack_4bit_weight for ", in, " inputs and ", out,
              " outputs in groups of ", group);
  if (input.numel() == 0) return at::empty({input.size(0), out}, input.options());
  const Tensor parameters = packed.narrow(0, pairs, scales).view(at::kFloat).view({in / group, out, 2});
  const Tensor y = at::empty({input.size(0), out}, input.options().dtype(at::kFloat));
  product_of_groups_into(kOp, y, rounded_rows(input.to(at::kFloat)),
                         packed.narrow(0, 0, pairs).view({out, in / 2}), group, parameters);
  if (has_bias) y.add_(packed.narrow(0, pairs + scales, 4 * out).view(at::kFloat));
  return y.to(input.scalar_type());
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_int_mm", int_mm);
  m.impl("_int_mm.out", int_mm_out);
  m.impl("_scaled_mm", scaled_mm);
  m.impl("_scaled_mm.out", scaled_mm_out);
  m.impl("_weight_int8pack_mm", int8pack_mm);
  m.impl("_convert_weight_to_int4pack", to_int4pack);
  m.impl("_weight_int4pack_mm", int4pack_mm);
  m.impl("_convert_weight_to_int4pack_for_cpu", to_int4pack_for_cpu);
  m.impl("_weight_int4pack_mm_for_cpu", int4pack_mm_for_cpu);
  m.impl("_dyn_quant_pack_4bit_weight", to_dynamic_4bit);
  m.impl("_dyn_quant_matmul_4bit", dynamic_4bit_mm);
}

TORCH_LIBRARY_FRAGMENT(dlbackend, m) {
  m.def(
      "group_product_rows(str rows, Tensor a, Tensor pairs, int group, Tensor parameters, Tensor[] extras) "
      "-> Tensor[]");
}

TORCH_LIBRARY_IMPL(dlbackend, PrivateUse1, m) {
  m.impl("group_product_rows", group_product_rows);
}

TORCH_LIBRARY_IMPL(dlbackend, Meta, m) {
  m.impl("group_product_rows", group_product_rows);
}

}  // namespace dlb
