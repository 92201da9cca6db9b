#include "solver/budget.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>

#include "solver/settings.h"

namespace dlb::solver {
namespace {

constexpr Allowance kCpuAllowance = {
    .burst = 100e3, .worth = 20e3, .marking = 40, .lasting = 1e6, .lasting_runs = 30};
constexpr Allowance kGpuAllowance = {
    .burst = 10e3, .worth = 5e3, .marking = 150, .lasting = 5e6, .lasting_runs = 30};
constexpr uint32_t kFirstSearch = 2;  // a search begins with the second run of a problem at the earliest

std::mutex g_allowance_mutex;
std::atomic<bool> g_has_allowance{false};
Allowance g_allowance{};

}  // namespace

Allowance allowance_of(const cl::Device& device) {
  if (g_has_allowance.load(std::memory_order_relaxed)) {
    std::lock_guard<std::mutex> lock(g_allowance_mutex);
    return g_allowance;
  }
  return device.cls == cl::DeviceClass::kCpu ? kCpuAllowance : kGpuAllowance;
}

void set_allowance(const std::optional<Allowance>& allowance) {
  std::lock_guard<std::mutex> lock(g_allowance_mutex);
  g_allowance = allowance.value_or(Allowance{});
  g_has_allowance = allowance.has_value();
}

double steady_microseconds() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

bool Budget::take(double microseconds, double share, const Allowance& allowance) {
  std::lock_guard<std::mutex> lock(mutex_);
  const double now = clock_();
  left_ = std::min(left_ + share * (now - last_), allowance.burst);
  last_ = now;
  if (left_ <= 0 && share < 1) return false;
  left_ -= microseconds;
  return true;
}

void Budget::spend(double microseconds) {
  std::lock_guard<std::mutex> lock(mutex_);
  left_ -= microseconds;
}

MeasuringQueue& measuring_queue(const cl::Device& device) {
  static auto* queues = new std::array<MeasuringQueue, cl::kDeviceIndices>;
  return (*queues)[static_cast<size_t>(device.index)];
}

uint32_t run_to_search_at(const cl::Device& device, double estimate) {
  find_share();  // throws for a wrong DLBACKEND_FIND_SHARE here, where the error reaches the user
  const double runs = std::ceil(allowance_of(device).worth / std::max(estimate, 1e-3));
  return std::max(kFirstSearch, static_cast<uint32_t>(std::min(runs, 1e9)));
}

}  // namespace dlb::solver
