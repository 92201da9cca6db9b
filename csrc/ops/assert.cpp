// Assertions about values that only the device knows: reported by the next call that waits, as bad indices
// are.
#include <ATen/ops/eq.h>
#include <torch/library.h>

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "ops/index/access.h"
#include "runtime/device_error.h"

namespace dlb {
namespace {

// Messages live as long as the process, once each; they are formats, so that a % in them is escaped.
int32_t site_of(std::string_view message) {
  static std::mutex mutex;
  static auto* sites = new std::map<std::string, int32_t, std::less<>>;
  std::lock_guard<std::mutex> lock(mutex);
  const auto [at, fresh] = sites->try_emplace(std::string(message), 0);
  if (fresh) {
    auto* format = new std::string;
    for (const char c : message) format->append(c == '%' ? 2 : 1, c);
    at->second = register_error_site({"_assert_async", format->c_str(), false});
  }
  return at->second;
}

void assert_async_msg(const at::Tensor& self, std::string_view message) {
  TORCH_CHECK(self.numel() > 0, "Boolean value of Tensor with no values is ambiguous");
  TORCH_CHECK(self.numel() == 1, "Boolean value of Tensor with more than one value is ambiguous");
  const c10::DeviceGuard guard(self.device());
  check_range(self.reshape({1}).eq(0).to(at::kLong), 1, site_of(message));
}

void assert_async(const at::Tensor& self) {
  assert_async_msg(self, "Expected Tensor with single nonzero value, but got zero");
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_assert_async", assert_async);
  m.impl("_assert_async.msg", assert_async_msg);
}

}  // namespace dlb
