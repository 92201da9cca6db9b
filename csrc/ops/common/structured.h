// Runs PyTorch's own shape and dtype checks (the meta part of a structured op) for kernels with and without
// out=.
#pragma once
#include <ATen/MemoryOverlap.h>

#include <array>
#include <optional>

#include "ops/common/meta_op.h"
#include "runtime/new_tensor.h"

namespace dlb {

// A structured op's meta class that writes into given outputs: checks their dtype and device and resizes
// them, as PyTorch's generated wrappers do, and refuses such as overlap themselves, as the CPU's kernels do.
// Meta is at::meta::structured_<op>.
//
// meta() refuses inputs on two devices before it asks Meta, which PyTorch's wrappers do too.
//
// A kernel that writes any layout uses the given tensors. One that does not writes result(i), which is dense
// in the layout that meta asked for (contiguous where it did not say), and calls finish(), which copies to an
// out= tensor of another layout.
template <class Meta, size_t Outputs = 1>
class OutOp final : public MetaOp<Meta> {
 public:
  explicit OutOp(std::array<std::reference_wrapper<const at::Tensor>, Outputs> outputs) : outputs_(outputs) {}
  explicit OutOp(const at::Tensor& output) requires(Outputs == 1) : outputs_{std::cref(output)} {}

  template <class... Args>
  decltype(auto) meta(const Args&... args) {
    check_common_device(args...);
    return Meta::meta(args...);
  }
  const at::Tensor& maybe_get_output(int64_t i) override { return outputs_[static_cast<size_t>(i)].get(); }

  const at::Tensor& result(size_t i = 0) {
    const at::Tensor& out = outputs_[i].get();
    const Asked& asked = asked_[i];
    if (proxies_[i]) return *proxies_[i];
    if (asked.strides.empty() ? out.is_contiguous(asked.format)
                              : out.strides() == at::IntArrayRef(asked.strides)) [[likely]]
      return out;
    proxies_[i] = out.new_empty(out.sizes());
    restride(*proxies_[i], asked);
    return *proxies_[i];
  }
  void finish() {
    for (size_t i = 0; i < Outputs; ++i)
      if (proxies_[i]) outputs_[i].get().copy_(*proxies_[i]);
  }

 private:
  struct Asked {
    c10::SmallVector<int64_t, 6> strides;
    at::MemoryFormat format = at::MemoryFormat::Contiguous;
  };

  static void restride(const at::Tensor& tensor, const Asked& asked) {
    if (!asked.strides.empty())
      tensor.as_strided_(tensor.sizes(), asked.strides);
    else if (asked.format != at::MemoryFormat::Contiguous)
      tensor.unsafeGetTensorImpl()->empty_tensor_restride(asked.format);
  }

  void place(size_t i, at::IntArrayRef sizes, at::IntArrayRef strides,
             const at::TensorOptions& options) override {
    const at::Tensor& out = outputs_[i].get();
    check_out(out, options);
    asked_[i].strides.assign(strides.begin(), strides.end());
    asked_[i].format = options.memory_format_opt().value_or(at::MemoryFormat::Contiguous);
    if (at::native::resize_output(out, sizes)) restride(out, asked_[i]);
    at::assert_no_internal_overlap(out);
  }

  std::array<std::reference_wrapper<const at::Tensor>, Outputs> outputs_;
  std::array<Asked, Outputs> asked_;
  std::array<std::optional<at::Tensor>, Outputs> proxies_;
};

// A structured op's meta class that makes the results: for the functional forms, which PyTorch would make of
// the out= kernels with three more trips through the dispatcher.
template <class Meta, size_t Outputs = 1>
class NewOp final : public MetaOp<Meta> {
 public:
  const at::Tensor& maybe_get_output(int64_t i) override { return results_[static_cast<size_t>(i)]; }
  at::Tensor& operator[](size_t i) { return results_[i]; }

 private:
  void place(size_t i, at::IntArrayRef sizes, at::IntArrayRef strides,
             const at::TensorOptions& options) override {
    const c10::ScalarType dtype = c10::typeMetaToScalarType(options.dtype());
    results_[i] = strides.empty() ? new_tensor(sizes, dtype, options.device(), options.memory_format_opt())
                                  : new_strided_tensor(sizes, strides, dtype, options.device());
  }

  std::array<at::Tensor, Outputs> results_;
};

}  // namespace dlb
