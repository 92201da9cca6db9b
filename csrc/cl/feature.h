// Features of OpenCL C that only some drivers have, found by building a kernel that uses them.
#pragma once
#include <mutex>
#include <string>

namespace dlb::cl {

struct Device;

// A driver may list an extension that its compiler then does not take, so the list alone is not believed. The
// kernel is built when the feature is first asked for, because few programs ask, and stays in the program
// store for later processes.
class Feature {
 public:
  // `kernel` is OpenCL C that needs the extension, which is enabled in front of it.
  Feature(Device& device, const char* extension, const char* kernel)
      : device_(device), extension_(extension), kernel_(kernel) {}
  Feature(const Feature&) = delete;

  // Takes note of CL_DEVICE_EXTENSIONS. A feature that is not listed is not there.
  void find_in(const std::string& extensions);
  bool listed() const noexcept { return listed_; }

  // Whether kernels may use the feature. Thread-safe. Throws Error where that cannot be found out now, as for
  // want of memory.
  explicit operator bool() const;

 private:
  Device& device_;
  const char* const extension_;
  const char* const kernel_;
  bool listed_ = false;
  mutable std::once_flag asked_;
  mutable bool builds_ = false;
};

}  // namespace dlb::cl
