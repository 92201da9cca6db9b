// Lines on stderr, by level.
#include "cl/log.h"

#include <atomic>
#include <cstdio>
#include <exception>

#include "cl/settings.h"

namespace dlb::cl {
namespace {

std::atomic<int>& verbosity_cell() {
  static std::atomic<int> level{settings::verbose()};
  return level;
}

}  // namespace

int verbosity() {
  return verbosity_cell().load(std::memory_order_relaxed);
}

void set_verbosity(int level) {
  verbosity_cell() = level;
}

void log(int level, const std::string& line) {
  if (verbosity() >= level) std::fprintf(stderr, "dlbackend,%s\n", line.c_str());
}

void log_dropped(const char* what) noexcept {
  if (verbosity() < 1) return;
  try {
    throw;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dlbackend,%s failed,%s\n", what, error.what());
  } catch (...) {
    std::fprintf(stderr, "dlbackend,%s failed\n", what);
  }
}

}  // namespace dlb::cl
