// Gradients of the pooling of boxes, added to x, a contiguous tensor of T. A_T: T, B_T: the type of the others.
#define ROI_T B_T
#define LOAD_ROI LOAD_B
#include "common/team.clh"
#include "common/owners.clh"
#include "vision/roi.clh"

#ifdef DLB_CPU
#define CHANNELS 64  // that are taken together
#else
#define CHANNELS 1
#endif

#define FOR_OWN_BINS(owners)                                \
  const dlb_owner own = owner_of(owners, get_global_id(0)); \
  const long hop = channel_hop(&p);                         \
  for (uint position = own.first; position < own.end; ++position)

inline int owns_image(dlb_owner own, int n) { return n >= own.n0 && n < own.n1; }

kernel void roi_align_backward(global A_T* x, global const B_T* rois, global const B_T* y, const RoiParams p,
                               const Owners owners) {
  FOR_OWN_BINS(owners) {
    const uint number = dlb_divide(position, p.bins);
    const int bin = position - number * p.bins.divisor;
    const roi_box box = box_of(rois, &p, number);
    if (!owns_image(own, box.n)) continue;
    const T count = box.grid_height * box.grid_width;
    global A_T* image = x + p.x + box.n * p.xs[0] + first_channel(&p, bin);
    global const B_T* grad =
        y + p.y + number * p.ys[0] + bin / p.pooled_width * p.ys[2] + bin % p.pooled_width * p.ys[3];
    for (int c = own.c0; c < own.c1; c += CHANNELS) {
      const int lanes = CHANNELS == 1 ? 1 : min(CHANNELS, own.c1 - c);
      global A_T* channel = image + c * hop;
      T g[CHANNELS];
      for (int j = 0; j < lanes; ++j) g[j] = LOAD_B(grad, (c + j) * p.ys[1]) / count;
      for (int iy = 0; iy < box.grid_height; ++iy)
        for (int ix = 0; ix < box.grid_width; ++ix) {
          int row[2];
          long place[4];
          T share[4];
          if (!corners_of(&box, &p, bin, iy, ix, row, place, share)) continue;
          for (int k = 0; k < 4; ++k) {
            if (row[k / 2] < own.r0 || row[k / 2] >= own.r1) continue;
#ifdef DLB_CPU
            if (hop == 1) {
              global A_T* to = channel + place[k];
              DLB_SIMD for (int j = 0; j < lanes; ++j) to[j] += g[j] * share[k];
              continue;
            }
#endif
            for (int j = 0; j < lanes; ++j) add_to(channel + j * hop, place[k], g[j] * share[k]);
          }
        }
    }
  }
}

// places: contiguous, as roi_max writes them.
kernel void roi_max_backward(global A_T* x, global const B_T* rois, global const B_T* y, global const int* places,
                             const RoiParams p, const Owners owners) {
  FOR_OWN_BINS(owners) {
    const uint number = dlb_divide(position, p.bins);
    const int bin = position - number * p.bins.divisor, n = image_of(rois + p.rois + number * 5L, p.samples);
    if (!owns_image(own, n)) continue;
    global A_T* image = x + p.x + n * p.xs[0];
    global const B_T* grad =
        y + p.y + number * p.ys[0] + bin / p.pooled_width * p.ys[2] + bin % p.pooled_width * p.ys[3];
    for (int c = own.c0; c < own.c1; ++c) {
      const int place = places[p.places + ((long)number * p.channels + c) * p.bins.divisor + bin];
      if (place < own.r0 * p.width || place >= own.r1 * p.width) continue;
      add_to(image + c * hop, place, LOAD_B(grad, c * p.ys[1]));
    }
  }
}

kernel void roi_average_backward(global A_T* x, global const B_T* rois, global const B_T* y, const RoiParams p,
                                 const Owners owners) {
  FOR_OWN_BINS(owners) {
    const uint number = dlb_divide(position, p.bins);
    const int bin = position - number * p.bins.divisor;
    global const B_T* roi = rois + p.rois + number * 5L;
    const int n = image_of(roi, p.samples);
    int rows[2], columns[2];
    // Here torchvision counts the image's last row and column.
    if (!owns_image(own, n) || !whole_bins(roi, &p, bin, 0, p.height, p.width, rows, columns)) continue;
    const T area = (rows[1] - rows[0]) * (columns[1] - columns[0]);
    global A_T* image = x + p.x + n * p.xs[0] + first_channel(&p, bin);
    global const B_T* grad =
        y + p.y + number * p.ys[0] + bin / p.pooled_width * p.ys[2] + bin % p.pooled_width * p.ys[3];
    for (int c = own.c0; c < own.c1; ++c) {
      const T g = LOAD_B(grad, c * p.ys[1]) / area;
      for (int h = max(rows[0], own.r0); h < min(rows[1], own.r1); ++h)
        for (int w = columns[0]; w < columns[1]; ++w) add_to(image + c * hop, h * p.xs[2] + w * p.xs[3], g);
    }
  }
}
