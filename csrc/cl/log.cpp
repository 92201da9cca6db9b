// Lines on stderr, by level.
#include "cl/log.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace dlb::cl {
namespace {

std::atomic<int>& verbosity_cell() {
  static std::atomic<int> level{[] {
    const char* text = std::getenv("DLBACKEND_VERBOSE");
    return text ? std::atoi(text) : 0;
  }()};
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

}  // namespace dlb::cl
