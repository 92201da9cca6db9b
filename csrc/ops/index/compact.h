// Positions of true elements, and the prefix sums that they and sorting need.
#pragma once
#include <ATen/core/Tensor.h>

namespace dlb {

// Linear (row-major) positions of the true elements of a bool tensor, int64 [n]. Waits for the device to
// learn n.
at::Tensor true_positions(const at::Tensor& mask);

// In place exclusive prefix sums of an int32 tensor [rows, length + 1] over the first `length` of each row;
// the last column receives the totals.
void exclusive_scan(const at::Tensor& rows);

}  // namespace dlb
