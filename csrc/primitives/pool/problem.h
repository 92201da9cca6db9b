// Pooling problems: max and average pooling over two or three spatial axes, and their gradients.
#pragma once
#include <type_traits>

#include "primitives/common/memory_problem.h"

namespace dlb::pool {

// One spatial axis: sizes of the input's and the output's side, and the windows along it. A kernel of 0 means
// adaptive windows, of which the sizes say all.
struct PoolAxis {
  int64_t in = 1, out = 1, kernel = 1, stride = 1, pad = 0, dilation = 1;

  // Elements of a window, at most.
  int64_t window_size() const { return kernel ? kernel : (in + out - 1) / out; }
};

// Tensors of samples, channels and three spatial axes, of which a missing one has size 1.
//   max_pool:     in0: the input, out0: the result, out1: the places of the maxima, laid out as the result.
//   max_pool_bwd: in0: the result's gradient, in1: the places, out0: the input's gradient.
//   avg_pool, avg_pool_bwd: the same without places.
// The "input's side" is the input or its gradient, the "output's side" the result or its gradient.
struct PoolProblem : solver::MemoryProblemOf<PoolProblem> {
  int64_t xs[5] = {}, ys[5] = {};  // element strides of the input's and the output's side
  int64_t samples = 1, channels = 1;
  PoolAxis axes[3];  // depth, height, width
  int64_t include_pad = 0,
          divisor = 0;  // averages: whether padding counts; what to divide by in place of that

  template <class Self, class Visit>
  static void visit_sizes(Self& p, Visit&& v) {
    v("xs", p.xs), v("ys", p.ys), v("n", p.samples), v("c", p.channels);
    v("d", numbers_of(p.axes[0])), v("h", numbers_of(p.axes[1])), v("w", numbers_of(p.axes[2]));
    v("include_pad", p.include_pad), v("divisor", p.divisor);
  }
  bool is_max() const;
  bool is_backward() const;
  int64_t input_elements() const;
  int64_t output_elements() const;
  int64_t window_size() const;
  // The first and the last sample.
  std::vector<solver::CheckWindow<PoolProblem>> check_windows() const;
  // Gives max_pool_bwd places that lie in their windows.
  void make_possible(const Operands& operands, Stream& stream) const;

 private:
  // An axis as keys list it.
  template <class Axis>
  static auto& numbers_of(Axis& axis) {
    using Number = std::conditional_t<std::is_const_v<Axis>, const int64_t, int64_t>;
    static_assert(sizeof(PoolAxis) == 6 * sizeof(int64_t));
    return reinterpret_cast<Number(&)[6]>(axis);
  }
};

extern const solver::OpOf<PoolProblem> max_pool_op, max_pool_backward_op, avg_pool_op, avg_pool_backward_op;

// Solves the problem on the stream: as solver::run() where choosing pays, else by the first choice.
void run(const PoolProblem& problem, const solver::MemoryOperands& operands, Stream& stream);

}  // namespace dlb::pool
