// The one bridge from tensors to a GEMM problem.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

namespace dlb {

struct Then;  // ops/common/then.h

// out = beta * add + alpha * a @ b. `a` [b,n,k] or [n,k], `b` likewise [.., k,m], `out` [.., n,m], all of one
// dtype, but that `a` and `b` may be int8 or uint8; any strides; `add` broadcasts to out and may be out
// itself, undefined means beta = 0. Lazily conjugated and negated operands are understood. Raises
// NotImplementedError named after `op` for bool. `then` makes of the result what its rows say, and may
// compute the product in another dtype than out's.
void product_into(const char* op, const at::Tensor& out, const at::Tensor& a, const at::Tensor& b,
                  const at::Tensor& add, const c10::Scalar& beta, const c10::Scalar& alpha,
                  const Then* then = nullptr);

// out = a @ b, where b's columns are the rows of `pairs`, uint8 [m, k / 2] with elements of 4 bits, the first
// of two in the high bits. Each `group` of an output's elements, a multiple of 32 that divides k, has a scale
// and a zero in `parameters` [k / group, m, 2] of a's dtype, and q stands for (q - 8) * scale + zero. `a` [n,
// k] and `out` [n, m] are float32, float16 or bfloat16. Callers check the shapes and dtypes.
void product_of_groups_into(const char* op, const at::Tensor& out, const at::Tensor& a,
                            const at::Tensor& pairs, int64_t group, const at::Tensor& parameters,
                            const Then* then = nullptr);

}  // namespace dlb
