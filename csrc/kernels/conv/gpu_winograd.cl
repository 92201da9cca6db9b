// Winograd convolution with 3x3 filters for GPU-class devices; see conv/winograd.clh for the algorithm. Not fused: these
// kernels transform the operands to matrices in memory and back, between them is one batched product over the elements
// of a tile (and the groups). Transformed values are float for every storage type.
//   forward, input gradient   product[e][g][col][tile] = weights[e][g][col][red] * input[e][g][red][tile]
//   weight gradient           product[e][g][col][red]  = grad[e][g][col][tile] * input[e][g][red][tile]
// where e is the element of a t x t tile; matrices with tiles may lie transposed, so that neighbours in the image's or
// the output's memory stay neighbours. Outputs whose sums are not finite are computed again the direct way: infinities
// and NaN must not spread to outputs that do not see them, nor may a transformed value overflow.
//
// Build-time macros besides common/gpu_tile.clh's and WINOGRAD_TYPE: OUT, the m of F(m x m, 3x3).
#if OUT == 2
#define TILE 4
#define input_line input4
#define weights_line weights4
#define output_line output4
#define grads_line grads4
#define taps_line taps4
#else
#define TILE 6
#define input_line input6
#define weights_line weights6
#define output_line output6
#define grads_line grads6
#define taps_line taps6
#endif

// Both dimensions of a transformation from FROM x FROM to TO x TO elements, in x with lines TILE apart.
#define TRANSFORM(line, FROM, TO)                                     \
  _Pragma("unroll") for (int j = 0; j < FROM; j++) line(x + j, TILE); \
  _Pragma("unroll") for (int i = 0; i < TO; i++) line(x + i * TILE, 1);

// A place of a matrix of tiles.
typedef struct {
  int group, channel, exists;
  int n, d, h, w;  // first output of the tile
} Place;

static inline Place place_of(const Gather* p, const WinogradTiles* t, int id, int channels, int channels_fast) {
  Place at;
  int tile;
  if (channels_fast) {
    at.channel = id % channels, id /= channels;
    tile = id % t->tiles, at.group = id / t->tiles;
  } else {
    tile = id % t->tiles, id /= t->tiles;
    at.channel = id % channels, at.group = id / channels;
  }
  tile += t->first;
  at.exists = tile < t->all;
  at.w = tile % t->columns * OUT, tile /= t->columns;
  at.h = tile % t->rows * OUT, tile /= t->rows;
  at.d = tile % p->q[0], at.n = tile / p->q[0];
  return at;
}

static inline void store_tile(global float* to, const float* x, long step) {
#pragma unroll
  for (int e = 0; e < TILE * TILE; e++) to[e * step] = x[e];
}

// Global size: at least groups * cols * red.
kernel void conv_gpu_winograd_weights(global const T* weights, long offset, global float* to, long to_offset,
                                      Gather p) {
  const int size = p.groups * p.cols * p.red, id = get_global_id(0);
  if (id >= size) return;
  const int red = id % p.red, rest = id / p.red, col = rest % p.cols, group = rest / p.cols;
  weights += offset + group * p.wgroup + col * p.wcol + red * p.wred;
  float x[TILE * TILE];
#pragma unroll
  for (int i = 0; i < 3; i++)
#pragma unroll
    for (int j = 0; j < 3; j++) x[i * TILE + j] = load1(weights + i * p.wtap[1] + j * p.wtap[2]);
  TRANSFORM(weights_line, 3, TILE)
  store_tile(to + to_offset + id, x, size);
}

// Global size: at least groups * red * tiles.
kernel void conv_gpu_winograd_input(global const T* in, long offset, global float* to, long to_offset, Gather p,
                                    WinogradTiles t) {
  const int size = p.groups * p.red * t.tiles, id = get_global_id(0);
  if (id >= size) return;
  const Place at = place_of(&p, &t, id, p.red, t.in_channels_fast);
  const int d = at.d + p.first[0], h = at.h + p.first[1], w = at.w + p.first[2];
  const int inside = at.exists && d >= 0 && d < p.in[0];
  in += offset + at.n * p.is[0] + ((long)at.group * p.red + at.channel) * p.is[1] + d * p.is[2] + h * p.is[3] +
        w * p.is[4];
  float x[TILE * TILE];
#pragma unroll
  for (int i = 0; i < TILE; i++)
#pragma unroll
    for (int j = 0; j < TILE; j++)
      x[i * TILE + j] = inside && h + i >= 0 && h + i < p.in[1] && w + j >= 0 && w + j < p.in[2]
                            ? load1(in + i * p.is[3] + j * p.is[4])
                            : 0.f;
  TRANSFORM(input_line, TILE, TILE)
  store_tile(to + to_offset + id, x, size);
}

// One output the direct way, from the image at the channel 0 of its group and the weights of its column.
static inline float direct_output(const Gather* p, global const T* in, global const T* weights, int d, int h, int w) {
  float sum = 0;
  for (int c = 0; c < p->red; c++)
    for (int tap = 0; tap < 9; tap++) {
      const int ih = h + tap / 3, iw = w + tap % 3;
      if (d < 0 || d >= p->in[0] || ih < 0 || ih >= p->in[1] || iw < 0 || iw >= p->in[2]) continue;
      sum = fma(load1(in + c * p->is[1] + d * p->is[2] + ih * p->is[3] + iw * p->is[4]),
                load1(weights + c * p->wred + tap / 3 * p->wtap[1] + tap % 3 * p->wtap[2]), sum);
    }
  return sum;
}

