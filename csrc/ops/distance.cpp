// Distances between the rows of two matrices (cdist) and of one (pdist).
#include <ATen/ExpandUtils.h>
#include <ATen/ops/_euclidean_dist.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>

#include "kernels/distance/params.h"
#include "primitives/common/split.h"
#include "runtime/fetch_kernel.h"
#include "runtime/tensor.h"

namespace dlb {
namespace {

using at::Tensor;
using params::DistanceParams;

int32_t norm_of(double p) {
  using namespace params;
  if (p == 0) return DISTANCE_COUNT;
  if (p == 1) return DISTANCE_SUM;
  if (p == 2) return DISTANCE_EUCLID;
  if (std::isinf(p)) return DISTANCE_MAX;
  return p < 2 ? DISTANCE_LOW : DISTANCE_HIGH;
}

// The operands that the four ops share: `x` has rows, `y` the others, both contiguous.
struct Distances {
  Stream& stream;
  cl::Device& device;
  codegen::DType type;
  double power;
  DistanceParams params{};

  Distances(const Tensor& x, const Tensor& y, double p, const char* op)
      : stream(current_stream(x.device().index())),
        device(stream.device()),
        type(dtype_of(x.scalar_type(), op)),
        power(p) {
    TORCH_CHECK_NOT_IMPLEMENTED(x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble, "\"", op,
                                "\" not implemented for '", c10::toString(x.scalar_type()), "'");
    check_device_supports(device, type, op);
    params.x = buffer_of(x).offset, params.y = buffer_of(y).offset;
    params.rows = static_cast<int32_t>(x.size(-2)), params.others = static_cast<int32_t>(y.size(-2));
    params.width = static_cast<int32_t>(x.size(-1)), params.norm = norm_of(p);
  }

