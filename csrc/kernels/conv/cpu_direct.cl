// Direct convolution for CPU-like devices, for groups with few output channels (depthwise above all), where a GEMM would
// leave most of a vector empty. Vectors run along the image: each channel's part of the image is copied into scratch as
// one padded plane per residue of the stride, in which every tap of every position is the same walk at an offset. The
// taps of one column share their loads: a vector of a row goes into the sums of all rows that it is a neighbour of.
// Integers of 8 bits (common/operands.clh: A is the image, B the weights) are summed in float too, which is exact for few
// of them, and become integers before the bias is added.
#include "common/operands.clh"
#ifdef A_NARROW
#define IMAGE16(p) convert_float16(vload16(0, p))
#define IMAGE1(p) ((float)*(p))
#define WEIGHT1(p) ((float)*(p))
#else
#define IMAGE16 load16
#define IMAGE1 load1
#define WEIGHT1 load1
#endif

// The planes of one channel in scratch.
typedef struct {
  int phases[3];       // residues of the stride that some tap needs
  int size[3];         // of a plane: positions and the furthest tap's shift
  int plane, channel;  // floats of a plane and of all planes of a channel
  int flat;            // floats from the first position to the last, and one more
} Planes;

inline Planes planes_of(const Gather* p, const int* block) {
  Planes s;
  s.plane = 1, s.channel = 1;
  for (int i = 0; i < 3; i++) {
    const int reach = max(p->taps[i] - 1, 0) * p->dilation[i];
    s.phases[i] = min(p->step[i], reach + 1);
    s.size[i] = block[i] + reach / p->step[i];
    s.plane *= s.size[i], s.channel *= s.phases[i];
  }
  s.channel *= s.plane;
  s.flat = ((block[0] - 1) * s.size[1] + block[1] - 1) * s.size[2] + block[2];
  return s;
}

// Where in a channel's planes each tap begins.
inline void tap_offsets(const Gather* p, const Planes* s, local int* offsets) {
  for (int t0 = 0; t0 < p->taps[0]; t0++)
    for (int t1 = 0; t1 < p->taps[1]; t1++)
      for (int t2 = 0; t2 < p->taps[2]; t2++) {
        const int at[3] = {t0 * p->dilation[0], t1 * p->dilation[1], t2 * p->dilation[2]};
        int plane = 0, shift = 0;
        for (int i = 0; i < 3; i++) {
          plane = plane * s->phases[i] + at[i] % p->step[i];
          shift = shift * s->size[i] + at[i] / p->step[i];
        }
        *offsets++ = plane * s->plane + shift;
      }
}

// dst[w] = src[(first + w * step) * stride] for w in w0..w1, zero before and up to n. Where src[0..readable] may be read,
// which reaches beyond the row, and where there are zeros, up to 15 floats behind dst[n] may change.
inline __attribute__((always_inline)) void load_row(global const A_T* src, long stride, int first, int step, int w0,
                                                    int w1, int n, long readable, local float* dst) {
  for (int w = 0; w < w0; w += 16) vstore16((float16)0.f, 0, dst + w);
  int w = w0;
  if (step == 1 && stride == 1)
    for (; w + 16 <= w1 || (w < w1 && first + w + 16 <= readable); w += 16)
      vstore16(IMAGE16(src + first + w), 0, dst + w);
  if (step == 2 && stride == 1)  // short of the end, where the last odd neighbour may not exist
    for (; w + 16 < w1 || (w < w1 && first + 2 * w + 32 <= readable); w += 16) {
      global const A_T* s = src + first + 2 * w;
      vstore16((float16)(IMAGE16(s).even, IMAGE16(s + 16).even), 0, dst + w);
    }
#pragma clang loop vectorize(disable)
  for (; w < w1; w++) dst[w] = IMAGE1(src + (long)(first + w * step) * stride);
  for (w = w1; w < n; w += 16) vstore16((float16)0.f, 0, dst + w);
}

