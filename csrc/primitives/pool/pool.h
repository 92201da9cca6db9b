// Max and average pooling over two or three spatial axes: what the ATen ops call.
#pragma once
#include <ATen/core/Tensor.h>

#include <array>

namespace dlb::pool {

// One spatial axis's window. A kernel of 0 means adaptive: the sizes of input and output say all.
struct Window {
  int32_t kernel = 0, stride = 1, pad = 0, dilation = 1;
};
using Windows = std::array<Window, 3>;  // depth, height, width; for two axes the first is a window of 1

// Windows of `axes` (2 or 3) axes from PyTorch's lists of one or `axes` numbers; an empty stride is the
// kernel.
Windows windows(int axes, at::IntArrayRef kernel, at::IntArrayRef stride, at::IntArrayRef pad,
                at::IntArrayRef dilation);
Windows adaptive_windows(int axes);

// What an average divides by.
struct Divisor {
  bool count_include_pad = true;
  std::optional<int64_t> override;
};

// x: [N,] C, spatial... ; y and indices (int64, laid out as y): outputs of the right sizes. Any strides.
void max_forward(const at::Tensor& x, const at::Tensor& y, const at::Tensor& indices, const Windows& windows,
                 int axes, const char* op);
void max_backward(const at::Tensor& grad_input, const at::Tensor& grad_output, const at::Tensor& indices,
                  const Windows& windows, int axes, const char* op);
void avg_forward(const at::Tensor& x, const at::Tensor& y, const Windows& windows, int axes, Divisor divisor,
                 const char* op);
void avg_backward(const at::Tensor& grad_input, const at::Tensor& grad_output, const Windows& windows,
                  int axes, Divisor divisor, const char* op);

}  // namespace dlb::pool
