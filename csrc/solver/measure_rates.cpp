#include "solver/measure_rates.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <mutex>
#include <string>

#include "cl/program_table.h"
#include "cl/stores/disk_cache.h"
#include "kernels/common/cpu_bf16.h"
#include "runtime/fetch_kernel.h"
#include "solver/background.h"
#include "solver/budget.h"
#include "solver/settings.h"
#include "solver/trial.h"

namespace dlb::solver {
namespace {

constexpr int kRuns = 3;              // the fastest counts, because interruptions only lengthen runs
constexpr double kLongEnough = 2000;  // microseconds that a loop is to run at least
constexpr int kMostIterations = 1 << 24;
// Operations on each value in one iteration of the loops in rates.cl.
constexpr double kOperations = 2 * 40;

// Bytes of the buffer within which is copied: more than the caches hold, but no more than a trial may take.
uint64_t buffer_bytes(const cl::Device& device) {
  constexpr uint64_t kMiB = 1 << 20;
  const uint64_t cache = std::clamp(device.cache, 16 * kMiB, 256 * kMiB);
  return std::min({4 * cache, device.global_mem / 16, device.max_alloc}) / 4096 * 4096;
}

// Runs rates.cl's kernels on a device and times them.
class RateTrial {
 public:
  explicit RateTrial(cl::Device& device)
      : device_(device), stream_(trial_stream(device)), buffer_(device, buffer_bytes(device)) {}

  double copied_bytes();
  double launch_us();
  double float32() { return multiply_adds("rates_float32", vector()); }
  double int32() { return multiply_adds("rates_int32", vector()); }
  double float64() { return multiply_adds("rates_float64", std::max(vector() / 2, 1)); }
  // Operations per microsecond of matrix products. `type` is a storage type of gpu_tile.clh, of which a word
  // of 32 bits holds `elements`; `operand` is such a word.
  double tensor_products(const char* type, int elements, uint32_t operand);
  double bf16_products();

 private:
  bool cpu() const { return device_.cls == cl::DeviceClass::kCpu; }
  // The number of values of 32 bits with which rates.cl computes at once.
  int vector() const {
    if (!cpu()) return 1;
    return device_.vector_floats >= 16 ? 16 : device_.vector_floats >= 8 ? 8 : 4;
  }
  cl::Kernel& kernel(const char* name);
  // Operations per microsecond of a loop of rates.cl over `vector` values at once.
  double multiply_adds(const char* name, int vector);
  size_t loop_items() const { return cpu() ? 1 : std::min<size_t>(device_.max_work_group, 256); }
  // Enough work-groups to fill every unit.
  cl::Range filling_range(size_t items) const {
    constexpr size_t kGroupsPerUnit = 8;
    return cl::Range::linear(kGroupsPerUnit * device_.compute_units, items);
  }
  // Microseconds of what enqueue() enqueues, which `before` may precede. Holds the device's measuring queue.
  double time(const std::function<void()>& enqueue, const std::function<void()>& before = {});
  double fastest(const std::function<void()>& enqueue, const std::function<void()>& before = {});
  // Iterations per microsecond of a loop: enqueue(count) runs it `count` times. The count is raised until
  // that takes long enough.
  double iterations(const std::function<void(cl_int count)>& enqueue);

