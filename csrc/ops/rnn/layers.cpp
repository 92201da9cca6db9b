// lstm, gru, rnn_tanh and rnn_relu: the products of a layer's input with its weights for all steps at once,
// then the steps: in one launch on CPUs, by cells elsewhere, and where the gradient is to be differentiated.
#undef TORCH_ASSERT_ONLY_METHOD_OPERATORS  // PyTorch's header of autograd functions includes all operators
#include <ATen/ATen.h>
#include <ATen/TensorSubclassLikeUtils.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "ops/rnn/sequence.h"
#include "runtime/tensor.h"

namespace dlb {
namespace {

using at::Tensor;
using at::TensorList;
using rnn::Mode;
using rnn::Sequence;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using OptionalTensor = std::optional<Tensor>;

struct States {
  Tensor out, h, c;
};
struct Weights {
  Tensor input, hidden, input_bias, hidden_bias, projection;  // the last three may be undefined
};

std::vector<Tensor> rows_by_step(const Tensor& rows, const Sequence& s) {
  if (!s.step_sizes.empty()) return rows.split_with_sizes(s.step_sizes, 0);
  const int64_t first = s.batch_first ? s.samples : s.steps, second = s.batch_first ? s.steps : s.samples;
  return rows.view({first, second, rows.size(1)}).unbind(s.batch_first ? 1 : 0);
}

// A state for another number of samples: those that begin come from the initial one, those that end are kept.
void fit_state(Tensor& state, const Tensor& initial, int64_t samples, std::vector<Tensor>& ended) {
  if (!state.defined()) return;
  const int64_t have = state.size(0);
  if (samples > have) state = at::cat({state, initial.narrow(0, have, samples - have)});
  if (samples < have) {
    ended.push_back(state.narrow(0, samples, have - samples));
    state = state.narrow(0, 0, samples);
  }
}

Tensor whole_state(Tensor state, std::vector<Tensor>& ended) {
  if (ended.empty()) return state;
  ended.push_back(std::move(state));
  std::reverse(ended.begin(), ended.end());
  return at::cat(ended);
}

// The steps of a layer by differentiable ops. `in` and `bias` as in run_sequence().
States run_cells(const Sequence& s, const Tensor& in, const Tensor& h0, const Tensor& c0,
                 const Tensor& weight, const Tensor& bias, const Tensor& projection) {
  const std::vector<Tensor> rows = rows_by_step(in, s);
  std::vector<Tensor> outs(s.steps), ended_h, ended_c;
  const int64_t begin = s.samples_at(s.reversed ? s.steps - 1 : 0);
  States now{{}, h0.narrow(0, 0, begin), c0.defined() ? c0.narrow(0, 0, begin) : c0};
  for (int64_t step = 0; step < s.steps; ++step) {
    const int64_t t = s.reversed ? s.steps - 1 - step : step;
    fit_state(now.h, h0, s.samples_at(t), ended_h);
    fit_state(now.c, c0, s.samples_at(t), ended_c);
    const Tensor hidden = at::linear(now.h, weight, bias.defined() ? OptionalTensor(bias) : std::nullopt);
    if (s.mode == Mode::kLstm) {
      std::tie(now.h, now.c, std::ignore) = at::_thnn_fused_lstm_cell(rows[t], hidden, now.c);
      if (projection.defined()) now.h = at::linear(now.h, projection);
    } else if (s.mode == Mode::kGru) {
      now.h = std::get<0>(at::_thnn_fused_gru_cell(rows[t], hidden, now.h));
    } else {
      now.h = s.mode == Mode::kTanh ? at::tanh(rows[t] + hidden) : at::relu(rows[t] + hidden);
    }
    outs[t] = now.h;
  }
  const Tensor out =
      s.step_sizes.empty() ? at::stack(outs, s.batch_first ? 1 : 0).flatten(0, 1) : at::cat(outs);
  return {out, whole_state(now.h, ended_h), whole_state(now.c, ended_c)};
}

// run_sequence() with its gradients.
class WholeSequence : public torch::autograd::Function<WholeSequence> {
 public:
  static variable_list forward(AutogradContext* ctx, const Tensor& in, const Tensor& h0, const Tensor& weight,
                               const OptionalTensor& c0, const OptionalTensor& bias, const Sequence& s) {
    const Tensor cell = c0.value_or(Tensor()), hidden_bias = bias.value_or(Tensor());
    const rnn::Results r = rnn::run_sequence(s, in, h0, cell, weight, hidden_bias, true);
    ctx->set_materialize_grads(false);
    ctx->save_for_backward({in, h0, weight, cell, hidden_bias, s.starts, r.gates, r.before_h, r.before_c});
    ctx->saved_data["sizes"] = std::vector<int64_t>{
        static_cast<int64_t>(s.mode), s.steps, s.samples, s.size, s.batch_first, s.reversed};
    ctx->saved_data["step_sizes"] = s.step_sizes;
    if (!cell.defined()) return {r.out, r.h};
    return {r.out, r.h, r.c};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const auto sizes = ctx->saved_data["sizes"].toIntVector();
    const Sequence s{static_cast<Mode>(sizes[0]),
                     sizes[1],
                     sizes[2],
                     sizes[3],
                     sizes[4] != 0,
                     sizes[5] != 0,
                     ctx->saved_data["step_sizes"].toIntVector(),
                     saved[5]};
    std::vector<Tensor> there;
    for (const Tensor& gradient : gradients)
      if (gradient.defined()) there.push_back(gradient);
    if (there.empty()) return variable_list(6);
    if (at::GradMode::is_enabled() || at::areAnyTensorSubclassLike(there))
      return by_cells(s, saved, gradients);
    const rnn::Gradients r = rnn::run_sequence_backward(
        s, {gradients[0], gradients[1], gradients.size() > 2 ? gradients[2] : Tensor(), {}, {}, {}},
        {{}, {}, {}, saved[6], saved[7], saved[8]}, saved[2]);
    const Tensor weight = ctx->needs_input_grad(2) ? r.hidden.t().mm(saved[7]) : Tensor();
    const Tensor bias = saved[4].defined() ? r.hidden.sum(0) : Tensor();
    return {r.in, r.h0, weight, r.c0, bias, {}};
  }

