// clang-format off
// Batched matrix product on the tensor cores of NVIDIA's Hopper GPUs, by their warpgroup instructions (PTX ISA,
// "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions"):
//   c[b,m,n] = alpha * sum_k a[b,m,k] * b[b,k,n] + beta * d[b,m,n], within bounds
//
// A work-group stays and computes tile after tile. Its last warp copies stages of both operands to local memory by
// the copy engine (cp.async.bulk.tensor), as far ahead as there are stages; two warpgroups multiply them
// (common/wgmma_loop.clh, which names the build-time macros). The work-group itself makes the tensor maps, which tell
// the copy engine of the operands, in the workspace, so the host needs no other API. After common/operands.clh.
#include "kernels/gemm/gpu_wgmma.h"

// Tiles that run together are some rows by some columns, so that what they read is still in the cache.
#define GROUP_TILES 16

INLINE void map_operand(uint map, ulong start, const WgmmaOperand* o, int length, int lines, int batch, int box_lines) {
  make_map(map, start, length, lines, o->batch ? batch : 1, o->pitch, o->batch ? o->batch : o->pitch,
           WGMMA_LINE_ELEMENTS, box_lines);
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

// The work of the copying warp.
INLINE void copy_tiles(local uchar* memory, global const A_T* a, global const B_T* b, global ACC* workspace,
                       const GemmWgmma* p) {
  const int lane = get_local_id(0) % 32;
  const uint maps = local_address(memory) + MAPS;
  const ulong published = (ulong)(workspace + p->maps_offset) + get_group_id(0) * 2 * WGMMA_MAP;
  for (int i = lane; i < 2 * WGMMA_MAP / 4; i += 32) *(local uint*)(memory + MAPS + i * 4) = 0;
  asm volatile("bar.warp.sync -1;" ::: "memory");
  if (lane == 0) {
    map_operand(maps, (ulong)(a + p->a.offset), &p->a, A_ALONG_ROWS ? p->m : p->k, A_ALONG_ROWS ? p->k : p->m, p->batch,
                A_ALONG_ROWS ? WGMMA_LINE_ELEMENTS : WGMMA_ROWS);
    map_operand(maps + WGMMA_MAP, (ulong)(b + p->b.offset), &p->b, B_ALONG_ROWS ? p->n : p->k,
                B_ALONG_ROWS ? p->k : p->n, p->batch, B_ALONG_ROWS ? WGMMA_LINE_ELEMENTS : TILE_N);
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

// --- Results ----------------------------------------------------------------------------------------------------------

// A work-item's part of a tile: two rows, eight apart, from a first column on; of these it has those that
// wgmma_column(0, i) says.
typedef struct {
  int columns[2];     // that are inside the result, from the first one on, in each row
  long c[2], d[2];  // where the first one is, in elements: of the result or the part of one, and of what is added
} Place;

INLINE Place place_of(const GemmWgmma* p, Tile t, int item) {
  const int column = t.column + wgmma_column(item, 0);
  const bool whole = p->splits == 1;
  Place at;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int row = t.row + wgmma_row(item, 2 * i);
    at.columns[i] = row < p->m ? p->n - column : 0;
    at.c[i] = row * (whole ? p->c_m : p->n) + column * (whole ? p->c_n : 1);
    at.d[i] = row * p->d_m + column * p->d_n;
  }
  return at;
}

// Of the functions that follow `sums` is a piece of a work-item's sums, from the i-th of them on.

INLINE void finish(Result* results, ACC* sums, int i, const GemmWgmma* p, const Place* at, global const T* d,
                   FACTOR alpha, FACTOR beta, Tile t, int item EPILOGUE_PARAMETERS) {
#pragma unroll
  for (int j = 0; j < PIECE; j++) sums[j] *= (ACC)alpha;
  if (beta != 0) {
#pragma unroll
    for (int j = 0; j < PIECE; j++) {
      const int row = j / 2 % 2, column = wgmma_column(0, i + j);
      sums[j] += (ACC)beta * load_if(column < at->columns[row], d + at->d[row] + column * p->d_n);
    }
  }
#ifdef EPILOGUE
  EpilogueExtras extras[PIECE];
#pragma unroll
  for (int j = 0; j < PIECE; j++) {
    const bool exists = wgmma_column(0, i + j) < at->columns[j / 2 % 2];
    const long place = t.batch * p->c_batch + at->c[j / 2 % 2] + wgmma_column(0, i + j) * p->c_n;
    extras[j] = dlb_epilogue_extras(exists ? place : 0, exists ? t.row + wgmma_row(item, i + j) : 0,
                                        exists ? t.column + wgmma_column(item, i + j) : 0 EPILOGUE_ARGUMENTS);
  }
#pragma unroll
  for (int j = 0; j < PIECE; j++)
    results[j] = dlb_epilogue_of(sums[j], extras[j], wgmma_column(0, i + j) < at->columns[j / 2 % 2],
                                 t.batch * p->c_batch + at->c[j / 2 % 2] + wgmma_column(0, i + j) * p->c_n EPILOGUE_ARGUMENTS);
#else
  if (FINISHING(p->low, p->high)) {
#pragma unroll
    for (int j = 0; j < PIECE; j++) sums[j] = bounded1(sums[j], p->low, p->high);
  }
#pragma unroll
  for (int j = 0; j < PIECE; j++) results[j] = sums[j];
#endif
}

INLINE void store(const Result* results, int i, const GemmWgmma* p, const Place* at, int item, global C_T* c) {
  if (!p->c_vector) {
#pragma unroll
    for (int j = 0; j < PIECE; j++) {
      const int row = j / 2 % 2, column = wgmma_column(0, i + j);
      store_bits_if(column < at->columns[row], c + at->c[row] + column * p->c_n, BITS_OF(results[j]), RESULT_BYTES);
    }
    return;
  }
#if RESULT_BYTES == 4
#pragma unroll
  for (int j = 0; j < PIECE; j += 2) {
    const int row = j / 2 % 2, column = wgmma_column(0, i + j);
    store_words_if(column < at->columns[row], c + at->c[row] + column, BITS_OF(results[j]), BITS_OF(results[j + 1]));
  }
#else
#pragma unroll
  for (int row = 0; row < 2; row++) {  // whole units of eight columns, of which each of four lanes has one
    const int column = wgmma_column(0, i) + item % 4 * 6;
    uint w[4];
#pragma unroll
    for (int j = 0; j < 4; j++) w[j] = pair_of(results + 4 * j + 2 * row);
    gather_words(w, item);
#if RESULT_BYTES == 2
    store_unit_if(column < at->columns[row], c + at->c[row] + column, (uint4)(w[0], w[1], w[2], w[3]));
#else
    store_words_if(column < at->columns[row], c + at->c[row] + column, w[0] | w[1] << 16, w[2] | w[3] << 16);
#endif
  }
#endif
}

INLINE void store_partial(const ACC* sums, int i, const GemmWgmma* p, const Place* at, global ACC* part) {
  const bool pairs = p->n % 2 == 0;
#pragma unroll
  for (int j = 0; j < PIECE; j += 2) {
    const int row = j / 2 % 2, column = wgmma_column(0, i + j);
    global ACC* to = part + at->c[row] + column;
    const uint x = as_uint(sums[j]), y = as_uint(sums[j + 1]);
    store_words_if(pairs && column < at->columns[row], to, x, y);
    store_bits_if(!pairs && column < at->columns[row], to, x, 4);
    store_bits_if(!pairs && column + 1 < at->columns[row], to + 1, y, 4);
  }
}

#if SPLIT
INLINE float sum_again(global const T* a, global const T* b, const GemmWgmma* p, Tile t, int row, int column) {
  global const T* x = a + p->a.offset + (t.batch * p->a.batch + row * p->a.pitch) / (long)sizeof(T);
  global const T* y = b + p->b.offset + (t.batch * p->b.batch + column * p->b.pitch) / (long)sizeof(T);
  float sum = 0;
  for (int k = t.first_k; k < min(p->k, t.first_k + p->k_part) && !isnan(sum); k++) sum = fma(x[k], y[k], sum);
  return sum;
}

void store_again(global const T* a, global const T* b, global C_T* c, global const T* d, global float* partial,
                 float alpha, float beta, const GemmWgmma* p, Tile t, int item EPILOGUE_PARAMETERS) {
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
    const long at = row * p->c_m + column * p->c_n;
    store_c(c + at, FINISH(sum, p->low, p->high, t.batch * p->c_batch + at, row, column));
  }
}
#endif

// Global size: {work-groups * WGMMA_ITEMS}, as many as there are compute units or tiles.
__attribute__((reqd_work_group_size(WGMMA_ITEMS, 1, 1))) kernel void gemm_gpu_wgmma(
    global const A_T* a, global const B_T* b, global C_T* c, global const T* d, global ACC* partial, FACTOR alpha,
    FACTOR beta, GemmWgmma p EPILOGUE_PARAMETERS) {
  local uchar memory[LOCAL_BYTES] __attribute__((aligned(1024)));
  const int item = get_local_id(0);
  const uint base = local_address(memory);
  if (item == 0) {
    make_stage_barriers(base);
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
    ACC sums[SUMS];
    multiply(sums, base, at_a, at_b, t.stages, &progress);
    global C_T* to = c + p.c_offset + t.batch * p.c_batch;
    global const T* added = d + p.d_offset + t.batch * p.d_batch;
    global ACC* part = partial + p.partial_offset + ((long)t.part * p.batch + t.batch) * p.m * p.n;
#if SPLIT
    if (any_infinite_or_nan(sums)) {
      store_again(a, b, to, added, part, alpha, beta, &p, t, item EPILOGUE_ARGUMENTS);
      continue;
    }
#endif
    const Place at = place_of(&p, t, item);
#pragma unroll 1
    for (int i = 0; i < SUMS; i += TURN) {
#pragma unroll
      for (int j = 0; j < TURN; j += PIECE) {
        if (p.splits > 1) {
          store_partial(sums + j, i + j, &p, &at, part);
        } else {
          Result results[PIECE];
          finish(results, sums + j, i + j, &p, &at, added, alpha, beta, t, item EPILOGUE_ARGUMENTS);
          store(results, i + j, &p, &at, item, to);
        }
      }
      if (i + TURN < SUMS) move_up(sums);
    }
  }
}
