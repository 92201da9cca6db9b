// The ordered lists of softmax solvers.
#include "primitives/softmax/softmax.h"

namespace dlb::softmax {
namespace {

std::vector<const Solver<SoftmaxProblem>*> forward_solvers() {
  return {
      rows_held(),       // GPU-class devices, rows that registers hold: memory is read once
      rows(),            // any contiguous dimension
      rows_once(),       // one pass less, for more memory traffic
      columns(),         // strided dimensions; right for contiguous ones too
      columns_shared(),  // GPU-class devices, too few columns for a work-item each
      reference(),       // every problem; what the others are checked against
  };
}

std::vector<const Solver<SoftmaxProblem>*> backward_solvers() {
  return {
      rows(),            // any contiguous dimension
      columns(),         // strided dimensions; right for contiguous ones too
      columns_shared(),  // GPU-class devices, too few columns for a work-item each
      reference(),       // every problem; what the others are checked against
  };
}

}  // namespace

const OpOf<SoftmaxProblem> softmax_op("softmax", forward_solvers);
const OpOf<SoftmaxProblem> softmax_backward_op("softmax_bwd", backward_solvers);

}  // namespace dlb::softmax
