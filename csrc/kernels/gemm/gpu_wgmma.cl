// Batched matrix product on the tensor cores of NVIDIA's Hopper GPUs, by their warpgroup instructions (PTX ISA,
// "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions"):
//   c[b,m,n] = alpha * sum_k a[b,m,k] * b[b,k,n] + beta * d[b,m,n], within bounds
//
// A work-group stays and computes tile after tile. Its last warp copies stages of both operands to local memory by
// the copy engine (cp.async.bulk.tensor), as far ahead as there are stages; two warpgroups multiply them, each 64 rows of
// the tile. Barriers in local memory say which stages are full and which are empty. What the copy engine needs to know
// of an operand, its tensor map, the work-group makes itself in the workspace, so the host needs no other API.
//
// Build-time macros besides common/gpu_tile.clh's storage type: columns of a tile (TILE_N, 64, 128 or 256; 256 not with
// SPLIT), and for each operand whether its lines lie along the rows (A_ALONG_ROWS, B_ALONG_ROWS; else along k; only in
// 16 bits). SPLIT multiplies float32 to the precision of float32: every operand is the sum of what TF32 holds of it and a rest,
// three products of these are added, and the sums of each instruction's k leave the tensor cores, which round towards
// zero, for sums in registers (Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores while
// surpassing the FP32 theoretical peak performance", 2022).
#include "kernels/gemm/gpu_wgmma.h"

#if defined(T_FLOAT)
#define MAJORS
#else
#define MAJORS ", " TEXT(A_ALONG_ROWS) ", " TEXT(B_ALONG_ROWS)
#endif

#define CONSUMERS 256  // work-items that multiply
#define A_BYTES (WGMMA_ROWS * WGMMA_LINE)
#define B_BYTES (TILE_N * WGMMA_LINE)
#define STAGE_BYTES (A_BYTES + B_BYTES)
#define RESTS (SPLIT ? 3 : 0)  // stages of what TF32 does not hold
#define STAGES (WGMMA_STAGE_BYTES / STAGE_BYTES - RESTS)
#define BARRIERS (STAGE_BYTES * (STAGES + RESTS))
#define MAPS (BARRIERS + 128)
#define LOCAL_BYTES (MAPS + 2 * WGMMA_MAP)
#define SUMS (TILE_N / 2)  // of a work-item

// Tiles that run together are some rows by some columns, so that what they read is still in the cache.
#define GROUP_TILES 16

#if TILE_N == 64
#define NAMES NAMES32
#define SUM_OPERANDS SUMS32(0)
#define EACH EACH32
#elif TILE_N == 128
#define NAMES NAMES64
#define SUM_OPERANDS SUMS32(0), SUMS32(32)
#define EACH EACH64
#else
#define NAMES NAMES128
#define SUM_OPERANDS SUMS32(0), SUMS32(32), SUMS32(64), SUMS32(96)
#endif

INLINE void map_operand(uint map, global const T* start, const WgmmaOperand* o, int length, int lines, int batch,
                        int box_lines) {
  make_map(map, (ulong)(start + o->offset), length, lines, o->batch ? batch : 1, o->pitch,
           o->batch ? o->batch : o->pitch, WGMMA_LINE_ELEMENTS, box_lines);
}

// The part of an operand's rows from `row` on, `rows` of them, and of one line's k from `k` on.
INLINE void copy_stage(uint to, ulong map, int row, int rows, int k, int matrix, int along_rows, uint barrier) {
  if (!along_rows) {
    copy_box(to, map, k, row, matrix, barrier);
  } else {
#pragma unroll
    for (int i = 0; i < rows; i += WGMMA_LINE_ELEMENTS)
      copy_box(to + i * WGMMA_LINE, map, row + i, k, matrix, barrier);
  }
}

typedef struct {
  int row, column, batch, part, first_k, stages;
} Tile;

