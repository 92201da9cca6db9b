// A layer of a recurrent network in one direction over all steps, for CPU-like devices: samples do not depend on each
// other, so that a work-item takes some of them through the whole sequence, and the weights stay in its core's cache.
// The products of the layer's input with its weights, biases included, are made before. Built with one of -DLSTM,
// -DGRU, -DTANH and -DRELU. Gates lie side by side in a row, as in rnn.cl.
#include "common/exp_below.clh"
#include "common/storage.clh"
#include "kernels/rnn/params.h"

#define SIMD _Pragma("clang loop vectorize(assume_safety)")
#if defined(LSTM)
#define GATES 4
#define KEPT_GATES 4
#define KEEPS_SHARE 0
#elif defined(GRU)
#define GATES 3
#define KEPT_GATES 4
#define KEEPS_SHARE 1  // a state has a share of the one before beside what its gates make of that
#else
#define GATES 1
#define KEPT_GATES 1
#define KEEPS_SHARE 0
#endif
#ifdef LSTM
#define HAS_CELLS 1
#else
#define HAS_CELLS 0
#endif

// Columns of a register tile, in vectors of 16: at most six rows of them fit the registers.
#ifdef NARROW_TILE
#define VECTORS 1
#elif defined(T_DOUBLE)
#define VECTORS 2
#else
#define VECTORS 4
#endif
#define MOST_ROWS 6
#ifdef T_DOUBLE
#define EXP_BELOW exp
#else
#define EXP_BELOW exp_below
#endif
#define DEPTH 128  // of a product at a time: so much of a panel stays in the first-level cache

// packed[panel][k][RNN_PANEL] = w[k * sk + column * sn] of a k x n matrix; what is beyond its columns becomes zero.
kernel __attribute__((reqd_work_group_size(1, 1, 1))) void rnn_pack(
    global const T* w, long ow, long sk, long sn, int depth, int columns, global NUMBER* packed, long op) {
  const int first = get_global_id(0) * RNN_PANEL;
  w += ow + first * sn, packed += op + (long)first * depth;
  for (int k = 0; k < depth; k += 16)
    for (int j = 0; j < RNN_PANEL; j++)
      for (int i = k; i < min(k + 16, depth); i++)
        packed[i * RNN_PANEL + j] = first + j < columns ? load1(w + i * sk + j * sn) : 0;
}

// c[r][RNN_PANEL] = or += the products of a[r][depth] with a panel, for R rows.
#define TILE(R)                                                                                                       \
  static void tile##R(global const NUMBER* a, long a_pitch, global const NUMBER* b, int depth, global NUMBER* c,      \
                      long c_pitch, int add) {                                                                        \
    for (int column = 0; column < RNN_PANEL; column += 16 * VECTORS) {                                                \
      NUMBER16 sum[R][VECTORS];                                                                                       \
      _Pragma("unroll") for (int r = 0; r < R; r++) _Pragma("unroll") for (int v = 0; v < VECTORS; v++) sum[r][v] =   \
          add ? vload16(v, c + r * c_pitch + column) : (NUMBER16)(0);                                                 \
      for (int k = 0; k < depth; k++) {                                                                               \
        NUMBER16 x[VECTORS];                                                                                          \
        _Pragma("unroll") for (int v = 0; v < VECTORS; v++) x[v] = vload16(v, b + k * RNN_PANEL + column);            \
        _Pragma("unroll") for (int r = 0; r < R; r++) _Pragma("unroll") for (int v = 0; v < VECTORS; v++) sum[r][v] = \
            fma((NUMBER16)(a[r * a_pitch + k]), x[v], sum[r][v]);                                                     \
      }                                                                                                               \
      _Pragma("unroll") for (int r = 0; r < R; r++) _Pragma("unroll") for (int v = 0; v < VECTORS; v++)               \
          vstore16(sum[r][v], v, c + r * c_pitch + column);                                                           \
    }                                                                                                                 \
  }
TILE(1)
TILE(2)
TILE(3)
TILE(4)
TILE(5)
TILE(6)

