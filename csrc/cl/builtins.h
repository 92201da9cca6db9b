// Declarations of OpenCL C's own functions, instead of the header that has all of them.
#pragma once
#include <string>
#include <string_view>

#include "cl/device.h"

namespace dlb::cl {

// PoCL has clang read a header of 18,000 lines in front of every program, which takes 80 ms: most programs of
// a few kernels need less for themselves, and one that PoCL has in its cache needs it again for the hash that
// it is found under. A program uses a dozen of those functions. So it is built with the option that makes the
// header an empty one, behind declarations of the functions whose names it contains.
//
// Whether this device's driver reads that header, and builtin_declarations() knows all types that it has.
bool reads_builtins_header(const Device& device);

// The option that has the header skipped, with the blank that separates it from others.
extern const char* const kSkipBuiltinsHeader;

// The declarations, with all overloads, of the functions that occur in a source, as OpenCL C 1.2 has them.
// Functions that are not known here are left out: the source then does not build behind these declarations,
// and is to be built with the header.
std::string builtin_declarations(const Device& device, std::string_view source);

}  // namespace dlb::cl
