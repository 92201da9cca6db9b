// clang-format off
// The gradients of attention in 16 bits on the tensor cores of NVIDIA's Hopper GPUs, divided as in
// attention/gpu_flash_backward.cl: one kernel keeps queries and goes through the keys, the other keeps keys and goes through
// the queries, so that there are no atomics and the bits are the same each time. In both a step makes scores of kept rows by
// the step's rows again, and their gradients, and multiplies those by the step's rows:
//   dQ += dS K with S = Q K^T and dS from dO V^T; dK += dS^T Q and dV += P^T dO with S^T = K Q^T and dS^T from V dO^T.
// (Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", 2023.)
#include "attention/gpu_wgmma.clh"

#define SECOND_AT KEPT_BYTES               // kept rows of the second tensor
#define STAGES_AT (2 * KEPT_BYTES)         // by stage, rows of both
#define STAGE_BYTES (2 * STEP_BYTES)
#define ROWS_AT (STAGES_AT + STAGES * STAGE_BYTES)  // by stage, what is known of its queries: three floats of each
#define ROWS_BYTES (3 * 4 * STEP)
#define BARRIERS (ROWS_AT + STAGES * ROWS_BYTES)
#define KEPT_FULL BARRIERS
#define KEPT_EMPTY (BARRIERS + 8)
#define STEP_FULL (BARRIERS + 16)  // by stage, like the following
#define STEP_EMPTY (STEP_FULL + 8 * STAGES)
#define MAPS ((BARRIERS + 16 + 16 * STAGES + 127) / 128 * 128)
#define LOCAL_BYTES (MAPS + 4 * WGMMA_MAP)

// Exponents of two times `unit`: products are scaled by it alone, unless a bias is added.
#define UNIT(p) (BIAS ? LOG2_E : (p)->scale * LOG2_E)

// The values of a query that its probabilities and their gradients are computed from: its log-sum-exp (without a bias
// as an exponent of two), what rounding took from it, and what its scores' gradients subtract. Queries that do not
// exist have probabilities of 0.
INLINE float3 row_values(int exists, global const float* lse, global const float* delta, const AttentionParams* p,
                         long row) {
  if (!exists) return (float3)(INFINITY, 0.f, 0.f);
  const float2 base = *(global const float2*)(lse + p->lse + 2 * row);
  const float less = delta[p->delta + row];
  return BIAS ? (float3)(base.x, base.y, less) : (float3)((base.x + base.y) * LOG2_E, 0.f, less);
}

// The probability of a score, times the unit's factor.
INLINE float probability(float score, float most, float rest, float unit) {
  return BIAS ? exp2_of(((score - most) - rest) * LOG2_E) : exp2_of(fma(score, unit, -most));
}

INLINE void make_all_barriers(uint base, int arrivals) {
  make_barriers(base + KEPT_FULL, base + KEPT_EMPTY, 1, 1);
  make_barriers(base + STEP_FULL, base + STEP_EMPTY, STAGES, arrivals);
  asm volatile("fence.proxy.async;" ::: "memory");
}

// Two tensors with their views. The copying warp makes maps of the two tensors whose rows are kept and of the two whose
// rows are gone through.
typedef struct {
  global const T *a, *b;
  const AttentionView *at_a, *at_b;
  int rows, heads;
} Pair;

INLINE ulong publish_maps(local uchar* memory, global uchar* workspace, const Pair* kept, const Pair* step,
                          const AttentionParams* p, const AttentionWgmma* w) {
  const int lane = get_local_id(0) % 32;
  const uint at = local_address(memory) + MAPS;
  const ulong maps = (ulong)(workspace + w->maps) + get_group_id(0) * 4 * WGMMA_MAP;
  clear_maps(memory + MAPS, 4, lane);
  if (lane == 0) {
    map_view(at, kept->a, kept->at_a, p, kept->rows, kept->heads, w->batch, KEPT);
    map_view(at + WGMMA_MAP, kept->b, kept->at_b, p, kept->rows, kept->heads, w->batch, KEPT);
    map_view(at + 2 * WGMMA_MAP, step->a, step->at_a, p, step->rows, step->heads, w->batch, STEP);
    map_view(at + 3 * WGMMA_MAP, step->b, step->at_b, p, step->rows, step->heads, w->batch, STEP);
  }
  for (int i = 0; i < 4; i++) publish_map(maps + i * WGMMA_MAP, at + i * WGMMA_MAP);
  return maps;
}

