// Tensors of N, C, D, H, W for kernels that walk lines (kernels/common/lines.clh): any strides, fewer axes
// than three.
#pragma once
#include <ATen/core/Tensor.h>

#include <array>

#include "codegen/pointwise.h"
#include "primitives/common/team.h"

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

// Neighbours that a work-item takes together. Of CPUs, BLOCK in common/lines.clh being the most; of GPUs'
// wide kernels.
constexpr int32_t kLineBlock = 64, kMostLineBlock = 256, kGpuBlock = 4;

// Laid out as dlb_lines in the kernels.
struct Lines {
  int64_t xs[5], ys[5];
  int32_t samples, channels, line = 1, block = 1, channels_inner = 0;
  codegen::Divider blocks, axes[3];

  Lines(const View5& x, const View5& y)
      : samples(static_cast<int32_t>(x.size[0])), channels(static_cast<int32_t>(x.size[1])) {
    for (size_t i = 0; i < 5; ++i) xs[i] = x.stride[i], ys[i] = y.stride[i];
  }

  // Walks `over` (x or y of the constructor), `work` steps an element. Lines along the width are taken one
  // element at a time unless `wide`. `most`: neighbours taken together; GPUs take 1 or kGpuBlock.
  Team team(const cl::Device& device, const View5& over, bool wide, int64_t work, int32_t most) {
    channels_inner = channels > 1 && over.stride[1] == 1 && over.stride[4] != 1;
    block = wide || channels_inner ? most : 1;
    line = static_cast<int32_t>(channels_inner ? channels : over.size[4]);
    const int32_t pieces = (line + block - 1) / block;
    blocks = codegen::make_divider(static_cast<uint32_t>(pieces));
    const std::array<size_t, 3> outer =
        channels_inner ? std::array<size_t, 3>{4, 3, 2} : std::array<size_t, 3>{3, 2, 1};
    int64_t lines = over.size[0];
    for (size_t i = 0; i < 3; ++i) {
      axes[i] = codegen::make_divider(static_cast<uint32_t>(over.size[outer[i]]));
      lines *= over.size[outer[i]];
    }
    return make_team(device, lines * pieces, std::min(block, line) * work, 1);
  }

  // What a kernel that walks these lines is built with. `type`: of the elements.
  const char* options(const cl::Device& device, codegen::DType type) const {
    if (device.cls == cl::DeviceClass::kCpu || block != kGpuBlock) return "";
    if (type == codegen::DType::F32) return "-DBLOCK=4 -DVECTOR4=float4";
    if (type == codegen::DType::U32) return "-DBLOCK=4 -DVECTOR4=uint4";
    return "-DBLOCK=4";
  }
};

}  // namespace dlb
