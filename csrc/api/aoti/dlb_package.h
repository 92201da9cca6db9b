// The header that the C++ of AOTInductor's packages includes for ocl.
//
// PyTorch's runtime for packages (torch/csrc/inductor/aoti_runtime) knows the devices that it lists, and
// calls none by an interface that others could implement. Here it takes ours for CUDA: cuda.h beside this
// file has the functions of CUDA that it calls, and "cuda" means our type of device.
#pragma once
#define USE_CUDA 1
#define aoti_torch_device_type_cuda aoti_torch_device_type_privateuse1
#include <torch/csrc/inductor/aoti_include/common.h>

#include <dlb_wrapper.h>

namespace dlb::aoti {

// "ocl:1" as the runtime takes it.
inline std::string known_device(const std::string& name) {
  return "cuda" + name.substr(name.find(':') == std::string::npos ? name.size() : name.find(':'));
}

}  // namespace dlb::aoti
