// Columns of a deformable convolution, and the gradients of its offsets and masks. A_T: the element type of all.
#define PLACE_T A_T
#define LOAD_PLACE LOAD_A
#include "common/team.clh"
#include "vision/deform.clh"

#define FOR_PIECES(at)                                                                          \
  const uint begin = get_global_id(0) * p.per_item, end = min(begin + p.per_item, p.positions); \
  deform_piece at;                                                                              \
  for (uint position = begin; position < end && (at = piece_of(&p, position, end), 1); position += at.lanes)

kernel void deform_columns(global const A_T* x, global const A_T* offsets, global const A_T* masks, global A_T* columns,
                           const DeformParams p) {
  FOR_PIECES(at) {
    deform_taps taps;
    T mask[DEFORM_LANES];
    load_taps(offsets, &p, at, 0, p.in[0], &taps);
    load_masks(masks, &p, at, mask);
    for (int c = first_channel_of(&p, at.group); c < first_channel_of(&p, at.group + 1); ++c) {
      global const A_T* image = x + p.x + at.n * p.xs[0] + c * p.xs[1];
      T sum[DEFORM_LANES];
      for (int j = 0; j < at.lanes; ++j) sum[j] = 0;
      for (int k = 0; k < 4; ++k) DLB_SIMD for (int j = 0; j < at.lanes; ++j) {
          const T v = LOAD_A(image, max(taps.index[k][j], 0));
          sum[j] += taps.index[k][j] >= 0 ? taps.weight[k][j] * v : (T)0;
        }
      const long to = column_of(&p, at, c);
      DLB_SIMD for (int j = 0; j < at.lanes; ++j) STORE_A(columns, to + j, sum[j] * mask[j]);
    }
  }
}

// columns: their gradient. offset_grad and, where there are masks, mask_grad are laid out as offsets and masks.
kernel void deform_backward_places(global const A_T* x, global const A_T* offsets, global const A_T* masks,
                                   global const A_T* columns, global A_T* offset_grad, global A_T* mask_grad,
                                   const DeformParams p) {
  FOR_PIECES(at) {
    deform_taps taps;
    T mask[DEFORM_LANES], sum[4][DEFORM_LANES];
    load_taps(offsets, &p, at, 0, p.in[0], &taps);
    load_masks(masks, &p, at, mask);
    for (int k = 0; k < 4; ++k)
      for (int j = 0; j < at.lanes; ++j) sum[k][j] = 0;
    for (int c = first_channel_of(&p, at.group); c < first_channel_of(&p, at.group + 1); ++c) {
      global const A_T* image = x + p.x + at.n * p.xs[0] + c * p.xs[1];
      const long from = column_of(&p, at, c);
      for (int k = 0; k < 4; ++k) DLB_SIMD for (int j = 0; j < at.lanes; ++j) {
          const T v = LOAD_A(image, max(taps.index[k][j], 0));
          sum[k][j] += taps.index[k][j] >= 0 ? LOAD_A(columns, from + j) * v : (T)0;
        }
    }
    for (int j = 0; j < at.lanes; ++j) {
      T value = 0, by_y = 0, by_x = 0;
      for (int k = 0; k < 4; ++k) {
        value += taps.weight[k][j] * sum[k][j];
        by_y += taps.by_y[k][j] * sum[k][j], by_x += taps.by_x[k][j] * sum[k][j];
      }
      STORE_A(offset_grad, p.offset_grad + plane_of(&p, at, 2, 0) + j, by_y * mask[j]);
      STORE_A(offset_grad, p.offset_grad + plane_of(&p, at, 2, 1) + j, by_x * mask[j]);
      if (p.use_mask) STORE_A(mask_grad, p.mask_grad + plane_of(&p, at, 1, 0) + j, value);
    }
  }
}
