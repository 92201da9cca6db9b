// Element movement through an index tensor: what gather, scatter, index_select, take, flip and their kin
// share.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include "runtime/device_error.h"

namespace dlb {

// The strided walk of csrc/kernels/index/access.cl. All vectors have one entry per dimension, outermost
// first.
struct IndexAccess {
  at::Tensor plain, indexed;
  at::Tensor index;  // int64 or int32; undefined: a plain strided copy
  at::DimVector sizes, plain_strides, indexed_strides, index_strides;
  int64_t indexed_offset = 0;  // elements, added to where `indexed` begins
  int64_t bound = 0;           // valid indices are 0 .. bound - 1
  int64_t step = 0;            // elements of `indexed` per unit of index
  bool wraps = false;          // negative indices count from the end
  bool write = false;          // plain -> indexed, else indexed -> plain
  bool ordered = false;        // where an element is written twice, the last one stays
  int32_t site = 0;            // whom to name when an index is out of bounds
};

// A walk along dimension `dim` of `indexed`: for each element of `index`, which has the shape of `plain`, an
// element of both.
IndexAccess access_elements(const at::Tensor& plain, const at::Tensor& indexed, const at::Tensor& index,
                            size_t dim, int32_t site);
// The same for each element of the vector `index` a whole slice, of `plain` at the element's place.
IndexAccess access_slices(const at::Tensor& plain, const at::Tensor& indexed, const at::Tensor& index,
                          size_t dim, int32_t site);

// Enqueues the walk. Elements are moved as bits. An index out of bounds reads 0, or writes nothing, and is
// reported by the next synchronising call.
void run_index_access(const IndexAccess& access);

// Sum over the index tensors (of one shape, int64 or int32) of index * step, in elements, contiguous int64.
at::Tensor linear_offsets(at::TensorList indices, at::IntArrayRef bounds, at::IntArrayRef steps,
                          int32_t site);

// Reports, at the next synchronising call, an element of the vector `numbers` (int64 or int32) outside of
// 0 .. bound - 1. For what the host would have to wait for to check.
void check_range(const at::Tensor& numbers, int64_t bound, int32_t site);

// An error site with the usual message for `op`. `is_index`: of an IndexError, else of a RuntimeError,
// whichever the CPU raises.
int32_t index_error_site(const char* op, bool is_index = true);

// A 0-dim tensor as one of one element: index ops treat them alike.
at::Tensor at_least_1d(const at::Tensor& t);

// Raises what PyTorch raises for tensors of two devices. Some of its ops put their name in front.
void check_same_device(const at::Tensor& a, const at::Tensor& b, const char* op = "");

// An unsigned OpenCL type of that many bytes as a -D option for kernels that only move data.
const char* width_option(size_t bytes);

}  // namespace dlb