// By one work-item, as the barriers of kept rows and of stages let it.
INLINE void copy_kept(uint base, ulong maps, const Pair* kept, const Block* x, uint* parity) {
  wait_for(base + KEPT_EMPTY, *parity);
  *parity ^= 1;
  expect(base + KEPT_FULL, 2 * KEPT_BYTES);
  copy_rows(base, maps, kept->at_a, x->first, KEPT, x->h, x->b, base + KEPT_FULL);
  copy_rows(base + SECOND_AT, maps + WGMMA_MAP, kept->at_b, x->first, KEPT, x->h, x->b, base + KEPT_FULL);
}
INLINE void copy_step(uint base, ulong maps, const Pair* step, int row, int head, int batch, const Turn* t) {
  const uint to = base + STAGES_AT + t->stage * STAGE_BYTES, full = base + STEP_FULL + 8 * t->stage;
  expect(full, STAGE_BYTES);
  copy_rows(to, maps + 2 * WGMMA_MAP, step->at_a, row, STEP, head, batch, full);
  copy_rows(to + STEP_BYTES, maps + 3 * WGMMA_MAP, step->at_b, row, STEP, head, batch, full);
}

// Begins the scores of kept rows by a stage's, and what is made of gradients of the result: a group of products each.
INLINE void begin_scores(float* scores, float* grads, uint kept, uint stage) {
  multiply_rows(scores, descriptor_of(kept, 0, KEPT), descriptor_of(stage, 0, STEP));
  multiply_rows(grads, descriptor_of(kept + SECOND_AT, 0, KEPT), descriptor_of(stage + STEP_BYTES, 0, STEP));
}

// A probability that dropout drops has its sign changed until the gradient is made.
#if DROPOUT
INLINE float dropped(float prob, uint kept) { return kept ? prob : -prob; }
INLINE float kept_part(float prob, float scale) { return fmax(prob, 0.f) * scale; }
INLINE float gradient(float prob, float grad, float less, float scale) {
  return fabs(prob) * ((prob < 0 ? 0.f : grad * scale) - less);
}
#else
INLINE float kept_part(float prob, float scale) { return prob; }
INLINE float gradient(float prob, float grad, float less, float scale) { return prob * (grad - less); }
#endif

// --- Gradients of queries ---------------------------------------------------------------------------------------------

// How many keys a block's queries see; with the gradients of the scores wanted, all of them get one.
INLINE int end_of(const Block* x, const AttentionParams* p) {
  return p->causal && !p->has_scores ? min(p->keys, x->first + KEPT) : p->keys;
}

INLINE void copy_for_queries(local uchar* memory, global uchar* workspace, const Pair* kept, const Pair* step,
                             const AttentionParams* p, const AttentionWgmma* w) {
  const uint base = local_address(memory);
  const ulong maps = publish_maps(memory, workspace, kept, step, p, w);
  if (get_local_id(0) % 32 != 0) return;
  Turn t = {0, 1};
  uint kept_parity = 1;
  const int all = block_count(p->queries, p->heads, w->batch);
  for (int round = 0, n; (n = block_in_round(round)) < all; round++) {
    const Block x = block_of(n, p->queries, p->heads, p, w, 1);
    copy_kept(base, maps, kept, &x, &kept_parity);
    const int end = end_of(&x, p);
    for (int k0 = 0; k0 < end; k0 += STEP) {
      wait_for(base + STEP_EMPTY + 8 * t.stage, t.parity);
      copy_step(base, maps, step, k0, x.h / p->group, x.b, &t);
      next_turn(&t);
    }
  }
}

// The rows of a work-item: queries, their places in tensors [batch, heads, queries], what is known of them, and the place of
// their head's first element in the bias.
typedef struct {
  int query[2];
  long row[2];
  float3 values[2];
  long bias;
} Queries;

// Scores become probabilities.
INLINE void finish_scores(float* scores, const Queries* x, int k0, const AttentionParams* p, global const T* bias,
                          int item) {
  const float unit = UNIT(p);
  const int first = k0 + wgmma_column(item, 0);
#pragma unroll
  for (int i = 0; i < SCORES; i += 4) {
#if DROPOUT
    const uint kept = kept_pairs(p, x->row[0], k0 + wgmma_column(item, i), item);
#endif
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const int r = j / 2, query = x->query[r], column = wgmma_column(0, i + j);
      const int left = (p->causal ? min(p->keys, query + 1) : p->keys) - first;
      float s = scores[i + j];
      if (BIAS) {
        s *= p->scale;
        if (first + column < p->keys && query < p->queries) s += bias_of(bias, p, x->bias, query, first + column);
      }
      const float prob = probability(s, x->values[r].x, x->values[r].y, unit);
      scores[i + j] = column < left ? prob : 0.f;
#if DROPOUT
      scores[i + j] = dropped(scores[i + j], kept >> j & 1);
#endif
    }
  }
}

