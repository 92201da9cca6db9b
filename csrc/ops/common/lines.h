// Tensors of N, C, D, H, W for kernels that walk lines (kernels/lines.clh): any strides, fewer axes than
// three.
#pragma once
#include <ATen/core/Tensor.h>

#include <array>

#include "ops/common/team.h"

namespace dlb {

// Sizes and strides of N, C, D, H, W of a tensor [N,] C, then 1 to 3 spatial axes; missing ones have size 1.
struct View5 {
  std::array<int64_t, 5> size{1, 1, 1, 1, 1}, stride{0, 0, 0, 0, 0};
  View5() = default;
  View5(const at::Tensor& t, int axes) {
    const int64_t rank = t.dim(), leading = rank - axes;
    for (int64_t d = 0; d < rank; ++d) {
      const auto at = static_cast<size_t>(d < leading ? 2 - leading + d : 5 - axes + d - leading);
      size[at] = t.size(d), stride[at] = t.stride(d);
    }
  }
};

constexpr int32_t kLineBlock = 64, kMostLineBlock = 256;  // of CPUs; BLOCK in lines.clh

// Laid out as dlb_lines in the kernels.
struct Lines {
  int64_t xs[5], ys[5];
  int32_t samples, channels, block = 1, channels_inner = 0;

  Lines(const View5& x, const View5& y)
      : samples(static_cast<int32_t>(x.size[0])), channels(static_cast<int32_t>(x.size[1])) {
    for (size_t i = 0; i < 5; ++i) xs[i] = x.stride[i], ys[i] = y.stride[i];
  }

  // Walks `over` (x or y of the constructor), `work` steps an element. Lines along the width are taken one
  // element at a time unless `wide`. `most`: neighbours taken together; 0: as the device's class likes it.
  Team team(const cl::Device& device, const View5& over, bool wide, int64_t work, int32_t most = 0) {
    channels_inner = channels > 1 && over.stride[1] == 1 && over.stride[4] != 1;
    if (most == 0) most = device.cls == cl::DeviceClass::kCpu ? kLineBlock : 1;
    block = wide || channels_inner ? most : 1;
    const int64_t line = channels_inner ? channels : over.size[4];
    int64_t all = 1;
    for (int64_t s : over.size) all *= s;
    return make_team(device, all / line * ((line + block - 1) / block), std::min<int64_t>(block, line) * work,
                     1);
  }
};

}  // namespace dlb