// Copies what a block of positions needs of one channel into its planes.
inline void load_planes(const Gather* p, const Block* b, const Planes* s, global const A_T* channel, local float* dst) {
  int lo[3];
  for (int i = 0; i < 3; i++) lo[i] = b->begin[i + 1] * p->step[i] + p->first[i];
  for (int p0 = 0; p0 < s->phases[0]; p0++)
    for (int p1 = 0; p1 < s->phases[1]; p1++)
      for (int p2 = 0; p2 < s->phases[2]; p2++) {
        const int first = lo[2] + p2, step = p->step[2];
        const int w0 = clamp((step - 1 - first) / step, 0, s->size[2]);
        const int w1 = first >= p->in[2] ? w0 : clamp((p->in[2] - 1 - first) / step + 1, w0, s->size[2]);
        for (int d = 0; d < s->size[0]; d++)
          for (int h = 0; h < s->size[1]; h++, dst += s->size[2]) {
            const int id = lo[0] + d * p->step[0] + p0, ih = lo[1] + h * p->step[1] + p1;
            const int inside = id >= 0 && id < p->in[0] && ih >= 0 && ih < p->in[1];
            const long behind = (p->in[0] - 1 - id) * p->is[2] + (p->in[1] - 1 - ih) * p->is[3];
            load_row(channel + id * p->is[2] + ih * p->is[3], p->is[4], first, step, inside ? w0 : 0, inside ? w1 : 0,
                     s->size[2], behind + p->in[2], dst);
          }
      }
}

// The sums of a block, a plane of rows for each depth. Rows go in `residues` of the rows' dilation, each of which has a
// multiple of DIRECT_ROWS.
typedef struct {
  int pitch, rows, residues;
} Sums;

inline int divisor_of(int a, int b) {
  while (b) {
    const int rest = a % b;
    a = b, b = rest;
  }
  return a;
}
inline Sums sums_of(const Gather* p, const int* block) {
  Sums s;
  s.residues = p->dilation[1] / divisor_of(p->dilation[1], p->step[1]);
  s.rows = ((block[1] + s.residues - 1) / s.residues + DIRECT_ROWS - 1) / DIRECT_ROWS * DIRECT_ROWS * s.residues;
  s.pitch = padded16(block[2]);
  return s;
}

#ifdef NARROW_TILE
typedef float8 Lanes;
#define LANES 8
#define LANES_LOAD vload8
#define LANES_STORE vstore8
#else
typedef float16 Lanes;
#define LANES 16
#define LANES_LOAD vload16
#define LANES_STORE vstore16
#endif
#define EACH(i, n) _Pragma("unroll") for (int i = 0; i < (n); i++)

// Adds to the sums of DIRECT_ROWS rows what N taps below each other give; `from` is what the first of them reads for the
// first row, and rows are `pitch` apart.
#define COLUMN(N)                                                                          \
  case N: {                                                                                \
    Lanes w[N];                                                                            \
    EACH(t, N) w[t] = (Lanes)(weight[t * w_step]);                                         \
    EACH(r, DIRECT_ROWS + N - 1) {                                                         \
      const Lanes v = LANES_LOAD(0, from + r * pitch);                                     \
      EACH(t, N) if (r >= t && r - t < DIRECT_ROWS) sum[r - t] = fma(w[t], v, sum[r - t]); \
    }                                                                                      \
    break;                                                                                 \
  }
#define MOST_COLUMN 7

