#include "primitives/conv/cpu_implicit_plan.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "cl/rounding.h"
#include "primitives/common/cpu_tile.h"

namespace dlb::solver {
namespace {

constexpr int64_t kScratchFloats = 160 * 1024;  // at most; most of a usual second-level cache
// Cycles that a core spends on packing a weight: through memory, and in its cache.
constexpr double kPackingBefore = 2.5, kPackingInside = 1.2;
constexpr double kWorthTrying = 1.5;                   // times the cycles of the best guess
constexpr int64_t kPartialBytes = int64_t(128) << 20;  // of the weight gradient's slices

int padded16(int n) {
  return static_cast<int>(round_up(n, 16));
}

// Blocks of about `positions` outputs: full rows before several rows, full images before several images.
void set_positions(Gather& g, int positions) {
  const int extent[4] = {g.n, g.q[0], g.q[1], g.q[2]};
  int64_t left = positions;
  for (int i = 3; i >= 0; i--) {
    const int64_t most = std::clamp<int64_t>(left, 1, extent[i]);
    g.block[i] = static_cast<int>(ceil_div(extent[i], ceil_div(extent[i], most)));
    left /= g.block[i];
  }
}

int64_t positions_of(const Gather& g) {
  return int64_t(g.block[0]) * g.block[1] * g.block[2] * g.block[3];
}
int64_t blocks_of(const Gather& g) {
  int64_t blocks = ceil_div(g.n, g.block[0]);
  for (int i = 0; i < 3; i++) blocks *= ceil_div(g.q[i], g.block[i + 1]);
  return blocks;
}

// Pixels of the image that a block of positions needs in scratch.
int64_t pixels_of(const Gather& g) {
  int64_t pixels = g.block[0];
  for (int i = 0; i < 3; i++)
    pixels *= int64_t(g.block[i + 1] - 1) * g.step[i] +
              int64_t(std::max(g.split[i] ? 1 : g.taps[i], 1) - 1) * g.dilation[i] + 1;
  return pixels;
}

void set_channels(Gather& g, int most) {
  g.channels = g.red <= most ? std::max(g.red, 1)
                             : static_cast<int>(round_up(ceil_div(g.red, ceil_div(g.red, most)), 16));
  // an odd number of cache lines between pixels spreads them over all cache sets
  g.pitch = g.channels >= 16 && g.channels / 16 % 2 == 0 ? g.channels + 16 : g.channels;
}

double waves(double tasks, const cl::Device& device) {
  return std::ceil(tasks / device.compute_units);
}

// Cycles that a core spends on `rows` x `columns` results with a reduction of `depth`.
double tile_cycles(int64_t rows, int64_t columns, double depth) {
  const double tiles = double(ceil_div(rows, kTileRows)) * ceil_div(columns, kTileColumns);
  return double(ceil_div(rows, kTileRows)) * kTileRows * padded16(static_cast<int>(columns)) / 16 * depth *
             1.1 +
         tiles * 80;
}

int64_t packed_floats(const Gather& g) {
  return int64_t(g.groups) * g.red * g.taps[0] * g.taps[1] * g.taps[2] * padded16(g.cols);
}

// Cycles that copying one element of the image to scratch takes; channels that are neighbours need no
// transposing.
double load_cycles(const Gather& g) {
  return g.channels < 16 ? 2.0 : g.is[1] == 1 ? 0.35 : 0.7;
}

// The plan of a gather whose positions and channels are set as the blocking says.
ImplicitPlan gather_plan(Gather g, const ImplicitBlocking& blocking, const cl::Device& device) {
  g.block_cols = std::min(g.cols, blocking.cols), g.packs = blocking.packs;
  ImplicitPlan plan{g, blocking};
  const int64_t count = positions_of(g), pitch = padded16(g.block_cols), pixels = pixels_of(g);
  const int64_t all_taps = int64_t(g.taps[0]) * g.taps[1] * g.taps[2];
  const int64_t panel =
      g.packs ? all_taps * g.channels * std::min(tile_columns(device), padded16(g.cols)) : 0;
  plan.scratch =
      round_up(count + kTileRows, 16) + (count + kTileRows) * pitch + panel + pixels * g.pitch + 64;
  if (plan.scratch > kScratchFloats || plan.scratch * 4 > int64_t(device.local_mem)) return plan;
  plan.blocks = blocks_of(g), plan.col_blocks = ceil_div(g.cols, g.block_cols);
  plan.channel_blocks = std::max<int64_t>(ceil_div(g.red, g.channels), 1);
  const auto taps = static_cast<double>(all_taps);
  double loads = 1;
  for (int i = 0; i < 3; i++)
    if (g.split[i]) loads *= std::max(g.taps[i], 1);
  const double per_task = plan.channel_blocks * (loads * pixels * g.channels * load_cycles(g) +
                                                 tile_cycles(count, g.block_cols, taps * g.channels)) +
                          double(count) * g.block_cols * (g.os[4] == 1 || g.os[1] == 1 ? 0.6 : 2.0) + 2000 +
                          (g.packs ? kPackingInside * taps * g.red * pitch : 0);
  plan.cycles = waves(double(plan.blocks) * plan.col_blocks * g.groups, device) * per_task;
  if (!g.packs && !g.keeps)
    plan.cycles += kPackingBefore * packed_floats(g) / device.compute_units + 60000;  // a launch
  return plan;
}

// Visits the plans worth considering of a forward gather or an input gradient's phase: those with the fewest
// taps loaded one at a time that fit in scratch.
template <class Visit>
void each_gather_plan(const Gather& gather, const cl::Device& device, Visit&& visit) {
  bool fits = false;
  for (int splits = 0; splits <= 3 && !fits; splits++) {
    Gather g = gather;
    for (int i = 0; i < 3; i++) g.split[i] = i < splits;
    const int taps = std::max(1, (g.split[1] ? 1 : g.taps[1]) * (g.split[2] ? 1 : g.taps[2]));
    // a panel of weights, taps * channels * 64 floats, is to stay in cache while all positions pass over it
    const int channels = std::clamp(768 / taps / 16 * 16, 16, 512);
    for (int most = channels; most >= 16; most = most > 16 ? std::max(16, most / 2 / 16 * 16) : 0) {
      if (says_nothing(most, channels, g.red)) continue;
      set_channels(g, most);
      for (int positions : {384, 288, 192, 144, 96, 72, 48, 24, 12, 6}) {
        set_positions(g, positions);
        for (int cols : {512, 256, 128, 64}) {
          if (says_nothing(cols, 512, g.cols)) continue;
          for (int packs = 0; packs <= (splits == 0 && !g.keeps); packs++) {
            const ImplicitPlan plan = gather_plan(g, {positions, cols, most, packs}, device);
            if (std::isinf(plan.cycles)) continue;
            fits = true;
            visit(plan);
          }
        }
      }
    }
  }
}

// As gather_plan().
ImplicitPlan weight_grad_plan(Gather g, const ImplicitBlocking& blocking, const cl::Device& device) {
  g.block_cols = std::min(g.cols, blocking.cols);
  ImplicitPlan plan{g, blocking};
  const int64_t count = positions_of(g), pitch = padded16(g.block_cols), pixels = pixels_of(g);
  const int64_t taps = int64_t(g.taps[0]) * g.taps[1] * g.taps[2], rows = g.channels * taps;
  plan.scratch = round_up(rows + kTileRows, 16) + (rows + kTileRows) * pitch + count * kTileColumns +
                 pixels * g.pitch + 64;
  if (plan.scratch > kScratchFloats || plan.scratch * 4 > int64_t(device.local_mem)) return plan;
  plan.blocks = blocks_of(g), plan.col_blocks = ceil_div(g.cols, g.block_cols);
  plan.channel_blocks = ceil_div(g.red, g.channels);
  const double per_block = double(pixels) * g.channels * (g.channels < 16 ? 2.0 : 0.7) + count * pitch * 0.7 +
                           g.block[0] * tile_cycles(rows, g.block_cols, double(count) / g.block[0]);
  const double weights = double(g.groups) * g.cols * g.red * taps;
  const double parts = double(g.groups) * plan.col_blocks * plan.channel_blocks;
  for (int slices = 1; slices <= plan.blocks && slices <= 4 * int(device.compute_units); slices++) {
    if (slices > 1 && slices * weights * 4 > kPartialBytes) break;
    const double per_task = ceil_div(plan.blocks, slices) * per_block + double(rows) * g.block_cols + 2000;
    const double cycles =
        waves(parts * slices, device) * per_task + slices * weights / 8 / device.compute_units;
    if (cycles < plan.cycles) plan.cycles = cycles, plan.slices = slices;
  }
  return plan;
}

template <class Visit>
void each_weight_grad_plan(const Gather& gather, const cl::Device& device, Visit&& visit) {
  Gather g = gather;
  for (int channels : {256, 128, 64, 48, 32, 16}) {
    if (says_nothing(channels, 256, g.red)) continue;
    set_channels(g, channels);
    for (int positions : {448, 288, 192, 144, 96, 48, 24, 12, 6}) {
      set_positions(g, positions);
      for (int cols : {256, 128, 64}) {
        if (says_nothing(cols, 256, g.cols)) continue;
        const ImplicitPlan plan = weight_grad_plan(g, {positions, cols, channels}, device);
        if (!std::isinf(plan.cycles)) visit(plan);
      }
    }
  }
}

template <class Visit>
void each_plan(bool weight_grad, const Gather& gather, const cl::Device& device, Visit&& visit) {
  if (weight_grad)
    each_weight_grad_plan(gather, device, visit);
  else
    each_gather_plan(gather, device, visit);
}

void keep_better(ImplicitPlan& best, const ImplicitPlan& plan) {
  if (plan.cycles < best.cycles) best = plan;
}

// The plan with the fewest cycles; they are infinite when scratch suffices for none. A solver is asked many
// things about one problem in a row, and planning takes longer than all else that choosing does: a thread
// remembers its last plans, as many as a strided input gradient has phases.
ImplicitPlan best_plan(bool weight_grad, const Gather& gather, const cl::Device& device) {
  struct Last {
    bool weight_grad = false;
    int device = -1;
    Gather gather{};
    ImplicitPlan plan{};
  };
  static_assert(std::is_trivially_copyable_v<Gather>);
  thread_local std::array<Last, 4> remembered;
  thread_local size_t next = 0;
  for (const Last& last : remembered)
    if (last.weight_grad == weight_grad && last.device == device.index &&
        std::memcmp(&last.gather, &gather, sizeof gather) == 0)
      return last.plan;
  ImplicitPlan best{gather};
  each_plan(weight_grad, gather, device, [&](const ImplicitPlan& plan) { keep_better(best, plan); });
  Last& last = remembered[next++ % remembered.size()];
  last = {weight_grad, device.index, {}, best};
  std::memcpy(&last.gather, &gather, sizeof gather);
  return best;
}

}  // namespace

ImplicitPlan plan_implicit(bool weight_grad, const Gather& gather, const ImplicitBlocking& blocking,
                           const cl::Device& device) {
  if (!blocking.given()) return best_plan(weight_grad, gather, device);
  ImplicitPlan best{gather};
  each_plan(weight_grad, gather, device, [&](const ImplicitPlan& plan) {
    if (plan.blocking == blocking) keep_better(best, plan);
  });
  return std::isinf(best.cycles) ? best_plan(weight_grad, gather, device) : best;
}

std::vector<ImplicitBlocking> other_blockings(bool weight_grad, const Gather& gather,
                                              const cl::Device& device) {
  const ImplicitPlan best = best_plan(weight_grad, gather, device);
  const Gather& b = best.gather;
  ImplicitPlan smaller{gather}, shallower{gather}, other{gather}, elsewhere{gather};
  each_plan(weight_grad, gather, device, [&](const ImplicitPlan& plan) {
    if (plan.cycles > kWorthTrying * best.cycles) return;
    if (2 * positions_of(plan.gather) <= positions_of(b)) keep_better(smaller, plan);
    if (plan.gather.channels < b.channels) keep_better(shallower, plan);
    if (plan.gather.block_cols != b.block_cols) keep_better(other, plan);
    if (plan.gather.packs != b.packs) keep_better(elsewhere, plan);
  });
  std::vector<ImplicitBlocking> list;
  for (const ImplicitPlan& plan : {smaller, shallower, other, elsewhere})
    if (!std::isinf(plan.cycles) && std::find(list.begin(), list.end(), plan.blocking) == list.end())
      list.push_back(plan.blocking);
  return list;
}

int64_t floats_before(const Gather& g) {
  return g.packs ? 0 : packed_floats(g);
}

}  // namespace dlb::solver