INLINE Tile tile_of(int index, const GemmWgmma* p) {
  const int rows = (p->m + WGMMA_ROWS - 1) / WGMMA_ROWS, columns = (p->n + TILE_N - 1) / TILE_N;
  const int in_matrix = index % (rows * columns), matrix = index / (rows * columns);
  const int first = in_matrix / (GROUP_TILES * columns) * GROUP_TILES, together = min(rows - first, GROUP_TILES);
  const int in_group = in_matrix - first * columns;
  Tile t;
  t.row = (first + in_group % together) * WGMMA_ROWS;
  t.column = in_group / together * TILE_N;
  t.batch = matrix % p->batch, t.part = matrix / p->batch;
  t.first_k = t.part * p->k_part;
  t.stages = (min(p->k - t.first_k, p->k_part) + WGMMA_LINE_ELEMENTS - 1) / WGMMA_LINE_ELEMENTS;
  return t;
}

INLINE int tile_count(const GemmWgmma* p) {
  return ((p->m + WGMMA_ROWS - 1) / WGMMA_ROWS) * ((p->n + TILE_N - 1) / TILE_N) * p->batch * p->splits;
}

// What the copying warp does.
INLINE void copy_tiles(local uchar* memory, global const T* a, global const T* b, global float* workspace,
                       const GemmWgmma* p) {
  const int lane = get_local_id(0) % 32;
  const uint maps = local_address(memory) + MAPS;
  const ulong published = (ulong)(workspace + p->maps_offset) + get_group_id(0) * 2 * WGMMA_MAP;
  for (int i = lane; i < 2 * WGMMA_MAP / 4; i += 32) *(local uint*)(memory + MAPS + i * 4) = 0;
  asm volatile("bar.warp.sync -1;" ::: "memory");
  if (lane == 0) {
    map_operand(maps, a, &p->a, A_ALONG_ROWS ? p->m : p->k, A_ALONG_ROWS ? p->k : p->m, p->batch,
                A_ALONG_ROWS ? WGMMA_LINE_ELEMENTS : WGMMA_ROWS);
    map_operand(maps + WGMMA_MAP, b, &p->b, B_ALONG_ROWS ? p->n : p->k, B_ALONG_ROWS ? p->k : p->n, p->batch,
                B_ALONG_ROWS ? WGMMA_LINE_ELEMENTS : TILE_N);
  }
  publish_map(published, maps);
  publish_map(published + WGMMA_MAP, maps + WGMMA_MAP);
  if (lane != 0) return;
  const uint full = local_address(memory) + BARRIERS, empty = full + 8 * STAGES;
  uint stage = 0, parity = 1;
  const int tiles = tile_count(p);
  for (int index = get_group_id(0); index < tiles; index += get_num_groups(0)) {
    const Tile t = tile_of(index, p);
    const int matrix_a = p->a.batch ? t.batch : 0, matrix_b = p->b.batch ? t.batch : 0;
    for (int i = 0; i < t.stages; i++) {
      const uint to = local_address(memory) + stage * STAGE_BYTES, ready = full + 8 * stage;
      const int k = t.first_k + i * WGMMA_LINE_ELEMENTS;
      wait_for(empty + 8 * stage, parity);
      expect(ready, STAGE_BYTES);
      copy_stage(to, published, t.row, WGMMA_ROWS, k, matrix_a, A_ALONG_ROWS, ready);
      copy_stage(to + A_BYTES, published + WGMMA_MAP, t.column, TILE_N, k, matrix_b, B_ALONG_ROWS, ready);
      if (++stage == STAGES) stage = 0, parity ^= 1;
    }
  }
}

// --- Products ---------------------------------------------------------------------------------------------------------

#define A_STEP (A_ALONG_ROWS ? 128 : 2)  // from one instruction's k to the next, in units of 16 bytes
#define B_STEP (B_ALONG_ROWS ? 128 : 2)

#define MULTIPLY(registers, x, y, adds)                                                                         \
  "//@wgmma.mma_async.sync.aligned.m64n" TEXT(TILE_N) WGMMA_K "." WGMMA_TYPE " {" registers "}, " x ", " y ", " adds ", 1, 1" MAJORS ";\n"
#define WAIT_FULL(label)                                                                                        \
  "shl.b32 o, %[stage], 3; add.s32 w, %[full], o; add.s32 e, %[empty], o;\n" label                              \
  ": mbarrier.try_wait.parity.shared.b64 q, [w], %[parity]; @!q bra " label ";\n"
