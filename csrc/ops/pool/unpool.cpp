// Max unpooling: each input goes to the place, in its plane, that max pooling found it at. Gradients gather.
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "ops/index/access.h"
#include "ops/index/accumulate.h"
#include "runtime/stream.h"
#include "runtime/tensor.h"

namespace dlb {
namespace {

using at::IntArrayRef;
using at::Tensor;

template <int Axes>
void check(const Tensor& self, const Tensor& indices, IntArrayRef output_size) {
  TORCH_CHECK(indices.scalar_type() == at::kLong,
              "elements in indices should be type int64 but got: ", indices.scalar_type());
  TORCH_CHECK(output_size.size() == Axes, "There should be exactly ", Axes,
              " elements in output_size, but got ", output_size.size(), " elements.");
  TORCH_CHECK(self.dim() == Axes + 1 || self.dim() == Axes + 2, "Input to max_unpooling", Axes,
              "d should be a ", Axes + 1, "d or ", Axes + 2, "d Tensor, but got a tensor with dim ",
              self.dim());
  TORCH_CHECK(self.sizes() == indices.sizes(),
              "Expected shape of indices to be same as that of the input tensor (", self.sizes(),
              ") but got indices tensor with shape: ", indices.sizes());
  for (int64_t d = self.dim() - Axes - 1 + (self.dim() == Axes + 1); d < self.dim(); ++d)
    TORCH_CHECK(self.size(d) > 0, "max_unpooling", Axes,
                "d: expected input to have non-zero size for non-batch ", "dimensions, but got ",
                self.sizes(), " with dimension ", d, " being empty.");
  TORCH_CHECK_NOT_IMPLEMENTED(self.is_floating_point(), "\"max_unpool", Axes, "d\" not implemented for '",
                              c10::toString(self.scalar_type()), "'");
}

// A tensor's leading dimensions as one of planes, and a plane as another.
Tensor planes_of(const Tensor& t, int64_t axes) {
  const int64_t plane = c10::multiply_integers(t.sizes().slice(static_cast<size_t>(t.dim() - axes)));
  return t.view({t.numel() / plane, plane});
}

template <int Axes>
Tensor& unpool_out(const Tensor& self, const Tensor& indices, IntArrayRef output_size, Tensor& out) {
  check<Axes>(self, indices, output_size);
  at::DimVector sizes(self.sizes());
  std::copy(output_size.begin(), output_size.end(), sizes.end() - Axes);
  TORCH_CHECK(out.scalar_type() == self.scalar_type(), "Expected out tensor to have dtype ",
              self.scalar_type(), ", but got ", out.scalar_type(), " instead");
  at::native::resize_output(out, sizes);
  const Tensor dense = out.is_contiguous() ? out : at::empty(sizes, out.options());
  dense.zero_();
  if (self.numel() && dense.numel()) {
    static const int32_t site = register_error_site(
        {"max_unpool", "found an invalid max index: %lld (output volumes are of size %lld)",
         /*is_index=*/false});
    const Tensor values = planes_of(self.contiguous(), Axes), places = planes_of(indices.contiguous(), Axes),
                 to = planes_of(dense, Axes);
    // Where places repeat the last one stays. On GPUs that takes a sort, which is for deterministic
    // algorithms.
    if (sorts_writes(self)) {
      accumulate(to, 1, places, values, {.op = Combine::Last, .site = site});
    } else {
      IndexAccess access = access_elements(values, to, places, 1, site);
      access.write = true;
      access.ordered = current_stream(self.device().index()).device().cls == cl::DeviceClass::kCpu;
      run_index_access(access);
    }
  }
  if (!dense.is_same(out)) out.copy_(dense);
  return out;
}

Tensor& max_unpool2d_out(const Tensor& self, const Tensor& indices, IntArrayRef output_size, Tensor& out) {
  return unpool_out<2>(self, indices, output_size, out);
}
Tensor max_unpool2d(const Tensor& self, const Tensor& indices, IntArrayRef output_size) {
  Tensor out = at::empty({0}, self.options());
  max_unpool2d_out(self, indices, output_size, out);
  return out.contiguous(self.suggest_memory_format());
}

Tensor& max_unpool3d_out(const Tensor& self, const Tensor& indices, IntArrayRef output_size,
                         IntArrayRef stride, IntArrayRef pad, Tensor& out) {
  TORCH_CHECK(stride.size() == 3,
              "There should be exactly three elements (depth, height, width) in stride, but got: ",
              stride.size(), " elements.");
  TORCH_CHECK(pad.size() == 3,
              "There should be exactly three elements (depth, height, width) in padding, but got: ",
              pad.size(), " elements.");
  TORCH_CHECK(stride[0] > 0 && stride[1] > 0 && stride[2] > 0,
              "strides should be greater than zero, but got stride: ", stride);
  return unpool_out<3>(self, indices, output_size, out);
}
Tensor max_unpool3d(const Tensor& self, const Tensor& indices, IntArrayRef output_size, IntArrayRef stride,
                    IntArrayRef pad) {
  Tensor out = at::empty({0}, self.options());
  return max_unpool3d_out(self, indices, output_size, stride, pad, out);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("max_unpool2d", max_unpool2d);
  m.impl("max_unpool2d.out", max_unpool2d_out);
  m.impl("max_unpool3d", max_unpool3d);
  m.impl("max_unpool3d.out", max_unpool3d_out);
}

}  // namespace dlb
