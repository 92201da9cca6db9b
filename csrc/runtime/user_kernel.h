// Kernels of a user's own source (torch.ocl.compile_kernel()). What OpenCL would refuse of a launch, or take
// and crash on, is refused here with a message for the one who wrote the call.
#pragma once
#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cl/kernel_facts.h"
#include "runtime/stream.h"

namespace dlb {

class UserKernel {
 public:
  enum class Kind : uint8_t { kBuffer, kLocal, kValue };
  struct Parameter {
    std::string name, type;  // as messages show them: "x", "global const float*"
    Kind kind = Kind::kValue;
    uint64_t dtypes = 0;   // a bit for each c10::ScalarType that a buffer may hold; 0: any
    bool written = false;  // whether the kernel may write to the buffer
    char format = 0;       // of a value's numbers: that of Python's struct module
    uint8_t width = 1;     // numbers in a value
  };
  // An argument of a launch. Buffers become two of the driver's: the buffer, and an offset in bytes (ulong).
  struct Argument {
    cl_mem mem = nullptr;
    uint64_t offset = 0;                   // bytes
    size_t size = 0;                       // bytes, of a value or of local memory
    alignas(16) unsigned char value[128];  // a double16 at most
  };
  // A launch's work-items; a local size that is not given is chosen.
  struct Sizes {
    cl_uint dims = 1;
    std::array<size_t, 3> global{1, 1, 1}, local{1, 1, 1};
    bool has_local = false;
  };

  // Builds or loads the program. A last buffer called "dlb_errors" is no argument of launches, which give it
  // the stream's error words (device_error.h). Throws cl::Error where it does not build, and c10::ValueError
  // where the driver sees other arguments than `parameters` say.
  UserKernel(cl::Device& device, const std::string& source, const std::string& options,
             const std::string& name, std::vector<Parameter> parameters);

  cl::Device& device() const { return facts_.kernel.device(); }
  const std::string& name() const { return facts_.kernel.name(); }
  const std::vector<Parameter>& parameters() const { return parameters_; }
  const cl::KernelFacts& facts() const { return facts_; }

  // A tensor as the argument for a parameter of kBuffer. Throws c10::Error for a tensor of another device or
  // dtype, and for one that is no plain memory. Counts as a write in place where the kernel may write.
  void set_tensor(Argument& argument, const at::Tensor& tensor, const Parameter& parameter) const;

  // Enqueues; no work-items: does nothing. Throws c10::ValueError for a work-group, or local memory, that the
  // kernel or the device does not take.
  void launch(Stream& stream, const Sizes& sizes, std::span<const Argument> arguments);

 private:
  void check_group(const Sizes& sizes) const;
  void check_local_memory(std::span<const Argument> arguments) const;
  std::array<size_t, 3> chosen_group(const Sizes& sizes) const;
  const cl::KernelFacts facts_;
  std::vector<Parameter> parameters_;
  bool reports_ = false;  // has a place for error words
};

}  // namespace dlb
