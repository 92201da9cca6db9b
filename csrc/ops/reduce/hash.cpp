// hash_tensor: the exclusive or of all elements, as 64-bit integers or as the bits of float64.
#include <ATen/ops/hash_tensor_meta.h>
#include <torch/library.h>

#include "ops/reduce/results.h"

namespace dlb {
namespace {

using codegen::ReduceOp;

constexpr ReduceOp kXor{
    .name = "xor",
    .on_int = {.fields = {{{"T", "0"}}}, .step = "a0 ^= x0;", .combine = "a0 ^= b0;", .finish = "y0 = a0;"}};

// The bits of a float as those of the same number in float64, by integers alone: devices without double
// precision know it too.
constexpr ReduceOp kXorFloat{
    .name = "xor_float",
    .on_int = {.fields = {{{"T", "0"}}},
               .step = "const uint u = (uint)x0, a = u & 0x7fffffffu;"
                       "const int shift = a < 0x800000u ? (int)clz(a | 1u) - 8 : 0;"
                       "const uint m = a << shift;"
                       "const ulong e = a >= 0x7f800000u ? 0x7ffUL : (ulong)(896 + (int)(m >> 23) - shift);"
                       "const ulong number = a == 0 ? 0UL : e << 52 | (ulong)(m & 0x7fffffu) << 29;"
                       "const ulong quiet = a > 0x7f800000u ? 1UL << 51 : 0UL;"
                       "a0 ^= (T)(((ulong)(u >> 31) << 63) | number | quiet);",
               .combine = "a0 ^= b0;",
               .finish = "y0 = a0;"}};

const codegen::RegisterOps kHashOps(codegen::RowKind::Reduce,
                                    {{kXor, "hash_tensor hash_tensor.out", "fixed"},
                                     {kXorFloat, "hash_tensor hash_tensor.out", "fixed"}});

void hash_into(const at::Tensor& self, at::IntArrayRef dim, const at::Tensor& out) {
  const at::ScalarType type = self.scalar_type();
  TORCH_CHECK_NOT_IMPLEMENTED(at::isFloatingType(type) || (c10::isIntegralType(type, /*includeBool=*/true) &&
                                                           !c10::isBarebonesUnsignedType(type)),
                              "\"xor_sum\" not implemented for '", c10::toString(type), "'");
  const DimMask mask = mask_of(dim, self);
  if (type == at::kDouble) return reduce(kXor, self.view(at::kLong), mask, at::kLong, out);
  if (at::isFloatingType(type))
    return reduce(kXorFloat, self.to(at::kFloat).view(at::kInt), mask, at::kLong, out);
  reduce(kXor, self, mask, at::kLong, out);
}

at::Tensor& hash_tensor_out(const at::Tensor& self, at::IntArrayRef dim, bool keepdim, int64_t mode,
                            at::Tensor& out) {
  const c10::DeviceGuard guard(self.device());
  Results<at::meta::structured_hash_tensor> results(out);
  results.meta(self, dim, keepdim, mode);
  TORCH_CHECK(mode == 0, "Unknown hash_tensor mode: ", mode);
  hash_into(self, dim, out);
  return out;
}

at::Tensor hash_tensor(const at::Tensor& self, at::IntArrayRef dim, bool keepdim, int64_t mode) {
  const c10::DeviceGuard guard(self.device());
  Results<at::meta::structured_hash_tensor> results;
  results.meta(self, dim, keepdim, mode);
  TORCH_CHECK(mode == 0, "Unknown hash_tensor mode: ", mode);
  hash_into(self, dim, results[0]);
  return results[0];
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("hash_tensor", hash_tensor);
  m.impl("hash_tensor.out", hash_tensor_out);
}

}  // namespace dlb