// Probabilities become the gradients of scores.
INLINE void finish_gradients(float* scores, const float* grads, const Queries* x, int k0, const AttentionParams* p,
                             global float* scores_grad, int item) {
#pragma unroll
  for (int i = 0; i < SCORES; i++) {
    const int r = i / 2 % 2, key = k0 + wgmma_column(item, i);
    scores[i] = gradient(scores[i], grads[i], x->values[r].z, p->kept_scale);
    if (BIAS && p->has_scores && key < p->keys && x->query[r] < p->queries)
      scores_grad[p->scores + x->row[r] * p->keys + key] = scores[i];
  }
}

INLINE Queries start_queries(const Block* x, global const float* lse, global const float* delta,
                             const AttentionParams* p, int item) {
  Queries mine;
  mine.bias = HEAD_AT(p->bias, x->b, x->h);
#pragma unroll
  for (int r = 0; r < 2; r++) {
    mine.query[r] = x->first + wgmma_row(item, 2 * r);
    mine.row[r] = ROW_AT(*p, x->b, x->h) + mine.query[r];
    mine.values[r] = row_values(mine.query[r] < p->queries, lse, delta, p, mine.row[r]);
  }
  return mine;
}

// sums += the gradients of scores times the keys of the stage of that turn.
INLINE void add_keys(float* sums, const Queries* mine, uint base, const Turn* t, int k0, const AttentionParams* p,
                     global const T* bias, global float* scores_grad, int item) {
  const uint stage = base + STAGES_AT + t->stage * STAGE_BYTES;
  float scores[SCORES], grads[SCORES];
  uint words[SCORES / 2];
  wait_for(base + STEP_FULL + 8 * t->stage, t->parity);
  begin_scores(scores, grads, base + item / 128 * 64 * WGMMA_LINE, stage);
  wait_products(1);
  settle_scores(scores);
  finish_scores(scores, mine, k0, p, bias, item);
  wait_products(0);
  settle_scores(grads);
  finish_gradients(scores, grads, mine, k0, p, scores_grad, item);
  pack_words(words, scores);
  multiply_words(sums, words, descriptor_of(stage, 1, STEP));
  wait_products(0);
  settle_sums(sums);
  arrive_if(item % 32 == 0, base + STEP_EMPTY + 8 * t->stage);
}

// Global size: {work-groups * ITEMS}, as many as there are compute units or blocks of queries.
kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void attention_gpu_wgmma_dq(
    global const T* Q, global const T* K, global const T* V, global const T* bias, global const T* grad_out,
    global const float* lse, global const float* delta, global T* grad_q, global float* scores_grad, AttentionParams p,
    global uchar* workspace, AttentionWgmma w) {
  local uchar memory[LOCAL_BYTES] __attribute__((aligned(1024)));
  const int item = get_local_id(0);
  const uint base = local_address(memory);
  if (item == 0) make_all_barriers(base, 1);
  barrier(CLK_LOCAL_MEM_FENCE);
  if (item >= CONSUMERS) {
    few_registers();
    const Pair kept = {Q, grad_out, &p.q, &p.out, p.queries, p.heads};
    const Pair step = {K, V, &p.k, &p.v, p.keys, p.heads / p.group};
    if (item < CONSUMERS + 32) copy_for_queries(memory, workspace, &kept, &step, &p, &w);
    return;
  }
  many_registers();
  Turn t = {0, 0};
  uint kept_parity = 0;
  const int all = block_count(p.queries, p.heads, w.batch);
  for (int round = 0, n; (n = block_in_round(round)) < all; round++) {
    const Block x = block_of(n, p.queries, p.heads, &p, &w, 1);
    const int end = end_of(&x, &p);
    const Queries mine = start_queries(&x, lse, delta, &p, item);
    float sums[SUMS];
#pragma unroll
    for (int i = 0; i < SUMS; i++) sums[i] = 0;
    wait_for(base + KEPT_FULL, kept_parity);
    kept_parity ^= 1;
    for (int k0 = 0; k0 < end; k0 += STEP) {
      add_keys(sums, &mine, base, &t, k0, &p, bias, scores_grad, item);
      next_turn(&t);
    }
    arrive_if(item % 32 == 0, base + KEPT_EMPTY);
    const float factors[2] = {p.scale, p.scale};
    store_rows(sums, factors, grad_q + HEAD_AT(p.grad_q, x.b, x.h) + x.first * p.grad_q.row, &p.grad_q,
               p.queries - x.first, item, &p);
  }
}

