// Sorting and selecting in the rows of numbers on GPUs: launches of kernels/sort/gpu_*.cl. Nothing here waits
// for the device. Every ordered dtype is sorted as it lies: NaN last, -0 equal to 0, equals in their order.
#pragma once
#include <ATen/core/Tensor.h>

#include "kernels/sort/params.h"

namespace dlb {

struct GpuOrder {
  bool descending = false;
  int bits = 0;       // numbers differ in so many low bits at most; 0: in all
  at::Tensor places;  // int32, shaped as the rows: what the indices are then; undefined: columns
};

// Elements of a row that one launch sorts, at most.
int64_t gpu_block(at::ScalarType type);

// The first k of each sorted row of contiguous `rows` [rows, n], k being the columns of the results: `values`
// of the same dtype and `indices`, int64 or int32. Results are contiguous [rows, k] and lie elsewhere than
// the rows; either may be undefined.
void gpu_sort_rows(const at::Tensor& rows, const GpuOrder& order, const at::Tensor& values,
                   const at::Tensor& indices);

// The element that gpu_pick_rows() gives: the k-th of the sorted row, or the lower median, which is the row's
// first NaN where there is one, or leaves NaN out.
enum class Pick {
  Kth = params::SELECT_KTH,
  Median = params::SELECT_MEDIAN,
  NanMedian = params::SELECT_NANMEDIAN
};

// One element of each sorted row, and its index, to contiguous [rows]; for Pick::Kth k begins at 1.
void gpu_pick_rows(const at::Tensor& rows, Pick pick, int64_t k, const at::Tensor& values,
                   const at::Tensor& indices);

}  // namespace dlb
