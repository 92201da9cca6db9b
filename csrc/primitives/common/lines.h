// Tensors of N, C, D, H, W for kernels that walk lines (kernels/common/lines.clh): any strides, fewer axes
// than three.
#pragma once
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>

#include "codegen/pointwise.h"
#include "kernels/common/lines.h"
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

using params::Lines;

// Neighbours that a work-item takes together: of CPUs as a rule and at most, and of GPUs' wide kernels.
constexpr int32_t kLineBlock = 64, kMostLineBlock = params::MOST_LINE_BLOCK,
                  kGpuBlock = params::GPU_LINE_BLOCK;

inline Lines lines_of(const View5& x, const View5& y) {
  Lines lines{};
  std::copy(x.stride.begin(), x.stride.end(), lines.xs);
  std::copy(y.stride.begin(), y.stride.end(), lines.ys);
  lines.samples = static_cast<int32_t>(x.size[0]), lines.channels = static_cast<int32_t>(x.size[1]);
  lines.line = lines.block = 1;
  return lines;
}

// Whether neighbours in memory are those along the channels, and not along the width.
inline bool has_channels_inside(const View5& t) {
  return t.size[1] > 1 && t.stride[1] == 1 && t.stride[4] != 1;
}

// Walks `over` (x or y of lines_of()), `work` steps an element. Lines along the width are taken one element
// at a time unless `wide`. `most`: neighbours taken together; GPUs take 1 or kGpuBlock.
inline Team walk_lines(Lines& lines, const cl::Device& device, const View5& over, bool wide, int64_t work,
                       int32_t most) {
  lines.channels_inner = has_channels_inside(over);
  lines.block = wide || lines.channels_inner ? most : 1;
  lines.line = static_cast<int32_t>(lines.channels_inner ? lines.channels : over.size[4]);
  const int32_t pieces = (lines.line + lines.block - 1) / lines.block;
  lines.blocks = codegen::make_divider(static_cast<uint32_t>(pieces));
  const std::array<size_t, 3> outer =
      lines.channels_inner ? std::array<size_t, 3>{4, 3, 2} : std::array<size_t, 3>{3, 2, 1};
  int64_t count = over.size[0];
  for (size_t i = 0; i < 3; ++i) {
    lines.axes[i] = codegen::make_divider(static_cast<uint32_t>(over.size[outer[i]]));
    count *= over.size[outer[i]];
  }
  return make_team(device, count * pieces, std::min(lines.block, lines.line) * work, 1);
}

// The build options of a kernel that walks these lines. `type`: of the elements.
inline const char* line_options(const Lines& lines, const cl::Device& device, codegen::DType type) {
  if (device.cls == cl::DeviceClass::kCpu || lines.block != kGpuBlock) return "";
  if (type == codegen::DType::F32) return "-DWIDE_LINES -DVECTOR4=float4";
  if (type == codegen::DType::U32) return "-DWIDE_LINES -DVECTOR4=uint4";
  return "-DWIDE_LINES";
}

}  // namespace dlb
