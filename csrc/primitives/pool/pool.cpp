// Code that the solvers of pooling share, and the first choice for small problems.
#include "primitives/pool/pool.h"

#include <algorithm>

#include "runtime/fetch_kernel.h"
#include "runtime/tensor.h"
#include "solver/execute.h"

namespace dlb::pool {
namespace {

int64_t elements_of(const View5& view) {
  int64_t all = 1;
  for (const int64_t size : view.size) all *= size;
  return all;
}

Launch first_choice(const PoolProblem& p, const cl::Device& device) {
  if (!p.is_backward()) return lines_launch(p, device, {});
  if (is_cpu(device) && planes_applicable(p, device)) return planes_launch(p, device, {});
  if (is_cpu(device) && windows_applicable(p, device)) return windows_launch(p, device, {});
  return gather_launch(p, device, {});
}

}  // namespace

bool PoolProblem::is_max() const {
  return op == &max_pool_op || op == &max_pool_backward_op;
}
bool PoolProblem::is_backward() const {
  return op == &max_pool_backward_op || op == &avg_pool_backward_op;
}
int64_t PoolProblem::input_elements() const {
  return elements_of(input_view(*this));
}
int64_t PoolProblem::output_elements() const {
  return elements_of(output_view(*this));
}
int64_t PoolProblem::window_size() const {
  int64_t size = 1;
  for (const PoolAxis& axis : axes) size *= axis.window_size();
  return size;
}

std::vector<CheckWindow<PoolProblem>> PoolProblem::check_windows() const {
  constexpr int64_t kMostElements = 32 << 20;
  std::vector<CheckWindow<PoolProblem>> list;
  const int64_t last = samples - 1;
  if (input_elements() / samples > kMostElements) return {};
  for (int64_t sample = 0; sample <= last; sample += std::max<int64_t>(last, 1)) {
    CheckWindow<PoolProblem> window{*this};
    window.problem.samples = 1;
    const int64_t x = sample * xs[0], y = sample * ys[0];
    auto& shift = window.shift;
    shift.in0.offset = is_backward() ? y : x, shift.in1.offset = y;
    shift.out0.offset = is_backward() ? x : y, shift.out1.offset = y;
    list.push_back(window);
  }
  return list;
}

void PoolProblem::make_possible(const Operands& operands, Stream& stream) const {
  if (op != &max_pool_backward_op) return;
  Launch launch{"pool/reference.cl", "max_pool_any_indices", params_of(*this)};
  launch.team = make_team(stream.device(), output_elements(), 4, 1);
  launch.params.index = operands.in1.offset;
  kernel_of(*this, stream.device(), launch)
      .launch(stream.queue(), range_of(stream.device(), launch.team), operands.in1.mem, launch.params,
              launch.team);
}

View5 input_view(const PoolProblem& p) {
  View5 view;
  view.size = {p.samples, p.channels, p.axes[0].in, p.axes[1].in, p.axes[2].in};
  std::copy(std::begin(p.xs), std::end(p.xs), view.stride.begin());
  return view;
}
View5 output_view(const PoolProblem& p) {
  View5 view;
  view.size = {p.samples, p.channels, p.axes[0].out, p.axes[1].out, p.axes[2].out};
  std::copy(std::begin(p.ys), std::end(p.ys), view.stride.begin());
  return view;
}

Params params_of(const PoolProblem& p) {
  const auto i32 = [](int64_t size) { return static_cast<int32_t>(size); };
  Params params{};
  params.lines = lines_of(input_view(p), output_view(p));
  params.count_include_pad = i32(p.include_pad), params.divisor = i32(p.divisor);
  for (size_t i = 0; i < 3; ++i) {
    const PoolAxis& a = p.axes[i];
    params.axis[i] = {i32(a.in), i32(a.out), i32(a.kernel), i32(a.stride), i32(a.pad), i32(a.dilation)};
  }
  return params;
}

void set_team(Launch& launch, const PoolProblem& p, const cl::Device& device, const Config& config,
              const View5& over, bool wide, int64_t work) {
  const int32_t block = config.as<BlockConfig>().block;
  const int32_t most = block ? block : is_cpu(device) ? kLineBlock : 1;
  launch.team = walk_lines(launch.params.lines, device, over, wide, work, most);
  launch.options = line_options(launch.params.lines, device, dtype_of(p.dtype, "pool"));
}

std::vector<Config> block_configs(const Launch& first, const cl::Device& device, bool wide) {
  const Lines& lines = first.params.lines;
  const int32_t line = lines.channels_inner || wide ? lines.line : 1;
  const auto block = [](int32_t size) { return Config::of(BlockConfig{size}); };
  if (is_cpu(device))
    return line > kLineBlock ? std::vector{Config{}, block(kMostLineBlock)} : std::vector{Config{}};
  return line > 1 ? std::vector{block(kGpuBlock), Config{}} : std::vector{Config{}};
}

cl::Kernel& kernel_of(const PoolProblem& p, cl::Device& device, const Launch& launch) {
  const auto type = dtype_of(p.dtype, "pool");
  return fetch_kernel(device, launch.file, launch.kernel, codegen::compute_type(type), {type},
                      launch.options);
}

void enqueue(const PoolProblem& p, const Launch& launch, cl::Kernel& kernel, const MemoryOperands& o,
             Stream& stream) {
  const bool backward = p.is_backward();
  const Buffer &x = backward ? o.out0 : o.in0, &y = backward ? o.in0 : o.out0,
               &index = backward ? o.in1 : o.out1;
  Params params = launch.params;
  params.x = x.offset, params.y = y.offset, params.index = index.offset;
  const cl::Range range = range_of(stream.device(), launch.team);
  if (p.is_max())
    kernel.launch(stream.queue(), range, x.mem, y.mem, index.mem, params, launch.team);
  else
    kernel.launch(stream.queue(), range, x.mem, y.mem, params, launch.team);
}

void run(const PoolProblem& p, const MemoryOperands& operands, Stream& stream) {
  if (is_worth_choosing(*p.op, p.input_elements())) return solver::run(p, operands, stream);
  const Launch launch = first_choice(p, stream.device());
  enqueue(p, launch, kernel_of(p, stream.device(), launch), operands, stream);
}

}  // namespace dlb::pool
