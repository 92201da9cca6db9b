// ATen's average pooling ops, adaptive ones too: shapes and checks, then one problem.
#include <ATen/ops/avg_pool2d_backward_meta.h>
#include <ATen/ops/avg_pool2d_meta.h>
#include <ATen/ops/avg_pool3d_backward_meta.h>
#include <ATen/ops/avg_pool3d_meta.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "ops/common/structured.h"
#include "ops/pool/pool.h"

namespace dlb {
namespace {

using at::IntArrayRef;
using at::Tensor;

template <class Meta, int Axes>
Tensor& avg_pool_out(const Tensor& self, IntArrayRef kernel, IntArrayRef stride, IntArrayRef pad,
                     bool ceil_mode, bool count_include_pad, std::optional<int64_t> divisor, Tensor& out) {
  OutOp<Meta>(out).meta(self, kernel, stride, pad, ceil_mode, count_include_pad, divisor);
  pool::avg_forward(self, out, pool::windows_of(Axes, kernel, stride, pad, {}), Axes,
                    {count_include_pad, divisor}, "avg_pool");
  return out;
}

template <class Meta, int Axes>
Tensor& avg_pool_backward(const Tensor& grad_output, const Tensor& self, IntArrayRef kernel,
                          IntArrayRef stride, IntArrayRef pad, bool ceil_mode, bool count_include_pad,
                          std::optional<int64_t> divisor, Tensor& grad_input) {
  OutOp<Meta>(grad_input).meta(grad_output, self, kernel, stride, pad, ceil_mode, count_include_pad, divisor);
  pool::avg_backward(grad_input, grad_output, pool::windows_of(Axes, kernel, stride, pad, {}), Axes,
                     {count_include_pad, divisor}, "avg_pool_backward");
  return grad_input;
}

template <int Axes>
c10::SmallVector<int64_t, 5> adaptive_sizes(const Tensor& self, IntArrayRef output_size) {
  TORCH_CHECK_NOT_IMPLEMENTED(self.is_floating_point(), "\"adaptive_avg_pool\" not implemented for '",
                              c10::toString(self.scalar_type()), "'");
  TORCH_CHECK(output_size.size() == Axes, "adaptive_avg_pool: output_size must have ", Axes, " numbers");
  TORCH_CHECK(self.dim() == Axes + 1 || self.dim() == Axes + 2, "adaptive_avg_pool", Axes, "d(): Expected ",
              Axes + 1, "D or ", Axes + 2, "D tensor, but got ", self.sizes());
  for (int64_t d = self.dim() - Axes; d < self.dim(); ++d)
    TORCH_CHECK(self.size(d) > 0, "adaptive_avg_pool", Axes, "d(): Expected input to have non-zero size for ",
                "non-batch dimensions, but input has sizes ", self.sizes(), " with dimension ", d,
                " being empty");
  for (int64_t size : output_size)
    TORCH_CHECK(size >= 0, "adaptive_avg_pool", Axes,
                "d(): elements of output_size must be greater than or equal to 0");
  c10::SmallVector<int64_t, 5> sizes(self.sizes().begin(), self.sizes().end());
  std::copy(output_size.begin(), output_size.end(), sizes.end() - Axes);
  return sizes;
}

template <int Axes>
Tensor& adaptive_avg_out(const Tensor& self, IntArrayRef output_size, Tensor& out) {
  at::native::resize_output(out, adaptive_sizes<Axes>(self, output_size));
  pool::avg_forward(self, out, pool::adaptive_windows(Axes), Axes, {}, "adaptive_avg_pool");
  return out;
}
template <int Axes>
Tensor adaptive_avg(const Tensor& self, IntArrayRef output_size) {
  // PyTorch's own kernels keep the layout in two dimensions only, and its tracers know.
  const auto format = Axes == 2 ? self.suggest_memory_format() : at::MemoryFormat::Contiguous;
  Tensor out = at::empty(adaptive_sizes<Axes>(self, output_size), self.options().memory_format(format));
  pool::avg_forward(self, out, pool::adaptive_windows(Axes), Axes, {}, "adaptive_avg_pool");
  return out;
}
template <int Axes>
void check_adaptive_backward(const Tensor& grad_output, const Tensor& self) {
  TORCH_CHECK(grad_output.dim() == self.dim() && (self.dim() == Axes + 1 || self.dim() == Axes + 2),
              "adaptive_avg_pool", Axes, "d_backward(): Expected a gradient and an input of ", Axes + 1,
              " or ", Axes + 2, " dimensions, but got ", grad_output.sizes(), " and ", self.sizes());
  for (int64_t d = grad_output.dim() - Axes; d < grad_output.dim(); ++d)
    TORCH_CHECK(grad_output.size(d) > 0, "adaptive_avg_pool", Axes,
                "d_backward(): Expected grad_output to have ",
                "non-zero size for non-batch dimensions, but grad_output has sizes ", grad_output.sizes(),
                " with dimension ", d, " being empty");
}

template <int Axes>
Tensor& adaptive_avg_backward_out(const Tensor& grad_output, const Tensor& self, Tensor& grad_input) {
  check_adaptive_backward<Axes>(grad_output, self);
  at::native::resize_output(grad_input, self.sizes());
  pool::avg_backward(grad_input, grad_output, pool::adaptive_windows(Axes), Axes, {},
                     "adaptive_avg_pool_backward");
  return grad_input;
}
template <int Axes>
Tensor adaptive_avg_backward(const Tensor& grad_output, const Tensor& self) {
  Tensor grad_input = at::empty_like(self, self.suggest_memory_format());
  return adaptive_avg_backward_out<Axes>(grad_output, self, grad_input);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  using namespace at::meta;
  m.impl("avg_pool2d.out", avg_pool_out<structured_avg_pool2d, 2>);
  m.impl("avg_pool3d.out", avg_pool_out<structured_avg_pool3d, 3>);
  m.impl("avg_pool2d_backward.grad_input", avg_pool_backward<structured_avg_pool2d_backward, 2>);
  m.impl("avg_pool3d_backward.grad_input", avg_pool_backward<structured_avg_pool3d_backward, 3>);
  m.impl("_adaptive_avg_pool2d", adaptive_avg<2>);
  m.impl("_adaptive_avg_pool3d", adaptive_avg<3>);
  m.impl("adaptive_avg_pool2d.out", adaptive_avg_out<2>);
  m.impl("adaptive_avg_pool3d.out", adaptive_avg_out<3>);
  m.impl("_adaptive_avg_pool2d_backward", adaptive_avg_backward<2>);
  m.impl("_adaptive_avg_pool3d_backward", adaptive_avg_backward<3>);
  m.impl("adaptive_avg_pool3d_backward.grad_input", adaptive_avg_backward_out<3>);
}

}  // namespace dlb