// to[row] (+)= sum over channels and taps of weights * planes, of DIRECT_ROWS rows and LANES positions; `at` is the first
// position's place in a plane.
inline __attribute__((always_inline)) void accumulate(
    const Gather* p, const Planes* s, local const float* planes, int at, int channels, local const int* offsets,
    local const float* weights, local float* to, int to_pitch, int residues, int add) {
  const int pitch = residues * s->size[2], apart = p->step[1] * residues / p->dilation[1];
  const int w_step = apart * p->taps[2];
  Lanes sum[DIRECT_ROWS];
  EACH(r, DIRECT_ROWS) sum[r] = add ? LANES_LOAD(0, to + r * to_pitch) : (Lanes)0.f;
  const int taps = p->taps[0] * p->taps[1] * p->taps[2];
  for (int c = 0; c < channels; c++, planes += s->channel, weights += taps)
    for (int t0 = 0; t0 < p->taps[0]; t0++)
      for (int t1 = 0; t1 < min(apart, p->taps[1]); t1++)
        for (int first = t1; first < p->taps[1]; first += MOST_COLUMN * apart) {
          const int count = min((p->taps[1] - first + apart - 1) / apart, MOST_COLUMN);
          for (int t2 = 0; t2 < p->taps[2]; t2++) {
            const int tap = (t0 * p->taps[1] + first) * p->taps[2] + t2;
            local const float* weight = weights + tap;
            local const float* from = planes + offsets[tap] + at;
            switch (count) { COLUMN(1) COLUMN(2) COLUMN(3) COLUMN(4) COLUMN(5) COLUMN(6) COLUMN(7) }
          }
        }
  EACH(r, DIRECT_ROWS) LANES_STORE(sum[r], 0, to + r * to_pitch);
}

inline void accumulate_block(const Gather* p, const Block* b, const Planes* s, const Sums* sums,
                             local const float* planes, int channels, local const int* offsets,
                             local const float* weights, local float* to, int add) {
  for (int d = 0; d < b->size[1]; d++)
    for (int rest = 0; rest < sums->residues; rest++)
      for (int h = rest; h < b->size[2]; h += DIRECT_ROWS * sums->residues)
        for (int w = 0; w < b->size[3]; w += LANES)
          accumulate(p, s, planes, (d * s->size[1] + h) * s->size[2] + w, channels, offsets, weights,
                     to + (d * sums->rows + h) * sums->pitch + w, sums->residues * sums->pitch, sums->residues, add);
}

// `out` is a channel's plane in the output that begins at `first`.
#ifndef A_NARROW
inline void store_rows(const Gather* p, const Block* b, const Sums* sums, local const float* from, float bias,
                       global T* out, global const T* first, int channel EPILOGUE_PARAMETERS) {
  const int n = b->size[3], dense = p->os[4] == 1, follow = dense && p->os[3] == n;
  for (int d = 0; d < b->size[1]; d++)
    for (int h = 0; h < b->size[2]; h++) {
      local const float* row = from + (d * sums->rows + h) * sums->pitch;
      global T* o = out + (b->begin[1] + d) * p->os[2] + (b->begin[2] + h) * p->os[3] + b->begin[3] * p->os[4];
      // what a vector stores behind the row, the next rows overwrite
      const int space = follow ? (b->size[2] - h) * n : n;
      int w = 0;
      if (dense)
        for (; w < n && w + 16 <= space; w += 16)
          store16(o + w, FINISH16(vload16(0, row + w) + bias, p->low, p->high, o - first + w, 1, 0, channel, 0, 16));
      for (; w < n; w++)
        store1(o + w * p->os[4], FINISH(row[w] + bias, p->low, p->high, o - first + w * p->os[4], 0, channel));
    }
}
#else
#ifdef EPILOGUE
#define FINISHED(v, at, channel) dlb_epilogue(v, at, 0, channel EPILOGUE_ARGUMENTS)
#else
#define FINISHED(v, at, channel) (v)
#endif
inline void store_line(local const float* from, int n, int bias, global C_T* out, long at, long step,
                       int channel EPILOGUE_PARAMETERS) {
  if (step == 1) {
#pragma clang loop vectorize(assume_safety)
    for (int w = 0; w < n; w++) store_c(out + at + w, FINISHED((int)from[w] + bias, at + w, channel));
    return;
  }
  for (int w = 0; w < n; w++) store_c(out + at + w * step, FINISHED((int)from[w] + bias, at + w * step, channel));
}

