// Code that ATen's pooling ops share: windows from PyTorch's lists, and problems of the pooling primitive
// from tensors.
#pragma once
#include <ATen/core/Tensor.h>

#include <array>
#include <optional>

#include "primitives/pool/problem.h"

namespace dlb::pool {

using Windows = std::array<PoolAxis, 3>;  // depth, height, width, without the sizes of input and output

// Windows of `axes` (2 or 3) axes from PyTorch's lists of one or `axes` numbers; an empty stride is the
// kernel. With two axes the first window has one element.
Windows windows_of(int axes, at::IntArrayRef kernel, at::IntArrayRef stride, at::IntArrayRef pad,
                   at::IntArrayRef dilation);
Windows adaptive_windows(int axes);

// The divisor of an average.
struct Divisor {
  bool count_include_pad = true;
  std::optional<int64_t> override;
};

// x: [N,] C, spatial... ; y and indices (int64, laid out as y): outputs of the right sizes. Any strides.
// These raise NotImplementedError, naming the op, for dtypes that are neither floating-point nor integers,
// and RuntimeError for 2^31 elements or more.
void max_forward(const at::Tensor& x, const at::Tensor& y, const at::Tensor& indices, const Windows& windows,
                 int axes, const char* op);
void max_backward(const at::Tensor& grad_input, const at::Tensor& grad_output, const at::Tensor& indices,
                  const Windows& windows, int axes, const char* op);
void avg_forward(const at::Tensor& x, const at::Tensor& y, const Windows& windows, int axes, Divisor divisor,
                 const char* op);
void avg_backward(const at::Tensor& grad_input, const at::Tensor& grad_output, const Windows& windows,
                  int axes, Divisor divisor, const char* op);

}  // namespace dlb::pool
