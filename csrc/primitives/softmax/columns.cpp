// A strided dimension, or any other: a work-item takes a block of neighbouring columns (GPUs: one column),
// each with a maximum and a sum of its own.
#include <algorithm>

#include "kernels/softmax/params.h"
#include "primitives/softmax/softmax.h"

namespace dlb::softmax {
namespace {

// CPUs only; 0: by the sizes. Work-items of a compute unit, and columns of a block.
struct ColumnsConfig {
  int32_t items = 0, block = 0;
  static constexpr const char* kNames[] = {"items", "block"};
};
constexpr int64_t kUsualBlock = 64;

// A GPU's columns have a work-item each, which are too few where the inner dimensions are small.
double estimate(const SoftmaxProblem& p, const cl::Device& device) {
  constexpr double kItemsToFill = 512;  // of a compute unit
  const double streaming = streaming_microseconds(p, device);
  if (p.inner == 1) return 10 * streaming;
  if (is_cpu(device)) return streaming;
  const double filled = static_cast<double>(p.outer * p.inner) / (device.compute_units * kItemsToFill);
  return streaming / std::min(1.0, filled);
}

std::vector<Config> configs(const SoftmaxProblem& p, const cl::Device& device) {
  if (!is_cpu(device)) return {Config{}};
  std::vector<Config> list{Config{}, Config::of(ColumnsConfig{16})};
  for (const int32_t block : {16, static_cast<int32_t>(params::SOFTMAX_MOST_COLUMNS)})
    if (p.inner > block / 2) list.push_back(Config::of(ColumnsConfig{0, block}));
  return list;
}

}  // namespace

Launch columns_launch(const SoftmaxProblem& p, const cl::Device& device, const Config& config) {
  const auto named = config.as<ColumnsConfig>();
  const int64_t block = !is_cpu(device) ? 1 : named.block ? named.block : kUsualBlock;
  const int64_t rows = p.outer * ((p.inner + block - 1) / block);
  const Team team = team_of(device, rows, p.dim * std::min(p.inner, block), named.items, 1);
  return {"softmax/columns.cl", p.is_backward() ? "softmax_columns_backward" : "softmax_columns", team,
          range_of(device, team), static_cast<int32_t>(block)};
}

const Solver<SoftmaxProblem>* columns() {
  static const RowSolver<SoftmaxProblem> solver({.name = "columns",
                                                 .applicable = always<SoftmaxProblem>,
                                                 .estimate = estimate,
                                                 .configs = configs,
                                                 .invoker = invoker<columns_launch>,
                                                 .config_names = ConfigNames::of<ColumnsConfig>()});
  return &solver;
}

}  // namespace dlb::softmax
