// Building programs: from the stores on disk, by another process, or with the driver's compiler.
#pragma once
#include <string>

#include "cl/device.h"
#include "cl/hash.h"

namespace dlb::cl {

// The device's own build options, then these.
std::string with_device_options(const Device& device, const std::string& options);

// A program with all its options, which the caller releases: loaded from the store or a pack where it is
// there, else compiled, by another process where the thread's build mode allows that, and stored. `key` names
// the file of the numbered source of one that does not build. Throws Error.
// Where it is not `counted`, kernel_stats() does not count it.
cl_program build(Device& device, const std::string& source, const std::string& options, const Hash128& key,
                 bool counted = true);

// Whether a store or a pack has the program with these options (the device's own are added), so that it loads
// in milliseconds. A program that only a pack has does not count where the driver makes machine code of PTX
// and other processes have it do that (cl/compile_process.h).
bool is_stored(const Device& device, const std::string& source, const std::string& options);
// The same of a program with all its options. Where the driver makes machine code at first launches, its
// cache must have some of the kernel too: what a search compiled may never have been launched.
bool has_stored(const Device& device, const std::string& source, const std::string& all_options,
                const std::string& kernel = {});

// Whether the driver builds the source with the device's own options. The program is stored as others are,
// but kernel_stats() does not count it. Throws Error where something else than the source is at fault.
bool builds(Device& device, const std::string& source);

// Compiles a program with all its kernels, as `options` say (the device's own included), and stores it in the
// disk cache, unless it is there. Where launches were noted (cl/launch_sample.h), repeats them, so that the
// driver's own cache has their machine code. Whether a pack had the program. Throws Error.
bool compile_into_cache(Device& device, const std::string& source, const std::string& options,
                        const std::string& launches = {});

// The binary of the program of a program_key() of this device, built from its source by the driver. On
// devices with late_code it holds the machine code of every kernel and work-group size that the driver's own
// cache has, which what was stored when the program was new does not. Throws Error.
std::string complete_binary(Device& device, const std::string& key);

}  // namespace dlb::cl