  cl::Device& device_;
  Stream& stream_;
  ScratchBuffer buffer_;
};

cl::Kernel& RateTrial::kernel(const char* name) {
  std::string options = cpu() ? "-DVECTOR=" + std::to_string(vector()) : "-DVECTOR=";
  if (device_.fp64) options += cpu() ? " -DVECTOR64=" + std::to_string(vector() / 2) : " -DVECTOR64=";
  return fetch_kernel(device_, {"solver/rates.cl"}, name, options);
}

double RateTrial::time(const std::function<void()>& enqueue, const std::function<void()>& before) {
  if (background_stopping())
    throw cl::Error(CL_INVALID_OPERATION, "rates are not measured: the process ends");
  std::lock_guard<std::mutex> lock(measuring_queue(device_).mutex);
  if (before) before();
  const cl_event begin = mark(stream_);
  enqueue();
  const cl_event end = mark(stream_);
  stream_.check_wait(cl::api().clWaitForEvents(1, &end), "clWaitForEvents");
  const double microseconds = microseconds_between(begin, end);
  cl::api().clReleaseEvent(begin), cl::api().clReleaseEvent(end);
  return std::max(microseconds, 1e-3);  // a coarse clock may give 0, and callers divide by it
}

double RateTrial::fastest(const std::function<void()>& enqueue, const std::function<void()>& before) {
  time(enqueue,
       before);  // does not count: it touches memory first, and some drivers compile at the first launch
  double best = time(enqueue, before);
  for (int run = 1; run < kRuns; run++) best = std::min(best, time(enqueue, before));
  return best;
}

double RateTrial::iterations(const std::function<void(cl_int)>& enqueue) {
  cl_int count = 64;
  time([&] { enqueue(count); });
  for (double took; count < kMostIterations;
       count = static_cast<cl_int>(count * std::clamp(kLongEnough / took, 2.0, 32.0))) {
    took = time([&] { enqueue(count); });
    if (took >= kLongEnough / 2) break;
  }
  return count / fastest([&] { enqueue(count); });
}

double RateTrial::copied_bytes() {
  constexpr int64_t kItemBytes = sizeof(cl_float4);
  const int64_t count = static_cast<int64_t>(buffer_bytes(device_)) / 2 / kItemBytes;
  cl::Range range =
      cl::Range::linear(32 * device_.compute_units, std::min<size_t>(device_.max_work_group, 256));
  int64_t each = 0;
  if (cpu()) {
    range = cl::Range::linear(8 * device_.compute_units, 1);
    each = (count + static_cast<int64_t>(range.global[0]) - 1) / static_cast<int64_t>(range.global[0]);
  }
  cl::Kernel& copy = kernel("rates_copy");
  const double took = fastest([&] { copy.launch(stream_.queue(), range, buffer_.mem(), count, each); });
  return 2.0 * static_cast<double>(count * kItemBytes) / took;
}

double RateTrial::launch_us() {
  constexpr int kLaunches = 64;
  constexpr double kHostTime = 1000;  // microseconds in which a host enqueues them
  cl::Kernel& nothing = kernel("rates_nothing");
  const auto range = cl::Range::linear(device_.compute_units, cpu() ? 1 : 64);
  const auto enqueue = [&] {
    for (int i = 0; i < kLaunches; i++) nothing.launch(stream_.queue(), range, buffer_.mem());
  };
  // On a CPU the host's work for a launch takes time from the device, so it counts.
  if (cpu()) return fastest(enqueue) / kLaunches;
  cl::Kernel& loop = kernel("rates_float32");
  const auto busy = filling_range(loop_items());
  const double once = kOperations * static_cast<double>(busy.global[0]);
  const auto count = static_cast<cl_int>(1 + kHostTime * derived_rates(device_).float32 / once);
  const auto be_busy = [&] { loop.launch(stream_.queue(), busy, buffer_.mem(), 0.5f, 1.f, count); };
  return fastest(enqueue, be_busy) / kLaunches;
}

double RateTrial::multiply_adds(const char* name, int vector) {
  cl::Kernel& loop = kernel(name);
  const auto range = filling_range(loop_items());
  const double per_microsecond =
      iterations([&](cl_int count) { loop.launch(stream_.queue(), range, buffer_.mem(), 0.5f, 1.f, count); });
  return per_microsecond * kOperations * vector * static_cast<double>(range.global[0]);
}

double RateTrial::tensor_products(const char* type, int elements, uint32_t operand) {
  constexpr int kWarp = 32, kWarps = 4, kEdge = 32;  // a warp computes kEdge by kEdge results of the tile
  const int depth = 8 * elements;                    // along which one instruction sums
  const std::string options = std::string("-DT_") + type +
                              " -DTM=64 -DTN=64 -DWTM=32 -DWTN=32 -DTK=" + std::to_string(2 * depth) +
                              " -DMMA=1";
  cl::Kernel& products = fetch_kernel(
      device_, {"common/gpu_tile.clh", "common/gpu_mma.clh", "solver/rates_mma.cl"}, "rates_mma", options);
  const auto range = filling_range(kWarp * kWarps);
  const double per_microsecond = iterations(
      [&](cl_int count) { products.launch(stream_.queue(), range, buffer_.mem(), operand, count); });
  const double warps = static_cast<double>(range.global[0]) / kWarp;
  return per_microsecond * warps * 2.0 * kEdge * kEdge * depth;
}

double RateTrial::bf16_products() {
  constexpr size_t kScratchBytes = params::BF16_CONFIG_BYTES + 8 * params::BF16_TILE_BYTES;
  constexpr double kBlockOperations = 2.0 * 32 * 32 * 32;
  const char* tiles = device_.bf16() == cl::Bf16::kTiles ? " -DAMX_TILES" : "";
  cl::Kernel& products =
      fetch_kernel(device_, {"common/cpu_tile.clh", "common/cpu_bf16.clh", "solver/rates_bf16.cl"},
                   "rates_bf16", std::string("-DT_BFLOAT16") + tiles);
  const auto range = filling_range(1);
  const double per_microsecond = iterations([&](cl_int count) {
    products.launch(stream_.queue(), range, buffer_.mem(), count, cl::Local{kScratchBytes});
  });
  return per_microsecond * kBlockOperations * static_cast<double>(range.global[0]);
}

}  // namespace

DeviceRates measure_rates(cl::Device& device) {
  const DeviceRates& derived = derived_rates(device);
  DeviceRates rates = derived;
  rates.measured = true;
  RateTrial trial(device);
  rates.launch_us = trial.launch_us();
  rates.bytes = trial.copied_bytes();
  rates.float32 = trial.float32();
  rates.int32 = trial.int32();
  if (device.fp64) rates.float64 = trial.float64();
  rates.matrix16 = rates.float32 * derived.matrix16 / derived.float32;
  rates.matrix_tf32 = rates.float32 * derived.matrix_tf32 / derived.float32;
  try {  // not every compiler builds these kernels
    if (device.bf16() != cl::Bf16::kNone) rates.matrix16 = trial.bf16_products();
    if (device.tensor_cores == cl::TensorCores::kMma) {
      rates.matrix16 = trial.tensor_products("HALF", 2, 0x3c003c00);
      rates.matrix_tf32 = trial.tensor_products("FLOAT", 1, 0x3f800000);
    }
  } catch (const cl::Error& error) {
    log(1, std::string("matrix rates not measured,") + error.what());
  }
  if (background_stopping()) return rates;  // they may be incomplete, so they are not stored
  store_rates(device, rates);
  log(1, "rates,ocl:" + std::to_string(device.index) + "," + rates.text());
  return rates;
}

void note_first_choice(cl::Device& device) {
  static auto* noted = new std::array<std::atomic<bool>, cl::kDeviceIndices>{};
  std::atomic<bool>& done = (*noted)[static_cast<size_t>(device.index)];
  if (done || !searches(find_mode()) || deterministic_now() || !uses_measured_rates()) return;
  if (done.exchange(true)) return;
  if (rates_of(device).measured || !cl::find_disk_cache().can_store()) return;
  // The device has no time for it before the fallback choices of a first iteration are replaced.
  const auto measure = [&device] {
    wait_while_program_starts(device);
    if (!background_stopping() && !load_rates(device)) measure_rates(device);
  };
  in_background(measure, true);
}

}  // namespace dlb::solver
