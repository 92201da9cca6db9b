// Work distribution of row kernels (kernels/common/team.clh): which work-items share a row.
#pragma once
#include <algorithm>
#include <cstdint>

#include "cl/queue.h"
#include "kernels/common/team.h"

namespace dlb {

using params::Team;

constexpr uint32_t kTeamGroup = params::TEAM_GROUP;

// Teams for `rows` rows of `work` elements each; `gpu_lanes` limits how many work-items of a GPU share a row
// (1: the kernel has no team reductions).
inline Team make_team(const cl::Device& device, int64_t rows, int64_t work, uint32_t gpu_lanes = kTeamGroup) {
  Team team{static_cast<uint32_t>(rows), 1, 1, 0};
  if (device.cls == cl::DeviceClass::kCpu) {
    constexpr int64_t kGrain = 8192, kItemsPerUnit = 4;
    const int64_t items = std::clamp<int64_t>(rows * std::max<int64_t>(work, 1) / kGrain, 1,
                                              device.compute_units * kItemsPerUnit);
    team.per_item = static_cast<uint32_t>((rows + items - 1) / items);
  } else {
    while (team.lanes < gpu_lanes && team.lanes * 4 < work) team.lanes *= 2;
  }
  return team;
}

inline cl::Range range_of(const cl::Device& device, const Team& team) {
  if (device.cls == cl::DeviceClass::kCpu)
    return cl::Range::linear((team.rows + team.per_item - 1) / team.per_item, 1);
  return cl::Range::linear((size_t{team.rows} * team.lanes + kTeamGroup - 1) / kTeamGroup, kTeamGroup);
}

}  // namespace dlb
