// Dimensions of two tensors of the same sizes that are walked together.
#pragma once
#include <cstdint>

namespace dlb {

struct PairedDim {
  int64_t size, in, out;  // in, out: strides of the tensor that is read and of the one that is written
};

// Appends a dimension to a list that begins with the innermost one, as a part of the last one where both
// tensors go on from that without a gap.
template <class List>
void append_merged(List& dims, const PairedDim& dim) {
  if (!dims.empty() && dim.in == dims.back().size * dims.back().in &&
      dim.out == dims.back().size * dims.back().out)
    dims.back().size *= dim.size;
  else
    dims.push_back(dim);
}

}  // namespace dlb
