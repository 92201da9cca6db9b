// Attention in 16 bits on the tensor cores of NVIDIA's Hopper GPUs, in one pass over the keys as in attention/gpu_mma.cl.
//
// A work-group stays and computes blocks of 128 queries, one after the other. Its last warp copies queries, keys and
// values to local memory by the copy engine (common/wgmma.clh); two warpgroups compute 64 queries each. While one of them
// has the tensor cores, the other computes exponentials. The scores are the left operand of the second product without
// leaving their registers: with g = lane / 4 and t = lane % 4 a work-item has rows g and g + 8 of its warp's 16, and of
// every eight columns 2 t and 2 t + 1, in sums as in operands.
//
// Build-time macros: T_HALF or T_BFLOAT16 for common/gpu_tile.clh, and DIM, the head size rounded up to 64 or 128.
//
// A probe: ptxas assembles it for sm_90a without spills for heads of 64 (168 registers), with 116 bytes of them for heads
// of 128. It has not run yet. What common/wgmma.clh lacks for it stands first.
#include "attention/gpu.clh"

#define REGISTERS8(r, i)                                                                           \
  "+f"(r[i]), "+f"(r[i + 1]), "+f"(r[i + 2]), "+f"(r[i + 3]), "+f"(r[i + 4]), "+f"(r[i + 5]),      \
      "+f"(r[i + 6]), "+f"(r[i + 7])
#define REGISTERS32(r, i) REGISTERS8(r, i), REGISTERS8(r, i + 8), REGISTERS8(r, i + 16), REGISTERS8(r, i + 24)

INLINE void arrive(uint barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}

INLINE void make_map4(uint map, ulong address, int length, int lines, int heads, int batch, long pitch, long head,
                      long matrix, int box_length, int box_lines) {
  asm volatile(
      "//@tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%0], %1;\n"
      "//@tensormap.replace.tile.rank.shared::cta.b1024.b32 [%0], 3;\n"
      "//@tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%0], 0, %2;\n"
      "//@tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%0], 1, %3;\n"
      "//@tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%0], 2, %4;\n"
      "//@tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%0], 3, %5;\n"
      "//@tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%0], 0, %6;\n"
      "//@tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%0], 1, %7;\n"
      "//@tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%0], 2, %8;\n"
      "//@tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%0], 0, %9;\n"
      "//@tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%0], 1, %10;\n"
      "//@tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%0], 2, 1;\n"
      "//@tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%0], 3, 1;\n"
      "//@tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [%0], 0, 1;\n"
      "//@tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [%0], 1, 1;\n"
      "//@tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [%0], 2, 1;\n"
      "//@tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [%0], 3, 1;\n"
      "//@tensormap.replace.tile.elemtype.shared::cta.b1024.b32 [%0], " MAP_TYPE ";\n"
      "//@tensormap.replace.tile.interleave_layout.shared::cta.b1024.b32 [%0], 0;\n"
      "//@tensormap.replace.tile.swizzle_mode.shared::cta.b1024.b32 [%0], 3;\n"
      "//@tensormap.replace.tile.fill_mode.shared::cta.b1024.b32 [%0], 0;\n" ::"r"(map),
      "l"(address), "r"(length), "r"(lines), "r"(heads), "r"(batch), "l"(pitch), "l"(head), "l"(matrix),
      "r"(box_length), "r"(box_lines)
      : "memory");
}

INLINE void copy_box4(uint to, ulong map, int x, int y, int z, int w, uint barrier) {
  asm volatile(
      "//@cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, "
      "%5}], [%6];\n" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(barrier)
      : "memory");
}

#define descriptor(address, along_rows, lines) ((ulong)1 << 62 | (ulong)64 << 32 | (ulong)(along_rows ? WGMMA_LINE * (lines) / 16 : 1) << 16 | ((address) & 0x3ffff) >> 4)
#define ATTENTION_WGMMA_QUERIES 128
#define ATTENTION_WGMMA_ITEMS 288
#define ATTENTION_WGMMA_KEYS(d) 64  // 128 for heads of 64 spill
#define KEYS_64 1