// Rows that follow each other in memory are finished as one line.
inline void store_rows(const Gather* p, const Block* b, const Sums* sums, local float* from, int bias, global C_T* out,
                       global C_T* first, int channel EPILOGUE_PARAMETERS) {
  const long begin = out - first + b->begin[2] * p->os[3] + b->begin[3] * p->os[4];
  const int n = b->size[3], rows = b->size[2], follow = p->os[4] == 1 && p->os[3] == n;
  for (int d = 0; d < b->size[1]; d++, from += sums->rows * sums->pitch) {
    const long at = begin + (b->begin[1] + d) * p->os[2];
    for (int h = 1; follow && h < rows; h++)
      for (int w = 0; w < n; w += 16) vstore16(vload16(0, from + h * sums->pitch + w), 0, from + h * n + w);
    if (follow) store_line(from, rows * n, bias, first, at, 1, channel EPILOGUE_ARGUMENTS);
    else
      for (int h = 0; h < rows; h++)
        store_line(from + h * sums->pitch, n, bias, first, at + h * p->os[3], p->os[4], channel EPILOGUE_ARGUMENTS);
  }
}
#endif

inline void load_weights(const Gather* p, global const B_T* weights, int channels, local float* to) {
  for (int c = 0; c < channels; c++)
    for (int t0 = 0; t0 < p->taps[0]; t0++)
      for (int t1 = 0; t1 < p->taps[1]; t1++)
        for (int t2 = 0; t2 < p->taps[2]; t2++)
          *to++ = WEIGHT1(weights + c * p->wred + t0 * p->wtap[0] + t1 * p->wtap[1] + t2 * p->wtap[2]);
}

// Forward pass, or one stride phase of the input gradient. Range: blocks of positions (of one image each), blocks of
// groups.
kernel __attribute__((reqd_work_group_size(1, 1, 1))) void conv_cpu_direct(
    global const A_T* in, long oi, global const B_T* weights, long ow, global C_T* out, long oo, global const T* bias,
    long ob, Gather p, local float* scratch EPILOGUE_PARAMETERS) {
  const Block b = block_of(&p, get_global_id(0));
  const Planes s = planes_of(&p, b.size + 1);
  const int taps = p.taps[0] * p.taps[1] * p.taps[2],
            last = min(p.groups, (int)(get_global_id(1) + 1) * p.block_groups);
  local int* offsets = (local int*)scratch;
  local float* w = scratch + padded16(taps);
  const Sums layout = sums_of(&p, b.size + 1);
  const int results = b.size[1] * layout.rows * layout.pitch;
  local float* sums = w + padded16(p.channels * taps);
  local float* planes = sums + p.cols * results;
  tap_offsets(&p, &s, offsets);
  in += oi + b.begin[0] * p.is[0];
  out += oo;
  global C_T* first = out;
  out += b.begin[0] * p.os[0];
  for (int g = get_global_id(1) * p.block_groups; g < last; g++) {
    for (int c = 0; c < p.red; c += p.channels) {
      const int count = min(p.channels, p.red - c);
      for (int i = 0; i < count; i++)
        load_planes(&p, &b, &s, in + ((long)g * p.red + c + i) * p.is[1], planes + i * s.channel);
      for (int j = 0; j < p.cols; j++) {
        load_weights(&p, weights + ow + g * p.wgroup + j * p.wcol + c * p.wred, count, w);
        accumulate_block(&p, &b, &s, &layout, planes, count, offsets, w, sums + j * results, c > 0);
      }
    }
    for (int j = 0; j < p.cols; j++) {
      const int channel = g * p.cols + j;
      store_rows(&p, &b, &layout, sums + j * results, p.has_bias ? load1(bias + ob + channel) : 0,
                 out + channel * p.os[1], first, channel EPILOGUE_ARGUMENTS);
    }
  }
}