// c[rows][pitch] = or += a[rows][depth] times the packed matrix of that depth; all rows are a_pitch or c_pitch apart.
static void product(global const NUMBER* a, long a_pitch, int rows, global const NUMBER* packed, int depth, int columns,
                    global NUMBER* c, long c_pitch, int add) {
  for (int j = 0; j < columns; j += RNN_PANEL)
    for (int k = 0; k < depth; k += DEPTH) {
      const int deep = min(DEPTH, depth - k), more = add || k;
      global const NUMBER* b = packed + (long)j * depth + k * RNN_PANEL;
      for (int i = 0, tiles = (rows + MOST_ROWS - 1) / MOST_ROWS; tiles; tiles--) {
        const int count = (rows - i + tiles - 1) / tiles;
        global const NUMBER* from = a + i * a_pitch + k;
        global NUMBER* to = c + i * c_pitch + j;
        switch (count) {
          case 1: tile1(from, a_pitch, b, deep, to, c_pitch, more); break;
          case 2: tile2(from, a_pitch, b, deep, to, c_pitch, more); break;
          case 3: tile3(from, a_pitch, b, deep, to, c_pitch, more); break;
          case 4: tile4(from, a_pitch, b, deep, to, c_pitch, more); break;
          case 5: tile5(from, a_pitch, b, deep, to, c_pitch, more); break;
          default: tile6(from, a_pitch, b, deep, to, c_pitch, more);
        }
        i += count;
      }
    }
}

static inline NUMBER sigmoid(NUMBER x) {
  const NUMBER e = EXP_BELOW(-fabs(x));
  return (x < 0 ? e : 1) / (1 + e);
}
// Near 0 the polynomial of Cephes' tanhf.
static inline NUMBER tanh_of(NUMBER x) {
#ifdef T_DOUBLE
  return tanh(x);
#else
  const float e = exp_below(-2 * fabs(x)), far = copysign((1 - e) / (1 + e), x), z = x * x;
  float p = -5.70498872745e-3f;
  p = fma(p, z, 2.06390887954e-2f);
  p = fma(p, z, -5.37397155531e-2f);
  p = fma(p, z, 1.33314422036e-1f);
  p = fma(p, z, -3.33332819422e-1f);
  return fabs(x) < 0.625f ? fma(p * z, x, x) : far;
#endif
}

static inline long row_of(const RnnSequence* p, global const long* starts, int t, int n) {
  return starts ? starts[t] + n : t * p->step_rows + n * p->sample_rows;
}

// How many of `samples` samples from `first` on have that step.
static inline int present(const RnnSequence* p, global const long* starts, int t, int first, int samples) {
  return starts ? clamp((int)(starts[t + 1] - starts[t]) - first, 0, samples) : samples;
}

// The memory of one sample of one row, at its start; null: not there. Sums and states are numbers in scratch.
typedef struct {
  global const T *in, *bias;
  global const NUMBER* sums;
  global NUMBER *h, *c;
  global T *out, *last_h, *last_c, *gates, *before_h, *before_c;
} Cell;

// Stores the states before the step, which the backward pass needs besides the gates.
static void keep(const Cell at, int size) {
  SIMD for (int j = 0; j < size; j++) store1(at.before_h + j, at.h[j]);
  if (HAS_CELLS) SIMD for (int j = 0; j < size; j++) store1(at.before_c + j, at.c[j]);
}

#if defined(LSTM)
static void run_cell(const Cell at, int size) {
  SIMD for (int j = 0; j < size; j++) {
    const NUMBER i = sigmoid(load1(at.in + j) + at.sums[j]), f = sigmoid(load1(at.in + size + j) + at.sums[size + j]);
    const NUMBER g = tanh_of(load1(at.in + 2 * size + j) + at.sums[2 * size + j]);
    const NUMBER o = sigmoid(load1(at.in + 3 * size + j) + at.sums[3 * size + j]);
    const NUMBER c = fma(f, at.c[j], i * g), h = o * tanh_of(c);
    at.c[j] = c, at.h[j] = h;
    store1(at.out + j, h), store1(at.last_h + j, h), store1(at.last_c + j, c);
    if (at.gates) {
      store1(at.gates + j, i), store1(at.gates + size + j, f);
      store1(at.gates + 2 * size + j, g), store1(at.gates + 3 * size + j, o);
    }
  }
}
#elif defined(GRU)
// gates: reset, update, new and the hidden part of new.
static void run_cell(const Cell at, int size) {
  SIMD for (int j = 0; j < size; j++) {
    const NUMBER bias_r = at.bias ? load1(at.bias + j) : 0, bias_z = at.bias ? load1(at.bias + size + j) : 0;
    const NUMBER hidden = at.sums[2 * size + j] + (at.bias ? load1(at.bias + 2 * size + j) : 0);
    const NUMBER r = sigmoid(load1(at.in + j) + (at.sums[j] + bias_r));
    const NUMBER z = sigmoid(load1(at.in + size + j) + (at.sums[size + j] + bias_z));
    const NUMBER fresh = tanh_of(fma(r, hidden, load1(at.in + 2 * size + j)));
    const NUMBER h = fma(z, at.h[j] - fresh, fresh);
    at.h[j] = h;
    store1(at.out + j, h), store1(at.last_h + j, h);
    if (at.gates) {
      store1(at.gates + j, r), store1(at.gates + size + j, z);
      store1(at.gates + 2 * size + j, fresh), store1(at.gates + 3 * size + j, hidden);
    }
  }
}
#else
static void run_cell(const Cell at, int size) {
  SIMD for (int j = 0; j < size; j++) {
    const NUMBER x = load1(at.in + j) + at.sums[j];
#ifdef TANH
    const NUMBER h = tanh_of(x);
#else
    const NUMBER h = x < 0 ? 0 : x;
#endif
    at.h[j] = h;
    store1(at.out + j, h), store1(at.last_h + j, h);
    if (at.gates) store1(at.gates + j, h);
  }
}
#endif
#define THERE(p, k) ((p).offset[k] >= 0)
#define AT(buffer, k) (THERE(p, k) ? buffer + p.offset[k] : 0)

