// The header that the C++ of torch.compile's cpp_wrapper includes for ocl.
#pragma once
#include <torch/csrc/inductor/cpp_wrapper/common.h>

#include <dlb_wrapper.h>
