// Launches of the kernels of kernels/rnn/cpu_sequence.cl.
#include "ops/rnn/sequence.h"

#include <array>
#include <string>

#include "kernels/rnn/params.h"
#include "primitives/common/cpu_tile.h"
#include "runtime/fetch_kernel.h"
#include "runtime/new_tensor.h"
#include "runtime/tensor.h"

namespace dlb::rnn {
namespace {

using at::Tensor;

constexpr std::array kModes = {"LSTM", "GRU", "TANH", "RELU"};
constexpr std::array kTypes = {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble};

// The build options of all programs, as no call should make strings.
const std::string& options_of(const cl::Device& device, Mode mode, c10::ScalarType type) {
  static const auto* const table = [] {
    auto* all = new std::array<std::string, kModes.size() * kTypes.size() * 2>;
    size_t i = 0;
    for (const char* of_mode : kModes)
      for (const auto of_type : kTypes)
        for (const char* narrow : {"", " -DNARROW_TILE"})
          (*all)[i++] = element_option(of_type) + " -D" + of_mode + narrow;
    return all;
  }();
  const auto of_type = std::find(kTypes.begin(), kTypes.end(), type);
  TORCH_CHECK(of_type != kTypes.end(), "recurrent networks are not implemented for '", type, "'");
  const size_t row = static_cast<size_t>(mode) * kTypes.size() + (of_type - kTypes.begin());
  return (*table)[row * 2 + (solver::tile_columns(device) < solver::kTileColumns)];
}

int64_t padded(int64_t columns) {
  constexpr int64_t kPanel = params::RNN_PANEL;
  return (columns + kPanel - 1) / kPanel * kPanel;
}

// Everything about a call but its operands.
struct Launch {
  const Sequence& sequence;
  c10::ScalarType type, number;
  c10::Device at;
  Stream& stream;
  const std::string& options;
  int64_t state_pitch, gates_pitch;

  Launch(const Sequence& s, const Tensor& any)
      : sequence(s),
        type(any.scalar_type()),
        number(type == at::kDouble ? at::kDouble : at::kFloat),
        at(any.device()),
        stream(current_stream(at.index())),
        options(options_of(stream.device(), s.mode, type)),
        state_pitch(padded(s.size)),
        gates_pitch(padded(gates_of(s.mode) * s.size)) {}

  Tensor make(at::IntArrayRef sizes) const { return new_tensor(sizes, type, at); }

  // The hidden weights as the kernels read them: transposed for the forward pass.
  Tensor packed(const Tensor& weight, bool transposed) const {
    const int64_t gates = gates_of(sequence.mode) * sequence.size, depth = transposed ? sequence.size : gates,
                  columns = transposed ? gates : sequence.size;
    Tensor result = new_tensor({padded(columns) * depth}, number, at);
    const Buffer from = buffer_of(weight), to = buffer_of(result);
    fetch_kernel(stream.device(), {"rnn/cpu_sequence.cl"}, "rnn_pack", options)
        .launch_with(stream.queue(), cl::Range::grid(padded(columns) / params::RNN_PANEL, 1, 1),
                     [&](cl::Kernel::Arguments& arguments) {
                       arguments.add(from.mem), arguments.add(from.offset);
                       arguments.add(weight.stride(transposed ? 1 : 0));
                       arguments.add(weight.stride(transposed ? 0 : 1));
                       arguments.add(static_cast<cl_int>(depth)), arguments.add(static_cast<cl_int>(columns));
                       arguments.add(to.mem), arguments.add(to.offset);
                     });
    return result;
  }

