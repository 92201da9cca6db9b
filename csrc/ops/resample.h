// Separable resampling of images by tables of weights.
#pragma once
#include <ATen/core/Tensor.h>

#include <array>

#include "kernels/upsample/resample.h"

namespace dlb {

enum class Filter : int32_t {
  Linear = params::RESAMPLE_LINEAR,
  Cubic = params::RESAMPLE_CUBIC,
  Lanczos = params::RESAMPLE_LANCZOS
};

struct Resampling {
  Filter filter;
  bool antialias, align_corners;
  std::array<double, 2> steps;  // input positions per output position, of H and W
};

// y = x [N, C, H, W] in y's size, or with `backward` x = the gradient of that for y's. Both of one dtype,
// which is a floating-point one, or in forward uint8, of which the results are those of PyTorch's CPU kernels
// and Pillow: weights are integers, and each of the two passes rounds. The output is dense, in any layout.
void resample(bool backward, const at::Tensor& x, const at::Tensor& y, const Resampling& how);

}  // namespace dlb
