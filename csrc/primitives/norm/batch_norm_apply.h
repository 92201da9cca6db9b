// Batch norm behind its pass, in one launch on GPU-class devices.
#pragma once
#include "primitives/norm/finish.h"

namespace dlb::norm {

// Whether channels lie element by element in memory.
inline bool is_interleaved(const Shape& shape) {
  return shape.channels_last || shape.length == 1;
}

// y of the statistics of a pass (in training, else of the running ones); what batch_norm() saves and updates.
// `p`: finish_of() with what is no tensor set.
void finish_and_apply(const Context& context, const Shape& shape, Partial partial, params::NormFinish p,
                      const Forward& tensors, const Running& running);
// dx, which is defined, and the parameters' gradients, of the sums of a pass.
void finish_and_apply_backward(const Context& context, const Shape& shape, Partial partial,
                               params::NormFinish p, const Backward& tensors);

}  // namespace dlb::norm
