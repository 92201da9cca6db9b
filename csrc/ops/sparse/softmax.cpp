// Softmax of sparse COO tensors, where elements that are not there count as minus infinity. Elements that
// differ in no index but that of the dimension make up a group, over which is normalized.
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/_unique2.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <limits>

#include "ops/sparse/parts.h"

namespace dlb::sparse {
namespace {

using at::Tensor;

// For each element the number of its group [nnz], and how many groups there are.
std::pair<Tensor, int64_t> groups_of(const Tensor& self, int64_t dim) {
  const Tensor indices = self._indices();
  const int64_t after = self.sparse_dim() - dim - 1;
  std::vector<int64_t> sizes = self.sizes().vec();
  sizes.erase(sizes.begin() + dim);
  const Tensor others = at::cat({indices.narrow(0, 0, dim), indices.narrow(0, dim + 1, after)});
  const auto [keys, group, counts] =
      at::_unique2(flat_indices(others, sizes), /*sorted=*/true, /*return_inverse=*/true);
  return {group, keys.size(0)};
}

struct Groups {
  Tensor of;
  std::vector<int64_t> sizes;  // of a tensor with a row for each group

  Groups(const Tensor& self, int64_t dim) : sizes(self._values().sizes().vec()) {
    std::tie(of, sizes[0]) = groups_of(self, dim);
  }
  Tensor sums(const Tensor& values) const {
    return at::zeros(sizes, values.options()).index_add_(0, of, values).index_select(0, of);
  }
  Tensor maxima(const Tensor& values) const {
    return at::full(sizes, -std::numeric_limits<double>::infinity(), values.options())
        .index_reduce_(0, of, values, "amax")
        .index_select(0, of);
  }
};

template <bool LogForm>
Tensor forward(const Tensor& input, int64_t dim, bool half_to_float) {
  constexpr const char* op = LogForm ? "log_softmax" : "softmax";
  TORCH_CHECK(!half_to_float, op, " with half to float conversion is not supported for sparse tensors");
  dim = at::maybe_wrap_dim(dim, input.dim());
  const at::ScalarType type = input.scalar_type();
  TORCH_CHECK_NOT_IMPLEMENTED(type == at::kFloat || type == at::kDouble, "\"", op, "\" not implemented for '",
                              c10::toString(type), "'");
  const Tensor self = input.coalesce(), values = self._values();
  const auto made = [&](const Tensor& result) {
    return make(self._indices().clone(), result, self.sizes(), true);
  };
  if (values.numel() == 0) return made(values.clone());
  if (dim >= self.sparse_dim()) {
    const int64_t inner = dim - self.sparse_dim() + 1;
    return made(LogForm ? at::_log_softmax(values, inner, false) : at::_softmax(values, inner, false));
  }
  const Groups groups(self, dim);
  const Tensor shifted = values.sub(groups.maxima(values)), powers = shifted.exp();
  const Tensor sums = groups.sums(powers);
  return made(LogForm ? shifted.sub(sums.log()) : powers.div(sums));
}

template <bool LogForm>
Tensor backward(const Tensor& grad_output, const Tensor& output, int64_t dim, const Tensor& input) {
  TORCH_CHECK(grad_output.is_sparse(), "coalesce expected sparse coordinate tensor layout but got ",
              grad_output.layout());
  TORCH_CHECK(grad_output.sparse_dim() == output.sparse_dim(),
              ": grad and output sparse dimensions must be equal");
  dim = at::maybe_wrap_dim(dim, output.dim());
  const Tensor result = output.coalesce(), y = result._values();
  const Tensor grad = grad_output.sparse_mask(result)._values();
  const auto made = [&](const Tensor& values) {
    return make(result._indices().clone(), values, result.sizes(), true);
  };
  if (y.numel() == 0) return made(y.clone());
  if (dim >= result.sparse_dim()) {
    const int64_t inner = dim - result.sparse_dim() + 1;
    return made(LogForm ? at::_log_softmax_backward_data(grad, y, inner, input.scalar_type())
                        : at::_softmax_backward_data(grad, y, inner, input.scalar_type()));
  }
  const Groups groups(result, dim);
  return made(LogForm ? grad.sub(y.exp().mul(groups.sums(grad))) : y.mul(grad.sub(groups.sums(y.mul(grad)))));
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  m.impl("_sparse_softmax", forward<false>);
  m.impl("_sparse_log_softmax", forward<true>);
  m.impl("_sparse_softmax_backward_data", backward<false>);
  m.impl("_sparse_log_softmax_backward_data", backward<true>);
}

}  // namespace dlb::sparse
