// Products with quantized weights: integers times integers, and floating point times integers with scales,
// which are converted while they are loaded. Weights of 4 bits are unpacked to memory first: these save
// memory, but no time.
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/stack.h>
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

constexpr int64_t kTile =
    8;  // the packed weight has the shape that CUDA's has, but keeps its elements in order

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

// [m, k] of floats times that weight, whose numbers q mean (q - 8) * scale + zero with `scales_and_zeros`
// [k / group, n, 2], to [m, n].
Tensor int4pack_mm(const Tensor& self, const Tensor& packed, int64_t group, const Tensor& scales_and_zeros) {
  TORCH_CHECK(self.dim() == 2 && at::isFloatingType(self.scalar_type()),
              "_weight_int4pack_mm: Expected self to be a 2D floating tensor");
  TORCH_CHECK(packed.dim() == 4 && packed.scalar_type() == at::kInt && packed.is_contiguous(),
              "_weight_int4pack_mm: Expected the weight to be packed by _convert_weight_to_int4pack");
  TORCH_CHECK(group == 32 || group == 64 || group == 128 || group == 256,
              "_weight_int4pack_mm: Expected qGroupSize to be 32, 64, 128 or 256, got ", group);
  const int64_t n = packed.size(0) * kTile, k = self.size(1);
  TORCH_CHECK(packed.numel() * 8 == n * k && k % group == 0,
              "_weight_int4pack_mm: the weight's columns must be ", k, ", a multiple of ", group);
  TORCH_CHECK(scales_and_zeros.dim() == 3 && scales_and_zeros.size(0) == k / group &&
                  scales_and_zeros.size(1) == n && scales_and_zeros.size(2) == 2,
              "_weight_int4pack_mm: Expected qScaleAndZeros to be of shape [", k / group, ", ", n, ", 2]");
  const Tensor pairs = packed.view({-1}).view(at::kByte).view({n, k / 2});
  const Tensor numbers =
      at::stack({pairs.bitwise_right_shift(4), pairs.bitwise_and(15)}, 2).view({n, k / group, group});
  const Tensor parameters = scales_and_zeros.to(self.scalar_type()).transpose(0, 1);
  const Tensor weight = numbers.to(self.scalar_type())
                            .sub_(8)
                            .mul_(parameters.select(2, 0).unsqueeze(2))
                            .add_(parameters.select(2, 1).unsqueeze(2));
  return at::mm(self, weight.view({n, k}).t());
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_int_mm", int_mm);
  m.impl("_int_mm.out", int_mm_out);
  m.impl("_weight_int8pack_mm", int8pack_mm);
  m.impl("_convert_weight_to_int4pack", to_int4pack);
  m.impl("_weight_int4pack_mm", int4pack_mm);
}

}  // namespace dlb