#define CONSUMERS 256
#define KEYS ATTENTION_WGMMA_KEYS(DIM)  // of a step
#define BOXES (DIM / WGMMA_LINE_ELEMENTS)
#define QUERY_BYTES (ATTENTION_WGMMA_QUERIES * DIM * 2)
#define STEP_BYTES (KEYS * DIM * 2)  // of keys, and of values
#define STAGES 3
#define VALUES (QUERY_BYTES + STAGES * STEP_BYTES)
#define BARRIERS (VALUES + STAGES * STEP_BYTES)
#define QUERIES_FULL BARRIERS  // of the block's queries; then by stage of keys and of values
#define QUERIES_EMPTY (BARRIERS + 8)
#define KEYS_FULL (BARRIERS + 16)
#define KEYS_EMPTY (KEYS_FULL + 8 * STAGES)
#define VALUES_FULL (KEYS_EMPTY + 8 * STAGES)
#define VALUES_EMPTY (VALUES_FULL + 8 * STAGES)
#define MAPS (BARRIERS + 128)
#define LOCAL_BYTES (MAPS + 3 * WGMMA_MAP)
#define SCORES (KEYS / 2)  // of a work-item
#define SUMS (DIM / 2)
#define LOG2_E 1.44269504f

// --- Copies -----------------------------------------------------------------------------------------------------------

INLINE void map_view(uint map, global const T* start, const AttentionView* v, int dim, int rows, int heads, int batch,
                     int box_rows) {
  make_map4(map, (ulong)(start + v->offset), dim, rows, heads, batch, v->row * 2, v->head * 2, v->batch * 2,
            WGMMA_LINE_ELEMENTS, box_rows);
}

INLINE void copy_rows(uint to, ulong map, int row, int rows, int head, int batch, uint barrier) {
#pragma unroll
  for (int i = 0; i < BOXES; i++)
    copy_box4(to + i * rows * WGMMA_LINE, map, i * WGMMA_LINE_ELEMENTS, row, head, batch, barrier);
}

typedef struct {
  int b, h, q0, end;  // its first query, and the keys that it sees
} Block;

// The n-th of all blocks. With a causal mask later queries have more to do, so they come first.
INLINE Block block_of(int n, const AttentionParams* p, int batch, int blocks) {
  Block x;
  const int head = n % (p->heads * batch), place = n / (p->heads * batch);
  x.h = head % p->heads, x.b = head / p->heads;
  x.q0 = (p->causal ? blocks - 1 - place : place) * ATTENTION_WGMMA_QUERIES;
  x.end = p->causal ? min(p->keys, x.q0 + ATTENTION_WGMMA_QUERIES) : p->keys;
  return x;
}

INLINE void next_stage(uint* stage, uint* parity) {
  if (++*stage == STAGES) *stage = 0, *parity ^= 1;
}

