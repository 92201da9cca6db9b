// Embedding tables: gradients, bags of rows, renormalisation. Made of row gathers and ordered accumulation,
// so results are the same from run to run.
#include <ATen/ops/arange.h>
#include <ATen/ops/diff.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/zeros.h>

#include "ops/fallback.h"
#include "ops/index/access.h"
#include "ops/index/accumulate.h"

namespace dlb {
namespace {

using OptionalTensor = std::optional<at::Tensor>;
using Bag = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

enum Mode : int64_t { kSum, kMean, kMax };

int32_t embedding_site() {
  static const int32_t site = index_error_site("embedding");
  return site;
}

void check_indices(const at::Tensor& indices, const char* op) {
  TORCH_CHECK(
      indices.scalar_type() == at::kLong || indices.scalar_type() == at::kInt, op,
      ": Expected tensor for argument indices to have one of the following scalar types: Long, Int; but got ",
      indices.scalar_type(), " instead");
}

at::Tensor column(const at::Tensor& t) {
  return t.unsqueeze(1);
}

// How often each row of the table is named, as values of `options`' dtype.
at::Tensor frequencies(const at::Tensor& indices, int64_t rows, const at::TensorOptions& options) {
  const at::Tensor counts = at::zeros({rows}, options);
  accumulate(counts, 0, indices, at::ones(indices.sizes(), options),
             {.site = embedding_site(), .deterministic = true});
  return counts;
}

// The table's gradient [rows, width] from one row of `grads` per index; the padding row gets none.
at::Tensor table_gradient(at::Tensor grads, const at::Tensor& indices, int64_t rows, int64_t padding_idx,
                          bool scale_grad_by_freq) {
  if (scale_grad_by_freq) {
    const at::Tensor counts = frequencies(indices, rows, grads.options().dtype(at::kFloat));
    grads = grads.div(column(counts.index_select(0, indices)).to(grads.scalar_type()));
  }
  at::Tensor table = at::zeros({rows, grads.size(1)}, grads.options());
  accumulate(table, 0, indices, grads, {.site = embedding_site(), .deterministic = true});
  if (padding_idx >= 0 && padding_idx < rows) table.select(0, padding_idx).zero_();
  return table;
}

at::Tensor embedding_dense_backward(const at::Tensor& grad, const at::Tensor& indices, int64_t rows,
                                    int64_t padding_idx, bool scale_grad_by_freq) {
  check_indices(indices, "embedding_dense_backward");
  const c10::DeviceGuard guard(grad.device());
  const int64_t width = grad.size(-1);
  return table_gradient(grad.reshape({indices.numel(), width}), indices.reshape({-1}), rows, padding_idx,
                        scale_grad_by_freq);
}

Bag embedding_bag(const at::Tensor& weight, const at::Tensor& indices, const at::Tensor& offsets,
                  bool scale_grad_by_freq, int64_t mode, bool sparse,
                  const OptionalTensor& per_sample_weights, bool include_last_offset, int64_t padding_idx) {
  check_indices(indices, "embedding_bag");
  check_indices(offsets, "embedding_bag");
  TORCH_CHECK(indices.dim() == 1 && offsets.dim() == 1,
              "embedding_bag: indices and offsets have to be vectors");
  const bool weighted = per_sample_weights && per_sample_weights->defined();
  TORCH_CHECK(
      !weighted || mode == kSum,
      "embedding_bag: per_sample_weights was not None. per_sample_weights is only supported for mode='sum'");
  TORCH_CHECK(!weighted || per_sample_weights->scalar_type() == weight.scalar_type(),
              "embedding_bag: expected per_sample_weights of the weight's dtype ", weight.scalar_type(),
              ", but got ", per_sample_weights->scalar_type());
  const c10::DeviceGuard guard(weight.device());
  const int64_t bags = include_last_offset ? offsets.size(0) - 1 : offsets.size(0);
  TORCH_CHECK(bags >= 0, "embedding_bag: include_last_offset: number of offsets should be at least 1");
  if (bags == 0) {
    const at::Tensor none = at::empty({0}, offsets.options());
    return {at::empty({0, weight.size(1)}, weight.options()), none, none, none};
  }
  if (mode == kMax)
    return call_cpu_fallback<Bag, const at::Tensor&, const at::Tensor&, const at::Tensor&, bool, int64_t,
                             bool, const OptionalTensor&, bool, int64_t>(
        "aten::_embedding_bag", "", weight, indices, offsets, scale_grad_by_freq, mode, sparse,
        per_sample_weights, include_last_offset, padding_idx);
  static const int32_t range_site = register_error_site(
      {"embedding_bag", "offsets can not be negative or greater than input's length, but got %lld", false});
  check_range(offsets, indices.size(0) + 1, range_site);
  static const int32_t order_site =
      register_error_site({"embedding_bag", "offsets can not decrease, but one does by %lld", false});
  if (offsets.size(0) > 1) check_range(offsets.diff(), indices.size(0) + 1, order_site);
  const at::Tensor bag_of =
      at::searchsorted(offsets.narrow(0, 0, bags), at::arange(indices.size(0), offsets.options()),
                       /*out_int32=*/offsets.scalar_type() == at::kInt, /*right=*/true)
          .sub_(1);
  const at::Tensor counted = indices.ne(padding_idx);
  const at::Tensor bag_size = at::zeros({bags}, offsets.options());
  // What lies before the first offset is in bag -1.
  static const int32_t bag_site =
      register_error_site({"embedding_bag",
                           "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start "
                           "from position 0",
                           false});
  const Accumulation how{.site = bag_site, .deterministic = true};
  accumulate(bag_size, 0, bag_of, counted.to(offsets.scalar_type()), how);
  at::Tensor rows = weight.index_select(0, indices);
  // Products are not rounded to 16 bits before they are added up.
  const bool widens = weighted && at::isReducedFloatingType(weight.scalar_type());
  if (widens) rows = rows.to(at::kFloat);
  if (weighted) rows = rows.mul(column(per_sample_weights->to(rows.scalar_type())));
  if (padding_idx >= 0) rows = rows.masked_fill(column(counted).logical_not(), 0);
  at::Tensor out = at::zeros({bags, weight.size(1)}, rows.options());
  accumulate(out, 0, bag_of, rows, how);
  if (widens) out = out.to(weight.scalar_type());
  if (mode == kMean) out.div_(column(bag_size.clamp_min(1)));
  return {out, bag_of, bag_size, at::empty({0}, offsets.options())};
}

at::Tensor embedding_bag_dense_backward(const at::Tensor& grad, const at::Tensor& indices,
                                        const at::Tensor& bag_of, const at::Tensor& bag_size,
                                        const at::Tensor& maximum_indices, int64_t rows,
                                        bool scale_grad_by_freq, int64_t mode,
                                        const OptionalTensor& per_sample_weights, int64_t padding_idx) {
  if (grad.size(0) == 0) return at::zeros({rows, grad.size(1)}, grad.options());
  if (mode == kMax)
    return call_cpu_fallback<at::Tensor, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                             const at::Tensor&, const at::Tensor&, int64_t, bool, int64_t,
                             const OptionalTensor&, int64_t>(
        "aten::_embedding_bag_dense_backward", "", grad, indices, bag_of, bag_size, maximum_indices, rows,
        scale_grad_by_freq, mode, per_sample_weights, padding_idx);
  const c10::DeviceGuard guard(grad.device());
  const at::Tensor of_bags = mode == kMean ? grad.div(column(bag_size.clamp_min(1))) : grad;
  at::Tensor grads = of_bags.index_select(0, bag_of);
  if (per_sample_weights && per_sample_weights->defined()) grads = grads.mul(column(*per_sample_weights));
  return table_gradient(grads, indices, rows, padding_idx, scale_grad_by_freq);
}

at::Tensor embedding_bag_backward(const at::Tensor& grad, const at::Tensor& indices,
                                  const at::Tensor& offsets, const at::Tensor& bag_of,
                                  const at::Tensor& bag_size, const at::Tensor& maximum_indices, int64_t rows,
                                  bool scale_grad_by_freq, int64_t mode, bool sparse,
                                  const OptionalTensor& per_sample_weights, int64_t padding_idx) {
  TORCH_CHECK_NOT_IMPLEMENTED(!sparse, "embedding_bag(sparse=True) has no gradient on ocl: use sparse=False");
  return embedding_bag_dense_backward(grad, indices, bag_of, bag_size, maximum_indices, rows,
                                      scale_grad_by_freq, mode, per_sample_weights, padding_idx);
}

at::Tensor embedding_bag_weights_backward(const at::Tensor& grad, const at::Tensor& weight,
                                          const at::Tensor& indices, const at::Tensor& offsets,
                                          const at::Tensor& bag_of, int64_t mode, int64_t padding_idx) {
  TORCH_CHECK(mode == kSum, "embedding_bag_backward: per_sample_weights only supported for mode='sum'");
  const c10::DeviceGuard guard(grad.device());
  if (grad.size(0) == 0) return at::zeros(indices.sizes(), grad.options());
  const at::Tensor products = grad.index_select(0, bag_of).mul(weight.index_select(0, indices)).sum(1);
  return padding_idx >= 0 ? products.masked_fill(indices.eq(padding_idx), 0) : products;
}

at::Tensor& embedding_renorm_(at::Tensor& self, const at::Tensor& indices, double max_norm,
                              double norm_type) {
  check_indices(indices, "embedding_renorm_");
  TORCH_CHECK(self.dim() == 2, "Expected 2-dimensional tensor for argument self, but got ", self.dim());
  if (indices.numel() == 0) return self;
  const c10::DeviceGuard guard(self.device());
  const at::Tensor flat = indices.reshape({-1});
  const at::Tensor rows = self.index_select(0, flat);
  const at::Tensor norms = at::linalg_vector_norm(rows, norm_type, at::IntArrayRef({1}), /*keepdim=*/true);
  const at::Tensor factor = norms.add(1e-7).reciprocal().mul(max_norm).masked_fill(norms.le(max_norm), 1);
  // An index named twice writes the same row twice.
  self.index_copy_(0, flat.to(at::kLong), rows.mul(factor));
  return self;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("embedding_dense_backward", embedding_dense_backward);
  m.impl("_embedding_bag", embedding_bag);
  m.impl("_embedding_bag_forward_only", embedding_bag);
  m.impl("_embedding_bag_backward", embedding_bag_backward);
  m.impl("_embedding_bag_dense_backward", embedding_bag_dense_backward);
  m.impl("_embedding_bag_per_sample_weights_backward", embedding_bag_weights_backward);
  m.impl("embedding_renorm_", embedding_renorm_);
}

}  // namespace dlb
