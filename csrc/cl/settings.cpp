// Reads settings, and says what is ignored.
#include "cl/settings.h"

#include <cstdio>
#include <cstdlib>

namespace dlb::cl {

uint64_t positive_setting(const char* name, const char* things) {
  const char* set = std::getenv(name);
  const long long chosen = set ? std::atoll(set) : 0;
  if (set && *set && chosen <= 0)
    std::fprintf(stderr, "dlbackend: %s=%s is ignored; it is a number of %s\n", name, set, things);
  return chosen > 0 ? static_cast<uint64_t>(chosen) : 0;
}

}  // namespace dlb::cl