// The states of a sample in scratch become those that are given, or zero.
static void begin(global NUMBER* h, global const T* from, int size) {
  SIMD for (int j = 0; j < size; j++) h[j] = from ? load1(from + j) : 0;
}

kernel __attribute__((reqd_work_group_size(1, 1, 1))) void rnn_sequence(
    global const T* in, global const T* h0, global const T* c0, global const NUMBER* packed, global const T* bias,
    global const long* starts, global T* out, global T* last_h, global T* last_c, global T* gates, global T* before_h,
    global T* before_c, global NUMBER* scratch, const RnnSequence p) {
  const int first = get_global_id(0) * p.per_item, samples = min(p.per_item, p.samples - first), size = p.size;
  const long pitch = 2 * p.state_pitch + p.gates_pitch + RNN_PANEL / 4;
  in += p.offset[0], h0 += p.offset[1], packed += p.offset[3], bias = AT(bias, 4), starts = AT(starts, 5);
  out += p.offset[6], last_h += p.offset[7], gates = AT(gates, 9), before_h = AT(before_h, 10);
  if (HAS_CELLS) c0 += p.offset[2], last_c += p.offset[8], before_c = AT(before_c, 11);
  scratch += p.offset[12] + first * pitch;  // of a sample: h, c, sums
  for (int i = 0; i < samples; i++) {
    begin(scratch + i * pitch, h0 + (first + i) * (long)size, size);
    if (HAS_CELLS) begin(scratch + i * pitch + p.state_pitch, c0 + (first + i) * (long)size, size);
  }
  for (int step = 0; step < p.steps; step++) {
    const int t = p.reversed ? p.steps - 1 - step : step, count = present(&p, starts, t, first, samples);
    product(scratch, pitch, count, packed, size, GATES * size, scratch + 2 * p.state_pitch, pitch, 0);
    for (int i = 0; i < count; i++) {
      global NUMBER* h = scratch + i * pitch;
      const long row = row_of(&p, starts, t, first + i), state = row * size, last = (first + i) * (long)size;
      Cell at = {in + state * GATES, bias, h + 2 * p.state_pitch, h, h + p.state_pitch, out + state, last_h + last};
      if (HAS_CELLS) at.last_c = last_c + last;
      if (gates) {
        at.gates = gates + state * KEPT_GATES, at.before_h = before_h + state;
        if (HAS_CELLS) at.before_c = before_c + state;
        keep(at, size);
      }
      run_cell(at, size);
    }
  }
}

// The same of the backward pass: gradients of the states and of all gates are numbers in scratch.
typedef struct {
  global const T *grad_out, *gates, *before_h, *before_c;
  global NUMBER *h, *c, *sums;
  global T *grad_in, *grad_hidden;
} Gradient;