// --- Gradients of keys and values -------------------------------------------------------------------------------------

// The first query that sees a block of keys, down to a step.
INLINE int first_query(const Block* x, const AttentionParams* p) { return p->causal ? x->first / STEP * STEP : 0; }

// A stage's barrier takes an arrival of each lane, which brings what is known of some queries.
INLINE void copy_for_keys(local uchar* memory, global uchar* workspace, const Pair* kept, const Pair* step,
                          global const float* lse, global const float* delta, const AttentionParams* p,
                          const AttentionWgmma* w) {
  const int lane = get_local_id(0) % 32;
  const uint base = local_address(memory);
  const ulong maps = publish_maps(memory, workspace, kept, step, p, w);
  Turn t = {0, 1};
  uint kept_parity = 1;
  const int kv_heads = p->heads / p->group, all = block_count(p->keys, kv_heads, w->batch);
  for (int round = 0, n; (n = block_in_round(round)) < all; round++) {
    const Block x = block_of(n, p->keys, kv_heads, p, w, 0);
    if (lane == 0) copy_kept(base, maps, kept, &x, &kept_parity);
    for (int h = x.h * p->group; h < (x.h + 1) * p->group; h++) {
      const long row = ROW_AT(*p, x.b, h);
      for (int q0 = first_query(&x, p); q0 < p->queries; q0 += STEP) {
        wait_for(base + STEP_EMPTY + 8 * t.stage, t.parity);
        if (lane == 0) copy_step(base, maps, step, q0, h, x.b, &t);
        local float* values = (local float*)(memory + ROWS_AT + t.stage * ROWS_BYTES);
        for (int i = lane; i < STEP; i += 32) {
          const float3 v = row_values(q0 + i < p->queries, lse, delta, p, row + q0 + i);
          values[i] = v.x, values[STEP + i] = v.y, values[2 * STEP + i] = v.z;
        }
        arrive_if(lane != 0, base + STEP_FULL + 8 * t.stage);
        next_turn(&t);
      }
    }
  }
}

// A block of keys by a step's queries: the first ones, the place of that query in tensors [batch, heads, queries] and of
// its head's first element in the bias, and what is known of the queries.
typedef struct {
  int key, query;
  long row, bias;
  local const float* values;
} Transposed;

// Scores become probabilities; rows are keys, columns queries.
INLINE void finish_transposed_scores(float* scores, const Transposed* x, const AttentionParams* p, global const T* bias,
                                     int item) {
  const float unit = UNIT(p);
  const int key = x->key + wgmma_row(item, 0), query = x->query + wgmma_column(item, 0);
#if DROPOUT
  const long row = x->row + wgmma_column(item, 0);
#endif
  const int masks = p->causal && x->query < x->key + KEPT;
#pragma unroll
  for (int i = 0; i < SCORES; i += 4) {
#if DROPOUT
    const uint kept = kept_quads(p, row + wgmma_column(0, i), key, item);
#endif
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const int column = wgmma_column(0, i + j), at = wgmma_column(item, i + j), below = j / 2 * 8;
      float s = scores[i + j];
      if (BIAS) {
        s *= p->scale;
        if (key + below < p->keys && query + column < p->queries)
          s += bias_of(bias, p, x->bias, query + column, key + below);
      }
      float prob = probability(s, x->values[at], BIAS ? x->values[STEP + at] : 0, unit);
      if (masks) prob = key + below <= query + column ? prob : 0.f;
#if DROPOUT
      prob = dropped(prob, kept >> j & 1);
#endif
      scores[i + j] = prob;
    }
  }
}

// Turns the gradients of probabilities in `grads` into gradients of scores.
INLINE void finish_transposed_gradients(const float* scores, float* grads, const Transposed* x, const AttentionParams* p,
                                        int item) {
#pragma unroll
  for (int i = 0; i < SCORES; i++)
    grads[i] = gradient(scores[i], grads[i], x->values[2 * STEP + wgmma_column(item, i)], p->kept_scale);
}

