// How the work of batch_norm_apply.cl is divided, and its launches.
#include "primitives/norm/batch_norm_apply.h"

#include <algorithm>
#include <bit>

namespace dlb::norm {
namespace {

using params::NormFinish;
using params::NormTiles;

constexpr const char* kFile = "norm/batch_norm_apply.cl";

constexpr uint32_t kLeast = 2048;       // elements of a group, which the coefficients are made for
constexpr uint32_t kRun = 1024;         // elements of neighbouring channels that keep a group busy
constexpr uint32_t kTile = 4096;        // elements of a run that a group takes in a row
constexpr int64_t kGroupsPerUnit = 16;  // so that some groups make coefficients while others load
constexpr uint32_t kMerges = 8;         // merges of a work-item that cost less than a launch

constexpr uint32_t u32(int64_t size) {
  return static_cast<uint32_t>(size);
}
constexpr uint32_t up(uint32_t count, uint32_t of) {
  return (count + of - 1) / of;
}

NormTiles tiles_of(const Context& context, const Shape& s) {
  NormTiles t{};
  const auto channels = u32(s.channels);
  uint32_t item = 0;  // elements of one
  if (is_interleaved(s)) {
    // A row of channels of 128 bytes, in which devices load memory.
    t.length = 1, t.tile = t.tiles = 1;
    t.channels = std::min(u32(128 / codegen::size_of(context.data)), std::bit_ceil(channels));
    t.items = u32(s.samples * s.length), item = t.channels;
  } else {
    t.length = u32(s.length);
    t.channels = std::min({up(kRun, t.length), channels, kTeamGroup});
    const uint32_t run = t.channels * t.length;
    t.tiles = up(run, kTile), t.tile = up(up(run, t.tiles), 32) * 32;
    t.items = u32(s.samples) * t.tiles, item = std::min(t.tile, run);
  }
  t.blocks = up(channels, t.channels);
  const int64_t wanted = context.device.compute_units * kGroupsPerUnit;
  const uint32_t least = up(kLeast, item);
  const uint32_t chunks = std::clamp(up(u32(wanted), t.blocks), 1u, std::max(1u, t.items / least));
  t.per_group = up(t.items, chunks);
  t.length_divider = codegen::make_divider(t.length);
  t.tiles_divider = codegen::make_divider(t.tiles);
  return t;
}

// Sets the work-items that merge a channel's splits. False where they are so many that a launch of their own
// merges them faster than each group would.
bool merges_within(NormTiles& t, uint32_t splits) {
  t.lanes = std::min(kTeamGroup / std::bit_ceil(t.channels), std::bit_ceil(splits));
  return splits <= kMerges * t.lanes;
}

void take(NormFinish& p, const Partial& merged) {
  p.splits = merged.splits, p.per_split = merged.per_split;
}

}  // namespace

void finish_and_apply(const Context& context, const Shape& shape, Partial partial, NormFinish p,
                      const Forward& t, const Running& running) {
  NormTiles tiles = tiles_of(context, shape);
  if (!merges_within(tiles, p.splits)) {
    partial = merged_statistics(context, partial, shape.channels, p.count);
    take(p, partial);
    merges_within(tiles, p.splits);
  }
  launch_finish(context, {kFile, "batch_norm_apply"}, p, tiles,
                {{t.x, &NormFinish::x},
                 {t.y, &NormFinish::results},
                 {partial.values, &NormFinish::partial},
                 {t.weight, &NormFinish::weight},
                 {t.bias, &NormFinish::bias},
                 {running.mean, &NormFinish::running_mean},
                 {running.var, &NormFinish::running_var},
                 {t.mean, &NormFinish::mean},
                 {t.rstd, &NormFinish::rstd}});
}

void finish_and_apply_backward(const Context& context, const Shape& shape, Partial partial, NormFinish p,
                               const Backward& t) {
  NormTiles tiles = tiles_of(context, shape);
  if (!merges_within(tiles, p.splits)) {
    partial = merged_sums(context, partial, shape.channels);
    take(p, partial);
    merges_within(tiles, p.splits);
  }
  launch_finish(context, {kFile, "batch_norm_apply_backward"}, p, tiles,
                {{t.x, &NormFinish::x},
                 {t.dy, &NormFinish::dy},
                 {t.dx, &NormFinish::results},
                 {partial.values, &NormFinish::partial},
                 {t.weight, &NormFinish::weight},
                 {t.mean, &NormFinish::mean},
                 {t.rstd, &NormFinish::rstd},
                 {t.grad_weight, &NormFinish::grad_weight},
                 {t.grad_bias, &NormFinish::grad_bias}});
}

}  // namespace dlb::norm