  // Runs the kernel with scratch memory behind these operands, of which undefined ones are passed as absent.
  void run(const char* kernel, std::initializer_list<const Tensor*> operands) const {
    const int64_t units = stream.device().compute_units;
    const int64_t per_item = (sequence.samples + units - 1) / units;
    const Tensor scratch =
        new_tensor({sequence.samples, 2 * state_pitch + gates_pitch + params::RNN_PANEL / 4}, number, at);
    params::RnnSequence p{};
    p.steps = static_cast<int32_t>(sequence.steps), p.samples = static_cast<int32_t>(sequence.samples);
    p.size = static_cast<int32_t>(sequence.size), p.per_item = static_cast<int32_t>(per_item);
    p.step_rows = sequence.batch_first ? 1 : sequence.samples;
    p.sample_rows = sequence.batch_first ? sequence.steps : 1;
    p.reversed = sequence.reversed;
    p.state_pitch = static_cast<int32_t>(state_pitch), p.gates_pitch = static_cast<int32_t>(gates_pitch);
    std::array<cl_mem, params::RNN_SEQUENCE_BUFFERS> mems{};
    size_t count = 0;
    const auto add = [&](const Tensor& t) {
      const Buffer buffer = t.defined() ? buffer_of(t) : Buffer{nullptr, -1};
      mems[count] = buffer.mem, p.offset[count++] = buffer.offset;
    };
    for (const Tensor* t : operands) add(*t);
    add(scratch);
    const cl::Range range = cl::Range::grid((sequence.samples + per_item - 1) / per_item, 1, 1);
    fetch_kernel(stream.device(), {"rnn/cpu_sequence.cl"}, kernel, options)
        .launch_with(stream.queue(), range, [&](cl::Kernel::Arguments& arguments) {
          for (const cl_mem mem : mems) arguments.add(mem);
          arguments.add(p);
        });
  }
};

Tensor as_dense(const Tensor& tensor) {
  return tensor.defined() ? tensor.contiguous() : tensor;
}

}  // namespace

Results run_sequence(const Sequence& s, const Tensor& in_, const Tensor& h0_, const Tensor& c0_,
                     const Tensor& weight, const Tensor& bias_, bool keep) {
  const Tensor in = as_dense(in_), h0 = as_dense(h0_), c0 = as_dense(c0_), bias = as_dense(bias_);
  const Launch launch(s, in);
  const int64_t rows = in.size(0);
  Results r;
  r.out = launch.make({rows, s.size}), r.h = launch.make({s.samples, s.size});
  if (s.mode == Mode::kLstm) r.c = launch.make({s.samples, s.size});
  if (keep) {
    r.gates = launch.make({rows, s.size * (s.mode == Mode::kGru ? 4 : gates_of(s.mode))});
    r.before_h = launch.make({rows, s.size});
    if (s.mode == Mode::kLstm) r.before_c = launch.make({rows, s.size});
  }
  const Tensor packed = launch.packed(weight, true);
  launch.run("rnn_sequence", {&in, &h0, &c0, &packed, &bias, &s.starts, &r.out, &r.h, &r.c, &r.gates,
                              &r.before_h, &r.before_c});
  return r;
}

Gradients run_sequence_backward(const Sequence& s, const Results& gradients, const Results& kept,
                                const Tensor& weight) {
  const Tensor out = as_dense(gradients.out), h = as_dense(gradients.h), c = as_dense(gradients.c);
  const Launch launch(s, kept.gates);
  const int64_t rows = kept.gates.size(0), gates = gates_of(s.mode) * s.size;
  Gradients r;
  r.in = launch.make({rows, gates}), r.h0 = launch.make({s.samples, s.size});
  if (s.mode == Mode::kGru) r.hidden = launch.make({rows, gates});
  if (s.mode == Mode::kLstm) r.c0 = launch.make({s.samples, s.size});
  const Tensor packed = launch.packed(weight, false);
  launch.run("rnn_sequence_backward", {&out, &h, &c, &packed, &kept.gates, &s.starts, &kept.before_h,
                                       &kept.before_c, &r.in, &r.hidden, &r.h0, &r.c0});
  if (!r.hidden.defined()) r.hidden = r.in;
  return r;
}

}  // namespace dlb::rnn