// What the copying warp does.
INLINE void copy_blocks(local uchar* memory, global const T* Q, global const T* K, global const T* V, global uchar* maps,
                        const AttentionParams* p, int batch) {
  const int lane = get_local_id(0) % 32, blocks = (p->queries + ATTENTION_WGMMA_QUERIES - 1) / ATTENTION_WGMMA_QUERIES;
  const uint base = local_address(memory);
  const ulong published = (ulong)maps + get_group_id(0) * 3 * WGMMA_MAP;
  for (int i = lane; i < 3 * WGMMA_MAP / 4; i += 32) *(local uint*)(memory + MAPS + i * 4) = 0;
  asm volatile("bar.warp.sync -1;" ::: "memory");
  if (lane == 0) {
    const int kv_heads = p->heads / p->group;
    map_view(base + MAPS, Q, &p->q, p->dim, p->queries, p->heads, batch, ATTENTION_WGMMA_QUERIES);
    map_view(base + MAPS + WGMMA_MAP, K, &p->k, p->dim, p->keys, kv_heads, batch, KEYS);
    map_view(base + MAPS + 2 * WGMMA_MAP, V, &p->v, p->dim, p->keys, kv_heads, batch, KEYS);
  }
  for (int i = 0; i < 3; i++) publish_map(published + i * WGMMA_MAP, base + MAPS + i * WGMMA_MAP);
  if (lane != 0) return;
  uint stage = 0, parity = 1, query_parity = 1;
  for (int n = get_group_id(0); n < blocks * p->heads * batch; n += get_num_groups(0)) {
    const Block x = block_of(n, p, batch, blocks);
    wait_for(base + QUERIES_EMPTY, query_parity);
    query_parity ^= 1;
    expect(base + QUERIES_FULL, QUERY_BYTES);
    copy_rows(base, published, x.q0, ATTENTION_WGMMA_QUERIES, x.h, x.b, base + QUERIES_FULL);
    for (int k0 = 0; k0 < x.end; k0 += KEYS) {
      const uint place = stage * STEP_BYTES, at = base + 8 * stage;
      wait_for(at + KEYS_EMPTY, parity);
      expect(at + KEYS_FULL, STEP_BYTES);
      copy_rows(base + QUERY_BYTES + place, published + WGMMA_MAP, k0, KEYS, x.h / p->group, x.b, at + KEYS_FULL);
      wait_for(at + VALUES_EMPTY, parity);
      expect(at + VALUES_FULL, STEP_BYTES);
      copy_rows(base + VALUES + place, published + 2 * WGMMA_MAP, k0, KEYS, x.h / p->group, x.b, at + VALUES_FULL);
      next_stage(&stage, &parity);
    }
  }
}

// --- Products ---------------------------------------------------------------------------------------------------------

#define OF_DIM(i) ((i) / 4 * (uint)(KEYS * WGMMA_LINE / 16) + (i) % 4 * 2)  // 16 elements of dim further, in keys
#define QUERY_DIM(i) ((i) / 4 * (uint)(ATTENTION_WGMMA_QUERIES * WGMMA_LINE / 16) + (i) % 4 * 2)
#if KEYS_64
#define SCORE_TEXT "64"
#define SCORE_NAMES NAMES32("%")
#define SCORE_OPERANDS REGISTERS32(scores, 0)
#else
#define SCORE_TEXT "128"
#define SCORE_NAMES NAMES64("%")
#define SCORE_OPERANDS REGISTERS32(scores, 0), REGISTERS32(scores, 32)
#endif
#if DIM == 64
#define SUM_NAMES NAMES32("%")
#define SUM_OPERANDS REGISTERS32(sums, 0)
#else
#define SUM_NAMES NAMES64("%")
#define SUM_OPERANDS REGISTERS32(sums, 0), REGISTERS32(sums, 32)
#endif

// scores = the block's queries times a step's keys, then frees the keys.
#define MULTIPLY_KEYS(i, adds)                                                                                  \
  "add.s64 x, %[q], %[q" #i "]; add.s64 y, %[k], %[k" #i "];\n"                                                 \
  "//@wgmma.mma_async.sync.aligned.m64n" SCORE_TEXT WGMMA_K "." WGMMA_TYPE " {" SCORE_NAMES "}, x, y, " adds ", 1, 1, 0, 0;\n"
