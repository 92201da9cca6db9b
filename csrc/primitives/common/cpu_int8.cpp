// Plans and launches of common/cpu_int8.cl.
#include "primitives/common/cpu_int8.h"

#include <atomic>
#include <cmath>

#include "cl/rounding.h"
#include "primitives/common/cpu_tile.h"
#include "runtime/fetch_kernel.h"

namespace dlb::solver {
namespace {

using params::Gather;

constexpr int64_t kTile = params::INT8_TILE, kDepth = params::INT8_DEPTH, kBytes = params::INT8_TILE_BYTES;
constexpr int kTilesAcross = 4, kTilesAlong = 16;  // of columns that are summed at once
constexpr double kScratchShare = 0.75;             // of local memory, at most

// Whether a compiler without the instructions has been met: no use in asking it again for every problem.
std::atomic<bool>& fails_to_build() {
  static std::atomic<bool> fails{false};
  return fails;
}

int64_t taps_of(const Gather& g) {
  return int64_t(g.taps[0]) * g.taps[1] * g.taps[2];
}
int64_t positions_of(const Gather& g) {
  return int64_t(g.n) * g.q[0] * g.q[1] * g.q[2];
}

// Cycles of multiplying two tiles.
double multiply_cycles(const cl::Device& device) {
  const cl::Int8 unit = device.int8();
  return unit == cl::Int8::kTiles ? 30 : unit == cl::Int8::kVectors ? 250 : 900;
}

// Cycles of bringing 16 positions, 64 elements of the reduction each, into scratch.
double gather_cycles(const Int8Plan& plan) {
  const Gather& g = plan.gather;
  const int64_t step = g.step[2] * g.is[4];
  if (!plan.product.across) return step == 1 ? 200 : step == 2 ? 300 : 3000;
  return g.is[1] == 1 || g.red == 1 ? 60 + 16.0 * 12 * kDepth / std::max(plan.product.red, 16) / 4 : 3000;
}

void cut(Int8Plan& plan, const cl::Device& device, int64_t positions, int64_t channels) {
  Gather& g = plan.gather;
  params::Int8Product& q = plan.product;
  g.block[0] = static_cast<int>(positions), g.block_cols = static_cast<int>(channels);
  const int64_t taps = taps_of(g), tiles = ceil_div(positions, kTile), col_tiles = ceil_div(channels, kTile);
  q.tiles = static_cast<int>(q.across ? std::min<int64_t>(col_tiles, kTilesAcross)
                                      : std::min<int64_t>(tiles, kTilesAlong));
  const int64_t image = 64 + (q.across ? tiles * kTile * (q.depth + 64) : tiles * plan.steps() * kBytes);
  plan.scratch = params::INT8_CONFIG_BYTES + 4 * kTile * (params::INT8_ROWS * q.tiles + col_tiles) + image +
                 4 * (33 * tiles + 1 + taps) + 2 * tiles * (taps + g.taps[0] + g.taps[1] + g.taps[2]) + 64;
  plan.blocks = ceil_div(positions_of(g), positions), plan.col_blocks = ceil_div(g.cols, channels);
  const double steps = plan.steps();
  const bool near = q.across ? g.os[1] == 1 || g.cols == 1 : g.os[4] == 1 || g.q[2] == 1;
  const double per_task = tiles * (col_tiles * (steps * multiply_cycles(device) + (near ? 120 : 1500)) +
                                   steps * gather_cycles(plan) + 300 + 10 * taps) +
                          3000;
  const double tasks = double(plan.blocks) * plan.col_blocks * g.groups;
  const bool fits = plan.scratch <= kScratchShare * device.local_mem;
  plan.cycles = fits ? std::ceil(tasks / device.compute_units) * per_task : INFINITY;
}

cl::Kernel& kernel(cl::Device& device, const Epilogue& epilogue, OperandDtype input, const char* name) {
  const cl::Int8 unit = device.int8();
  const std::string options = cpu_tile_options(device, c10::ScalarType::Int) +
                              (unit == cl::Int8::kTiles     ? " -DAMX_TILES"
                               : unit == cl::Int8::kVectors ? " -DVECTORS"
                                                            : "") +
                              (input.type() == c10::kChar ? " -DSIGNED_INPUT" : "");
  try {
    return fetch_with(
        epilogue, device,
        {"common/element.clh", "common/cpu_int8.clh", "conv/positions.clh", "common/cpu_int8.cl"}, name,
        options);
  } catch (const cl::Error& error) {
    if (error.code == CL_BUILD_PROGRAM_FAILURE) fails_to_build() = true;
    throw;
  }
}

}  // namespace

int64_t Int8Plan::columns() const {
  return round_up(gather.cols, kTile);
}
uint64_t Int8Plan::packed_bytes() const {
  return gather.groups * columns() * (sizeof(int32_t) + product.depth);
}
double Int8Plan::pack_cycles() const {
  const bool tiles = taps_of(gather) == 1 && (gather.wred == 1 || gather.wcol == 1);
  return (tiles ? 0.3 : 3.0) * packed_bytes();
}

Int8Plan int8_plan(Int8Plan plan, const cl::Device& device, const Config& config) {
  const auto given = config.as<Int8Config>();
  Gather& g = plan.gather;
  params::Int8Product& q = plan.product;
  q.red = static_cast<int>(round_up(g.red, 4));
  q.depth = static_cast<int>(round_up(std::max<int64_t>(taps_of(g) * q.red, 1), kDepth));
  const int64_t all = positions_of(g);
  Int8Plan best = plan;
  best.cycles = INFINITY;
  for (int across : {0, 1}) {
    q.across = across;
    for (int64_t most : {1024, 512, 256, 128, 64, 32, 16}) {
      if (given.positions && most != given.positions) continue;
      for (int64_t channels : {2048, 512, 256, 128, 64, 32}) {
        if (given.channels && channels != given.channels) continue;
        cut(plan, device, balanced(all, most, kTile), balanced(g.cols, channels, 2 * kTile));
        if (plan.cycles < best.cycles) best = plan;
      }
    }
  }
  return best;
}

std::vector<Config> int8_configs(const Int8Plan& plan) {
  std::vector<Config> list = {Config{}};
  const int64_t all = positions_of(plan.gather);
  for (int32_t most : {256, 128, 64, 32})
    if (most < all) list.push_back(Config::of(Int8Config{most, 0}));
  for (int32_t most : {512, 128})
    if (most < plan.gather.cols) list.push_back(Config::of(Int8Config{0, most}));
  return list;
}

Applicability int8_applicable(const cl::Device& device, OperandDtype input, OperandDtype weights) {
  if (device.cls != cl::DeviceClass::kCpu) return Applicability::no("for CPU-like devices");
  if (!input.is_byte() || !weights.is_byte()) return Applicability::no("for operands of 8 bits");
  if (weights.type() != c10::kChar) return Applicability::no("weights are int8");
  if (!device.clang_on_host) return Applicability::no("needs PoCL, whose compiler is clang");
  if (fails_to_build()) return Applicability::no("the driver's compiler lacks the CPU's instructions");
  return Applicability::yes();
}

Int8Launch::Int8Launch(const Int8Plan& plan, OperandDtype input, const Epilogue& epilogue, cl::Device& device)
    : plan_(plan),
      signed_input_(input.type() == c10::kChar),
      epilogue_(epilogue),
      pack_(kernel(device, epilogue, input, "cpu_int8_pack")),
      compute_(kernel(device, epilogue, input, "cpu_int8")),
      pack_range_(cl::Range::grid(plan.columns() / kTile, plan.gather.groups, 1)),
      range_(cl::Range::grid(plan.blocks, plan.col_blocks, plan.gather.groups)) {}

void Int8Launch::pack(Stream& stream, const Buffer& weights, const Buffer& packed) {
  pack_.launch(stream.queue(), pack_range_, weights.mem, weights.offset, packed.mem, packed.offset,
               plan_.gather, plan_.product);
}

void Int8Launch::run(Stream& stream, const Buffer& in, const Buffer& packed, const Buffer& out,
                     const Buffer& bias, int64_t alpha, const EpilogueOperands& operands) {
  params::Int8Product product = plan_.product;
  product.alpha = static_cast<int32_t>(alpha);
  product.readable = in.offset + plan_.in_extent;
  compute_.launch_with(stream.queue(), range_, [&](auto& arguments) {
    arguments.add(in.mem), arguments.add(in.offset);
    arguments.add(packed.mem), arguments.add(packed.offset);
    arguments.add(out.mem), arguments.add(out.offset);
    arguments.add(bias.mem), arguments.add(bias.offset);
    arguments.add(plan_.gather), arguments.add(product);
    arguments.add(cl::Local{static_cast<size_t>(plan_.scratch)});
    add_epilogue(arguments, epilogue_, operands);
  });
}

std::string Int8Launch::form() const {
  const Gather& g = plan_.gather;
  std::string text = "cpu_int8";
  for (int64_t number : {g.wgroup, g.wcol, g.wred, g.wtap[0], g.wtap[1], g.wtap[2], int64_t(g.groups),
                         int64_t(g.red), int64_t(g.cols), int64_t(g.taps[0]), int64_t(g.taps[1]),
                         int64_t(g.taps[2]), int64_t(plan_.product.across), int64_t(signed_input_)})
    text += " " + std::to_string(number);
  return text;
}

}  // namespace dlb::solver
