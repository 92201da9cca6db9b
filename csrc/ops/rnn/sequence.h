// A layer of a recurrent network in one direction, over all steps: what it is, and how devices that are CPUs
// run it in one launch.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace dlb::rnn {

enum class Mode : int64_t { kLstm, kGru, kTanh, kRelu };

constexpr int64_t gates_of(Mode mode) {
  return mode == Mode::kLstm ? 4 : mode == Mode::kGru ? 3 : 1;
}

// Inputs and results are rows, one for each step and sample: by steps, by samples if batch_first, or, where
// samples have lengths of their own, all of the first step, then those of the second that have one, and so
// on.
struct Sequence {
  Mode mode = Mode::kLstm;
  int64_t steps = 0, samples = 0, size = 0;  // size: of the hidden state
  bool batch_first = false;
  bool reversed = false;            // the last step comes first
  std::vector<int64_t> step_sizes;  // samples at each step, never more than at the one before; empty: all
  at::Tensor starts;  // on the device, int64: the first row of each step, and the number of rows

  int64_t samples_at(int64_t step) const { return step_sizes.empty() ? samples : step_sizes[step]; }
};

// `gates`, after their activation, and the states before each step are for the backward pass, and defined if
// they were asked for.
struct Results {
  at::Tensor out, h, c, gates, before_h, before_c;
};
struct Gradients {
  at::Tensor in, hidden, h0, c0;  // of both products' results; they are one tensor but for a GRU
};

// `in`: products of the layer's input with its weights, with all biases but a GRU's hidden ones.
Results run_sequence(const Sequence& sequence, const at::Tensor& in, const at::Tensor& h0,
                     const at::Tensor& c0, const at::Tensor& weight, const at::Tensor& bias, bool keep);

// Gradients of results may be undefined.
Gradients run_sequence_backward(const Sequence& sequence, const Results& gradients, const Results& kept,
                                const at::Tensor& weight);

}  // namespace dlb::rnn
