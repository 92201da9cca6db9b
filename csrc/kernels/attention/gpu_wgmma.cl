// clang-format off
// Attention in 16 bits on the tensor cores of NVIDIA's Hopper GPUs, in one pass over the keys (attention/gpu_mma.cl).
// A work-group keeps 128 queries. A warpgroup's products of one step's queries with keys begin together with those of
// the step before with values; with OVERLAP the exponentials of the step do not wait for the latter.
#include "attention/gpu_wgmma.clh"

#define KEYS_AT KEPT_BYTES
#define VALUES_AT (KEYS_AT + STAGES * STEP_BYTES)
#define BARRIERS (VALUES_AT + STAGES * STEP_BYTES)
#define QUERIES_FULL BARRIERS
#define QUERIES_EMPTY (BARRIERS + 8)
#define KEYS_FULL (BARRIERS + 16)  // by stage, like the following
#define KEYS_EMPTY (KEYS_FULL + 8 * STAGES)
#define VALUES_FULL (KEYS_EMPTY + 8 * STAGES)
#define VALUES_EMPTY (VALUES_FULL + 8 * STAGES)
#define MAPS (BARRIERS + 256)
#define LOCAL_BYTES (MAPS + 3 * WGMMA_MAP)

// How many keys a block sees.
INLINE int end_of(const Block* x, const AttentionParams* p) { return p->causal ? min(p->keys, x->first + KEPT) : p->keys; }

// The work of the copying warp.
INLINE void copy_blocks(local uchar* memory, global const T* Q, global const T* K, global const T* V,
                        global uchar* workspace, const AttentionParams* p, const AttentionWgmma* w) {
  const int lane = get_local_id(0) % 32;
  const uint base = local_address(memory);
  const ulong maps = (ulong)(workspace + w->maps) + get_group_id(0) * 3 * WGMMA_MAP;
  clear_maps(memory + MAPS, 3, lane);
  if (lane == 0) {
    map_view(base + MAPS, Q, &p->q, p, p->queries, p->heads, w->batch, KEPT);
    map_view(base + MAPS + WGMMA_MAP, K, &p->k, p, p->keys, p->heads / p->group, w->batch, STEP);
    map_view(base + MAPS + 2 * WGMMA_MAP, V, &p->v, p, p->keys, p->heads / p->group, w->batch, STEP);
  }
  for (int i = 0; i < 3; i++) publish_map(maps + i * WGMMA_MAP, base + MAPS + i * WGMMA_MAP);
  if (lane != 0) return;
  Turn t = {0, 1};
  uint kept_parity = 1;
  const int all = block_count(p->queries, p->heads, w->batch);
  for (int round = 0, n; (n = block_in_round(round)) < all; round++) {
    const Block x = block_of(n, p->queries, p->heads, p, w, 1);
    const int end = end_of(&x, p), kv = x.h / p->group;
    wait_for(base + QUERIES_EMPTY, kept_parity);
    kept_parity ^= 1;
    expect(base + QUERIES_FULL, KEPT_BYTES);
    copy_rows(base, maps, &p->q, x.first, KEPT, x.h, x.b, base + QUERIES_FULL);
    for (int k0 = 0; k0 < end; k0 += STEP) {
      const uint place = t.stage * STEP_BYTES, at = base + 8 * t.stage;
      wait_for(at + KEYS_EMPTY, t.parity);
      expect(at + KEYS_FULL, STEP_BYTES);
      copy_rows(base + KEYS_AT + place, maps + WGMMA_MAP, &p->k, k0, STEP, kv, x.b, at + KEYS_FULL);
      wait_for(at + VALUES_EMPTY, t.parity);
      expect(at + VALUES_FULL, STEP_BYTES);
      copy_rows(base + VALUES_AT + place, maps + 2 * WGMMA_MAP, &p->v, k0, STEP, kv, x.b, at + VALUES_FULL);
      next_turn(&t);
    }
  }
}

// --- Probabilities ----------------------------------------------------------------------------------------------------

// The largest of the values of a row's four work-items, or their sum.
INLINE float of_four(float v, int take_sum) {
#pragma unroll
  for (int distance = 1; distance < 4; distance *= 2) {
    const float other = as_float(other_lane(as_uint(v), distance));
    v = take_sum ? v + other : fmax(v, other);
  }
  return v;
}

// The two rows of a work-item: their place, and the largest score and the sum of exponentials so far. Scores are times
// `unit` what exponents of two are: products are scaled by it alone, unless a bias is added or the scale turns their
// order around.
typedef struct {
  int first;  // query of the warpgroup
  int query[2];
  long row[2];  // in tensors [batch, heads, queries]
  long bias;    // the place of its head's first element
  float most[2], sum[2], unit;
  int scaled;   // whether scores are scaled before the largest is looked for
} Rows;

