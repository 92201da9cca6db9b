// Embedding tables: gradients, bags of rows, renormalisation. Made of row gathers and ordered accumulation,
// so results are the same from run to run.
#include <ATen/ops/_embedding_bag_sparse_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include "kernels/index/params.h"
#include "ops/index/access.h"
#include "ops/index/accumulate.h"
#include "primitives/common/team.h"
#include "runtime/fetch_kernel.h"
#include "runtime/tensor.h"

namespace dlb {
namespace {

using OptionalTensor = std::optional<at::Tensor>;
using Bag = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

enum Mode : int64_t { kSum = params::BAG_SUM, kMean = params::BAG_MEAN, kMax = params::BAG_MAX };

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

// The operands of the kernel of bags.
struct BagOperands {
  at::Tensor weight, indices, offsets, scales;  // contiguous; scales may be undefined
  at::Tensor out, bag_of, bag_size, maxima;     // maxima: of the maximum alone
  bool writes_bag_of;
};

void run_bags(const BagOperands& operands, int64_t mode, int64_t padding_idx) {
  static const int32_t index_site = index_error_site("embedding_bag", false);
  static const int32_t range_site = register_error_site(
      {"embedding_bag", "offsets can not be negative or greater than input's length, but got %lld", false});
  static const int32_t order_site =
      register_error_site({"embedding_bag", "offsets can not decrease, but one does by %lld", false});
  static const int32_t first_site =
      register_error_site({"embedding_bag",
                           "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start "
                           "from position 0, but got %lld",
                           false});
  const BagOperands& o = operands;
  Stream& stream = current_stream(o.weight.device().index());
  const auto type = dtype_of(o.weight.scalar_type(), "embedding_bag");
  check_device_supports(stream.device(), type, "embedding_bag");
  const auto mem = [&](const at::Tensor& t) {
    return t.defined() && t.numel() ? buffer_of(t) : buffer_of(o.bag_size);
  };
  params::BagParams p{};
  const Buffer weight = mem(o.weight), indices = mem(o.indices), offsets = mem(o.offsets),
               scales = mem(o.scales), out = mem(o.out), bag_of = mem(o.bag_of), bag_size = mem(o.bag_size),
               maxima = mem(o.maxima);
  p.weight = weight.offset, p.indices = indices.offset, p.offsets = offsets.offset, p.out = out.offset;
  p.bag_of = o.writes_bag_of ? bag_of.offset : -1, p.bag_size = bag_size.offset, p.maxima = maxima.offset;
  p.scales = o.scales.defined() ? scales.offset : -1;
  p.row_stride = p.width = static_cast<uint32_t>(o.weight.size(1));
  p.rows = o.weight.size(0), p.padding = padding_idx;
  p.count = static_cast<uint32_t>(o.indices.numel());
  p.bags = static_cast<uint32_t>(o.bag_size.numel());
  p.ends = o.offsets.numel() > o.bag_size.numel();
  p.mode = static_cast<int32_t>(mode);
  p.wide = o.indices.scalar_type() == at::kLong;
  p.site = index_site, p.range_site = range_site, p.order_site = order_site, p.first_site = first_site;
  const int64_t work = int64_t{p.count} * p.width / std::max(1u, p.bags);
  const Team team = make_team(stream.device(), p.bags, work, 1);
  p.per_item = team.per_item;
  const bool cpu = stream.device().cls == cl::DeviceClass::kCpu;
  const uint64_t elements = uint64_t{p.bags} * p.width;
  const codegen::DType compute = codegen::compute_type(type);
  fetch_kernel(stream.device(), "index/bag.cl", "dlb_bag", compute, {type},
               cpu && type == compute ? "-DPLAIN_ELEMENTS" : "")
      .launch(stream.queue(),
              cpu ? range_of(stream.device(), team) : cl::Range::linear((elements + 255) / 256, 256),
              weight.mem, indices.mem, offsets.mem, scales.mem, out.mem, bag_of.mem, bag_size.mem, maxima.mem,
              ErrorBuffer(stream).mem(), p);
}

void check_bag(const at::Tensor& weight, const at::Tensor& indices, const at::Tensor& offsets, int64_t mode,
               const at::Tensor& scales) {
  check_indices(indices, "embedding_bag");
  check_indices(offsets, "embedding_bag");
  TORCH_CHECK(at::isFloatingType(weight.scalar_type()) && weight.itemsize() > 1,
              "Expected tensor for argument #1 'weight' to have one of the following scalar types: Half, "
              "BFloat16, Float, Double; but got ",
              weight.scalar_type(), " instead (while checking arguments for embedding_bag)");
  // Modules make vectors of indices with two dimensions before they call this.
  TORCH_CHECK(indices.dim() == 1,
              "embedding_bag: input has to be a 1D or 2D Tensor, and a vector here, but got a Tensor of "
              "dimension ",
              indices.dim());
  TORCH_CHECK(offsets.dim() == 1,
              "embedding_bag: offsets has to be a 1D Tensor, but got a Tensor of dimension ", offsets.dim());
  TORCH_CHECK(weight.dim() == 2,
              "embedding_bag: weight has to be a 2D Tensor, but got a Tensor of dimension ", weight.dim());
  TORCH_CHECK(indices.numel() < (int64_t{1} << 31) && weight.size(1) < (int64_t{1} << 31) &&
                  offsets.numel() < (int64_t{1} << 31),
              "embedding_bag of 2^31 or more indices, bags or columns is not supported");
  check_same_device(weight, indices, "embedding_bag");
  check_same_device(weight, offsets, "embedding_bag");
  if (!scales.defined()) return;
  TORCH_CHECK(
      mode == kSum,
      "embedding_bag: per_sample_weights was not None. per_sample_weights is only supported for mode='sum'");
  TORCH_CHECK(scales.scalar_type() == weight.scalar_type(), "embedding_bag: expected scalar type ",
              weight.scalar_type(), ", the weight's, for per_sample_weights, but got ", scales.scalar_type());
  TORCH_CHECK(scales.dim() == 1 && scales.numel() == indices.numel(),
              "embedding_bag: expected per_sample_weights to be a vector of as many elements as there are "
              "indices, ",
              indices.numel(), ", but got shape ", scales.sizes());
  check_same_device(weight, scales, "embedding_bag");
}

// Without gradients nothing reads the sums' bags of indices, which the CPU leaves out as well.
template <bool kForwardOnly>
Bag embedding_bag(const at::Tensor& weight, const at::Tensor& indices, const at::Tensor& offsets,
                  bool scale_grad_by_freq, int64_t mode, bool sparse,
                  const OptionalTensor& per_sample_weights, bool include_last_offset, int64_t padding_idx) {
  const at::Tensor scales = per_sample_weights.value_or(at::Tensor());
  check_bag(weight, indices, offsets, mode, scales);
  const c10::DeviceGuard guard(weight.device());
  const int64_t bags = include_last_offset ? offsets.size(0) - 1 : offsets.size(0), width = weight.size(1);
  TORCH_CHECK(bags >= 0, "embedding_bag: include_last_offset: number of offsets should be at least 1");
  const at::ScalarType common = c10::promoteTypes(indices.scalar_type(), offsets.scalar_type());
  const at::TensorOptions numbers = offsets.options().dtype(common).memory_format(std::nullopt);
  const at::Tensor out = at::empty({bags, width}, weight.options().memory_format(std::nullopt));
  if (bags == 0) {
    const at::Tensor none = at::empty({0}, numbers);
    return {out, none, none, none};
  }
  const BagOperands operands{weight.contiguous(),
                             indices.to(common).contiguous(),
                             offsets.to(common).contiguous(),
                             scales.defined() ? scales.contiguous() : scales,
                             out,
                             at::empty({indices.size(0)}, numbers),
                             at::empty({bags}, numbers),
                             mode == kMax ? at::empty({bags, width}, numbers) : at::empty({0}, numbers),
                             !kForwardOnly || mode != kSum};
  run_bags(operands, mode, padding_idx);
  return {out, operands.bag_of, operands.bag_size, operands.maxima};
}

at::Tensor embedding_bag_dense_backward(const at::Tensor& grad, const at::Tensor& indices,
                                        const at::Tensor& bag_of, const at::Tensor& bag_size,
                                        const at::Tensor& maximum_indices, int64_t rows,
                                        bool scale_grad_by_freq, int64_t mode,
                                        const OptionalTensor& per_sample_weights, int64_t padding_idx) {
  const c10::DeviceGuard guard(grad.device());
  if (grad.size(0) == 0 || mode == kMax) {
    const at::Tensor table = at::zeros({rows, grad.size(1)}, grad.options().memory_format(std::nullopt));
    if (grad.numel() > 0)  // a bag without rows took no maximum
      accumulate(table, 0, maximum_indices, grad.masked_fill(column(bag_size.eq(0)), 0),
                 {.site = embedding_site(), .deterministic = true});
    return table;
  }
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
  if (sparse) {
    TORCH_CHECK(mode != kMax,
                "embedding_bag: the gradient for mode='max' cannot be sparse; use sparse=False");
    return at::_embedding_bag_sparse_backward(grad, indices, offsets, bag_of, bag_size, rows,
                                              scale_grad_by_freq, mode, per_sample_weights, padding_idx);
  }
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
  const bool narrow = at::isReducedFloatingType(self.scalar_type());
  const at::Tensor norms =
      at::linalg_vector_norm(rows, norm_type, at::IntArrayRef({1}), /*keepdim=*/true,
                             narrow ? std::optional<at::ScalarType>(at::kFloat) : std::nullopt);
  const at::Tensor factor = norms.add(1e-7).reciprocal().mul(max_norm).masked_fill(norms.le(max_norm), 1);
  // An index named twice writes the same row twice.
  self.index_copy_(0, flat.to(at::kLong), rows.mul(factor).to(self.scalar_type()));
  return self;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("embedding_dense_backward", embedding_dense_backward);
  m.impl("_embedding_bag", embedding_bag<false>);
  m.impl("_embedding_bag_forward_only", embedding_bag<true>);
  m.impl("_embedding_bag_backward", embedding_bag_backward);
  m.impl("_embedding_bag_dense_backward", embedding_bag_dense_backward);
  m.impl("_embedding_bag_per_sample_weights_backward", embedding_bag_weights_backward);
  m.impl("embedding_renorm_", embedding_renorm_);
}

}  // namespace dlb
