// Convolution solver "gpu_wgmma": the warpgroup instructions of NVIDIA's Hopper GPUs, fed by the copy engine,
// for 16 bits, TF32, float32 as three products of TF32, and forward passes of integers of 8 bits; see
// conv/gpu_wgmma.cl. Operands whose channels do not lie together are copied first.
#include <algorithm>

#include "cl/hash.h"
#include "cl/rounding.h"
#include "primitives/common/gpu_tile.h"
#include "primitives/common/pack_lines.h"
#include "primitives/common/wgmma.h"
#include "primitives/conv/solvers.h"
#include "primitives/conv/wgmma_plan.h"
#include "runtime/fetch_kernel.h"

namespace dlb::solver {
namespace {

using Arguments = params::ConvWgmma;

constexpr int64_t kShortestPart = 4;  // stages of a part of the reduction
constexpr size_t kMostConfigs = 6;
constexpr double kHopeless = 1.6;  // times the first config's expected time
constexpr double kGathered =
    0.9;  // of a product's speed: a guess, boxes of pixels take longer to copy than lines
constexpr double kScatteredTile = 2;  // times as long to store a tile whose results are stored one by one

// Where things lie in the workspace, in bytes.
struct Layout {
  uint64_t maps, image, lines, partial, end;
  Layout(const ConvWgmmaPlan& plan, const cl::Device& device) {
    const auto after = [](uint64_t start, double bytes) {
      return start + round_up(uint64_t(bytes), kWgmmaAlign);
    };
    maps = 0;
    image = after(maps, groups_of(plan, device) * 2 * params::WGMMA_MAP);
    lines = after(image, plan.image.always ? plan.image.bytes : 0);
    partial = after(lines, plan.lines.always && !plan.keeps_lines ? plan.lines.bytes : 0);
    end =
        after(partial, plan.arguments.splits > 1 ? plan.arguments.splits * plan.outputs * sizeof(float) : 0);
  }
  static int64_t groups_of(const ConvWgmmaPlan& plan, const cl::Device& device) {
    return std::min(int64_t(plan.tiles), int64_t(device.compute_units));
  }
};

// Whose size the elements of both operands have.
c10::ScalarType packed_type(const ConvProblem& p) {
  return p.x_dtype ? c10::ScalarType::Char : p.dtype;
}

struct TimedConfig {
  ConvWgmmaConfig config;
  double time;  // microseconds
};

double time_of(const ConvProblem& p, const ConvWgmmaConfig& config, const WgmmaTile& tile,
               const cl::Device& device, const DeviceRates& rates) {
  const ConvWgmmaPlan plan = conv_wgmma_plan(p, config);
  const bool split = conv_wgmma_is_split(p);
  const double bytes = double(c10::elementSize(packed_type(p)));
  const double rate = kGathered * (split ? tile.split_speed : tile.speed) * wgmma_rate(rates, int(bytes)) /
                      device.compute_units;
  const double line = double(params::WGMMA_LINE) / bytes;
  const double flops = 2.0 * int(params::WGMMA_ROWS) * tile.columns * line * (split ? 3 : 1);  // of a stage
  const double rounds = ceil_div(int64_t(plan.tiles), int64_t(device.compute_units));
  const double store = kWgmmaTileTime * (plan.neighbours ? 1 : kScatteredTile);
  double time =
      kGpuTileLaunches * rates.launch_us + rounds * (store + plan.stages / plan.tiles * flops / rate);
  for (const ConvWgmmaCopy* copy : {&plan.image, &plan.lines})
    if (copy->always && !(copy == &plan.lines && plan.keeps_lines))
      time += rates.launch_us + 2.0 * copy->bytes / rates.bytes;
  if (config.splits > 1)
    time += rates.launch_us + (2 * config.splits + 1) * plan.outputs * sizeof(float) / rates.bytes;
  return time;
}

bool has_tile(const ConvProblem& p, const WgmmaTile& tile) {
  return !conv_wgmma_is_split(p) || tile.split_speed > 0;
}

int64_t most_splits(const ConvProblem& p, int64_t depth, double outputs) {
  if (!conv_wgmma_can_split(p)) return 1;
  const int64_t by_memory = kGpuPartialBytes / (outputs * sizeof(float));
  return std::max<int64_t>(1, std::min(depth / kShortestPart, by_memory));
}

// All that could be tried, the fastest first.
std::vector<TimedConfig> timed_configs(const ConvProblem& p, const cl::Device& device) {
  const DeviceRates& rates = rates_of(device);
  std::vector<TimedConfig> list;
  for (int form : conv_wgmma_forms(p))
    for (const WgmmaTile& tile : kWgmmaTiles) {
      if (!has_tile(p, tile)) continue;
      const ConvWgmmaPlan whole = conv_wgmma_plan(p, {tile.columns, 1, form});
      const int64_t depth = whole.arguments.part;
      int64_t previous = 0;
      for (int rounds : {0, 1, 2, 3}) {  // tiles that a compute unit shall have
        const int64_t wanted = rounds * int64_t(device.compute_units) / int64_t(whole.tiles);
        const int64_t splits = conv_wgmma_filled_parts(
            depth, std::clamp<int64_t>(wanted, 1, most_splits(p, depth, whole.outputs)));
        if (splits == previous) continue;
        previous = splits;
        const ConvWgmmaConfig config{tile.columns, static_cast<int>(splits), form};
        list.push_back({config, time_of(p, config, tile, device, rates)});
      }
    }
  std::stable_sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.time < b.time; });
  return list;
}

