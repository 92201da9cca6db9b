// scaled_dot_product_attention: whether PyTorch takes the fused op of this device or its composite math path,
// and that op with its gradients, each one problem of the attention primitive.
#include <ATen/Context.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "kernels/attention/params.h"
#include "primitives/attention/problem.h"
#include "runtime/element.h"
#include "runtime/generator.h"
#include "runtime/graph.h"
#include "runtime/tensor.h"
#include "solver/execute.h"

namespace dlb {
namespace {

using at::Tensor;
using attention::AttentionOperands;
using attention::AttentionProblem;
using OptionalTensor = std::optional<Tensor>;

// Heads smaller than this are left to the math path: their products are too short for tiles.
constexpr int64_t kLeastDim = 16;

bool is_mask_fusible(const Tensor& mask, const Tensor& query, const Tensor& key) {
  if (mask.is_nested() || mask.device() != query.device() || mask.dim() < 2 || mask.dim() > 4) return false;
  const auto type = mask.scalar_type();
  if (type != at::kBool && type != at::kFloat && type != query.scalar_type()) return false;
  const c10::SymInt sizes[] = {query.sym_size(0), query.sym_size(1), query.sym_size(2), key.sym_size(2)};
  for (int64_t i = 1; i <= mask.dim(); i++) {
    const c10::SymInt size = mask.sym_size(-i);
    if (size != 1 && size != sizes[4 - i]) return false;
  }
  return true;
}

bool is_fusible(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& mask,
                bool enable_gqa) {
  for (const Tensor* t : {&query, &key, &value})
    if (t->is_nested() || t->dim() != 4 || t->device() != query.device() ||
        t->scalar_type() != query.scalar_type())
      return false;
  if (!is_float_storage(query.scalar_type())) return false;
  const c10::SymInt dim = query.sym_size(3), heads = query.sym_size(1), kv_heads = key.sym_size(1);
  if (dim < kLeastDim || dim > int64_t{params::ATTENTION_MOST_DIM}) return false;
  for (const Tensor* t : {&key, &value})
    if (t->sym_size(0) != query.sym_size(0) || t->sym_size(1) != kv_heads || t->sym_size(3) != dim ||
        t->sym_size(2) != key.sym_size(2))
      return false;
  if (query.sym_numel() == 0 || key.sym_numel() == 0) return false;
  if (heads != kv_heads && (!enable_gqa || heads % kv_heads != 0)) return false;
  return !mask || !mask->defined() || is_mask_fusible(*mask, query, key);
}

// The backend of PyTorch that computes it, among those that torch.nn.attention.sdpa_kernel allows.
int64_t choose_backend(const Tensor& query, const Tensor& key, const Tensor& value,
                       const OptionalTensor& mask, double, bool, std::optional<double>, bool enable_gqa) {
  const auto& context = at::globalContext();
  if (context.userEnabledOverrideableSDP() && is_fusible(query, key, value, mask, enable_gqa))
    return static_cast<int64_t>(at::SDPBackend::overrideable);
  // The first words are PyTorch's where no backend is allowed, the next ones where no allowed backend is able
  // to.
  TORCH_CHECK(context.userEnabledMathSDP(),
              "No viable backend for scaled_dot_product_attention was found. No available kernel. Aborting "
              "execution. ocl has the backends OVERRIDEABLE, for 4-dimensional float32, float16 and bfloat16 "
              "tensors with heads of 16 to 256 elements, and MATH.");
  return static_cast<int64_t>(at::SDPBackend::math);
}

// Kernels read heads' elements one after the other.
Tensor with_dense_rows(const Tensor& t) {
  return t.stride(3) == 1 || t.size(3) == 1 ? t : t.contiguous();
}
Tensor result_like(const Tensor& t) {
  const Tensor result = at::empty_like(t);
  return result.stride(3) == 1 ? result : at::empty(t.sizes(), t.options());
}

void set_strides(int64_t* strides, const Tensor& t) {
  for (int64_t i = 0; i < 3; i++) strides[i] = t.size(i) == 1 ? 0 : t.stride(i);
}

// The bias as a view of [batch, heads, queries, keys]; undefined where there is none.
Tensor expanded_bias(const OptionalTensor& bias, const Tensor& query, const Tensor& key) {
  if (!bias || !bias->defined()) return {};
  Tensor values = *bias;
  if (values.scalar_type() == at::kBool)
    values = at::zeros(values.sizes(), query.options())
                 .masked_fill_(values.logical_not(), -std::numeric_limits<double>::infinity());
  const auto type = values.scalar_type();
  TORCH_CHECK(type == at::kFloat || type == query.scalar_type(),
              "attention: expected attn_bias to be bool, float or of the query's dtype, but got ", type);
  return values.expand({query.size(0), query.size(1), query.size(2), key.size(2)});
}

// The part of a call that both passes share: the problem and its operands as far as they come from the
// arguments.
struct Call {
  AttentionProblem p;
  AttentionOperands o;
  Tensor q, k, v, bias;

