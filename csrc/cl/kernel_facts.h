// What a driver says of a kernel before it is launched, for callers who do not know the source.
#pragma once
#include <array>
#include <string>

#include "cl/device.h"
#include "cl/kernel.h"

namespace dlb::cl {

struct KernelFacts {
  Kernel& kernel;  // as of get_kernel()
  cl_uint arguments = 0;
  size_t max_group = 1;                    // work-items of a work-group
  std::array<size_t, 3> max_items{};       // of a work-group in each dimension, on this device
  std::array<size_t, 3> required_group{};  // by the attribute reqd_work_group_size; zeros without it
  uint64_t local_bytes = 0;                // that the kernel's own variables take
};

// The kernel `name` of get_kernel()'s program. Builds or loads that now, also on a thread that records or
// whose builds are deferred. Throws Error as get_kernel() does.
KernelFacts kernel_facts(Device& device, const std::string& source, const std::string& options,
                         const std::string& name);

}  // namespace dlb::cl
