// Convolution solver "cpu_implicit": implicit GEMM for CPU-like devices, see conv/cpu_implicit.cl. The
// indirect walk over the image follows Dukhan, "The Indirect Convolution Algorithm" (2019), with scratch that
// is private to a core in place of pointers into the image.
#include <array>
#include <cmath>
#include <cstring>

#include "cl/hash.h"
#include "primitives/common/compute_estimates.h"
#include "primitives/common/cpu_tile.h"
#include "primitives/conv/gather.h"
#include "primitives/conv/solvers.h"

namespace dlb::solver {

namespace {

constexpr std::initializer_list<const char*> kFiles = {"common/cpu_tile.clh", "conv/gather.clh",
                                                       "conv/pixels.clh", "conv/cpu_implicit.cl"};

}  // namespace

cl::Kernel& conv_cpu_kernel(cl::Device& device, const ConvProblem& p, const char* name) {
  return embedded_kernel(device, kFiles, cpu_tile_options(device, p.dtype), name);
}

bool dense_weights(const ConvProblem& p) {
  int64_t expected = 1;
  const int64_t sizes[5] = {p.k, p.c / p.groups, p.filter[0], p.filter[1], p.filter[2]};
  for (int i = 4; i >= 0; i--) {
    if (sizes[i] != 1 && p.ws[i] != expected) return false;
    expected *= sizes[i];
  }
  return true;
}

namespace {

constexpr int64_t kScratchFloats = 160 * 1024;  // at most; most of a usual second-level cache
// Cycles that a core spends on packing a weight: through memory, and in its cache.
constexpr double kPackingBefore = 2.5, kPackingInside = 1.2;
constexpr double kWorthTrying = 1.5;                   // times the cycles of the best guess
constexpr int64_t kPartialBytes = int64_t(128) << 20;  // of the weight gradient's slices

// What can be varied: most positions, output channels and summed channels of a work-item, and whether it
// packs the weights that it needs. Zeros are the best guess.
struct Blocking {
  int32_t positions = 0, cols = 0, channels = 0, packs = 0;
  static constexpr const char* kNames[] = {"positions", "cols", "channels", "packs"};
  bool given() const { return positions > 0; }
  bool operator==(const Blocking&) const = default;
};

Blocking blocking_of(const Config& config) {
  return config.as<Blocking>();
}

// A gather with its blocking chosen, and what it costs.
struct Plan {
  Gather gather;
  Blocking blocking = {};
  int64_t scratch = 0;  // floats
  int64_t blocks = 0;   // of positions
  int64_t col_blocks = 0, channel_blocks = 0;
  int slices = 1;            // weight gradient
  double cycles = INFINITY;  // expected, of the slowest core
};

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

// Of a gather whose positions and channels are set as the blocking says.
Plan gather_plan(Gather g, const Blocking& blocking, const cl::Device& device) {
  g.block_cols = std::min(g.cols, blocking.cols), g.packs = blocking.packs;
  Plan plan{g, blocking};
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
            const Plan plan = gather_plan(g, {positions, cols, most, packs}, device);
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
Plan weight_grad_plan(Gather g, const Blocking& blocking, const cl::Device& device) {
  g.block_cols = std::min(g.cols, blocking.cols);
  Plan plan{g, blocking};
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
        const Plan plan = weight_grad_plan(g, {positions, cols, channels}, device);
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

void keep_better(Plan& best, const Plan& plan) {
  if (plan.cycles < best.cycles) best = plan;
}

// The plan with the fewest cycles; they are infinite when scratch suffices for none. A solver is asked many
// things about one problem in a row, and planning takes longer than all else that choosing does: a thread
// remembers its last plans, as many as a strided input gradient has phases.
Plan best_plan(bool weight_grad, const Gather& gather, const cl::Device& device) {
  struct Last {
    bool weight_grad = false;
    int device = -1;
    Gather gather{};
    Plan plan{};
  };
  static_assert(std::is_trivially_copyable_v<Gather>);
  thread_local std::array<Last, 4> remembered;
  thread_local size_t next = 0;
  for (const Last& last : remembered)
    if (last.weight_grad == weight_grad && last.device == device.index &&
        std::memcmp(&last.gather, &gather, sizeof gather) == 0)
      return last.plan;
  Plan best{gather};
  each_plan(weight_grad, gather, device, [&](const Plan& plan) { keep_better(best, plan); });
  Last& last = remembered[next++ % remembered.size()];
  last = {weight_grad, device.index, {}, best};
  std::memcpy(&last.gather, &gather, sizeof gather);
  return best;
}

// The plan with this blocking, else the best.
Plan plan_of(bool weight_grad, const Gather& gather, const Blocking& blocking, const cl::Device& device) {
  if (!blocking.given()) return best_plan(weight_grad, gather, device);
  Plan best{gather};
  each_plan(weight_grad, gather, device, [&](const Plan& plan) {
    if (plan.blocking == blocking) keep_better(best, plan);
  });
  return std::isinf(best.cycles) ? best_plan(weight_grad, gather, device) : best;
}

const char* const kDoesNotFit = "the image rows that one output needs do not fit in local memory";

// The kernel that computes: the one for any sizes, or one of its own for this very gather.
std::shared_ptr<cl::Kernel> compute_kernel(cl::Device& device, const ConvProblem& p, const char* name,
                                           const Gather& gather, const Config& config) {
  if (!config.specialised) return shared_kernel(conv_cpu_kernel(device, p, name));
  return specialised_kernel(device, constants_of(gather) + sources(kFiles), cpu_tile_options(device, p.dtype),
                            name);
}

// Of the weights that are packed before.
int64_t floats_before(const Gather& g) {
  return g.packs ? 0 : packed_floats(g);
}

class GatherInvoker final : public ConvInvoker {
 public:
  GatherInvoker(const ConvProblem& p, cl::Device& device, const Config& config)
      : input_grad_(p.direction == ConvDirection::kInputGrad),
        pack_(conv_cpu_kernel(device, p, "conv_cpu_pack")) {
    for (const Phase& phase : phases_of(p)) {
      const Plan plan = plan_of(false, phase.gather, blocking_of(config), device);
      const Gather& g = plan.gather;
      Step step{plan,
                phase.weight_offset,
                phase.output_offset,
                range3(padded16(g.cols) / 16, plan.channel_blocks, g.groups),
                range3(plan.blocks, plan.col_blocks, g.groups),
                compute_kernel(device, p, "conv_cpu", g, config)};
      if (floats_before(g) == 0) step.pack.global[0] = 0;
      steps_.push_back(step);
    }
    keeps_ = p.constant_w;
    if (keeps_) form_ = cl::hash128(form_of(steps_.front().plan.gather)).low;
  }

  void run(Stream& stream, const ConvProblem::Operands& o, MemRef workspace) override {
    const Buffer& in = input_grad_ ? o.y : o.x;
    const Buffer& out = input_grad_ ? o.x : o.y;
    const Buffer& before =
        keeps_ ? o.prepared : Buffer{workspace.mem, static_cast<int64_t>(workspace.offset)};
    const cl_mem panels = before.mem ? before.mem : o.w.mem;
    int64_t packed = before.offset / static_cast<int64_t>(sizeof(float));
    for (const Step& s : steps_) {
      const Gather& g = s.plan.gather;
      const Buffer& bias = g.has_bias ? o.bias : o.w;
      const int64_t weights = o.w.offset + s.weight_offset;
      if (!keeps_) pack_.launch(stream.queue(), s.pack, o.w.mem, weights, panels, packed, g);
      s.kernel->launch(stream.queue(), s.compute, in.mem, in.offset, o.w.mem, weights, panels, packed,
                       out.mem, out.offset + s.output_offset, bias.mem, bias.offset, within(g, o.bounds),
                       cl::Local{static_cast<size_t>(s.plan.scratch) * sizeof(float)});
      packed += floats_before(g);
    }
  }

  void prepare(Stream& stream, const ConvProblem::Operands& o, MemRef to) override {
    const Step& s = steps_.front();  // the forward pass has one
    pack_.launch(stream.queue(), s.pack, o.w.mem, o.w.offset + s.weight_offset, to.mem,
                 static_cast<int64_t>(to.offset / sizeof(float)), s.plan.gather);
  }
  uint64_t form() const override { return form_; }

 private:
  // All that decides where a weight comes from and goes to.
  static std::string form_of(const Gather& g) {
    std::string text = "cpu_implicit";
    for (int64_t number :
         {g.wgroup, g.wcol, g.wred, g.wtap[0], g.wtap[1], g.wtap[2], int64_t(g.groups), int64_t(g.red),
          int64_t(g.cols), int64_t(g.taps[0]), int64_t(g.taps[1]), int64_t(g.taps[2]), int64_t(g.channels)})
      text += " " + std::to_string(number);
    return text;
  }
  struct Step {
    Plan plan;
    int64_t weight_offset, output_offset;
    cl::Range pack, compute;
    std::shared_ptr<cl::Kernel> kernel;
  };
  const bool input_grad_;
  bool keeps_ = false;
  uint64_t form_ = 0;
  cl::Kernel& pack_;
  std::vector<Step> steps_;
};

// Sums over slices of the positions; one slice of a dense float gradient is written in place.
class WeightGradInvoker final : public ConvInvoker {
 public:
  WeightGradInvoker(const ConvProblem& p, cl::Device& device, const Config& config)
      : plan_(plan_of(true, forward_phase(p).gather, blocking_of(config), device)),
        compute_(compute_kernel(device, p, "conv_cpu_weight_grad", plan_.gather, config)),
        reduce_(conv_cpu_kernel(device, p, "conv_cpu_reduce")),
        compute_range_(range3(plan_.slices, plan_.col_blocks, plan_.gather.groups * plan_.channel_blocks)),
        reduce_range_(range3(p.k, 1, 1)) {}

  void run(Stream& stream, const ConvProblem::Operands& o, MemRef workspace) override {
    const Buffer partial =
        workspace.mem ? Buffer{workspace.mem, static_cast<int64_t>(workspace.offset / sizeof(float))} : o.w;
    compute_->launch(stream.queue(), compute_range_, o.x.mem, o.x.offset, o.y.mem, o.y.offset, partial.mem,
                     partial.offset, plan_.gather, static_cast<cl_int>(plan_.slices),
                     static_cast<cl_int>(plan_.blocks),
                     cl::Local{static_cast<size_t>(plan_.scratch) * sizeof(float)});
    if (workspace.mem)
      reduce_.launch(stream.queue(), reduce_range_, partial.mem, partial.offset, o.w.mem, o.w.offset,
                     plan_.gather, static_cast<cl_int>(plan_.slices));
  }

 private:
  const Plan plan_;
  const std::shared_ptr<cl::Kernel> compute_;
  cl::Kernel& reduce_;
  const cl::Range compute_range_, reduce_range_;
};

class Implicit final : public ConvSolver {
 public:
  const char* name() const override { return "cpu_implicit"; }
  ConfigNames config_names() const override { return ConfigNames::of<Blocking>(); }

  Applicability applicable(const ConvProblem& p, const cl::Device& device) const override {
    if (device.cls != cl::DeviceClass::kCpu) return Applicability::no("for CPU-like devices");
    if (!is_float_storage(p.dtype))
      return Applicability::no("computes in float: float32, float16 and bfloat16");
    if (std::isinf(cycles(p, device))) return Applicability::no(kDoesNotFit);
    return Applicability::yes();
  }

  uint64_t workspace(const ConvProblem& p, const cl::Device& device, const Config& config) const override {
    if (p.direction == ConvDirection::kWeightGrad) {
      const int slices = plan_of(true, forward_phase(p).gather, blocking_of(config), device).slices;
      if (slices == 1 && p.dtype == c10::ScalarType::Float && dense_weights(p)) return 0;
      return sizeof(float) * slices * int64_t(p.k) * (p.c / p.groups) * p.taps();
    }
    return p.constant_w ? 0 : packed_bytes(p, device, config);
  }
  uint64_t prepared(const ConvProblem& p, const cl::Device& device, const Config& config) const override {
    return p.constant_w ? packed_bytes(p, device, config) : 0;
  }

  // Packing and planning have changed.
  int revision() const override { return 2; }
  // The best guess; the best with half as many positions, with fewer summed channels, with other columns,
  // with the weights packed elsewhere.
  std::vector<Config> configs(const ConvProblem& p, const cl::Device& device) const override {
    const bool weight_grad = p.direction == ConvDirection::kWeightGrad;
    const Gather gather = phases_of(p).front().gather;
    const Plan best = best_plan(weight_grad, gather, device);
    const Gather& b = best.gather;
    Plan smaller{gather}, shallower{gather}, other{gather}, elsewhere{gather};
    each_plan(weight_grad, gather, device, [&](const Plan& plan) {
      if (plan.cycles > kWorthTrying * best.cycles) return;
      if (2 * positions_of(plan.gather) <= positions_of(b)) keep_better(smaller, plan);
      if (plan.gather.channels < b.channels) keep_better(shallower, plan);
      if (plan.gather.block_cols != b.block_cols) keep_better(other, plan);
      if (plan.gather.packs != b.packs) keep_better(elsewhere, plan);
    });
    std::vector<Config> list = {Config{}};
    for (const Plan* plan : {&smaller, &shallower, &other, &elsewhere}) {
      const auto& [positions, cols, channels, packs] = plan->blocking;
      const Config config = Config::of(Blocking{positions, cols, channels, packs});
      if (!std::isinf(plan->cycles) && std::find(list.begin(), list.end(), config) == list.end())
        list.push_back(config);
    }
    return list;
  }
  // One program per problem: a strided input gradient would need one for each of its phases.
  bool can_specialise(const ConvProblem& p, const cl::Device&, const Config&) const override {
    return phases_of(p).size() == 1;
  }
  double estimate(const ConvProblem& p, const cl::Device& device) const override {
    return cycles_microseconds(3, cycles(p, device), device);
  }

  std::unique_ptr<ConvInvoker> invoker(const ConvProblem& p, cl::Device& device,
                                       const Config& config) const override {
    if (p.direction == ConvDirection::kWeightGrad)
      return std::make_unique<WeightGradInvoker>(p, device, config);
    return std::make_unique<GatherInvoker>(p, device, config);
  }

 private:
  static uint64_t packed_bytes(const ConvProblem& p, const cl::Device& device, const Config& config) {
    uint64_t floats = 0;
    for (const Phase& phase : phases_of(p))
      floats += floats_before(plan_of(false, phase.gather, blocking_of(config), device).gather);
    return floats * sizeof(float);
  }
  static double cycles(const ConvProblem& p, const cl::Device& device) {
    if (p.direction == ConvDirection::kWeightGrad)
      return plan_of(true, forward_phase(p).gather, {}, device).cycles * weight_grad_excess(device);
    double sum = 0;
    for (const Phase& phase : phases_of(p)) sum += plan_of(false, phase.gather, {}, device).cycles;
    return sum;
  }
};

}  // namespace

const ConvSolver* conv_cpu_implicit() {
  static const Implicit solver;
  return &solver;
}

}  // namespace dlb::solver
