// The table of error sites and the text that kernels report with.
#include "runtime/device_error.h"

#include <c10/util/Exception.h>

#include <cstdio>
#include <mutex>
#include <vector>

namespace dlb {
namespace {
std::mutex g_mutex;
std::vector<DeviceErrorSite>& sites() {
  static auto* all = new std::vector<DeviceErrorSite>;
  return *all;
}
}  // namespace

const char* const kDeviceErrorSource =
    "inline void dlb_report(volatile global int* error, int site, long a, long b) {\n"
    "  if (atomic_cmpxchg(error, 0, site) == 0) {\n"
    "    ((volatile global long*)error)[1] = a; ((volatile global long*)error)[2] = b;\n"
    "  }\n"
    "}\n";

int32_t register_error_site(DeviceErrorSite site) {
  std::lock_guard<std::mutex> lock(g_mutex);
  sites().push_back(site);
  return static_cast<int32_t>(sites().size());
}

void raise_device_error(const int64_t words[3]) {
  DeviceErrorSite site{"unknown op", "bad index %lld (%lld)"};
  const auto given = static_cast<int32_t>(words[0]);
  if (given == kCompiledSite) {
    site = {"a graph of torch.compile", kIndexMessage};
  } else {
    std::lock_guard<std::mutex> lock(g_mutex);
    const auto number = static_cast<size_t>(given);
    if (given >= 1 && number <= sites().size()) site = sites()[number - 1];
  }
  char text[256];
  std::snprintf(text, sizeof text, site.message, static_cast<long long>(words[1]),
                static_cast<long long>(words[2]));
  TORCH_CHECK(site.is_index, text, " (", site.op,
              ", found on the device; reported at this synchronising call, the op itself ran earlier)");
  TORCH_CHECK_INDEX(false, site.op, ": ", text,
                    " (found on the device; reported at this synchronising call, the op itself ran earlier)");
}

}  // namespace dlb