#define WAIT_FULL_IF(label, needed)                                                                             \
  "shl.b32 o, %[stage], 3; add.s32 w, %[full], o; add.s32 e, %[empty], o;\n" label                              \
  ": mbarrier.try_wait.parity.shared.b64 q, [w], %[parity]; not.pred none, " needed "; or.pred q, q, none;\n"   \
  "@!q bra " label ";\n"
#define NEXT_STAGE                                                                                              \
  "add.s32 %[stage], %[stage], 1; setp.eq.s32 q, %[stage], %[stages];\n"                                        \
  "@q mov.b32 %[stage], 0; @q xor.b32 %[parity], %[parity], 1;\n"

// Where a warpgroup is in the turns of the stages; they go on from tile to tile.
typedef struct {
  uint stage, parity;
  uint rest;  // the stage of rests
} Progress;

#if !SPLIT
#define STEP(k)                                                                                                 \
  "add.s64 x, da, %[a_step] * " k "; add.s64 y, db, %[b_step] * " k ";\n" MULTIPLY(NAMES("%"), "x", "y", "p") "setp.eq.b32 p, 0, 0;\n"

// sums = the product of one tile: a loop in one statement, since the compiler must not move sums that are in flight.
INLINE void multiply(float* sums, uint memory, ulong a, ulong b, int count, Progress* at) {
  const uint full = memory + BARRIERS, empty = full + 8 * STAGES;
  uint stage = at->stage, parity = at->parity;
  asm volatile(
      "{ .reg .pred p, q, elected; .reg .b64 x, y, da, db; .reg .b32 i, o, w, e, last;\n"
      "mov.b32 i, 0; mov.b32 e, 0; setp.ne.b32 p, 0, 0; setp.eq.s32 elected, %[lane], 0;\n"
      "LOOP:\n"
      "mov.b32 last, e;\n" WAIT_FULL("FULL")
      "mul.lo.s32 o, %[stage], %[bytes]; cvt.u64.u32 x, o; add.s64 da, %[a], x; add.s64 db, %[b], x;\n"
      "//@wgmma.fence.sync.aligned;\n"
      STEP("0") STEP("1") STEP("2") STEP("3")
      "//@wgmma.commit_group.sync.aligned;\n"
      "//@wgmma.wait_group.sync.aligned 1;\n"
      "setp.gt.s32 q, i, 0; and.pred q, q, elected; @q mbarrier.arrive.shared.b64 _, [last];\n"
      NEXT_STAGE
      "add.s32 i, i, 1; setp.lt.s32 q, i, %[count]; @q bra LOOP;\n"
      "//@wgmma.wait_group.sync.aligned 0;\n"
      "@elected mbarrier.arrive.shared.b64 _, [e]; }"
      : SUM_OPERANDS, [stage] "+r"(stage), [parity] "+r"(parity)
      : [full] "r"(full), [empty] "r"(empty), [a] "l"(a), [b] "l"(b), [count] "r"(count),
        [lane] "r"((int)get_local_id(0) % 32), [bytes] "n"(STAGE_BYTES / 16), [stages] "n"(STAGES),
        [a_step] "n"(A_STEP), [b_step] "n"(B_STEP)
      : "memory");
  at->stage = stage, at->parity = parity;
}
#else
// Splits a float: v becomes what TF32 holds of it, w the rest, to which half of TF32's last place is added, as the hardware
// then cuts off. Of a, which stays as it is, the hardware's cut is what TF32 holds; b is rounded to nearest. So the
// product of both rests, which is left out, has no sign that it tends to. Infinities and NaN have no rest.
#define REST_OF(v, w)                                                                                           \
  "mov.b32 g, " v "; sub.f32 f, g, f; abs.f32 g, g; setp.lt.f32 q, g, 0f7F800000;\n"                            \
  "selp.f32 f, f, 0f00000000, q; mov.b32 " w ", f; add.s32 " w ", " w ", 0x1000;\n"