class WgmmaInvoker final : public ConvInvoker {
 public:
  WgmmaInvoker(const ConvProblem& p, cl::Device& device, const ConvWgmmaConfig& config)
      : direction_(p.direction),
        dtype_(p.dtype),
        has_bias_(p.has_bias && p.direction != ConvDirection::kWeightGrad),
        epilogue_(p.epilogue),
        device_(device),
        plan_(conv_wgmma_plan(p, config)),
        layout_(plan_, device),
        element_(static_cast<int64_t>(c10::elementSize(packed_type(p)))),
        packer_(device, p.device, packed_type(p)),
        kernel_(kernel(p, config, "conv_gpu_wgmma", p.epilogue)),
        reduce_(config.splits > 1 ? &kernel(p, config, "split_reduce", plan_.reduce_epilogue) : nullptr),
        range_(cl::Range::linear(Layout::groups_of(plan_, device), params::WGMMA_ITEMS)),
        form_(form_of(plan_.lines)) {
    if (plan_.image.always || plan_.lines.always) packer_.fetch();
  }

  void run(Stream& stream, const ConvProblem::Operands& o, MemRef workspace) override {
    const bool weight_grad = direction_ == ConvDirection::kWeightGrad;
    const bool input_grad = direction_ == ConvDirection::kInputGrad;
    Buffer image = input_grad ? o.y : o.x, lines = weight_grad ? o.y : o.w;
    const Buffer& out = weight_grad ? o.w : input_grad ? o.x : o.y;
    const Buffer& bias = has_bias_ ? o.bias : out;
    Arguments a = plan_.arguments;
    const auto place = [&](uint64_t bytes) { return MemRef{workspace.mem, workspace.offset + bytes}; };
    // freed when this returns, which the allocator orders behind what is enqueued
    const c10::DataPtr image_memory =
        bring(stream, plan_.image, image, a.image_strides, place(layout_.image));
    c10::DataPtr lines_memory;
    if (plan_.keeps_lines)
      lines = in_elements({o.prepared.mem, static_cast<uint64_t>(o.prepared.offset)});
    else
      lines_memory = bring(stream, plan_.lines, lines, a.lines_strides, place(layout_.lines));
    a.image_offset = image.offset, a.lines_offset = lines.offset;
    a.out_offset = out.offset, a.bias_offset = bias.offset;
    a.maps_offset = floats(place(layout_.maps)), a.partial_offset = floats(place(layout_.partial));
    const Bounds bounds = weight_grad ? Bounds{} : o.bounds;
    set_bounds(a, bounds);
    kernel_.launch_with(stream.queue(), range_, [&](auto& arguments) {
      for (const cl_mem mem : {image.mem, lines.mem, out.mem, bias.mem, workspace.mem}) arguments.add(mem);
      arguments.add(a);
      add_epilogue(arguments, epilogue_, o);
    });
    if (reduce_)
      launch_split_reduce(*reduce_, stream.queue(), plan_.reduce, dtype_, place(layout_.partial), out, bias,
                          Factor{}, has_bias_ ? Factor{} : Factor{0, 0, 0}, bounds, epilogue_, o);
  }

  void prepare(Stream& stream, const ConvProblem::Operands& o, MemRef to) override {
    packer_.pack(stream, plan_.lines, o.w, to);
  }
  uint64_t form() const override { return form_; }

 private:
  // All that decides where a weight comes from and goes to.
  static uint64_t form_of(const ConvWgmmaCopy& copy) {
    const auto* bytes = reinterpret_cast<const char*>(&copy.arguments);
    return cl::hash128("conv_gpu_wgmma" + std::string(bytes, sizeof(copy.arguments))).low;
  }

  static int64_t floats(MemRef place) { return static_cast<int64_t>(place.offset / sizeof(float)); }