#define STEPS_OF_DIM(i) [q##i] "n"(QUERY_DIM(i)), [k##i] "n"(OF_DIM(i))
INLINE void multiply_keys(float* scores, ulong queries, ulong keys, uint full, uint parity, uint empty) {
  wait_for(full, parity);
  asm volatile(
      "{ .reg .pred no, yes, q; .reg .b64 x, y; setp.ne.b32 no, 0, 0; setp.eq.b32 yes, 0, 0;\n"
      "//@wgmma.fence.sync.aligned;\n"
      MULTIPLY_KEYS(0, "no") MULTIPLY_KEYS(1, "yes") MULTIPLY_KEYS(2, "yes") MULTIPLY_KEYS(3, "yes")
#if DIM == 128
      MULTIPLY_KEYS(4, "yes") MULTIPLY_KEYS(5, "yes") MULTIPLY_KEYS(6, "yes") MULTIPLY_KEYS(7, "yes")
#endif
      "//@wgmma.commit_group.sync.aligned;\n"
      "//@wgmma.wait_group.sync.aligned 0;\n"
      "setp.eq.s32 q, %[lane], 0; @q mbarrier.arrive.shared.b64 _, [%[empty]]; }"
      : SCORE_OPERANDS
      : [q] "l"(queries), [k] "l"(keys), [empty] "r"(empty), [lane] "r"((int)get_local_id(0) % 32), STEPS_OF_DIM(0),
        STEPS_OF_DIM(1), STEPS_OF_DIM(2), STEPS_OF_DIM(3), STEPS_OF_DIM(4), STEPS_OF_DIM(5), STEPS_OF_DIM(6),
        STEPS_OF_DIM(7)
      : "memory");
}

// sums += the probabilities times a step's values, then frees the values.
#define MULTIPLY_VALUES(i, a, b, c, d)                                                                          \
  "add.s64 y, %[v], " #i " * 128;\n"                                                                            \
  "//@wgmma.mma_async.sync.aligned.m64n" TEXT(DIM) WGMMA_K "." WGMMA_TYPE " {" SUM_NAMES "}, {%[p" #a "], %[p" #b    \
  "], %[p" #c "], %[p" #d "]}, y, yes, 1, 1, 1;\n"
#define WORD(i) [p##i] "r"(words[i])
#define WORDS8(a, b, c, d, e, f, g, h) WORD(a), WORD(b), WORD(c), WORD(d), WORD(e), WORD(f), WORD(g), WORD(h)
INLINE void multiply_values(float* sums, const uint* words, ulong values, uint full, uint parity, uint empty) {
  wait_for(full, parity);
  asm volatile(
      "{ .reg .pred yes, q; .reg .b64 y; setp.eq.b32 yes, 0, 0;\n"
      "//@wgmma.fence.sync.aligned;\n"
      MULTIPLY_VALUES(0, 0, 1, 2, 3) MULTIPLY_VALUES(1, 4, 5, 6, 7)
      MULTIPLY_VALUES(2, 8, 9, 10, 11) MULTIPLY_VALUES(3, 12, 13, 14, 15)
#if !KEYS_64
      MULTIPLY_VALUES(4, 16, 17, 18, 19) MULTIPLY_VALUES(5, 20, 21, 22, 23)
      MULTIPLY_VALUES(6, 24, 25, 26, 27) MULTIPLY_VALUES(7, 28, 29, 30, 31)
#endif
      "//@wgmma.commit_group.sync.aligned;\n"
      "//@wgmma.wait_group.sync.aligned 0;\n"
      "setp.eq.s32 q, %[lane], 0; @q mbarrier.arrive.shared.b64 _, [%[empty]]; }"
      : SUM_OPERANDS
      : [v] "l"(values), [empty] "r"(empty), [lane] "r"((int)get_local_id(0) % 32), WORDS8(0, 1, 2, 3, 4, 5, 6, 7),
        WORDS8(8, 9, 10, 11, 12, 13, 14, 15)
#if !KEYS_64
        , WORDS8(16, 17, 18, 19, 20, 21, 22, 23), WORDS8(24, 25, 26, 27, 28, 29, 30, 31)
#endif
      : "memory");
}

// --- Probabilities ----------------------------------------------------------------------------------------------------