 private:
  // Gradients that can be differentiated, or that are computed of tensors without memory of their own: those
  // of the cells.
  static variable_list by_cells(const Sequence& s, const variable_list& saved,
                                const variable_list& gradients) {
    const bool differentiable = at::GradMode::is_enabled();
    const at::AutoGradMode recorded(true);
    variable_list inputs(saved.begin(), saved.begin() + 5), wanted, of, with;
    for (Tensor& input : inputs) {
      if (!input.defined() || !input.requires_grad()) continue;
      if (!differentiable) input = input.detach().requires_grad_();
      wanted.push_back(input);
    }
    const States r = run_cells(s, inputs[0], inputs[1], inputs[3], inputs[2], inputs[4], {});
    const Tensor results[] = {r.out, r.h, r.c};
    for (size_t i = 0; i < gradients.size(); ++i)
      if (gradients[i].defined()) of.push_back(results[i]), with.push_back(gradients[i]);
    variable_list found = torch::autograd::grad(of, wanted, with, differentiable, differentiable, true);
    variable_list all(6);
    size_t next = 0;
    for (size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i].defined() && inputs[i].requires_grad()) all[i] = std::move(found[next++]);
    return all;
  }
};

OptionalTensor given(const Tensor& tensor) {
  return tensor.defined() ? OptionalTensor(tensor) : std::nullopt;
}

bool runs_whole(const Sequence& s, const Tensor& in, const Weights& w) {
  return device_of(in.device().index()).cls == cl::DeviceClass::kCpu && !w.projection.defined() &&
         (s.step_sizes.empty() || s.starts.defined());
}

States run_steps(const Sequence& s, const Tensor& x, const Tensor& h0, const Tensor& c0, const Weights& w,
                 bool recorded) {
  Tensor input_bias = w.input_bias, hidden_bias = w.hidden_bias;
  if (s.mode != Mode::kGru && input_bias.defined())
    input_bias = input_bias + hidden_bias, hidden_bias.reset();
  const Tensor in = at::linear(x, w.input, given(input_bias));
  if (!runs_whole(s, in, w)) return run_cells(s, in, h0, c0, w.hidden, hidden_bias, w.projection);
  if (recorded) {
    const variable_list r = WholeSequence::apply(in, h0, w.hidden, given(c0), given(hidden_bias), s);
    return {r[0], r[1], r.size() > 2 ? r[2] : Tensor()};
  }
  const rnn::Results r = rnn::run_sequence(s, in, h0, c0, w.hidden, hidden_bias, false);
  return {r.out, r.h, r.c};
}

// The arguments that the ops have in common.
struct Network {
  TensorList params;
  bool has_biases;
  int64_t layers;
  double dropout;
  bool train, bidirectional;

