// Settings from environment variables.
#pragma once
#include <cstdint>

namespace dlb::cl {

// The number above 0 that the variable holds; 0 where it is not set and, with a word on stderr, where it
// holds no number of `things` above 0.
uint64_t positive_setting(const char* name, const char* things);

}  // namespace dlb::cl
