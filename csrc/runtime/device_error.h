// Errors that only the device can see (an index out of range): kernels record the first one in an error word,
// and the next synchronising call raises it with the op's name.
#pragma once
#include <cstdint>
#include <string>

namespace dlb {

// What a kernel can report. The error buffer holds three longs: the site (0: none), and two values of the
// site's choosing. The kernel claims it with atomic_cmpxchg on the low int of the first.
struct DeviceErrorSite {
  const char* op;  // "index_select"
  const char*
      message;  // with two %lld for the values: "index %lld is out of bounds for dimension with size %lld"
  bool is_index = true;  // raises IndexError; RuntimeError with the bare message otherwise
};

// Registers a site, once per op (keep the result in a static); the number is what the kernel writes.
int32_t register_error_site(DeviceErrorSite site);

// Raises the recorded error as IndexError or RuntimeError; `words` as read from the error buffer.
[[noreturn]] void raise_device_error(const int64_t words[3]);

// OpenCL C text of `dlb_report(global int* error, int site, long a, long b)`.
extern const char* const kDeviceErrorSource;

}  // namespace dlb
