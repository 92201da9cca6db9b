// Attention of few queries for GPU-class devices, bound by reading keys and values: a work-group has a part of the keys
// and up to ROWS queries of a group of heads, for which those are read once. attention/combine.cl puts the parts
// together. Build-time macros: DIM as in attention/gpu_flash.clh, and ROWS.
#include "attention/gpu.clh"

#define ITEMS ATTENTION_DECODE_ITEMS
#define PIECES (DIM / 4)         // of a row
#define SHARES (ITEMS / PIECES)  // work-items that divide the keys between them where each has a piece of the values

// Folds the values of the work-items, for each row: to the largest, or to the sum.
static inline void fold(float v[ROWS], local float* scratch, int item, int take_sum) {
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int r = 0; r < ROWS; r++) scratch[r * ITEMS + item] = v[r];
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int r = 0; r < ROWS; r++) {
    float4 all = vload4(r * ITEMS / 4, scratch);
    for (int i = 1; i < ITEMS / 4; i++) {
      const float4 next = vload4(r * ITEMS / 4 + i, scratch);
      all = take_sum ? all + next : fmax(all, next);
    }
    v[r] = take_sum ? (all.x + all.y) + (all.z + all.w) : fmax(fmax(all.x, all.y), fmax(all.z, all.w));
  }
}

// A work-group's share: ROWS of `rows` queries of the heads that share head kv of the keys, from `first` on, and `count`
// keys from `key` on.
typedef struct {
  int b, kv, rows, first, key, count;
} Share;

// The head and the query of a row.
#define HEAD_OF(at, p, row) ((at).kv * (p)->group + (row) / (p)->queries)
#define QUERY_OF(p, row) ((row) % (p)->queries)

// queries[row][d] = the share's queries times the scale; those that do not exist are 0.
static inline void load_queries(global const T* Q, const AttentionParams* p, Share at, local float4* queries,
                                int item) {
  for (int e = item; e < ROWS * PIECES; e += ITEMS) {
    const int r = at.first + e / PIECES, d = e % PIECES * 4;
    global const T* q = Q + HEAD_AT(p->q, at.b, HEAD_OF(at, p, r)) + QUERY_OF(p, r) * p->q.row;
    const float4 x = r < at.rows ? load_part(q, d, p->dim, p->vector) : (float4)(0.f);
    queries[e] = p->scale * x;
  }
}

// scores[row][key] of a work-item's keys, which begin at k, and the largest of each row.
static inline void score_keys(global const T* k, global const T* bias, const AttentionParams* p, Share at,
                              local const float4* queries, local float* scores, float most[ROWS], int item) {
  for (int r = 0; r < ROWS; r++) most[r] = -INFINITY;
  for (int j = item; j < at.count; j += ITEMS) {
    float4 s[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) s[r] = (float4)(0.f);
#pragma unroll 4
    for (int d = 0; d < PIECES; d++) {
      const float4 x = load_part(k + j * p->k.row, d * 4, p->dim, p->vector);
#pragma unroll
      for (int r = 0; r < ROWS; r++) s[r] = fma(x, queries[r * PIECES + d], s[r]);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const int row = at.first + r, query = QUERY_OF(p, row), key = at.key + j;
      float score = (s[r].x + s[r].y) + (s[r].z + s[r].w);
      if (row >= at.rows || (p->causal && key > query)) {
        score = -INFINITY;
      } else if (p->bias_kind) {
        score += bias_of(bias, p, HEAD_AT(p->bias, at.b, HEAD_OF(at, p, row)), query, key);
      }
      scores[r * ATTENTION_PART + j] = score;
      most[r] = fmax(most[r], score);
    }
  }
}

kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void attention_gpu_decode(
    global const T* Q, global const T* K, global const T* V, global const T* bias, global float* partial,
    long partial_offset, AttentionParams p) {
  local float scores[ROWS * ATTENTION_PART];
  local float4 queries[ROWS * PIECES], scratch[ROWS * ITEMS];
  const int rows = p.group * p.queries, chunks = (rows + ROWS - 1) / ROWS, item = get_local_id(0), n = get_group_id(0);
  const Share at = {get_group_id(2), get_group_id(1) / chunks,        rows, get_group_id(1) % chunks * ROWS,
                    n * p.part,      min(p.part, p.keys - n * p.part)};
  global const T* k = K + HEAD_AT(p.k, at.b, at.kv) + at.key * p.k.row;
  global const T* v = V + HEAD_AT(p.v, at.b, at.kv) + at.key * p.v.row;
  load_queries(Q, &p, at, queries, item);
  barrier(CLK_LOCAL_MEM_FENCE);

  float most[ROWS], sum[ROWS];
  score_keys(k, bias, &p, at, queries, scores, most, item);
  for (int r = 0; r < ROWS; r++) sum[r] = 0.f;
  fold(most, (local float*)scratch, item, 0);
  for (int j = item; j < at.count; j += ITEMS)
    for (int r = 0; r < ROWS; r++) {
      const float e = exp(scores[r * ATTENTION_PART + j] - (most[r] == -INFINITY ? 0.f : most[r]));
      scores[r * ATTENTION_PART + j] = e;
      sum[r] += e;
    }
  fold(sum, (local float*)scratch, item, 1);

  const int piece = item % PIECES, share = item / PIECES;
  float4 acc[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; r++) acc[r] = (float4)(0.f);
  for (int j = share; j < at.count; j += SHARES) {
    const float4 x = load_part(v + j * p.v.row, piece * 4, p.dim, p.vector);
#pragma unroll
    for (int r = 0; r < ROWS; r++) acc[r] = fma((float4)(scores[r * ATTENTION_PART + j]), x, acc[r]);
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int r = 0; r < ROWS; r++) scratch[r * ITEMS + item] = acc[r];
  barrier(CLK_LOCAL_MEM_FENCE);
  const int wide = p.dim + 2;
  for (int e = item; e < ROWS * DIM; e += ITEMS) {
    const int r = e / DIM, d = e % DIM, row = at.first + r;
    if (row >= rows) continue;
    const long place = ROW_AT(p, at.b, HEAD_OF(at, &p, row)) + QUERY_OF(&p, row);
    global float* to = partial + partial_offset + (place * p.parts + n) * wide;
    if (d < p.dim) {
      float value = 0.f;
      for (int t = 0; t < SHARES; t++) value += ((local const float*)(scratch + r * ITEMS + t * PIECES))[d];
      to[d] = value;
    }
    if (d == 0) to[p.dim] = most[r], to[p.dim + 1] = sum[r];
  }
}
