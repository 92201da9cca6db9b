// Facts that the text of a reduction or scan and the sizes that its callers count with must agree on.
#pragma once
#include "codegen/reduce.h"

namespace dlb::codegen {

// Whether accumulators of type ACC are double.
bool wide_sums(DType compute, cl::DeviceClass cls);

// GPU scans: whether the first result takes the input's place in a tile.
bool replaces_input(const ReduceKey& key);

}  // namespace dlb::codegen