  cl::Kernel& kernel(const ConvProblem& p, const ConvWgmmaConfig& config, const char* name,
                     const Epilogue& epilogue) const {
    const char* along_rows = config.form == params::CONV_WGMMA_WEIGHTS ? "1" : "0";
    const bool pixel_rows = config.form == params::CONV_WGMMA_PIXEL_ROWS;
    const std::string operands =
        pixel_rows ? operand_options(p.x_dtype, p.w_dtype) : operand_options(p.w_dtype, p.x_dtype);
    return fetch_with(
        epilogue, device_,
        {"common/gpu_tile.clh", "common/operands.clh", "common/wgmma.clh", "common/wgmma_loop.clh",
         "conv/gpu_wgmma.cl", "common/split_reduce.cl"},
        name,
        gpu_options(device_, p.dtype) + operands + " -DTILE_N=" + std::to_string(config.columns) +
            " -DFORM=" + std::to_string(config.form) + " -DSPLIT=" + (conv_wgmma_is_split(p) ? "1" : "0") +
            " -DA_ALONG_ROWS=" + along_rows + " -DB_ALONG_ROWS=" + along_rows);
  }

  // Where only the operand's address is odd, its copy is elsewhere and has other strides.
  c10::DataPtr bring(Stream& stream, const ConvWgmmaCopy& copy, Buffer& operand, params::dlb_long* strides,
                     MemRef place) const {
    c10::DataPtr memory = packer_.bring(stream, copy, operand, place);
    if (memory) std::copy_n(copy.strides, 4, strides);
    return memory;
  }

  Buffer in_elements(MemRef place) const {
    return {place.mem, static_cast<int64_t>(place.offset) / element_};
  }

  const ConvDirection direction_;
  const c10::ScalarType dtype_;
  const bool has_bias_;
  const Epilogue epilogue_;
  cl::Device& device_;
  const ConvWgmmaPlan plan_;
  const Layout layout_;
  const int64_t element_;  // bytes of an operand's
  const LinePacker packer_;
  cl::Kernel& kernel_;
  cl::Kernel* const reduce_;  // where there are parts
  const cl::Range range_;
  const uint64_t form_;  // of weights that are kept
};

class Wgmma final : public ConvSolver {
 public:
  const char* name() const override { return "gpu_wgmma"; }
  bool takes_epilogue() const override { return true; }
  bool takes_mixed() const override { return true; }
  ConfigNames config_names() const override { return ConfigNames::of<ConvWgmmaConfig>(); }
  Applicability applicable(const ConvProblem& p, const cl::Device& device) const override {
    if (!device.wgmma) return Applicability::no("needs an NVIDIA GPU of compute capability 9.0");
    if (const char* reason = conv_wgmma_refuses(p)) return Applicability::no(reason);
    return Applicability::yes();
  }
  uint64_t workspace(const ConvProblem& p, const cl::Device& device, const Config& config) const override {
    return Layout(conv_wgmma_plan(p, config.as<ConvWgmmaConfig>()), device).end;
  }
  uint64_t prepared(const ConvProblem& p, const cl::Device&, const Config& config) const override {
    const ConvWgmmaPlan plan = conv_wgmma_plan(p, config.as<ConvWgmmaConfig>());
    return plan.keeps_lines ? plan.lines.bytes : 0;
  }
  std::vector<Config> configs(const ConvProblem& p, const cl::Device& device) const override {
    const std::vector<TimedConfig> all = timed_configs(p, device);
    std::vector<Config> list;
    for (const TimedConfig& timed : all)
      if (list.size() < kMostConfigs && timed.time < kHopeless * all.front().time)
        list.push_back(Config::of(timed.config));
    return list;
  }
  bool has_config(const ConvProblem& p, const cl::Device&, const Config& config) const override {
    const auto [columns, splits, form] = config.as<ConvWgmmaConfig>();
    if (config != Config::of(ConvWgmmaConfig{columns, splits, form})) return false;
    const std::vector<int> forms = conv_wgmma_forms(p);
    if (std::find(forms.begin(), forms.end(), form) == forms.end()) return false;
    for (const WgmmaTile& tile : kWgmmaTiles) {
      if (tile.columns != columns || !has_tile(p, tile)) continue;
      const ConvWgmmaPlan whole = conv_wgmma_plan(p, {columns, 1, form});
      const int64_t depth = whole.arguments.part;
      return splits >= 1 && splits <= most_splits(p, depth, whole.outputs) &&
             splits == conv_wgmma_filled_parts(depth, splits);
    }
    return false;
  }
  double estimate(const ConvProblem& p, const cl::Device& device) const override {
    return timed_configs(p, device).front().time;
  }
  std::unique_ptr<ConvInvoker> invoker(const ConvProblem& p, cl::Device& device,
                                       const Config& config) const override {
    return std::make_unique<WgmmaInvoker>(p, device, config.as<ConvWgmmaConfig>());
  }
};

}  // namespace

const ConvSolver* conv_gpu_wgmma() {
  static const Wgmma solver;
  return &solver;
}

}  // namespace dlb::solver
