// Work distribution of kernels that add values into places that data say (kernels/common/owners.clh).
#pragma once
#include <algorithm>

#include "cl/queue.h"
#include "kernels/common/owners.h"
#include "primitives/common/atomic.h"

namespace dlb {

using params::Owners;

struct OwnedWork {
  Owners owners;
  cl::Range range;
  const char* options;  // to build the kernel with
};

// Divides a target of samples, channels and rows into which `positions` (`per_sample` of each sample, 0 where
// they are in no order) are added. `wide`: the target's elements have 8 bytes. `ordered`: sums must always
// have the same order, as on CPUs they have anyway.
inline OwnedWork own_work(const cl::Device& device, int64_t samples, int64_t channels, int64_t rows,
                          int64_t positions, int64_t per_sample, bool wide, bool ordered) {
  constexpr uint32_t kGroup = 256, kOwners = 1 << 14, kAtomicItems = 1 << 16;
  const auto u32 = [](int64_t n) { return static_cast<uint32_t>(n); };
  OwnedWork work{{u32(samples), u32(channels), u32(rows), 1, 1, 1, u32(positions), u32(per_sample)}, {}, ""};
  Owners& o = work.owners;
  const bool cpu = device.cls == cl::DeviceClass::kCpu;
  if (cpu || ordered || (wide && !device.int64_atomics)) {
    const uint32_t wanted = cpu ? device.compute_units * 2 : kOwners;
    if (per_sample) o.sample_parts = std::clamp(o.samples, 1u, wanted);
    o.channel_parts = std::clamp(o.channels, 1u, std::max(1u, wanted / o.sample_parts));
    // Owners of rows look at the same positions as others, which pays only where there are few others.
    const uint32_t others = o.sample_parts * o.channel_parts;
    if (others * 2 <= wanted) o.row_parts = std::clamp(o.rows, 1u, std::min(64u, wanted / others));
    const size_t items = size_t{others} * o.row_parts;
    work.range = cpu ? cl::Range::linear(items, 1) : cl::Range::linear((items + 63) / 64, 64);
    work.options = wide ? "-DOWNED -DDLB_BYTES=8" : "-DOWNED -DDLB_BYTES=4";
    return work;
  }
  o.channel_parts = std::clamp(o.channels, 1u, std::max(1u, kAtomicItems / std::max(1u, o.positions)));
  work.range = cl::Range::linear((size_t{o.positions} * o.channel_parts + kGroup - 1) / kGroup, kGroup);
  work.options = atomic_options(device, wide ? codegen::DType::F64 : codegen::DType::F32);
  return work;
}

}  // namespace dlb
