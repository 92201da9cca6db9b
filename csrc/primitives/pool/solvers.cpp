// The ordered lists of pooling solvers.
#include "primitives/pool/pool.h"

namespace dlb::pool {
namespace {

std::vector<const Solver<PoolProblem>*> forward_solvers() {
  return {
      lines(),      // any strides, any windows
      reference(),  // every problem; what the others are checked against
  };
}

std::vector<const Solver<PoolProblem>*> backward_solvers() {
  return {
      planes(),     // CPU-class devices, contiguous planes: outputs add to a plane that a cache holds
      windows(),    // windows that do not overlap: nothing is read twice
      gather(),     // any strides, any windows
      reference(),  // every problem; what the others are checked against
  };
}

}  // namespace

const OpOf<PoolProblem> max_pool_op("max_pool", forward_solvers);
const OpOf<PoolProblem> max_pool_backward_op("max_pool_bwd", backward_solvers);
const OpOf<PoolProblem> avg_pool_op("avg_pool", forward_solvers);
const OpOf<PoolProblem> avg_pool_backward_op("avg_pool_bwd", backward_solvers);

}  // namespace dlb::pool