// Masks, and the bias.
INLINE void finish_scores(float* scores, const Rows* rows, int k0, int end, const AttentionParams* p,
                          global const T* bias, int item) {
  if (rows->scaled) {
#pragma unroll
    for (int i = 0; i < SCORES; i++) scores[i] *= p->scale;
  }
  if (!BIAS && k0 + STEP <= end && !(p->causal && k0 + STEP > rows->first + 1)) return;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int query = rows->query[r], first = k0 + wgmma_column(item, 0);
    const int left = (p->causal ? min(end, query + 1) : end) - first;
#pragma unroll
    for (int i = 2 * r; i < SCORES; i += 4)
#pragma unroll
      for (int c = 0; c < 2; c++) {
        const int column = wgmma_column(0, i + c);
        if (BIAS && column < left && query < p->queries)
          scores[i + c] += bias_of(bias, p, rows->bias, query, first + column);
        scores[i + c] = column < left ? scores[i + c] : -INFINITY;
      }
  }
}

// Scores become exponentials below the largest so far; `old` is what sums so far are multiplied by.
INLINE void exponentials(float* scores, Rows* rows, float* old) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float best = -INFINITY;
#pragma unroll
    for (int i = 2 * r; i < SCORES; i += 4) best = fmax(best, fmax(scores[i], scores[i + 1]));
    const float next = fmax(rows->most[r], of_four(best, 0)), base = next == -INFINITY ? 0.f : next;
    old[r] = exp2_of((rows->most[r] - base) * rows->unit);
    rows->most[r] = next;
    float sum = 0;
    const float less = BIAS ? 0 : -base * rows->unit;
#pragma unroll
    for (int i = 2 * r; i < SCORES; i += 4)
#pragma unroll
      for (int c = 0; c < 2; c++) {
        // beside the largest number of a bias the exponent might be out of range
        const float e = BIAS ? (scores[i + c] - base) * rows->unit : fma(scores[i + c], rows->unit, less);
        scores[i + c] = exp2_of(e), sum += scores[i + c];
      }
    rows->sum[r] = rows->sum[r] * old[r] + sum;
  }
}

INLINE void drop(float* scores, const Rows* rows, int k0, const AttentionParams* p, int item) {
#pragma unroll
  for (int i = 0; i < SCORES; i += 4) {
    const uint kept = kept_pairs(p, rows->row[0], k0 + wgmma_column(item, i), item);
#pragma unroll
    for (int j = 0; j < 4; j++) scores[i + j] *= kept >> j & 1 ? p->kept_scale : 0.f;
  }
}

INLINE void scale_sums(float* sums, const float* factors) {
#pragma unroll
  for (int i = 0; i < SUMS; i++) sums[i] *= factors[i / 2 % 2];
}

// From scores to what values are multiplied by.
INLINE void make_probabilities(float* scores, Rows* rows, float* old, int k0, int end, const AttentionParams* p,
                               global const T* bias, int item) {
  finish_scores(scores, rows, k0, end, p, bias, item);
  exponentials(scores, rows, old);
#if DROPOUT
  drop(scores, rows, k0, p, item);
#endif
}

// Begins the products of the stage of that turn when it is full.
INLINE void begin_scores(float* scores, ulong queries, uint base, const Turn* t) {
  wait_for(base + KEYS_FULL + 8 * t->stage, t->parity);
  multiply_rows(scores, queries, descriptor_of(base + KEYS_AT + t->stage * STEP_BYTES, 0, STEP));
}
INLINE void begin_sums(float* sums, const uint* words, uint base, const Turn* t) {
  wait_for(base + VALUES_FULL + 8 * t->stage, t->parity);
  multiply_words(sums, words, descriptor_of(base + VALUES_AT + t->stage * STEP_BYTES, 1, STEP));
}

#if OVERLAP
#define PRODUCTS_UNDER_WAY 1
#else
#define PRODUCTS_UNDER_WAY 0
#endif

INLINE Rows start_rows(const Block* x, const AttentionParams* p, int item) {
  Rows rows;
  rows.scaled = BIAS || !(p->scale > 1e-30f);
  rows.unit = rows.scaled ? LOG2_E : p->scale * LOG2_E;
  rows.first = x->first + item / 128 * 64;
  rows.bias = HEAD_AT(p->bias, x->b, x->h);
#pragma unroll
  for (int r = 0; r < 2; r++) {
    rows.query[r] = x->first + wgmma_row(item, 2 * r);
    rows.row[r] = ROW_AT(*p, x->b, x->h) + rows.query[r];
    rows.most[r] = -INFINITY, rows.sum[r] = 0;
  }
  return rows;
}