#if defined(LSTM)
static void run_gradient(const Gradient at, int size) {
  SIMD for (int j = 0; j < size; j++) {
    const NUMBER i = load1(at.gates + j), f = load1(at.gates + size + j), g = load1(at.gates + 2 * size + j),
                 o = load1(at.gates + 3 * size + j), before = load1(at.before_c + j);
    const NUMBER d = at.h[j] + (at.grad_out ? load1(at.grad_out + j) : 0), t = tanh_of(fma(f, before, i * g));
    const NUMBER dc = fma(d * o, 1 - t * t, at.c[j]);
    const NUMBER di = dc * g * (1 - i) * i, df = dc * before * (1 - f) * f, dg = dc * i * (1 - g * g),
                 dout = d * t * (1 - o) * o;
    at.c[j] = dc * f;
    at.sums[j] = di, at.sums[size + j] = df, at.sums[2 * size + j] = dg, at.sums[3 * size + j] = dout;
    store1(at.grad_in + j, di), store1(at.grad_in + size + j, df);
    store1(at.grad_in + 2 * size + j, dg), store1(at.grad_in + 3 * size + j, dout);
  }
}
#elif defined(GRU)
static void run_gradient(const Gradient at, int size) {
  SIMD for (int j = 0; j < size; j++) {
    const NUMBER r = load1(at.gates + j), z = load1(at.gates + size + j), fresh = load1(at.gates + 2 * size + j),
                 hidden = load1(at.gates + 3 * size + j), before = load1(at.before_h + j);
    const NUMBER d = at.h[j] + (at.grad_out ? load1(at.grad_out + j) : 0);
    const NUMBER dz = d * (before - fresh) * (1 - z) * z, dn = d * (1 - z) * (1 - fresh * fresh),
                 dr = dn * hidden * (1 - r) * r;
    at.h[j] = d * z;
    at.sums[j] = dr, at.sums[size + j] = dz, at.sums[2 * size + j] = dn * r;
    store1(at.grad_in + j, dr), store1(at.grad_in + size + j, dz), store1(at.grad_in + 2 * size + j, dn);
    store1(at.grad_hidden + j, dr), store1(at.grad_hidden + size + j, dz);
    store1(at.grad_hidden + 2 * size + j, dn * r);
  }
}
#else
static void run_gradient(const Gradient at, int size) {
  SIMD for (int j = 0; j < size; j++) {
    const NUMBER h = load1(at.gates + j), d = at.h[j] + (at.grad_out ? load1(at.grad_out + j) : 0);
#ifdef TANH
    at.sums[j] = d * (1 - h * h);
#else
    at.sums[j] = h <= 0 ? 0 : d;
#endif
    store1(at.grad_in + j, at.sums[j]);
  }
}
#endif

kernel __attribute__((reqd_work_group_size(1, 1, 1))) void rnn_sequence_backward(
    global const T* grad_out, global const T* grad_h, global const T* grad_c, global const NUMBER* packed,
    global const T* gates, global const long* starts, global const T* before_h, global const T* before_c,
    global T* grad_in, global T* grad_hidden, global T* grad_h0, global T* grad_c0, global NUMBER* scratch,
    const RnnSequence p) {
  const int first = get_global_id(0) * p.per_item, samples = min(p.per_item, p.samples - first), size = p.size;
  const long pitch = 2 * p.state_pitch + p.gates_pitch + RNN_PANEL / 4;
  grad_out = AT(grad_out, 0), grad_h = AT(grad_h, 1), grad_c = AT(grad_c, 2), packed += p.offset[3];
  gates += p.offset[4], starts = AT(starts, 5), before_h = AT(before_h, 6), before_c = AT(before_c, 7);
  grad_in += p.offset[8], grad_hidden = AT(grad_hidden, 9), grad_h0 += p.offset[10], grad_c0 = AT(grad_c0, 11);
  scratch += p.offset[12] + first * pitch;
  for (int i = 0; i < samples; i++) {
    const long state = (first + i) * (long)size;
    begin(scratch + i * pitch, grad_h ? grad_h + state : 0, size);
    if (HAS_CELLS) begin(scratch + i * pitch + p.state_pitch, grad_c ? grad_c + state : 0, size);
  }
  for (int step = 0; step < p.steps; step++) {
    const int t = p.reversed ? step : p.steps - 1 - step, count = present(&p, starts, t, first, samples);
    for (int i = 0; i < count; i++) {
      global NUMBER* h = scratch + i * pitch;
      const long state = row_of(&p, starts, t, first + i) * size;
      Gradient at = {grad_out ? grad_out + state : 0, gates + state * KEPT_GATES, before_h + state};
      at.h = h, at.c = h + p.state_pitch, at.sums = h + 2 * p.state_pitch, at.grad_in = grad_in + state * GATES;
      if (HAS_CELLS) at.before_c = before_c + state;
      if (grad_hidden) at.grad_hidden = grad_hidden + state * GATES;
      run_gradient(at, size);
    }
    product(scratch + 2 * p.state_pitch, pitch, count, packed, GATES * size, size, scratch, pitch, KEEPS_SHARE);
  }
  for (int i = 0; i < samples; i++) {
    global const NUMBER* h = scratch + i * pitch;
    const long state = (first + i) * (long)size;
    SIMD for (int j = 0; j < size; j++) store1(grad_h0 + state + j, h[j]);
    if (HAS_CELLS) SIMD for (int j = 0; j < size; j++) store1(grad_c0 + state + j, h[p.state_pitch + j]);
  }
}