#define SPLIT_A(v, w) "and.b32 u, " v ", 0xffffe000; mov.b32 f, u;\n" REST_OF(v, w)
#define SPLIT_B(v, w)                                                                                           \
  "add.s32 u, " v ", 0x1000; and.b32 u, u, 0xffffe000; mov.b32 f, u;\n" REST_OF(v, w) "selp.b32 " v ", u, " v ", q;\n"
#define EACH4(split) split("v0", "w0") split("v1", "w1") split("v2", "w2") split("v3", "w3")
#define LOAD4(i) "@more ld.shared.v4.b32 {v0, v1, v2, v3}, [r + 4096 * " i "];\n"
#define STORE4(at, i, v) "@more st.shared.v4.b32 [" at " + 4096 * " i "], {" v "0, " v "1, " v "2, " v "3};\n"
#define RESTS_OF_A(i) LOAD4(i) EACH4(SPLIT_A) STORE4("l", i, "w")
#define RESTS_OF_B(i) LOAD4(i) EACH4(SPLIT_B) STORE4("l", i, "w") STORE4("r", i, "v")
#define RESTS_1 RESTS_OF_A("0") RESTS_OF_A("1") RESTS_OF_A("2")
#if TILE_N == 64  // half as many of b
#define RESTS_2 RESTS_OF_A("3") RESTS_OF_B("4")
#define RESTS_3 RESTS_OF_B("5")
#else
#define RESTS_2 RESTS_OF_A("3") RESTS_OF_B("4") RESTS_OF_B("5")
#define RESTS_3 RESTS_OF_B("6") RESTS_OF_B("7")
#endif
#define PLACES_OF_RESTS                                                                                         \
  "mad.lo.s32 r, %[stage], %[bytes] * 16, %[mine]; mad.lo.s32 l, %[buffer], %[bytes] * 16, %[mine];\n"             \
  "add.s32 l, l, %[rests];\n"
// The three products of one instruction's k, the small ones first.
#define CHAIN(set, k)                                                                                           \
  "//@wgmma.fence.sync.aligned;\n"                                                                              \
  "add.s64 x, ra, 2 * " k "; add.s64 y, db, 2 * " k ";\n" MULTIPLY(NAMES(set), "x", "y", "no")                  \
  "add.s64 x, da, 2 * " k "; add.s64 z, rb, 2 * " k ";\n" MULTIPLY(NAMES(set), "x", "z", "yes")                 \
  MULTIPLY(NAMES(set), "x", "y", "yes") "//@wgmma.commit_group.sync.aligned;\n"
#define ADD_CHAIN "//@wgmma.wait_group.sync.aligned 0;\n" EACH(ADD, s)

