// NVIDIA's programs for a target that its OpenCL compiler does not build for.
//
// Some instructions of Hopper GPUs exist only in PTX of the target sm_90a, and the compiler emits sm_90. Its
// binary of a program is PTX as text, which its loader assembles for the target that the text names. So a
// kernel has such instructions in asm statements, as comments that begin with "//@"; the program is built
// without them, and a second time from its own binary with them.
#pragma once
#include <string>

namespace dlb::cl {

// Whether a program's source has lines for sm_90a.
bool needs_sm90a(const std::string& source);

// A binary with those lines as instructions; empty where it is not PTX for sm_90.
std::string with_sm90a(const std::string& binary);

}  // namespace dlb::cl
