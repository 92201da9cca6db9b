#include "primitives/attention/problem.h"

#include "primitives/common/extent.h"

namespace dlb::attention {

using namespace solver;

bool AttentionProblem::is_backward() const {
  return op == &attention_backward_op;
}

std::vector<Span> AttentionProblem::spans() const {
  using O = AttentionOperands;
  const auto view = [&](int64_t number, int64_t length, const int64_t* strides) {
    return extent({batch, number, length}, strides) + dim - 1;
  };
  const int64_t rows = batch * heads * queries;
  std::vector<Span> list = {span(&O::q, view(heads, queries, q), dtype),
                            span(&O::k, view(kv_heads, keys, k), dtype),
                            span(&O::v, view(kv_heads, keys, v), dtype)};
  if (bias)
    list.push_back(span(&O::bias, extent({batch, heads, queries, keys}, s_bias),
                        bias == kFloat ? c10::ScalarType::Float : dtype));
  if (!is_backward()) {
    list.push_back(span(&O::out, view(heads, queries, out), dtype, true));
    list.push_back(span(&O::lse, 2 * rows, c10::ScalarType::Float, true));
    return list;
  }
  list.push_back(span(&O::grad_out, view(heads, queries, out), dtype));
  list.push_back(span(&O::lse, 2 * rows, c10::ScalarType::Float, false, true));
  list.push_back(span(&O::delta, rows, c10::ScalarType::Float));
  list.push_back(span(&O::grad_q, view(heads, queries, grad_q), dtype, true));
  list.push_back(span(&O::grad_k, view(kv_heads, keys, grad_k), dtype, true));
  list.push_back(span(&O::grad_v, view(kv_heads, keys, grad_v), dtype, true));
  if (has_scores) list.push_back(span(&O::scores, rows * keys, c10::ScalarType::Float, true));
  return list;
}

// Forward: the first queries of the first and of the last head. The gradients of keys need all queries, and
// numbers of dropout depend on a row's place among all: such problems are checked whole, or by reduced().
std::vector<CheckWindow<AttentionProblem>> AttentionProblem::check_windows() const {
  std::vector<CheckWindow<AttentionProblem>> list;
  if (is_backward() || dropout) {
    if (product_flops() <= kMostWindowFlops) list.push_back({*this, {}});
    return list;
  }
  for (const bool last : {false, true}) {
    CheckWindow<AttentionProblem> window{*this};
    AttentionProblem& p = window.problem;
    p.batch = p.heads = p.kv_heads = 1;
    while (p.queries > 1 && p.product_flops() > kMostWindowFlops) p.queries /= 2;
    if (last) {
      const int64_t b = batch - 1, h = heads - 1, kv = kv_heads - 1;
      AttentionOperands& at = window.shift;
      at.q.offset = b * q[0] + h * q[1], at.out.offset = b * out[0] + h * out[1];
      at.k.offset = b * k[0] + kv * k[1], at.v.offset = b * v[0] + kv * v[1];
      at.bias.offset = b * s_bias[0] + h * s_bias[1];
      at.lse.offset = 2 * (b * heads + h) * queries;
    }
    list.push_back(window);
  }
  return list;
}

AttentionProblem AttentionProblem::reduced() const {
  constexpr int64_t kLength = 384;
  AttentionProblem p = *this;
  const int64_t group = heads / kv_heads;
  p.batch = std::min<int64_t>(batch, 2), p.kv_heads = std::min<int64_t>(kv_heads, 2);
  p.heads = p.kv_heads * group;
  p.queries = std::min(queries, kLength), p.keys = std::min(keys, kLength);
  const auto close = [&](int64_t number, int64_t length, int64_t* strides) {
    int64_t all[] = {strides[0], strides[1], strides[2], 1};
    close_gaps({p.batch, number, length, dim}, all);
    std::copy_n(all, 3, strides);
  };
  close(p.heads, p.queries, p.q), close(p.heads, p.queries, p.out), close(p.heads, p.queries, p.grad_q);
  for (int64_t* strides : {p.k, p.v, p.grad_k, p.grad_v}) close(p.kv_heads, p.keys, strides);
  close_gaps({p.batch, p.heads, p.queries, p.keys}, p.s_bias);
  return p;
}

std::vector<uint64_t> AttentionProblem::shape_classes() const {
  AttentionProblem p;
  p.op = op, p.dtype = dtype, p.dim = dim, p.heads = heads, p.kv_heads = kv_heads;
  p.causal = causal, p.dropout = dropout, p.bias = bias;
  return {hash_of(p)};
}

uint64_t AttentionProblem::size_bucket() const {
  AttentionProblem p = *this;
  for (int64_t* size : {&p.batch, &p.heads, &p.kv_heads, &p.queries, &p.keys}) *size = coarse(*size);
  for (int64_t* strides : {p.q, p.k, p.v, p.out, p.grad_q, p.grad_k, p.grad_v})
    for (int i = 0; i < 3; i++) strides[i] = coarse_stride(strides[i]);
  for (int64_t& stride : p.s_bias) stride = coarse_stride(stride);
  return hash_of(p);
}

// GPUs' kernels are compiled for head sizes.
std::string AttentionProblem::kernel_variant() const {
  std::string text = " d" + std::to_string((dim + 31) / 32 * 32);
  if (causal) text += " causal";
  if (bias) text += " bias";
  if (dropout) text += " dropout";
  return tf32 ? text + " tf32" : text;
}

}  // namespace dlb::attention