// sums = the product of one tile. While one warpgroup adds its chain to the sums in registers, which rounds to nearest, the
// tensor cores have the other's. Meanwhile the rests of the next stage are made, for both warpgroups: they meet before
// the last chain of a stage ends. Three stages of rests are enough, since who has been at that meeting has no chain
// of the stage before any more.
INLINE void multiply(float* sums, uint memory, ulong a, ulong b, int count, Progress* at) {
  const uint full = memory + BARRIERS, empty = full + 8 * STAGES;
  uint stage = at->stage, parity = at->parity, buffer = at->rest;
#pragma unroll
  for (int i = 0; i < SUMS; i++) sums[i] = 0;
  asm volatile(
      "{ .reg .pred yes, no, more, none, q, elected; .reg .b64 x, y, z, da, db, ra, rb;\n"
      ".reg .b32 i, o, w, e, last, r, l, u, v<4>, w<4>; .reg .f32 f, g, s<64>;\n"
      "mov.b32 i, 0; setp.eq.s32 elected, %[lane], 0; setp.eq.b32 yes, 0, 0; setp.ne.b32 no, 0, 0;\n"
      "setp.eq.b32 more, 0, 0;\n"
      WAIT_FULL("FIRST")
      PLACES_OF_RESTS RESTS_1 RESTS_2 RESTS_3
      "fence.proxy.async; bar.sync 1, 256;\n"
      "LOOP:\n"
      "mul.lo.s32 o, %[stage], %[bytes]; cvt.u64.u32 x, o; add.s64 da, %[a], x; add.s64 db, %[b], x;\n"
      "mul.lo.s32 o, %[buffer], %[bytes]; add.s32 o, o, %[bytes] * %[stages]; cvt.u64.u32 x, o;\n"
      "add.s64 ra, %[a], x; add.s64 rb, %[b], x;\n"
      CHAIN("s", "0")
      "mov.b32 last, e; add.s32 i, i, 1; setp.lt.s32 more, i, %[count];\n"
      "add.s32 %[buffer], %[buffer], 1; setp.eq.s32 q, %[buffer], 3; @q mov.b32 %[buffer], 0;\n"
      NEXT_STAGE
      WAIT_FULL_IF("FULL", "more")
      PLACES_OF_RESTS RESTS_1 ADD_CHAIN
      CHAIN("s", "1") RESTS_2 ADD_CHAIN
      CHAIN("s", "2") RESTS_3 "fence.proxy.async;\n" ADD_CHAIN
      CHAIN("s", "3") "bar.sync 1, 256;\n" ADD_CHAIN
      "@elected mbarrier.arrive.shared.b64 _, [last];\n"
      "@more bra.uni LOOP; }"
      : SUM_OPERANDS, [stage] "+r"(stage), [parity] "+r"(parity), [buffer] "+r"(buffer)
      : [full] "r"(full), [empty] "r"(empty), [a] "l"(a), [b] "l"(b), [count] "r"(count),
        [lane] "r"((int)get_local_id(0) % 32), [bytes] "n"(STAGE_BYTES / 16), [stages] "n"(STAGES),
        [mine] "r"(memory + (uint)get_local_id(0) * 16), [rests] "n"(STAGES * STAGE_BYTES)
      : "memory");
  at->stage = stage, at->parity = parity, at->rest = buffer;
}
#endif

// --- Results ----------------------------------------------------------------------------------------------------------

INLINE void finish(float* sums, const GemmWgmma* p, Tile t, int item, global const T* d, float alpha, float beta) {
#pragma unroll
  for (int i = 0; i < SUMS; i++) sums[i] *= alpha;
  if (beta != 0) {
#pragma unroll
    for (int i = 0; i < SUMS; i++) {
      const int row = t.row + wgmma_row(item, i), column = t.column + wgmma_column(item, i);
      if (row < p->m && column < p->n) sums[i] += beta * load1(d + row * p->d_m + column * p->d_n);
    }
  }
  if (bounding(p->low, p->high)) {
#pragma unroll
    for (int i = 0; i < SUMS; i++) sums[i] = bounded1(sums[i], p->low, p->high);
  }
}

INLINE void store(const float* sums, const GemmWgmma* p, Tile t, int item, global T* c) {
  if (!p->c_vector) {
#pragma unroll
    for (int i = 0; i < SUMS; i++) {
      const int row = t.row + wgmma_row(item, i), column = t.column + wgmma_column(item, i);
      if (row < p->m && column < p->n) store1(c + row * p->c_m + column * p->c_n, sums[i]);
    }
    return;
  }
#if defined(T_FLOAT)
#pragma unroll
  for (int i = 0; i < SUMS; i += 2) {
    const int row = t.row + wgmma_row(item, i), column = t.column + wgmma_column(item, i);
    if (row < p->m && column < p->n)
      *(global float2*)(c + row * p->c_m + column) = (float2)(sums[i], sums[i + 1]);
  }
#else
#pragma unroll
  for (int i = 0; i < SUMS; i += 16) {
#pragma unroll
    for (int half_ = 0; half_ < 4; half_ += 2) {
      const uint4 v = gather_columns(sums + i + half_, item);
      const int row = t.row + wgmma_row(item, half_), column = t.column + i / 4 * 8 + item % 4 * 8;
      if (row < p->m && column < p->n) *(global uint4*)(c + row * p->c_m + column) = v;
    }
  }
#endif
}