  Call(const solver::OpOf<AttentionProblem>& op, const Tensor& query, const Tensor& key, const Tensor& value,
       const OptionalTensor& attn_bias, double dropout, bool is_causal, std::optional<double> scale) {
    TORCH_CHECK(
        is_fusible(query, key, value, std::nullopt, true),
        "attention: expected query, key and value of shape [batch, heads, length, size], size from 16 to "
        "256, in float32, float16 or bfloat16, but got ",
        query.sizes(), ", ", key.sizes(), " and ", value.sizes());
    TORCH_CHECK(dropout >= 0 && dropout <= 1, "dropout probability has to be between 0 and 1, but got ",
                dropout);
    q = with_dense_rows(query), k = with_dense_rows(key), v = with_dense_rows(value);
    bias = expanded_bias(attn_bias, query, key);
    p.op = &op, p.dtype = query.scalar_type(), p.device = query.device().index();
    solver::allow_tf32(p, device_of(p.device));
    p.batch = q.size(0), p.heads = q.size(1), p.queries = q.size(2), p.dim = q.size(3);
    p.kv_heads = k.size(1), p.keys = k.size(2);
    p.causal = is_causal, p.dropout = dropout > 0;
    set_strides(p.q, q), set_strides(p.k, k), set_strides(p.v, v);
    o.q = buffer_of(q), o.k = buffer_of(k), o.v = buffer_of(v);
    if (bias.defined()) {
      p.bias = bias.scalar_type() == p.dtype ? attention::kSameType : attention::kFloat;
      set_strides(p.s_bias, bias);
      p.s_bias[3] = p.keys == 1 ? 0 : bias.stride(3);
      o.bias = buffer_of(bias);
    }
    o.scale = static_cast<float>(scale.value_or(1 / std::sqrt(static_cast<double>(p.dim))));
    o.keep = static_cast<float>(1 - dropout);
  }

