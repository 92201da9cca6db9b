// ATen's max pooling ops, adaptive ones too: shapes and checks, then one problem.
#include <ATen/native/Pool.h>
#include <ATen/ops/adaptive_max_pool2d_backward_meta.h>
#include <ATen/ops/adaptive_max_pool2d_meta.h>
#include <ATen/ops/adaptive_max_pool3d_backward_meta.h>
#include <ATen/ops/adaptive_max_pool3d_meta.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/max_pool2d_with_indices_backward_meta.h>
#include <ATen/ops/max_pool2d_with_indices_meta.h>
#include <torch/library.h>

#include "ops/common/structured.h"
#include "ops/pool/pool.h"

namespace dlb {
namespace {

using at::IntArrayRef;
using at::Tensor;
using TwoRefs = std::tuple<Tensor&, Tensor&>;
using Two = std::tuple<Tensor, Tensor>;

// The indices of a max pool must lie as its values do; out= tensors may not.
template <class Run>
void with_matching_layout(const Tensor& out, const Tensor& indices, Run run) {
  if (out.strides() == indices.strides()) return run(out, indices);
  const Tensor matching = at::empty_like(out, out.options().dtype(at::kLong));
  run(out, matching);
  indices.copy_(matching);
}

template <class Meta, int Axes>
TwoRefs max_pool_out(const Tensor& self, IntArrayRef kernel, IntArrayRef stride, IntArrayRef pad,
                     IntArrayRef dilation, bool ceil_mode, Tensor& out, Tensor& indices) {
  OutOp<Meta, 2>({out, indices}).meta(self, kernel, stride, pad, dilation, ceil_mode);
  with_matching_layout(out, indices, [&](const Tensor& y, const Tensor& places) {
    pool::max_forward(self, y, places, pool::windows_of(Axes, kernel, stride, pad, dilation), Axes,
                      "max_pool2d");
  });
  return {out, indices};
}

Tensor& max_pool2d_backward(const Tensor& grad_output, const Tensor& self, IntArrayRef kernel,
                            IntArrayRef stride, IntArrayRef pad, IntArrayRef dilation, bool ceil_mode,
                            const Tensor& indices, Tensor& grad_input) {
  OutOp<at::meta::structured_max_pool2d_with_indices_backward>(grad_input)
      .meta(grad_output, self, kernel, stride, pad, dilation, ceil_mode, indices);
  pool::max_backward(grad_input, grad_output, indices, pool::windows_of(2, kernel, stride, pad, dilation), 2,
                     "max_pool2d_backward");
  return grad_input;
}

using Sizes = c10::SmallVector<int64_t, 5>;

// Checks a max pool's arguments and sizes as the CPU does; `pooled`: spatial sizes of its result.
void check_max_pool3d(const Tensor& self, const pool::Windows& windows, IntArrayRef pooled) {
  const auto& [t, h, w] = windows;
  at::native::pool3d_shape_check(self, self.size(-4), t.kernel, h.kernel, w.kernel, t.stride, h.stride,
                                 w.stride, t.pad, h.pad, w.pad, t.dilation, h.dilation, w.dilation,
                                 self.size(-3), self.size(-2), self.size(-1), pooled[0], pooled[1], pooled[2],
                                 "max_pool3d");
}

pool::Windows max_pool3d_windows(const Tensor& self, IntArrayRef kernel, IntArrayRef stride, IntArrayRef pad,
                                 IntArrayRef dilation) {
  auto one_or_three = [](IntArrayRef list) { return list.size() == 1 || list.size() == 3; };
  TORCH_CHECK(one_or_three(kernel),
              "max_pool3d: kernel_size must either be a single int, or a tuple of three ints");
  TORCH_CHECK(stride.empty() || one_or_three(stride),
              "max_pool3d: stride must either be omitted, a single int, or a tuple of three ints");
  TORCH_CHECK(one_or_three(pad), "max_pool3d: padding must either be a single int, or a tuple of three ints");
  TORCH_CHECK(one_or_three(dilation),
              "max_pool3d: dilation must be either a single int, or a tuple of three ints");
  TORCH_CHECK(self.dim() == 4 || self.dim() == 5, "max_pool3d: expected a 4D or 5D input, got ",
              self.sizes());
  return pool::windows_of(3, kernel, stride, pad, dilation);
}

// [N,] C, spatial sizes of the result.
Sizes max_pool3d_sizes(const Tensor& self, const pool::Windows& windows, bool ceil_mode) {
  Sizes sizes(self.sizes().begin(), self.sizes().end());
  for (size_t i = 0; i < 3; ++i) {
    const auto& w = windows[i];
    auto& size = sizes[sizes.size() - 3 + i];
    size = at::native::pooling_output_shape<int64_t>(size, w.kernel, w.pad, w.stride, w.dilation, ceil_mode);
  }
  check_max_pool3d(self, windows, IntArrayRef(sizes).slice(sizes.size() - 3));
  return sizes;
}

TwoRefs max_pool3d_out(const Tensor& self, IntArrayRef kernel, IntArrayRef stride, IntArrayRef pad,
                       IntArrayRef dilation, bool ceil_mode, Tensor& out, Tensor& indices) {
  const pool::Windows windows = max_pool3d_windows(self, kernel, stride, pad, dilation);
  const Sizes sizes = max_pool3d_sizes(self, windows, ceil_mode);
  at::native::resize_output(out, sizes);
  at::native::resize_output(indices, sizes);
  with_matching_layout(out, indices, [&](const Tensor& y, const Tensor& places) {
    pool::max_forward(self, y, places, windows, 3, "max_pool3d");
  });
  return {out, indices};
}

Two max_pool3d(const Tensor& self, IntArrayRef kernel, IntArrayRef stride, IntArrayRef pad,
               IntArrayRef dilation, bool ceil_mode) {
  const pool::Windows windows = max_pool3d_windows(self, kernel, stride, pad, dilation);
  const Sizes sizes = max_pool3d_sizes(self, windows, ceil_mode);
  Tensor out = at::empty(sizes, self.options().memory_format(self.suggest_memory_format()));
  Tensor indices =
      at::empty(sizes, self.options().dtype(at::kLong).memory_format(self.suggest_memory_format()));
  pool::max_forward(self, out, indices, windows, 3, "max_pool3d");
  return {std::move(out), std::move(indices)};
}

Tensor& max_pool3d_backward_out(const Tensor& grad_output, const Tensor& self, IntArrayRef kernel,
                                IntArrayRef stride, IntArrayRef pad, IntArrayRef dilation, bool,
                                const Tensor& indices, Tensor& grad_input) {
  const pool::Windows windows = max_pool3d_windows(self, kernel, stride, pad, dilation);
  TORCH_CHECK(grad_output.scalar_type() == self.scalar_type(), "expected dtype ", self.scalar_type(),
              " for `gradOutput` but got dtype ", grad_output.scalar_type());
  TORCH_CHECK(indices.scalar_type() == at::kLong, "expected scalar type Long but found ",
              indices.scalar_type());
  TORCH_CHECK(grad_output.dim() == self.dim(), "expected a gradient of ", self.dim(),
              " dimensions, but got: ", grad_output.sizes());
  // As on the CPU the gradient says how many windows there are, and the indices must agree.
  check_max_pool3d(self, windows, grad_output.sizes().slice(static_cast<size_t>(self.dim() - 3)));
  TORCH_CHECK(indices.sizes() == grad_output.sizes(), "expected indices of the gradient's sizes ",
              grad_output.sizes(), ", but got: ", indices.sizes());
  TORCH_CHECK(grad_output.sizes().slice(0, static_cast<size_t>(self.dim() - 3)) ==
                  self.sizes().slice(0, static_cast<size_t>(self.dim() - 3)),
              "expected a gradient of the input's batch and channels ", self.sizes(),
              ", but got: ", grad_output.sizes());
  at::native::resize_output(grad_input, self.sizes());
  pool::max_backward(grad_input, grad_output, indices, windows, 3, "max_pool3d_backward");
  return grad_input;
}
Tensor max_pool3d_backward(const Tensor& grad_output, const Tensor& self, IntArrayRef kernel,
                           IntArrayRef stride, IntArrayRef pad, IntArrayRef dilation, bool ceil_mode,
                           const Tensor& indices) {
  Tensor grad_input = at::empty_like(self, self.suggest_memory_format());
  max_pool3d_backward_out(grad_output, self, kernel, stride, pad, dilation, ceil_mode, indices, grad_input);
  return grad_input;
}

template <class Meta, int Axes>
TwoRefs adaptive_max_out(const Tensor& self, IntArrayRef output_size, Tensor& out, Tensor& indices) {
  TORCH_CHECK_NOT_IMPLEMENTED(self.is_floating_point(), "\"adaptive_max_pool\" not implemented for '",
                              c10::toString(self.scalar_type()), "'");
  OutOp<Meta, 2>({out, indices}).meta(self, output_size);
  with_matching_layout(out, indices, [&](const Tensor& y, const Tensor& places) {
    pool::max_forward(self, y, places, pool::adaptive_windows(Axes), Axes, "adaptive_max_pool");
  });
  return {out, indices};
}
template <class Meta, int Axes>
Tensor& adaptive_max_backward(const Tensor& grad_output, const Tensor& self, const Tensor& indices,
                              Tensor& grad_input) {
  OutOp<Meta>(grad_input).meta(grad_output, self, indices);
  pool::max_backward(grad_input, grad_output, indices, pool::adaptive_windows(Axes), Axes,
                     "adaptive_max_pool_backward");
  return grad_input;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  using namespace at::meta;
  m.impl("max_pool2d_with_indices.out", max_pool_out<structured_max_pool2d_with_indices, 2>);
  m.impl("max_pool2d_with_indices_backward.grad_input", max_pool2d_backward);
  m.impl("max_pool3d_with_indices", max_pool3d);
  m.impl("max_pool3d_with_indices.out", max_pool3d_out);
  m.impl("max_pool3d_with_indices_backward", max_pool3d_backward);
  m.impl("max_pool3d_with_indices_backward.grad_input", max_pool3d_backward_out);
  m.impl("adaptive_max_pool2d.out", adaptive_max_out<structured_adaptive_max_pool2d, 2>);
  m.impl("adaptive_max_pool3d.out", adaptive_max_out<structured_adaptive_max_pool3d, 3>);
  m.impl("adaptive_max_pool2d_backward.grad_input",
         adaptive_max_backward<structured_adaptive_max_pool2d_backward, 2>);
  m.impl("adaptive_max_pool3d_backward.grad_input",
         adaptive_max_backward<structured_adaptive_max_pool3d_backward, 3>);
}

}  // namespace dlb