INLINE void store_partial(const float* sums, const GemmWgmma* p, Tile t, int item, global float* to) {
#pragma unroll
  for (int i = 0; i < SUMS; i += 2) {
    const int row = t.row + wgmma_row(item, i), column = t.column + wgmma_column(item, i);
    if (row >= p->m || column >= p->n) continue;
    global float* o = to + (long)row * p->n + column;
    if (p->n % 2 == 0) {
      *(global float2*)o = (float2)(sums[i], sums[i + 1]);
    } else {
      o[0] = sums[i];
      if (column + 1 < p->n) o[1] = sums[i + 1];
    }
  }
}

#if SPLIT
// Products of infinities are NaN where a rest is zero. Where anything became infinite or NaN, the work-item's results are
// summed again as floats; a NaN ends the sum.
INLINE bool any_infinite_or_nan(const float* sums) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < SUMS; i++) sum += sums[i] * 0;
  return sum != 0 || isnan(sum);
}

INLINE float sum_again(global const T* a, global const T* b, const GemmWgmma* p, Tile t, int row, int column) {
  global const T* x = a + p->a.offset + (t.batch * p->a.batch + row * p->a.pitch) / (long)sizeof(T);
  global const T* y = b + p->b.offset + (t.batch * p->b.batch + column * p->b.pitch) / (long)sizeof(T);
  float sum = 0;
  for (int k = t.first_k; k < min(p->k, t.first_k + p->k_part) && !isnan(sum); k++) sum = fma(x[k], y[k], sum);
  return sum;
}

void store_again(global const T* a, global const T* b, global T* c, global const T* d, global float* partial,
                 float alpha, float beta, const GemmWgmma* p, Tile t, int item) {
  for (int i = 0; i < SUMS; i++) {
    const int row = t.row + wgmma_row(item, i), column = t.column + wgmma_column(item, i);
    if (row >= p->m || column >= p->n) continue;
    float sum = sum_again(a, b, p, t, row, column);
    if (p->splits > 1) {
      partial[(long)row * p->n + column] = sum;
      continue;
    }
    sum *= alpha;
    if (beta != 0) sum += beta * load1(d + row * p->d_m + column * p->d_n);
    store1(c + row * p->c_m + column * p->c_n, bounded1(sum, p->low, p->high));
  }
}
#endif

// Global size: {work-groups * WGMMA_ITEMS}, as many as there are compute units or tiles.
__attribute__((reqd_work_group_size(WGMMA_ITEMS, 1, 1))) kernel void gemm_wgmma(
    global const T* a, global const T* b, global T* c, global const T* d, global float* partial, float alpha,
    float beta, GemmWgmma p) {
  local uchar memory[LOCAL_BYTES] __attribute__((aligned(1024)));
  const int item = get_local_id(0);
  const uint base = local_address(memory);
  if (item == 0) {
    for (int i = 0; i < STAGES; i++) make_barrier(base + BARRIERS + 8 * i, 1);
    for (int i = STAGES; i < 2 * STAGES; i++) make_barrier(base + BARRIERS + 8 * i, CONSUMERS / 32);
    asm volatile("fence.proxy.async;" ::: "memory");
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (item >= CONSUMERS) {
    copy_tiles(memory, a, b, partial, &p);
    return;
  }
  const ulong at_a = descriptor(base + item / 128 * 64 * WGMMA_LINE, A_ALONG_ROWS);
  const ulong at_b = descriptor(base + A_BYTES, B_ALONG_ROWS);
  Progress progress = {0, 0, 0};
  const int tiles = tile_count(&p);
  for (int index = get_group_id(0); index < tiles; index += get_num_groups(0)) {
    const Tile t = tile_of(index, &p);
    float sums[SUMS];
    multiply(sums, base, at_a, at_b, t.stages, &progress);
    global T* to = c + p.c_offset + t.batch * p.c_batch;
    global const T* added = d + p.d_offset + t.batch * p.d_batch;
    global float* part = partial + p.partial_offset + ((long)t.part * p.batch + t.batch) * p.m * p.n;
#if SPLIT
    if (any_infinite_or_nan(sums)) {
      store_again(a, b, to, added, part, alpha, beta, &p, t, item);
      continue;
    }
#endif
    if (p.splits > 1) {
      store_partial(sums, &p, t, item, part);
    } else {
      finish(sums, &p, t, item, added, alpha, beta);
      store(sums, &p, t, item, to);
    }
  }
}
