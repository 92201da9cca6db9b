// The one bridge from tensors to a GEMM problem.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

namespace dlb {

struct Then;  // ops/common/then.h

// out = beta * add + alpha * a @ b. `a` [b,n,k] or [n,k], `b` likewise [.., k,m], `out` [.., n,m], all of one
// dtype, but that `a` and `b` may be int8 or uint8; any strides; `add` broadcasts to out and may be out
// itself, undefined means beta = 0. Lazily conjugated and negated operands are understood. Raises
// NotImplementedError named after `op` for bool. `then` makes of the result what its rows say.
void product_into(const char* op, const at::Tensor& out, const at::Tensor& a, const at::Tensor& b,
                  const at::Tensor& add, const c10::Scalar& beta, const c10::Scalar& alpha,
                  const Then* then = nullptr);

}  // namespace dlb
