// Errors that only the device can see (an index out of range): kernels record the first one in an error word,
// and the next synchronising call raises it with the op's name.
#pragma once
#include <cstdint>
#include <string>

namespace dlb {

// The errors that a kernel can report. The error buffer holds three longs: the site (0: none), and two values
// of the site's choosing. The kernel claims it with atomic_cmpxchg on the low int of the first.
struct DeviceErrorSite {
  const char* op;  // "index_select"
  // With two %lld for the values, such as kIndexMessage.
  const char* message;
  bool is_index = true;  // raises IndexError; otherwise RuntimeError with the bare message
};

// The message of an index that was found on the device.
inline constexpr const char* kIndexMessage = "index %lld is out of bounds for dimension with size %lld";

// The site of kernels that torch.compile generates: their text is kept across processes, and so is its
// number.
constexpr int32_t kCompiledSite = -1;

// Registers a site and returns the number that the kernel writes. To be called once per op: keep the result
// in a static.
int32_t register_error_site(DeviceErrorSite site);

// Raises the error that a kernel recorded as IndexError or RuntimeError. `words` are those of the error
// buffer.
[[noreturn]] void raise_device_error(const int64_t words[3]);

// OpenCL C text of `dlb_report(global int* error, int site, long a, long b)`.
extern const char* const kDeviceErrorSource;

}  // namespace dlb