  int64_t directions() const { return bidirectional ? 2 : 1; }
  int64_t per_layer(bool projects) const { return (has_biases ? 4 : 2) + (projects ? 1 : 0); }
  Weights weights(int64_t i, bool projects) const {
    const Tensor* p = params.data() + i * per_layer(projects);
    Weights w{p[0], p[1], {}, {}, {}};
    if (has_biases) w.input_bias = p[2], w.hidden_bias = p[3];
    if (projects) w.projection = p[has_biases ? 4 : 2];
    return w;
  }
};

States run_layers(Sequence s, Tensor x, const Tensor& h0, const Tensor& c0, const Network& net,
                  bool recorded) {
  const bool projects = c0.defined() && c0.size(2) != h0.size(2);
  std::vector<Tensor> h, c;
  for (int64_t layer = 0; layer < net.layers; ++layer) {
    std::vector<Tensor> outs;
    for (int64_t direction = 0; direction < net.directions(); ++direction) {
      const int64_t i = layer * net.directions() + direction;
      s.reversed = direction == 1;
      const States r = run_steps(s, x, h0.select(0, i), c0.defined() ? c0.select(0, i) : Tensor(),
                                 net.weights(i, projects), recorded);
      outs.push_back(r.out), h.push_back(r.h);
      if (r.c.defined()) c.push_back(r.c);
    }
    x = outs.size() == 1 ? outs[0] : at::cat(outs, 1);
    if (net.dropout != 0 && net.train && layer < net.layers - 1) x = at::dropout(x, net.dropout, true);
  }
  return {x, at::stack(h), c.empty() ? Tensor() : at::stack(c)};
}

bool in_transform() {
  return c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode) ||
         c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerBackMode);
}

bool is_plain(const Tensor& t, const Tensor& input, int64_t dim) {
  return t.defined() && t.dim() == dim && t.layout() == at::kStrided && t.device() == input.device() &&
         t.scalar_type() == input.scalar_type() && !at::isTensorSubclassLike(t) && !t._fw_grad(0).defined();
}

// Whether the code above can run the call. PyTorch's own implementation runs all others, and raises the
// errors for wrong arguments.
bool is_usual(const Sequence& s, const Tensor& input, const Tensor& h0, const Tensor& c0,
              const Network& net) {
  if (in_transform() || !is_plain(input, input, input.dim()) || input.numel() == 0 || s.samples == 0)
    return false;
  if (!input.is_privateuseone() || !at::isFloatingType(input.scalar_type()) ||
      c10::isFloat8Type(input.scalar_type()) || !device_computes(input.device(), input.scalar_type()))
    return false;
  const int64_t count = net.layers * net.directions();
  for (const Tensor* state : {&h0, &c0}) {
    if (!state->defined()) continue;
    if (!is_plain(*state, input, 3) || state->size(0) != count || state->size(1) != s.samples) return false;
  }
  const int64_t gates = rnn::gates_of(s.mode) * s.size, out = h0.size(2);
  const bool projects = out != s.size;
  if (count == 0 || static_cast<int64_t>(net.params.size()) != count * net.per_layer(projects)) return false;
  int64_t features = input.size(-1);
  for (int64_t i = 0; i < count; ++i) {
    const Weights w = net.weights(i, projects);
    if (i == net.directions()) features = out * net.directions();
    if (!is_plain(w.input, input, 2) || !is_plain(w.hidden, input, 2) ||
        w.input.sizes() != at::IntArrayRef{gates, features} ||
        w.hidden.sizes() != at::IntArrayRef{gates, out})
      return false;
    for (const Tensor* bias : {&w.input_bias, &w.hidden_bias})
      if (net.has_biases && (!is_plain(*bias, input, 1) || bias->size(0) != gates)) return false;
    if (projects &&
        (!is_plain(w.projection, input, 2) || w.projection.sizes() != at::IntArrayRef{out, s.size}))
      return false;
  }
  return true;
}

