// The output of DLBACKEND_VERBOSE on stderr: lines "dlbackend,<event>,...".
#pragma once
#include <string>

namespace dlb::cl {

// 0 nothing, 1 what is compiled, found and measured, 2 also every run with its time (which waits for it).
// Starts as DLBACKEND_VERBOSE.
int verbosity();
void set_verbosity(int level);

// Prints "dlbackend,<line>" where verbosity() is at least `level`.
void log(int level, const std::string& line);

// For catch blocks that go on without what failed: logs "<what> failed" at level 1, with the exception's
// text.
void log_dropped(const char* what) noexcept;

}  // namespace dlb::cl
