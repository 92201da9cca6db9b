// Fetches hand-written kernels: a program is the text of one file of csrc/kernels, or of several in a row,
// and is built once per combination of element types and options.
#pragma once
#include <initializer_list>
#include <string>
#include <string_view>

#include "cl/kernel.h"
#include "codegen/dtype.h"

namespace dlb {

// The kernel `kernel` of csrc/kernels/`file` for these element types, built or loaded on first use. The file
// sees
//   T, REAL, C(literal)                    the compute type and its literals (codegen/dtype.h)
//   T_LOWEST, T_HIGHEST                    the limits of T, unless that is complex
//   DLB_CPU or DLB_GPU                     the device class
//   X_T, LOAD_X(p, i), STORE_X(p, i, v)    per storage type, X being A, B, C_ and D in the order given: the
//                                          type in memory, a load of p[i] converted to T, a store of the T
//                                          value v to p[i]
//   Divider, dlb_divide                    division by run-time constants (kernels/common/divider.clh)
//   dlb_report                             errors found on the device (runtime/device_error.h)
// `file` and `kernel` must be literals: a hit compares their addresses. `options` are -D options for
// variants, never sizes. Throws cl::Error as cl::get_kernel().
cl::Kernel& fetch_kernel(cl::Device& device, const char* file, const char* kernel, codegen::DType compute,
                         std::initializer_list<codegen::DType> types, std::string_view options = "");

// The same of a program that is these files and nothing else; its options say what the element type is
// (runtime/element.h). The list and its files must be literals too.
cl::Kernel& fetch_kernel(cl::Device& device, std::initializer_list<const char*> files, const char* kernel,
                         std::string_view options = "");

// The texts of these files of csrc/kernels, one after the other, for programs that are made of more.
std::string kernel_text(std::initializer_list<const char*> files);

}  // namespace dlb
