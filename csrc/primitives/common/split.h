// How a flat range of work is divided: runs of elements for a CPU's work-items, one element each for a GPU's.
#pragma once
#include <algorithm>
#include <cstdint>

#include "cl/device.h"
#include "cl/queue.h"

namespace dlb {

struct Split {
  cl::Range range;
  uint32_t per_item;  // consecutive elements of one work-item
};

// `grain`: the least number of elements that is worth a CPU work-item of its own; `multiple`: what per_item
// is rounded up to. On GPUs per_item is 1 and kernels test their id against the count.
inline Split split_work(const cl::Device& device, uint64_t count, uint32_t grain = 8192,
                        uint32_t multiple = 1) {
  constexpr uint32_t kGpuGroup = 256, kCpuItemsPerUnit = 4;
  if (device.cls == cl::DeviceClass::kGpu)
    return {cl::Range::linear((count + kGpuGroup - 1) / kGpuGroup, kGpuGroup), 1};
  const uint64_t items =
      std::clamp<uint64_t>(count / grain, 1, uint64_t{device.compute_units} * kCpuItemsPerUnit);
  const uint64_t per_item = ((count + items - 1) / items + multiple - 1) / multiple * multiple;
  return {cl::Range::linear(per_item ? (count + per_item - 1) / per_item : 0, 1),
          static_cast<uint32_t>(per_item)};
}

}  // namespace dlb
