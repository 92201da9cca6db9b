// The macros of headers that host code and kernels both read. Such headers hold the structs that kernels take
// as arguments and the constants that both sides must agree on, in the common subset of C++ and OpenCL C. A
// kernel includes such a header by its path in csrc/kernels, host code as "kernels/<primitive>/params.h";
// there its names are in namespace dlb::params.
//
//   #pragma once
//   #include "kernels/common/params.h"
//   PARAMS_BEGIN
//   enum { MOST_COLUMNS = 256 };  // an enum, which both languages take as the size of an array
//   typedef struct NormLayout {
//     dlb_long offset HOST_DEFAULT(-1);  // what host code finds in a new one
//     dlb_int rows, columns;
//   } NormLayout;
//   ASSERT_SIZE(NormLayout, 16);  // the host's compiler and the device's both check it
//   PARAMS_END
//
// The widest fields stand first and the size is a multiple of the widest, so that nothing is padding.
#pragma once

#ifdef __OPENCL_VERSION__
#define PARAMS_BEGIN
#define PARAMS_END
typedef int dlb_int;
typedef uint dlb_uint;
typedef long dlb_long;
typedef ulong dlb_ulong;
#define HOST_DEFAULT(value)
#define ASSERT_SIZE(type, bytes) typedef char type##_has_its_size[sizeof(type) == (bytes) ? 1 : -1]
#else
#include <cstdint>
#define PARAMS_BEGIN namespace dlb::params {
#define PARAMS_END }
#define HOST_DEFAULT(value) = value
#define ASSERT_SIZE(type, bytes) static_assert(sizeof(type) == (bytes), "kernels expect another size")
namespace dlb::params {
typedef int32_t dlb_int;
typedef uint32_t dlb_uint;
typedef int64_t dlb_long;
typedef uint64_t dlb_ulong;
}  // namespace dlb::params
#endif