  // `work`: steps of an item.
  template <class... Mems>
  void launch(const char* name, int64_t items, int64_t work, const Mems&... mems) {
    const auto grain = static_cast<uint32_t>(std::max<int64_t>(1, 4096 / std::max<int64_t>(1, work)));
    const Split split = split_work(device, static_cast<uint64_t>(items), grain);
    params.items = items, params.per_item = static_cast<int32_t>(split.per_item);
    cl::Kernel& kernel =
        fetch_kernel(device, "distance/distance.cl", name, codegen::compute_type(type), {type});
    if (type == codegen::DType::F64)
      kernel.launch(stream.queue(), split.range, mems..., params, power);
    else
      kernel.launch(stream.queue(), split.range, mems..., params, static_cast<float>(power));
  }
};

// Batch dimensions of both, broadcast, as one; the sizes they had.
struct Operands {
  Tensor x, y;
  c10::SmallVector<int64_t, 6> batch;
};

Operands broadcast(const Tensor& x1, const Tensor& x2) {
  Operands o;
  const auto batch = at::infer_size(x1.sizes().slice(0, x1.dim() - 2), x2.sizes().slice(0, x2.dim() - 2));
  o.batch.assign(batch.begin(), batch.end());
  const auto expand = [&](const Tensor& t) {
    c10::SmallVector<int64_t, 6> sizes(o.batch);
    sizes.push_back(t.size(-2)), sizes.push_back(t.size(-1));
    return t.expand(sizes).contiguous();
  };
  o.x = expand(x1), o.y = expand(x2);
  return o;
}

Tensor cdist_forward(const Tensor& x1, const Tensor& x2, double p, std::optional<int64_t> compute_mode) {
  TORCH_CHECK(x1.dim() >= 2, "cdist only supports at least 2D tensors, X1 got: ", x1.dim(), "D");
  TORCH_CHECK(x2.dim() >= 2, "cdist only supports at least 2D tensors, X2 got: ", x2.dim(), "D");
  TORCH_CHECK(x1.size(-1) == x2.size(-1), "X1 and X2 must have the same number of columns. X1: ", x1.size(-1),
              " X2: ", x2.size(-1));
  TORCH_CHECK(p >= 0, "cdist only supports non-negative p values");
  TORCH_CHECK(x1.scalar_type() == x2.scalar_type(), "cdist: X1 and X2 must have the same dtype");
  const int64_t mode = compute_mode.value_or(0);
  TORCH_CHECK(mode >= 0 && mode <= 2, "possible modes: 0, 1, 2, but was: ", mode);
  const Operands o = broadcast(x1, x2);
  c10::SmallVector<int64_t, 6> sizes(o.batch);
  sizes.push_back(x1.size(-2)), sizes.push_back(x2.size(-2));
  const auto options = x1.options().memory_format(std::nullopt);
  Tensor out = at::empty(sizes, options);
  if (out.numel() == 0) return out;
  if (x1.size(-1) == 0) return out.zero_();
  // a product of matrices, where PyTorch takes one too
  constexpr int64_t kManyRows = 25;
  if (p == 2 && (mode == 1 || (mode == 0 && (x1.size(-2) > kManyRows || x2.size(-2) > kManyRows))))
    return at::_euclidean_dist(o.x, o.y);
  Distances d(o.x, o.y, p, "cdist");
  d.params.out = buffer_of(out).offset;
  d.launch("distance_forward", out.numel(), x1.size(-1), mem_of(o.x).mem, mem_of(o.y).mem, mem_of(out).mem);
  return out;
}

Tensor cdist_backward(const Tensor& grad_, const Tensor& x1, const Tensor& x2, double p,
                      const Tensor& dist_) {
  const Operands o = broadcast(x1, x2);
  Tensor out = at::empty(o.x.sizes(), o.x.options().memory_format(std::nullopt));
  if (out.numel() == 0) return out;
  if (o.y.size(-2) == 0) return out.zero_();
  const Tensor grad = grad_.contiguous(), dist = dist_.contiguous();
  Distances d(o.x, o.y, p, "_cdist_backward");
  d.params.out = buffer_of(out).offset, d.params.grad = buffer_of(grad).offset;
  d.params.dist = buffer_of(dist).offset;
  d.launch("distance_backward", out.numel(), o.y.size(-2), mem_of(grad).mem, mem_of(o.x).mem, mem_of(o.y).mem,
           mem_of(dist).mem, mem_of(out).mem);
  return out;
}

Tensor pdist_forward(const Tensor& self, double p) {
  TORCH_CHECK(self.is_contiguous(), "_pdist_forward requires contiguous input");
  const int64_t n = self.size(0);
  Tensor out = at::empty({n * (n - 1) / 2}, self.options().memory_format(std::nullopt));
  if (out.numel() == 0) return out;
  if (self.size(1) == 0) return out.zero_();
  Distances d(self, self, p, "pdist");
  d.params.pairs = 1, d.params.out = buffer_of(out).offset;
  d.launch("distance_forward", n * n, self.size(1), mem_of(self).mem, mem_of(self).mem, mem_of(out).mem);
  return out;
}

Tensor pdist_backward(const Tensor& grad_, const Tensor& self_, double p, const Tensor& dist_) {
  const Tensor self = self_.contiguous(), grad = grad_.contiguous(), dist = dist_.contiguous();
  Tensor out = at::empty(self.sizes(), self.options().memory_format(std::nullopt));
  if (out.numel() == 0) return out;
  if (self.size(0) == 1) return out.zero_();
  Distances d(self, self, p, "_pdist_backward");
  d.params.pairs = 1, d.params.out = buffer_of(out).offset, d.params.grad = buffer_of(grad).offset;
  d.params.dist = buffer_of(dist).offset;
  d.launch("distance_backward", out.numel(), self.size(0), mem_of(grad).mem, mem_of(self).mem,
           mem_of(self).mem, mem_of(dist).mem, mem_of(out).mem);
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_cdist_forward", cdist_forward);
  m.impl("_cdist_backward", cdist_backward);
  m.impl("_pdist_forward", pdist_forward);
  m.impl("_pdist_backward", pdist_backward);
}

}  // namespace dlb
