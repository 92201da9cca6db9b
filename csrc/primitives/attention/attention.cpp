#include "primitives/attention/attention.h"

#include "cl/rounding.h"
#include "runtime/element.h"
#include "runtime/fetch_kernel.h"
#include "solver/execute.h"

namespace dlb::attention {
namespace {

params::AttentionView view_of(Buffer buffer, const int64_t* strides) {
  return {buffer.offset, strides[0], strides[1], strides[2]};
}

}  // namespace

Params params_of(const AttentionProblem& p, const AttentionOperands& o) {
  static_assert(int{params::ATTENTION_BIAS} == int{kSameType} &&
                int{params::ATTENTION_FLOAT_BIAS} == int{kFloat});
  const auto i32 = [](int64_t size) { return static_cast<int32_t>(size); };
  Params a{};
  a.q = view_of(o.q, p.q), a.k = view_of(o.k, p.k), a.v = view_of(o.v, p.v);
  a.out = view_of(p.is_backward() ? o.grad_out : o.out, p.out);
  a.bias = view_of(o.bias, p.s_bias), a.bias_key = p.s_bias[3];
  a.grad_q = view_of(o.grad_q, p.grad_q), a.grad_k = view_of(o.grad_k, p.grad_k);
  a.grad_v = view_of(o.grad_v, p.grad_v);
  a.lse = o.lse.offset, a.delta = o.delta.offset, a.scores = o.scores.offset;
  a.seed = o.seed.value, a.counter = o.counter.value;
  a.seed_source = o.seed.source, a.counter_source = o.counter.source;
  a.heads = i32(p.heads), a.group = i32(p.heads / p.kv_heads);
  a.queries = i32(p.queries), a.keys = i32(p.keys), a.dim = i32(p.dim);
  a.causal = i32(p.causal), a.bias_kind = i32(p.bias), a.has_scores = i32(p.has_scores);
  a.vector = p.dim % 4 == 0;
  const auto aligned = [&](const params::AttentionView& view) {
    return view.offset % 4 == 0 && view.batch % 4 == 0 && view.head % 4 == 0 && view.row % 4 == 0;
  };
  for (const params::AttentionView* view : {&a.q, &a.k, &a.v, &a.out, &a.grad_q, &a.grad_k, &a.grad_v})
    a.vector = a.vector && aligned(*view);
  a.scale = o.scale;
  a.keep = p.dropout ? o.keep : 1;
  a.kept_scale = a.keep > 0 ? 1 / a.keep : 0;
  return a;
}

std::unique_ptr<Invoker<AttentionProblem>> invoker_of(const AttentionProblem& p, cl::Kernel& kernel,
                                                      const cl::Range& range) {
  return make_invoker<AttentionProblem>(
      [p, range, &kernel](Stream& stream, const AttentionOperands& o, MemRef) {
        launch_forward(kernel, range, o, params_of(p, o), stream);
      });
}

std::unique_ptr<Invoker<AttentionProblem>> invoker_of(const AttentionProblem& p,
                                                      const BackwardLaunch& launch) {
  return make_invoker<AttentionProblem>([p, launch](Stream& stream, const AttentionOperands& o, MemRef) {
    const Params params = params_of(p, o);
    launch.run_dq(o, params, stream);
    launch.run_dkv(o, params, stream);
  });
}

cl::Range rows_range(const cl::Device& device, int64_t length, int64_t heads, int64_t batch) {
  constexpr size_t kItems = 64;
  if (is_cpu(device)) return cl::Range::grid(length, heads, batch);
  cl::Range range = cl::Range::grid(round_up(length, int64_t{kItems}), heads, batch);
  range.local[0] = kItems;
  return range;
}

Applicability common_applicable(const AttentionProblem& p) {
  if (!is_float_storage(p.dtype)) return Applicability::no("for float32, float16 and bfloat16");
  if (p.dim > params::ATTENTION_MOST_DIM) return Applicability::no("heads of more than 256 elements");
  if (std::max({p.queries, p.keys, p.heads, p.batch}) > INT32_MAX / 2)
    return Applicability::no("a dimension of 2^30 or more");
  return Applicability::yes();
}

void run(const AttentionProblem& problem, const AttentionOperands& operands, Stream& stream) {
  solver::run(problem, operands, stream);
}

void run_delta(const AttentionProblem& p, Buffer result, const int64_t* result_strides,
               const AttentionOperands& operands, Stream& stream) {
  Params params = params_of(p, operands);
  params.q = view_of(result, result_strides);
  const cl::Range range = rows_range(stream.device(), p.queries, p.heads, p.batch);
  fetch_kernel(stream.device(), {"common/gpu_tile.clh", "attention/delta.cl"}, "attention_delta",
               element_option(p.dtype))
      .launch(stream.queue(), range, result.mem, operands.grad_out.mem, operands.delta.mem, params);
}

}  // namespace dlb::attention