// sums = a block's queries by all keys up to `end`, whose stages begin with `t`, and the values.
INLINE void go_through(float* sums, Rows* rows, uint base, Turn* t, int end, const AttentionParams* p,
                       global const T* bias, int item) {
  const int group = item / 128, elected = item % 32 == 0;
  const ulong queries = descriptor_of(base + group * 64 * WGMMA_LINE, 0, KEPT);
  float scores[SCORES], old[2];
  uint words[SCORES / 2];
#pragma unroll
  for (int i = 0; i < SUMS; i++) sums[i] = 0;
  wait_turn(group);
  begin_scores(scores, queries, base, t);
  give_turn(group);
  wait_products(0);
  settle_scores(scores);
  arrive_if(elected, base + KEYS_EMPTY + 8 * t->stage);
  arrive_if(elected && end <= STEP, base + QUERIES_EMPTY);
  make_probabilities(scores, rows, old, 0, end, p, bias, item);
  pack_words(words, scores);
  for (int k0 = STEP; k0 < end; k0 += STEP) {
    const Turn before = *t;
    next_turn(t);
    wait_turn(group);
    begin_scores(scores, queries, base, t);
    begin_sums(sums, words, base, &before);
    give_turn(group);
    wait_products(PRODUCTS_UNDER_WAY);
    settle_scores(scores);
    arrive_if(elected, base + KEYS_EMPTY + 8 * t->stage);
    make_probabilities(scores, rows, old, k0, end, p, bias, item);
    // always true of sums; without it the assembler would put the exponentials behind the wait that follows
    arrive_if(elected && k0 + STEP >= end && !(rows->sum[0] < 0 || rows->sum[1] < 0), base + QUERIES_EMPTY);
    wait_products(0);
    settle_sums(sums);
    arrive_if(elected, base + VALUES_EMPTY + 8 * before.stage);
    scale_sums(sums, old);
    pack_words(words, scores);
  }
  begin_sums(sums, words, base, t);
  wait_products(0);
  settle_sums(sums);
  arrive_if(elected, base + VALUES_EMPTY + 8 * t->stage);
  next_turn(t);
}

INLINE void store_results(float* sums, const Rows* rows, const Block* x, global T* out, global float* lse,
                          const AttentionParams* p, int item) {
  float factors[2];
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const float sum = of_four(rows->sum[r], 1);
    factors[r] = sum == 0.f ? 0.f : 1.f / sum;
    if (item % 4 == 0 && rows->query[r] < p->queries)
      store_sums(lse, p, rows->row[r], rows->scaled ? rows->most[r] : rows->most[r] * p->scale, sum);
  }
  global T* to = out + HEAD_AT(p->out, x->b, x->h) + x->first * p->out.row;
  store_rows(sums, factors, to, &p->out, p->queries - x->first, item, p);
}

// Global size: {work-groups * ITEMS}, as many as there are compute units or blocks of queries.
kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void attention_gpu_wgmma(
    global const T* Q, global const T* K, global const T* V, global const T* bias, global T* out, global float* lse,
    AttentionParams p, global uchar* workspace, AttentionWgmma w) {
  local uchar memory[LOCAL_BYTES] __attribute__((aligned(1024)));
  const int item = get_local_id(0);
  const uint base = local_address(memory);
  if (item == 0) {
    make_barriers(base + QUERIES_FULL, base + QUERIES_EMPTY, 1, 1);
    make_barriers(base + KEYS_FULL, base + KEYS_EMPTY, STAGES, 1);
    make_barriers(base + VALUES_FULL, base + VALUES_EMPTY, STAGES, 1);
    asm volatile("fence.proxy.async;" ::: "memory");
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (item >= CONSUMERS) {
    few_registers();
    if (item < CONSUMERS + 32) copy_blocks(memory, Q, K, V, workspace, &p, &w);
    return;
  }
  many_registers();
  if (item / 128 == 1) give_turn(1);
  Turn t = {0, 0};
  uint kept_parity = 0;
  const int all = block_count(p.queries, p.heads, w.batch);
  for (int round = 0, n; (n = block_in_round(round)) < all; round++) {
    const Block x = block_of(n, p.queries, p.heads, &p, &w, 1);
    float sums[SUMS];
    Rows rows = start_rows(&x, &p, item);
    wait_for(base + QUERIES_FULL, kept_parity);
    kept_parity ^= 1;
    go_through(sums, &rows, base, &t, end_of(&x, &p), &p, bias, item);
    store_results(sums, &rows, &x, out, lse, &p, item);
  }
}