#ifndef A_NARROW
inline float sum16(float16 v) {
  const float8 h = v.lo + v.hi;
  const float4 q = h.lo + h.hi;
  return (q.x + q.y) + (q.z + q.w);
}

// Weight gradient; p gathers the forward pass's input and p.os are the strides of the output's gradient. Range: blocks of
// groups; each goes over all images in order.
kernel __attribute__((reqd_work_group_size(1, 1, 1))) void conv_cpu_direct_weight_grad(
    global const T* in, long oi, global const T* grad, long og, global T* weights, long ow, Gather p, int blocks,
    local float* scratch) {
  const int taps = p.taps[0] * p.taps[1] * p.taps[2],
            last = min(p.groups, (int)(get_global_id(0) + 1) * p.block_groups);
  local int* offsets = (local int*)scratch;
  local float* sums = scratch + padded16(taps);
  for (int g = get_global_id(0) * p.block_groups; g < last; g++) {
    local float* rows = sums + padded16(p.cols * p.red * taps);
    for (int i = 0; i < p.cols * p.red * taps; i++) sums[i] = 0.f;
    for (int id = 0; id < blocks; id++) {
      const Block b = block_of(&p, id);
      const Planes s = planes_of(&p, b.size + 1);
      const int flat = padded16(s.flat);
      local float* planes = rows + flat;
      tap_offsets(&p, &s, offsets);
      for (int c = 0; c < p.red; c++)
        load_planes(
            &p, &b, &s, in + oi + b.begin[0] * p.is[0] + ((long)g * p.red + c) * p.is[1], planes + c * s.channel);
      for (int i = 0; i < 32; i++) planes[p.red * s.channel + i] = 0.f;  // read by vectors that reach past the end
      for (int j = 0; j < p.cols; j++) {
        global const T* src = grad + og + b.begin[0] * p.os[0] + ((long)g * p.cols + j) * p.os[1];
        for (int i = 0; i < flat; i++) rows[i] = 0.f;
        for (int d = 0; d < b.size[1]; d++)
          for (int h = 0; h < b.size[2]; h++)
            load_row(src + (b.begin[1] + d) * p.os[2] + (b.begin[2] + h) * p.os[3] + b.begin[3] * p.os[4], p.os[4], 0,
                     1, 0, b.size[3], b.size[3], 0, rows + (d * s.size[1] + h) * s.size[2]);
        for (int c = 0; c < p.red; c++)
          for (int t = 0; t < taps; t++) {
            local const float* from = planes + c * s.channel + offsets[t];
            float16 a0 = 0.f, a1 = 0.f, a2 = 0.f, a3 = 0.f;
            int i = 0;
            for (; i + 64 <= flat; i += 64) {
              a0 = fma(vload16(0, rows + i), vload16(0, from + i), a0);
              a1 = fma(vload16(1, rows + i), vload16(1, from + i), a1);
              a2 = fma(vload16(2, rows + i), vload16(2, from + i), a2);
              a3 = fma(vload16(3, rows + i), vload16(3, from + i), a3);
            }
            for (; i < flat; i += 16) a0 = fma(vload16(0, rows + i), vload16(0, from + i), a0);
            sums[(j * p.red + c) * taps + t] += sum16((a0 + a1) + (a2 + a3));
          }
      }
    }
    for (int j = 0; j < p.cols; j++)
      for (int c = 0; c < p.red; c++) {
        local const float* s = sums + (j * p.red + c) * taps;
        global T* w = weights + ow + g * p.wgroup + j * p.wcol + c * p.wred;
        for (int t0 = 0; t0 < p.taps[0]; t0++)
          for (int t1 = 0; t1 < p.taps[1]; t1++)
            for (int t2 = 0; t2 < p.taps[2]; t2++) store1(w + t0 * p.wtap[0] + t1 * p.wtap[1] + t2 * p.wtap[2], *s++);
      }
  }
}
#endif