  at::TensorOptions floats() const { return q.options().dtype(at::kFloat); }
};

// In the place of a seed where none was drawn: torch.compile keeps seeds for the backward pass, and takes no
// undefined tensors. One for all calls.
const Tensor& no_seed() {
  static const auto* tensor = [] {
    const c10::InferenceMode recorded(false);  // tensors of inference mode cannot be kept for a backward pass
    return new Tensor(at::zeros({}, at::kLong));
  }();
  return *tensor;
}

// A number that is drawn, for the backward pass. Where the stream is captured, replays set it anew.
Tensor kept_word(const cl::LiveWord& word, const Stream& stream) {
  const Tensor kept = at::scalar_tensor(static_cast<int64_t>(word.value), at::kLong);
  if (Graph* const graph = stream.graph()) [[unlikely]] {
    graph->keep(std::make_shared<Tensor>(kept));
    graph->set_in_replays(reinterpret_cast<uint64_t*>(kept.mutable_data_ptr<int64_t>()), word);
  }
  return kept;
}

// The number as kernels are given it. Where the stream is captured, replays read it anew. FakeTensorMode,
// where it has to run the op, brings a number on the device.
cl::LiveWord word_of(const Tensor& kept, const Stream& stream) {
  if (!kept.is_cpu()) [[unlikely]]
    return {static_cast<uint64_t>(kept.item<int64_t>())};
  const auto* number = reinterpret_cast<const uint64_t*>(kept.const_data_ptr<int64_t>());
  Graph* const graph = stream.graph();
  if (!graph) [[likely]]
    return {*number};
  graph->keep(std::make_shared<Tensor>(kept));
  return {0, number};
}

using Forward = std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>;

Forward attention_forward(const Tensor& query, const Tensor& key, const Tensor& value,
                          const OptionalTensor& attn_bias, double dropout, bool is_causal, bool,
                          std::optional<double> scale) {
  const c10::DeviceGuard guard(query.device());
  Call call(attention::attention_op, query, key, value, attn_bias, dropout, is_causal, scale);
  AttentionProblem& p = call.p;
  Tensor out = result_like(query), lse = at::empty({p.batch, p.heads, p.queries, 2}, call.floats());
  set_strides(p.out, out);
  call.o.out = buffer_of(out), call.o.lse = buffer_of(lse);
  // On the host, where the backward pass reads them without waiting for the device, and replays write them.
  Tensor seed, offset;
  Stream& stream = current_stream(p.device);
  if (p.dropout) {
    const int64_t draws = p.batch * p.heads * p.queries * ((p.keys + 3) / 4);
    const PhiloxDraw draw = reserve_philox(std::nullopt, static_cast<uint64_t>(draws));
    seed = kept_word(draw.seed, stream), offset = kept_word(draw.counter, stream);
    call.o.seed = word_of(seed, stream), call.o.counter = word_of(offset, stream);
  } else {
    seed = offset = no_seed();
  }
  attention::run(p, call.o, stream);
  // The slot of cum_seq_q, which is for nested batches, takes the log-sum-exps with what rounding took from
  // them to the backward pass.
  return {out, lse.select(3, 0), lse, {}, p.queries, p.keys, seed, offset, {}};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> attention_backward(
    const Tensor& grad_out, const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& attn_bias, std::array<bool, 4> wanted, const Tensor& out, const Tensor& lse,
    const Tensor& lse_and_rest, const Tensor&, int64_t, int64_t, double dropout, bool is_causal,
    const Tensor& seed, const Tensor& offset, std::optional<double> scale) {
  if (!grad_out.defined()) return {};
  const c10::DeviceGuard guard(query.device());
  Call call(attention::attention_backward_op, query, key, value, attn_bias, dropout, is_causal, scale);
  AttentionProblem& p = call.p;
  AttentionOperands& o = call.o;
  const Tensor g = with_dense_rows(grad_out), result = with_dense_rows(out),
               sums = lse_and_rest.defined() ? lse_and_rest : at::stack({lse, at::zeros_like(lse)}, 3);
  const Tensor delta = at::empty({p.batch, p.heads, p.queries}, call.floats());
  Tensor grad_q = result_like(query), grad_k = result_like(key), grad_v = result_like(value), scores;
  set_strides(p.out, g), set_strides(p.grad_q, grad_q);
  set_strides(p.grad_k, grad_k), set_strides(p.grad_v, grad_v);
  o.grad_out = buffer_of(g), o.lse = buffer_of(sums), o.delta = buffer_of(delta);
  o.grad_q = buffer_of(grad_q), o.grad_k = buffer_of(grad_k), o.grad_v = buffer_of(grad_v);
  p.has_scores = wanted[3] && call.bias.defined();
  if (p.has_scores) {
    scores = at::empty({p.batch, p.heads, p.queries, p.keys}, call.floats());
    o.scores = buffer_of(scores);
  }
  Stream& stream = current_stream(p.device);
  if (p.dropout) {
    o.seed = word_of(seed, stream), o.counter = word_of(offset, stream);
  }
  int64_t result_strides[3];
  set_strides(result_strides, result);
  attention::run_delta(p, buffer_of(result), result_strides, o, stream);
  attention::run(p, o, stream);
  const Tensor grad_bias =
      p.has_scores ? scores.sum_to_size(attn_bias.sizes()).to(attn_bias.scalar_type()) : Tensor();
  return {wanted[0] ? grad_q : Tensor(), wanted[1] ? grad_k : Tensor(), wanted[2] ? grad_v : Tensor(),
          grad_bias};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_fused_sdp_choice", choose_backend);
  m.impl("_scaled_dot_product_fused_attention_overrideable", attention_forward);
  m.impl("_scaled_dot_product_fused_attention_overrideable_backward", attention_backward);
}

}  // namespace dlb

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &dlb::choose_backend)
}  // namespace at::native