INLINE float of_four(float v, int take_sum) {
#pragma unroll
  for (int distance = 1; distance < 4; distance *= 2) {
    const float other = as_float(other_lane(as_uint(v), distance));
    v = take_sum ? v + other : fmax(v, other);
  }
  return v;
}

// Scores of row i (0: g, 1: g + 8) from `key` on, in units of the logarithm to base 2, with bias and masks.
INLINE void finish_scores(float* scores, int i, int query, int k0, const Block* x, const AttentionParams* p,
                          global const T* bias, long head, int t) {
  const float scale = p->scale * LOG2_E;
  const bool masks = k0 + KEYS > x->end || (p->causal && k0 + KEYS > query);
#pragma unroll
  for (int n = 0; n < SCORES / 4; n++)
#pragma unroll
    for (int c = 0; c < 2; c++) scores[4 * n + 2 * i + c] *= scale;
  if (!masks && !p->bias_kind) return;
#pragma unroll
  for (int n = 0; n < SCORES / 4; n++)
#pragma unroll
    for (int c = 0; c < 2; c++) {
      const int key = k0 + n * 8 + 2 * t + c;
      float s = scores[4 * n + 2 * i + c];
      if (key >= x->end || query >= p->queries || (p->causal && key > query)) s = -INFINITY;
      else if (p->bias_kind) s += bias_of(bias, p, head, query, key) * LOG2_E;
      scores[4 * n + 2 * i + c] = s;
    }
}

typedef struct {
  float most[2], sum[2];
} Rows;

// Scores become exponentials below the largest so far, and sums are brought to it.
INLINE void exponentials(float* scores, float* sums, Rows* rows, int i) {
  float best = -INFINITY;
#pragma unroll
  for (int n = 0; n < SCORES / 4; n++) best = fmax(best, fmax(scores[4 * n + 2 * i], scores[4 * n + 2 * i + 1]));
  const float next = fmax(rows->most[i], of_four(best, 0)), base = next == -INFINITY ? 0.f : next;
  const float old = native_exp2(rows->most[i] - base);
  rows->most[i] = next, rows->sum[i] *= old;
#pragma unroll
  for (int n = 0; n < SUMS / 4; n++) sums[4 * n + 2 * i] *= old, sums[4 * n + 2 * i + 1] *= old;
#pragma unroll
  for (int n = 0; n < SCORES / 4; n++)
#pragma unroll
    for (int c = 0; c < 2; c++) {
      const float e = native_exp2(scores[4 * n + 2 * i + c] - base);
      rows->sum[i] += e;
      scores[4 * n + 2 * i + c] = e;
    }
}

INLINE void drop(float* scores, int i, long row, int k0, const AttentionParams* p, int t) {
#pragma unroll
  for (int n = 0; n < SCORES / 4; n++) {
    const float4 f = dropout_factors(p, row, k0 + n * 8 + 2 * t);
    const float2 factors = t % 2 ? f.zw : f.xy;
    scores[4 * n + 2 * i] *= factors.x, scores[4 * n + 2 * i + 1] *= factors.y;
  }
}

INLINE void store_row(const float* sums, int i, float factor, global T* to, const AttentionParams* p, int t) {
#pragma unroll
  for (int n = 0; n < SUMS / 4; n++) {
    const int d = n * 8 + 2 * t;
    const uint v = pair(sums[4 * n + 2 * i] * factor, sums[4 * n + 2 * i + 1] * factor);
    if (p->vector && d < p->dim) {
      *(global uint*)(to + d) = v;
    } else {
      if (d < p->dim) to[d] = (T)v;
      if (d + 1 < p->dim) to[d + 1] = (T)(v >> 16);
    }
  }
}

