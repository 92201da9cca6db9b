// Plans advanced indexing.
#include "ops/index/advanced.h"

#include <ATen/ExpandUtils.h>
#include <ATen/TensorUtils.h>
#include <ATen/native/IndexingUtils.h>

#include <map>
#include <sstream>

namespace dlb {
namespace {

std::vector<at::Tensor> broadcast(const std::vector<at::Tensor>& indices) {
  try {
    return at::expand_outplace(indices);
  } catch (const c10::Error&) {
    std::ostringstream shapes;
    for (const at::Tensor& t : indices)
      if (t.defined()) shapes << (shapes.tellp() > 0 ? ", " : "") << t.sizes();
    TORCH_CHECK_INDEX(false, "shape mismatch: indexing tensors could not be broadcast together with shapes ",
                      shapes.str());
  }
}

int32_t site_of(const char* op) {
  static std::mutex mutex;
  static auto* sites = new std::map<std::string, int32_t>;
  std::lock_guard<std::mutex> lock(mutex);
  auto [it, fresh] = sites->try_emplace(op, 0);
  if (fresh) it->second = index_error_site(op);
  return it->second;
}

}  // namespace

AdvancedIndexing::AdvancedIndexing(const at::Tensor& self, const c10::List<std::optional<at::Tensor>>& given,
                                   const char* op)
    : self_(self), site_(site_of(op)) {
  TORCH_CHECK_INDEX(static_cast<int64_t>(given.size()) <= self.dim(),
                    "too many indices for tensor of dimension ", self.dim(), " (got ", given.size(), ")");
  for (const std::optional<at::Tensor>& index : given)
    TORCH_CHECK(!index || !index->defined() || index->is_cpu() || index->device() == self.device(),
                "indices should be either on cpu or on the same device as the indexed tensor (",
                self.device(), ")");
  at::native::checkIndexTensorTypes(given, /*allow_int=*/true);
  std::vector<at::Tensor> all = at::native::expandTensors(self, given, /*ensure_same_device=*/true);
  TORCH_CHECK_INDEX(static_cast<int64_t>(all.size()) <= self.dim(),
                    "too many indices for tensor of dimension ", self.dim(), " (got ", all.size(), ")");
  all = broadcast(all);
  all.resize(static_cast<size_t>(self.dim()));
  if (!at::native::hasContiguousSubspace(all))
    std::tie(self_, all) = at::native::transposeToFront(self_, all);
  bool any = false;
  for (size_t d = 0; d < all.size(); ++d) {
    if (!all[d].defined()) {
      sizes_.push_back(self_.sizes()[d]);
      continue;
    }
    if (!any) {
      before_ = d;
      sizes_.append(all[d].sizes().begin(), all[d].sizes().end());
    }
    any = true;
    indices_.push_back(all[d]);
    bounds_.push_back(self_.sizes()[d]);
    strides_.push_back(self_.strides()[d]);
  }
  if (any && indices_[0].numel() > 0)
    for (int64_t bound : bounds_)
      TORCH_CHECK_INDEX(bound > 0, "index is out of bounds for dimension with size 0");
}

IndexAccess AdvancedIndexing::access() const {
  IndexAccess a;
  a.indexed = self_;
  a.sizes = sizes_;
  a.site = site_;
  a.wraps = true;
  if (indices_.empty()) {
    a.indexed_strides = self_.strides();
    return a;
  }
  if (indices_.size() == 1) {
    a.index = indices_[0];
    a.bound = bounds_[0];
    a.step = strides_[0];
  } else {
    // The linear offsets are checked already; they are elements of self.
    a.index = linear_offsets(indices_, bounds_, strides_, site_);
    a.bound = std::numeric_limits<int64_t>::max();
    a.step = 1;
  }
  const auto index_dims = static_cast<size_t>(a.index.dim()), after = before_ + indices_.size();
  const at::IntArrayRef strides = self_.strides();
  a.indexed_strides.append(strides.begin(), strides.begin() + static_cast<int64_t>(before_));
  a.indexed_strides.append(index_dims, 0);
  a.indexed_strides.append(strides.begin() + static_cast<int64_t>(after), strides.end());
  a.index_strides.append(before_, 0);
  a.index_strides.append(a.index.strides().begin(), a.index.strides().end());
  a.index_strides.append(strides.size() - after, 0);
  return a;
}

// The order that TensorIteratorBase::reorder_dimensions() finds (aten/src/ATen/TensorIterator.cpp).
at::DimVector AdvancedIndexing::result_strides() const {
  const auto rank = static_cast<int>(sizes_.size());
  c10::SmallVector<at::DimVector, 3> operands;
  if (indices_.empty()) {
    operands.emplace_back(self_.strides());
  } else {
    const auto index_dims = static_cast<size_t>(indices_[0].dim()), after = before_ + indices_.size();
    const at::IntArrayRef strides = self_.strides();
    at::DimVector& source = operands.emplace_back(strides.slice(0, before_));
    source.append(index_dims, 0);
    source.append(strides.begin() + static_cast<int64_t>(after), strides.end());
    for (const at::Tensor& index : indices_) {
      at::DimVector shape(before_, 1);
      shape.append(index.sizes().begin(), index.sizes().end());
      shape.resize(sizes_.size(), 1);
      at::DimVector& steps =
          operands.emplace_back(*at::detail::computeStride(index.sizes(), index.strides(), shape));
      for (size_t d = 0; d < steps.size(); ++d)
        if (shape[d] != sizes_[d]) steps[d] = 0;
    }
  }
  const auto is_outer = [&](size_t a, size_t b) {  // 1: a lies outside of b, -1: b outside of a, 0: either
    for (const at::DimVector& strides : operands) {
      if (strides[a] == 0 || strides[b] == 0) continue;
      if (strides[a] != strides[b]) return strides[a] > strides[b] ? 1 : -1;
      if (sizes_[a] > sizes_[b]) return 1;
    }
    return 0;
  };
  c10::SmallVector<size_t, 5> order;  // innermost first
  for (int d = rank; d-- > 0;) order.push_back(static_cast<size_t>(d));
  for (int i = 1; i < rank; ++i)
    for (int moved = i, other = i - 1; other >= 0; --other) {
      const int outer = is_outer(order[static_cast<size_t>(other)], order[static_cast<size_t>(moved)]);
      if (outer < 0) break;
      if (outer == 0) continue;
      std::swap(order[static_cast<size_t>(other)], order[static_cast<size_t>(moved)]);
      moved = other;
    }
  at::DimVector result(sizes_.size(), 1);
  int64_t step = 1;
  for (const size_t d : order) {
    result[d] = step;
    step *= sizes_[d];
  }
  return result;
}

at::DimVector AdvancedIndexing::front_order(size_t index_dims) const {
  at::DimVector order;
  const size_t total = sizes_.size() - static_cast<size_t>(indices_[0].dim()) + index_dims;
  for (size_t d = before_; d < before_ + index_dims; ++d) order.push_back(static_cast<int64_t>(d));
  for (size_t d = 0; d < before_; ++d) order.push_back(static_cast<int64_t>(d));
  for (size_t d = before_ + index_dims; d < total; ++d) order.push_back(static_cast<int64_t>(d));
  return order;
}

at::Tensor AdvancedIndexing::permuted_self() const {
  return self_.permute(front_order(indices_.size()));
}

at::Tensor AdvancedIndexing::permuted_values(const at::Tensor& values) const {
  return values.expand(sizes_).permute(front_order(static_cast<size_t>(indices_[0].dim())));
}

int64_t AdvancedIndexing::rows() const {
  int64_t n = 1;
  for (int64_t bound : bounds_) n *= bound;
  return n;
}

at::Tensor AdvancedIndexing::row_index() const {
  if (indices_.size() == 1) return indices_[0].reshape({-1});
  at::DimVector steps;
  steps.resize(bounds_.size(), 1);
  for (size_t i = bounds_.size() - 1; i-- > 0;) steps[i] = steps[i + 1] * bounds_[i + 1];
  return linear_offsets(indices_, bounds_, steps, site_).view({-1});
}

}  // namespace dlb
