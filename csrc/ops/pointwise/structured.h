// Structured ops whose checks and promotion are PyTorch's own: a class over at::meta::structured_X that
// allocates or resizes the output.
#pragma once
#include "ops/common/meta_op.h"
#include "ops/common/pointwise.h"

namespace dlb {

// `Structured<at::meta::structured_clamp> op(out); op.meta(self, min, max);` leaves the output checked and
// sized, and, for metas that build an iterator, `op` ready for run_pointwise().
template <class Meta>
class Structured final : public MetaOp<Meta> {
 public:
  explicit Structured(at::Tensor& out) : out_(out) {}
  const at::Tensor& maybe_get_output(int64_t) override { return out_; }

 private:
  void place(size_t, at::IntArrayRef sizes, at::IntArrayRef strides,
             const at::TensorOptions& options) override {
    check_out(out_, options);
    if (at::native::resize_output(out_, sizes) && !strides.empty()) out_.as_strided_(sizes, strides);
  }

  at::Tensor& out_;
};

}  // namespace dlb