// Kept probabilities in 16 bits.
INLINE void pack_kept(uint* words, const float* scores, float scale) {
#pragma unroll
  for (int i = 0; i < SCORES / 2; i++) {
    const int first = wgmma_sum_of_word(i);
    words[i] = pair(kept_part(scores[first], scale), kept_part(scores[first + 1], scale));
  }
}

// dv += probabilities times gradients of the result, dk += gradients of scores times queries, of that turn's stage.
INLINE void add_queries(float* dk, float* dv, const Transposed* x, uint base, const Turn* t, const AttentionParams* p,
                        global const T* bias, int item) {
  const uint stage = base + STAGES_AT + t->stage * STAGE_BYTES;
  float scores[SCORES], grads[SCORES];
  uint words[SCORES / 2], grad_words[SCORES / 2];
  wait_for(base + STEP_FULL + 8 * t->stage, t->parity);
  begin_scores(scores, grads, base + item / 128 * 64 * WGMMA_LINE, stage);
  wait_products(1);
  settle_scores(scores);
  finish_transposed_scores(scores, x, p, bias, item);
  pack_kept(words, scores, p->kept_scale);
  multiply_words(dv, words, descriptor_of(stage + STEP_BYTES, 1, STEP));
  wait_products(1);
  settle_scores(grads);
  finish_transposed_gradients(scores, grads, x, p, item);
  pack_words(grad_words, grads);
  multiply_words(dk, grad_words, descriptor_of(stage, 1, STEP));
  wait_products(0);
  settle_sums(dv);
  settle_sums(dk);
  arrive_if(item % 32 == 0, base + STEP_EMPTY + 8 * t->stage);
}

// Global size: {work-groups * ITEMS}, as many as there are compute units or blocks of keys.
kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void attention_gpu_wgmma_dkv(
    global const T* Q, global const T* K, global const T* V, global const T* bias, global const T* grad_out,
    global const float* lse, global const float* delta, global T* grad_k, global T* grad_v, AttentionParams p,
    global uchar* workspace, AttentionWgmma w) {
  local uchar memory[LOCAL_BYTES] __attribute__((aligned(1024)));
  const int item = get_local_id(0);
  const uint base = local_address(memory);
  if (item == 0) make_all_barriers(base, 32);
  barrier(CLK_LOCAL_MEM_FENCE);
  if (item >= CONSUMERS) {
    few_registers();
    const Pair kept = {K, V, &p.k, &p.v, p.keys, p.heads / p.group};
    const Pair step = {Q, grad_out, &p.q, &p.out, p.queries, p.heads};
    if (item < CONSUMERS + 32) copy_for_keys(memory, workspace, &kept, &step, lse, delta, &p, &w);
    return;
  }
  many_registers();
  Turn t = {0, 0};
  uint kept_parity = 0;
  const int kv_heads = p.heads / p.group, all = block_count(p.keys, kv_heads, w.batch);
  for (int round = 0, n; (n = block_in_round(round)) < all; round++) {
    const Block x = block_of(n, p.keys, kv_heads, &p, &w, 0);
    float dk[SUMS], dv[SUMS];
#pragma unroll
    for (int i = 0; i < SUMS; i++) dk[i] = 0, dv[i] = 0;
    wait_for(base + KEPT_FULL, kept_parity);
    kept_parity ^= 1;
    for (int h = x.h * p.group; h < (x.h + 1) * p.group; h++) {
      for (int q0 = first_query(&x, &p); q0 < p.queries; q0 += STEP) {
        const Transposed step = {x.first, q0, ROW_AT(p, x.b, h) + q0, HEAD_AT(p.bias, x.b, h),
                                 (local const float*)(memory + ROWS_AT + t.stage * ROWS_BYTES)};
        add_queries(dk, dv, &step, base, &t, &p, bias, item);
        next_turn(&t);
      }
    }
    arrive_if(item % 32 == 0, base + KEPT_EMPTY);
    const float once[2] = {1.f, 1.f}, scaled[2] = {p.scale, p.scale};
    store_rows(dv, once, grad_v + HEAD_AT(p.grad_v, x.b, x.h) + x.first * p.grad_v.row, &p.grad_v, p.keys - x.first, item,
               &p);
    store_rows(dk, scaled, grad_k + HEAD_AT(p.grad_k, x.b, x.h) + x.first * p.grad_k.row, &p.grad_k, p.keys - x.first,
               item, &p);
  }
}
