// The dimensions of a reduction, collapsed to as few as its strides allow.
#include <algorithm>

#include "primitives/reduce/launch.h"

namespace dlb::reduction {
namespace {

// Sorts by the strides of the operand that moves most, and joins neighbours that are one run in all operands.
void collapse(Dims& dims, size_t operands, bool may_reorder, size_t guide) {
  if (may_reorder)
    std::stable_sort(dims.begin(), dims.end(), [&](const Dim& a, const Dim& b) {
      return std::abs(a.stride[guide]) < std::abs(b.stride[guide]);
    });
  size_t last = 0;
  for (size_t d = 1; d < dims.size(); ++d) {
    bool joins = true;
    for (size_t i = 0; i < operands; ++i)
      joins &= dims[d].stride[i] == dims[last].stride[i] * dims[last].size;
    if (joins)
      dims[last].size *= dims[d].size;
    else
      dims[++last] = dims[d];
  }
  if (!dims.empty()) dims.resize(last + 1);
}

}  // namespace

Dimensions collapsed_dimensions(const ReduceArguments& a, size_t operands) {
  Dimensions dims;
  const at::Tensor& shape = *a.inputs[0];
  const int64_t rank = shape.dim();
  c10::SmallVector<int64_t, 8> squeezed(a.outputs.size());  // next dimension of each squeezed output
  for (size_t o = 0; o < a.outputs.size(); ++o) squeezed[o] = a.outputs[o]->dim() - 1;
  for (int64_t d = rank - 1; d >= 0; --d) {
    Dim dim{shape.size(d), {}};
    const bool reduced = a.reduced[static_cast<size_t>(d)];
    size_t i = 0;
    for (size_t o = 0; o < a.outputs.size(); ++o, ++i) {
      const bool full = a.outputs[o]->dim() == rank;
      dim.stride[i] = reduced ? 0 : a.outputs[o]->stride(full ? d : squeezed[o]);
      if (!reduced) --squeezed[o];
    }
    for (const at::Tensor* t : a.mapped) dim.stride[i++] = t->stride(d);
    for (const at::Tensor* t : a.inputs) dim.stride[i++] = t->stride(d);
    (reduced ? dims.count : dims.outputs) *= dim.size;
    if (dim.size != 1) (reduced ? dims.reduced : dims.kept).push_back(dim);
  }
  if (dims.outputs == 0 || dims.count == 0) dims.reduced.clear();
  const size_t guide = a.outputs.size();  // the first mapped output or input
  collapse(dims.kept, operands, true, guide);
  collapse(dims.reduced, operands, !a.op.ordered, guide);
  // One dimension of an empty reduction, whose size kernels divide by although they read no element of it.
  if (dims.reduced.empty()) dims.reduced.push_back({std::max<int64_t>(dims.count, 1), {}});
  return dims;
}

}  // namespace dlb::reduction
