// Convolution solver "cpu_implicit": implicit GEMM for CPU-like devices, see conv/cpu_implicit.cl. The
// indirect walk over the image follows Dukhan, "The Indirect Convolution Algorithm" (2019), with scratch that
// is private to a core in place of pointers into the image.
#include <cmath>

#include "cl/hash.h"
#include "cl/rounding.h"
#include "primitives/common/compute_estimates.h"
#include "primitives/common/cpu_tile.h"
#include "primitives/common/specialised.h"
#include "primitives/conv/cpu_implicit_plan.h"
#include "primitives/conv/solvers.h"
#include "runtime/element.h"
#include "runtime/fetch_kernel.h"

namespace dlb::solver {

namespace {

constexpr std::initializer_list<const char*> kFiles = {"common/cpu_tile.clh", "conv/gather.clh",
                                                       "conv/pixels.clh", "conv/cpu_implicit.cl"};

}  // namespace

cl::Kernel& conv_cpu_kernel(cl::Device& device, const ConvProblem& p, const char* name) {
  return fetch_kernel(device, kFiles, name, cpu_tile_options(device, p.dtype));
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

ImplicitBlocking blocking_of(const Config& config) {
  return config.as<ImplicitBlocking>();
}

const char* const kDoesNotFit = "the image rows that one output needs do not fit in local memory";

// The kernel that computes: the one for any sizes, or one of its own for this very gather.
std::shared_ptr<cl::Kernel> compute_kernel(cl::Device& device, const ConvProblem& p, const char* name,
                                           const Gather& gather, const Config& config) {
  if (!config.specialised)
    return shared_kernel(fetch_with(p.epilogue, device, kFiles, name, cpu_tile_options(device, p.dtype)));
  return specialised_kernel(device,
                            epilogue_source(p.epilogue, device) + constants_of(gather) + kernel_text(kFiles),
                            cpu_tile_options(device, p.dtype), name);
}

class GatherInvoker final : public ConvInvoker {
 public:
  GatherInvoker(const ConvProblem& p, cl::Device& device, const Config& config)
      : input_grad_(p.direction == ConvDirection::kInputGrad),
        epilogue_(p.epilogue),
        pack_(conv_cpu_kernel(device, p, "conv_cpu_implicit_pack")) {
    for (const Phase& phase : phases_of(p)) {
      const ImplicitPlan plan = plan_implicit(false, phase.gather, blocking_of(config), device);
      const Gather& g = plan.gather;
      Step step{plan,
                phase.weight_offset,
                phase.output_offset,
                cl::Range::grid(ceil_div(g.cols, 16), plan.channel_blocks, g.groups),
                cl::Range::grid(plan.blocks, plan.col_blocks, g.groups),
                compute_kernel(device, p, "conv_cpu_implicit", g, config)};
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
      s.kernel->launch_with(stream.queue(), s.compute, [&](auto& arguments) {
        arguments.add(in.mem), arguments.add(in.offset);
        arguments.add(o.w.mem), arguments.add(weights);
        arguments.add(panels), arguments.add(packed);
        arguments.add(out.mem), arguments.add(out.offset + s.output_offset);
        arguments.add(bias.mem), arguments.add(bias.offset);
        arguments.add(within(g, o.bounds));
        arguments.add(cl::Local{static_cast<size_t>(s.plan.scratch) * sizeof(float)});
        add_epilogue(arguments, epilogue_, o);
      });
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
    ImplicitPlan plan;
    int64_t weight_offset, output_offset;
    cl::Range pack, compute;
    std::shared_ptr<cl::Kernel> kernel;
  };
  const bool input_grad_;
  const Epilogue epilogue_;
  bool keeps_ = false;
  uint64_t form_ = 0;
  cl::Kernel& pack_;
  std::vector<Step> steps_;
};

// Sums over slices of the positions; one slice of a dense float gradient is written in place.
class WeightGradInvoker final : public ConvInvoker {
 public:
  WeightGradInvoker(const ConvProblem& p, cl::Device& device, const Config& config)
      : plan_(plan_implicit(true, forward_phase(p).gather, blocking_of(config), device)),
        compute_(compute_kernel(device, p, "conv_cpu_implicit_weight_grad", plan_.gather, config)),
        reduce_(conv_cpu_kernel(device, p, "conv_cpu_implicit_reduce")),
        compute_range_(
            cl::Range::grid(plan_.slices, plan_.col_blocks, plan_.gather.groups * plan_.channel_blocks)),
        reduce_range_(cl::Range::grid(p.k, 1, 1)) {}

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
  const ImplicitPlan plan_;
  const std::shared_ptr<cl::Kernel> compute_;
  cl::Kernel& reduce_;
  const cl::Range compute_range_, reduce_range_;
};

class Implicit final : public ConvSolver {
 public:
  const char* name() const override { return "cpu_implicit"; }
  bool takes_epilogue() const override { return true; }
  ConfigNames config_names() const override { return ConfigNames::of<ImplicitBlocking>(); }

  Applicability applicable(const ConvProblem& p, const cl::Device& device) const override {
    if (device.cls != cl::DeviceClass::kCpu) return Applicability::no("for CPU-like devices");
    if (!is_float_storage(p.dtype))
      return Applicability::no("computes in float: float32, float16 and bfloat16");
    if (std::isinf(cycles(p, device))) return Applicability::no(kDoesNotFit);
    return Applicability::yes();
  }

  uint64_t workspace(const ConvProblem& p, const cl::Device& device, const Config& config) const override {
    if (p.direction == ConvDirection::kWeightGrad) {
      const int slices = plan_implicit(true, forward_phase(p).gather, blocking_of(config), device).slices;
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
    std::vector<Config> list = {Config{}};
    for (const ImplicitBlocking& blocking : other_blockings(weight_grad, gather, device))
      list.push_back(Config::of(blocking));
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
      floats += floats_before(plan_implicit(false, phase.gather, blocking_of(config), device).gather);
    return floats * sizeof(float);
  }
  static double cycles(const ConvProblem& p, const cl::Device& device) {
    if (p.direction == ConvDirection::kWeightGrad)
      return plan_implicit(true, forward_phase(p).gather, {}, device).cycles * weight_grad_excess(device);
    double sum = 0;
    for (const Phase& phase : phases_of(p)) sum += plan_implicit(false, phase.gather, {}, device).cycles;
    return sum;
  }
};

}  // namespace

const ConvSolver* conv_cpu_implicit() {
  static const Implicit solver;
  return &solver;
}

}  // namespace dlb::solver