// Reads the sizes. They mean nothing for tensors that is_usual() refuses.
Sequence sequence_of(Mode mode, const Tensor& input, const Tensor& state, bool batch_first) {
  Sequence s;
  s.mode = mode, s.batch_first = batch_first;
  if (input.dim() != 3 || !state.defined() || state.dim() != 3) return s;
  s.steps = input.size(batch_first ? 1 : 0), s.samples = input.size(batch_first ? 0 : 1),
  s.size = state.size(2);
  return s;
}

Sequence packed_sequence_of(Mode mode, const Tensor& data, const Tensor& sizes, const Tensor& state) {
  Sequence s;
  s.mode = mode;
  if (data.dim() != 2 || sizes.dim() != 1 || sizes.numel() == 0 || sizes.scalar_type() != at::kLong ||
      at::isTensorSubclassLike(sizes) || !state.defined() || state.dim() != 3)
    return s;
  const Tensor host = sizes.contiguous();
  const int64_t* values = host.const_data_ptr<int64_t>();
  s.step_sizes.assign(values, values + host.numel());
  int64_t rows = 0;
  for (size_t i = 0; i < s.step_sizes.size(); rows += s.step_sizes[i++])
    if (s.step_sizes[i] < 1 || s.step_sizes[i] > s.step_sizes[i ? i - 1 : 0]) return s;
  if (rows != data.size(0)) return s;
  s.steps = host.numel(), s.samples = s.step_sizes[0], s.size = state.size(2);
  return s;
}

// Where rows of steps begin, for the kernels; in a graph, which copies nothing from pageable memory, cells
// read the sizes from the host.
void place_starts(Sequence& s, c10::Device device) {
  if (device_of(device.index()).cls != cl::DeviceClass::kCpu || current_stream(device.index()).graph())
    return;
  const Tensor starts = at::zeros({s.steps + 1}, at::kLong);
  auto* values = starts.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < s.steps; ++i) values[i + 1] = values[i] + s.step_sizes[i];
  s.starts = starts.to(device);
}

bool is_recorded(const Tensor& input, const Tensor& h0, const Tensor& c0, TensorList params) {
  if (!at::GradMode::is_enabled()) return false;
  return input.requires_grad() || h0.requires_grad() || (c0.defined() && c0.requires_grad()) ||
         std::any_of(params.begin(), params.end(), [](const Tensor& t) { return t.requires_grad(); });
}

// kAutograd: whether this is the kernel that autograd sees.
template <bool kAutograd>
std::optional<States> try_padded(Mode mode, const Tensor& input, const Tensor& h0, const Tensor& c0,
                                 const Network& net, bool batch_first) {
  const Sequence s = sequence_of(mode, input, c0.defined() ? c0 : h0, batch_first);
  if (!is_usual(s, input, h0, c0, net)) return std::nullopt;
  const c10::DeviceGuard guard(input.device());
  const bool recorded = kAutograd && is_recorded(input, h0, c0, net.params);
  States r = run_layers(s, input.reshape({s.steps * s.samples, input.size(2)}), h0, c0, net, recorded);
  r.out = r.out.view({input.size(0), input.size(1), r.out.size(1)});
  return r;
}