// Global size: {work-groups * ATTENTION_WGMMA_ITEMS}, as many as there are compute units or blocks of queries.
kernel __attribute__((reqd_work_group_size(ATTENTION_WGMMA_ITEMS, 1, 1))) void attention_wgmma(
    global const T* Q, global const T* K, global const T* V, global const T* bias, global T* out, global float* lse,
    AttentionParams p, global uchar* maps, int batch) {
  local uchar memory[LOCAL_BYTES] __attribute__((aligned(1024)));
  const int item = get_local_id(0), group = item / 128, lane = item % 32, g = lane / 4, t = lane % 4;
  const uint base = local_address(memory);
  if (item == 0) {
    make_barrier(base + QUERIES_FULL, 1), make_barrier(base + QUERIES_EMPTY, CONSUMERS / 32);
    for (int i = 0; i < STAGES; i++) {
      make_barrier(base + KEYS_FULL + 8 * i, 1), make_barrier(base + VALUES_FULL + 8 * i, 1);
      make_barrier(base + KEYS_EMPTY + 8 * i, CONSUMERS / 32), make_barrier(base + VALUES_EMPTY + 8 * i, CONSUMERS / 32);
    }
    asm volatile("fence.proxy.async;" ::: "memory");
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (item >= CONSUMERS) {
    copy_blocks(memory, Q, K, V, maps, &p, batch);
    return;
  }
  const ulong queries = descriptor(base + group * 64 * WGMMA_LINE, 0, ATTENTION_WGMMA_QUERIES);
  const ulong keys = descriptor(base + QUERY_BYTES, 0, KEYS), values = descriptor(base + VALUES, 1, KEYS);
  const int blocks = (p.queries + ATTENTION_WGMMA_QUERIES - 1) / ATTENTION_WGMMA_QUERIES;
  const int first = group * 64 + item % 128 / 32 * 16 + g;
  uint stage = 0, parity = 0, query_parity = 0;
  for (int n = get_group_id(0); n < blocks * p.heads * batch; n += get_num_groups(0)) {
    const Block x = block_of(n, &p, batch, blocks);
    const long row = ROW_AT(p, x.b, x.h) + x.q0 + first, head = HEAD_AT(p.bias, x.b, x.h);
    float sums[SUMS];
    Rows rows = {{-INFINITY, -INFINITY}, {0, 0}};
#pragma unroll
    for (int i = 0; i < SUMS; i++) sums[i] = 0;
    wait_for(base + QUERIES_FULL, query_parity);
    query_parity ^= 1;
    for (int k0 = 0; k0 < x.end; k0 += KEYS) {
      float scores[SCORES];
      uint words[SCORES / 2];
      const uint at = base + 8 * stage;
      const ulong place = stage * (STEP_BYTES / 16);
#pragma unroll
      for (int i = 0; i < SCORES; i++) scores[i] = 0;
      multiply_keys(scores, queries, keys + place, at + KEYS_FULL, parity, at + KEYS_EMPTY);
#pragma unroll
      for (int i = 0; i < 2; i++) {
        finish_scores(scores, i, x.q0 + first + 8 * i, k0, &x, &p, bias, head, t);
        exponentials(scores, sums, &rows, i);
        if (p.keep < 1.f) drop(scores, i, row + 8 * i, k0, &p, t);
      }
#pragma unroll
      for (int i = 0; i < SCORES / 2; i++) words[i] = pair(scores[2 * i], scores[2 * i + 1]);
      multiply_values(sums, words, values + place, at + VALUES_FULL, parity, at + VALUES_EMPTY);
      next_stage(&stage, &parity);
    }
    if (lane == 0) arrive(base + QUERIES_EMPTY);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int query = x.q0 + first + 8 * i;
      const float all = of_four(rows.sum[i], 1);
      if (query >= p.queries) continue;
      store_row(sums, i, all == 0.f ? 0.f : 1.f / all, out + HEAD_AT(p.out, x.b, x.h) + query * p.out.row, &p, t);
      if (t == 0) store_sums(lse, &p, row + 8 * i, rows.most[i] / LOG2_E, all);
    }
  }
}
