// The thread's build mode, and the times of the builds that somebody waited for.
#include "cl/build_mode.h"

#include <atomic>
#include <chrono>
#include <cstdint>

namespace dlb::cl {

namespace {

std::atomic<int> g_urgent_builds{0};                     // that go on
std::atomic<int64_t> g_urgent_build_end{INT64_MIN / 2};  // when the last ended, in ns of the steady clock
constinit thread_local BuildMode t_mode{.deferred = true};

int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

}  // namespace

BuildMode build_mode() noexcept {
  return t_mode;
}
BuildMode optimised_mode() noexcept {
  BuildMode mode = t_mode;
  mode.optimised = true;
  return mode;
}
WithBuildMode::WithBuildMode(BuildMode mode) noexcept : before_(t_mode) {
  t_mode = mode;
}
WithBuildMode::~WithBuildMode() {
  t_mode = before_;
}

UrgentBuild::UrgentBuild() noexcept : urgent_(t_mode.waited_by != WaitedBy::kNobody) {
  g_urgent_builds += urgent_;
}
UrgentBuild::~UrgentBuild() {
  if (!urgent_) return;
  g_urgent_build_end = now_ns();
  g_urgent_builds--;
}

double seconds_since_urgent_build() noexcept {
  return g_urgent_builds ? 0 : static_cast<double>(now_ns() - g_urgent_build_end) * 1e-9;
}

}  // namespace dlb::cl