// Global size: at least groups * cols * tiles.
kernel void conv_gpu_winograd_output(global const float* product, long product_offset, global const T* in,
                                     long in_offset, global const T* weights, long weight_offset, global T* out,
                                     long offset, global const T* bias, long bias_offset, Gather p,
                                     WinogradTiles t EPILOGUE_PARAMETERS) {
  const int size = p.groups * p.cols * t.tiles, id = get_global_id(0);
  if (id >= size) return;
  const Place at = place_of(&p, &t, id, p.cols, t.out_channels_fast);
  if (!at.exists) return;
  const int channel = at.group * p.cols + at.channel;
  product += product_offset + id;
  const long first = at.n * p.os[0] + channel * p.os[1] + at.d * p.os[2] + at.h * p.os[3] + at.w * p.os[4];
  out += offset + first;
  const float b = p.has_bias ? load1(bias + bias_offset + channel) : 0.f;
  const int rows = min(OUT, p.q[1] - at.h), columns = min(OUT, p.q[2] - at.w);
  float x[TILE * TILE], finite = 0.f;
#pragma unroll
  for (int e = 0; e < TILE * TILE; e++) x[e] = product[(long)e * size];
  TRANSFORM(output_line, TILE, OUT)
#pragma unroll
  for (int i = 0; i < OUT; i++)
#pragma unroll
    for (int j = 0; j < OUT; j++) finite += 0.f * x[i * TILE + j];
  if (isnan(finite)) {
    in += in_offset + at.n * p.is[0] + (long)at.group * p.red * p.is[1];
    weights += weight_offset + at.group * p.wgroup + at.channel * p.wcol;
    for (int i = 0; i < rows; i++)
      for (int j = 0; j < columns; j++)
        store1(
            out + i * p.os[3] + j * p.os[4],
            FINISH(b + direct_output(&p, in, weights, at.d + p.first[0], at.h + i + p.first[1], at.w + j + p.first[2]),
                   p.low, p.high, first + i * p.os[3] + j * p.os[4], 0, channel));
    return;
  }
#pragma unroll
  for (int i = 0; i < OUT; i++)
#pragma unroll
    for (int j = 0; j < OUT; j++)
      if (i < rows && j < columns)
        store1(out + i * p.os[3] + j * p.os[4],
               FINISH(x[i * TILE + j] + b, p.low, p.high, first + i * p.os[3] + j * p.os[4], 0, channel));
}

// The output's gradient. Global size: at least groups * cols * tiles.
kernel void conv_gpu_winograd_grads(global const T* grad, long offset, global float* to, long to_offset, Gather p,
                                    WinogradTiles t) {
  const int size = p.groups * p.cols * t.tiles, id = get_global_id(0);
  if (id >= size) return;
  const Place at = place_of(&p, &t, id, p.cols, t.out_channels_fast);
  const int rows = at.exists ? p.q[1] - at.h : 0, columns = p.q[2] - at.w;
  grad += offset + at.n * p.os[0] + ((long)at.group * p.cols + at.channel) * p.os[1] + at.d * p.os[2] + at.h * p.os[3] +
          at.w * p.os[4];
  float x[TILE * TILE];
#pragma unroll
  for (int i = 0; i < OUT; i++)
#pragma unroll
    for (int j = 0; j < OUT; j++)
      x[i * TILE + j] = i < rows && j < columns ? load1(grad + i * p.os[3] + j * p.os[4]) : 0.f;
  TRANSFORM(grads_line, OUT, TILE)
  store_tile(to + to_offset + id, x, size);
}

// One tap the direct way, from the image and the gradient at their channels.
static inline float direct_tap(const Gather* p, global const T* in, global const T* grad, int tap) {
  float sum = 0;
  for (int n = 0; n < p->n; n++)
    for (int d = 0; d < p->q[0]; d++)
      for (int h = 0; h < p->q[1]; h++)
        for (int w = 0; w < p->q[2]; w++) {
          const int id = d + p->first[0], ih = h + p->first[1] + tap / 3, iw = w + p->first[2] + tap % 3;
          if (id < 0 || id >= p->in[0] || ih < 0 || ih >= p->in[1] || iw < 0 || iw >= p->in[2]) continue;
          sum = fma(load1(in + n * p->is[0] + id * p->is[2] + ih * p->is[3] + iw * p->is[4]),
                    load1(grad + n * p->os[0] + d * p->os[2] + h * p->os[3] + w * p->os[4]), sum);
        }
  return sum;
}

// The weights' gradient. Global size: at least groups * cols * red.
kernel void conv_gpu_winograd_taps(global const float* product, long product_offset, global const T* in, long in_offset,
                                   global const T* grad, long grad_offset, global T* weights, long offset, Gather p) {
  const int size = p.groups * p.cols * p.red, id = get_global_id(0);
  if (id >= size) return;
  const int red = id % p.red, rest = id / p.red, col = rest % p.cols, group = rest / p.cols;
  product += product_offset + id;
  weights += offset + group * p.wgroup + col * p.wcol + red * p.wred;
  float x[TILE * TILE], finite = 0.f;
#pragma unroll
  for (int e = 0; e < TILE * TILE; e++) x[e] = product[(long)e * size];
  TRANSFORM(taps_line, TILE, 3)
#pragma unroll
  for (int tap = 0; tap < 9; tap++) finite += 0.f * x[tap / 3 * TILE + tap % 3];
  if (isnan(finite)) {
    in += in_offset + ((long)group * p.red + red) * p.is[1];
    grad += grad_offset + ((long)group * p.cols + col) * p.os[1];
    for (int tap = 0; tap < 9; tap++)
      store1(weights + tap / 3 * p.wtap[1] + tap % 3 * p.wtap[2], direct_tap(&p, in, grad, tap));
    return;
  }
#pragma unroll
  for (int tap = 0; tap < 9; tap++)
    store1(weights + tap / 3 * p.wtap[1] + tap % 3 * p.wtap[2], x[tap / 3 * TILE + tap % 3]);
}