template <bool kAutograd>
std::optional<States> try_packed(Mode mode, const Tensor& data, const Tensor& sizes, const Tensor& h0,
                                 const Tensor& c0, const Network& net) {
  Sequence s = packed_sequence_of(mode, data, sizes, c0.defined() ? c0 : h0);
  if (!is_usual(s, data, h0, c0, net)) return std::nullopt;
  const c10::DeviceGuard guard(data.device());
  place_starts(s, data.device());
  return run_layers(s, data, h0, c0, net, kAutograd && is_recorded(data, h0, c0, net.params));
}

using Three = std::tuple<Tensor, Tensor, Tensor>;
using Two = std::tuple<Tensor, Tensor>;

template <bool kAutograd>
Three lstm(const Tensor& input, TensorList hx, TensorList params, bool has_biases, int64_t layers,
           double dropout, bool train, bool bidirectional, bool batch_first) {
  if (hx.size() == 2)
    if (auto r =
            try_padded<kAutograd>(Mode::kLstm, input, hx[0], hx[1],
                                  {params, has_biases, layers, dropout, train, bidirectional}, batch_first))
      return {r->out, r->h, r->c};
  return at::_ops::lstm_input::redispatch({}, input, hx, params, has_biases, layers, dropout, train,
                                          bidirectional, batch_first);
}

template <bool kAutograd>
Three packed_lstm(const Tensor& data, const Tensor& batch_sizes, TensorList hx, TensorList params,
                  bool has_biases, int64_t layers, double dropout, bool train, bool bidirectional) {
  const Tensor sizes = batch_sizes.cpu();
  if (hx.size() == 2)
    if (auto r = try_packed<kAutograd>(Mode::kLstm, data, sizes, hx[0], hx[1],
                                       {params, has_biases, layers, dropout, train, bidirectional}))
      return {r->out, r->h, r->c};
  return at::_ops::lstm_data::redispatch({}, data, sizes, hx, params, has_biases, layers, dropout, train,
                                         bidirectional);
}

// gru, rnn_tanh and rnn_relu, which differ in their cells alone. Op: PyTorch's.
template <class Op, Mode kMode, bool kAutograd>
Two network(const Tensor& input, const Tensor& hx, TensorList params, bool has_biases, int64_t layers,
            double dropout, bool train, bool bidirectional, bool batch_first) {
  if (auto r = try_padded<kAutograd>(
          kMode, input, hx, {}, {params, has_biases, layers, dropout, train, bidirectional}, batch_first))
    return {r->out, r->h};
  return Op::redispatch({}, input, hx, params, has_biases, layers, dropout, train, bidirectional,
                        batch_first);
}

template <class Op, Mode kMode, bool kAutograd>
Two packed_network(const Tensor& data, const Tensor& batch_sizes, const Tensor& hx, TensorList params,
                   bool has_biases, int64_t layers, double dropout, bool train, bool bidirectional) {
  const Tensor sizes = batch_sizes.cpu();
  if (auto r = try_packed<kAutograd>(kMode, data, sizes, hx, {},
                                     {params, has_biases, layers, dropout, train, bidirectional}))
    return {r->out, r->h};
  return Op::redispatch({}, data, sizes, hx, params, has_biases, layers, dropout, train, bidirectional);
}

template <bool kAutograd>
void register_networks(torch::Library& m) {
  using namespace at::_ops;
  m.impl("lstm.input", lstm<kAutograd>);
  m.impl("lstm.data", packed_lstm<kAutograd>);
  m.impl("gru.input", network<gru_input, Mode::kGru, kAutograd>);
  m.impl("gru.data", packed_network<gru_data, Mode::kGru, kAutograd>);
  m.impl("rnn_tanh.input", network<rnn_tanh_input, Mode::kTanh, kAutograd>);
  m.impl("rnn_tanh.data", packed_network<rnn_tanh_data, Mode::kTanh, kAutograd>);
  m.impl("rnn_relu.input", network<rnn_relu_input, Mode::kRelu, kAutograd>);
  m.impl("rnn_relu.data", packed_network<rnn_relu_data, Mode::kRelu, kAutograd>);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  register_networks<false>(m);
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  register_networks<true>(m);
}

}  // namespace dlb
