// Scaled dot product attention: softmax(scale * q k^T + bias) v, and its gradients.
#pragma once
#include "cl/launch_record.h"
#include "solver/op.h"

namespace dlb::attention {

// Forward: q, k, v and bias to out and lse. Backward: those without out, with grad_out and delta, to grad_q,
// grad_k, grad_v and, where they are wanted, the gradients of the scores. All but bias have a dim of stride
// 1; lse, delta and scores are float32 without gaps.
struct AttentionOperands : solver::Operands {
  Buffer q, k, v, bias, out, lse, grad_out, delta, grad_q, grad_k, grad_v, scores;
  float scale = 0.125f;
  float keep = 1;  // of dropout, with which the problem says that there is one
  cl::LiveWord seed, counter;
};

// The bias, by how it is stored.
enum Bias : int64_t { kNone, kSameType, kFloat };

// q [batch, heads, queries, dim], k and v [batch, kv_heads, keys, dim]. The results' log-sum-exp is infinite
// in rows whose keys are all masked, and their result 0. lse is [batch, heads, queries, 2]: beside each
// log-sum-exp what rounding took from it.
struct AttentionProblem : solver::Problem {
  using Operands = AttentionOperands;

  int64_t batch = 1, heads = 1, kv_heads = 1, queries = 1, keys = 1, dim = 1;
  int64_t causal = 0;   // 1: query i sees keys 0 to i
  int64_t dropout = 0;  // 1: some probabilities are dropped
  int64_t bias = kNone;
  int64_t has_scores = 0;  // backward: the gradients of the scores are wanted
  // Element strides of {batch, head, row}; the bias's fourth is from key to key. Backward: out is grad_out.
  int64_t q[3] = {}, k[3] = {}, v[3] = {}, out[3] = {}, s_bias[4] = {};
  int64_t grad_q[3] = {}, grad_k[3] = {}, grad_v[3] = {};

  bool is_backward() const;
  // Operations of one product of queries with keys.
  double product_flops() const { return 2.0 * batch * heads * queries * keys * dim * (causal ? 0.5 : 1); }

  // Visits the fields for OpOf; see solver/op.h.
  template <class Self, class Visit>
  static void visit(Self& p, Visit&& v) {
    v("b", p.batch), v("h", p.heads), v("kv", p.kv_heads), v("lq", p.queries), v("lk", p.keys), v("d", p.dim);
    v("causal", p.causal), v("dropout", p.dropout), v("bias", p.bias), v("scores", p.has_scores);
    v("sq", p.q), v("sk", p.k), v("sv", p.v), v("so", p.out), v("sb", p.s_bias);
    v("gq", p.grad_q), v("gk", p.grad_k), v("gv", p.grad_v), v.if_set("tf32", p.tf32);
  }
  std::vector<solver::Span> spans() const;
  std::vector<solver::CheckWindow<AttentionProblem>> check_windows() const;
  AttentionProblem reduced() const;
  std::vector<uint64_t> shape_classes() const;
  uint64_t size_bucket() const;
  std::string kernel_variant() const;
};

extern const solver::OpOf<AttentionProblem> attention_op, attention_backward_op;

// Solves a problem, forward or backward, on the stream. None of its sizes may be 0.
void run(const AttentionProblem& problem, const AttentionOperands& operands, Stream& stream);

// delta of the backward pass: the sums over rows of `result` (strides of a row as `result_strides`) times
// operands.grad_out, into operands.delta.
void run_delta(const AttentionProblem& problem, Buffer result, const int64_t* result_strides,
               const AttentionOperands& operands, Stream& stream);

}  // namespace dlb::attention
