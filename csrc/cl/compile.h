// The driver's compiler: programs from source or binary, and binaries of programs.
#pragma once
#include <string>

#include "cl/device.h"
#include "cl/hash.h"

namespace dlb::cl {

// Throws Error where the disk is full on which PoCL keeps what it compiles: it would end the process.
void check_room(const Device& device);

// A program built from source with exactly these options. Throws Error with the build log, and the name of a
// file, named after `key`, that holds the numbered source.
cl_program build_source(Device& device, const std::string& source, const std::string& options,
                        const Hash128& key);

// A program made from a binary of this driver; null where the driver does not take it.
cl_program load_binary(Device& device, const std::string& binary, const std::string& options);

// The binary that the driver gives for a program. On PoCL this compiles every kernel once more, for seconds.
std::string binary_of(cl_program program);

// A kernel of the program, which the caller releases. Throws Error.
cl_kernel kernel_of(cl_program program, const std::string& name);

struct Compiled {
  cl_program program;
  double seconds;  // that the driver took
};
// As build_source(), timed.
Compiled compile(Device& device, const std::string& source, const std::string& options, const Hash128& key);

// Counts and logs a program that was compiled in so many seconds, here or by another process.
void count_compiled(const Device& device, cl_program program, const std::string& options, double seconds);

}  // namespace dlb::cl
