// Reflection and replication padding over up to three axes. A_T: the element type; forward only moves bits, so it is
// built for an unsigned integer of the element's size.
#include "common/team.clh"
#include "common/lines.clh"
#include "kernels/pad/params.h"

inline int source(PadAxis a, int reflect, int o) {
  const int at = o - a.before;
  if (!reflect) return clamp(at, 0, a.in - 1);
  return at < 0 ? -at : at >= a.in ? 2 * (a.in - 1) - at : at;
}

// The outputs that copy input i: reader k of `readers`, or -1.
inline int readers(PadAxis a, int reflect, int i) {
  if (reflect) return 3;
  const int first = i == 0 ? 0 : i + a.before, last = i == a.in - 1 ? a.out - 1 : i + a.before;
  return last - first + 1;
}
inline int reader(PadAxis a, int reflect, int i, int k) {
  int o;
  if (!reflect) o = (i == 0 ? 0 : i + a.before) + k;
  else if (k == 0) o = i + a.before;
  else if (k == 1) o = i == 0 ? -1 : a.before - i;
  else o = i == a.in - 1 ? -1 : a.before + 2 * (a.in - 1) - i;
  return o >= 0 && o < a.out && source(a, reflect, o) == i ? o : -1;
}

kernel void pad(global const A_T* x, global A_T* y, const PadParams p, const Team team) {
  const PadAxis ad = p.axis[0], ah = p.axis[1], aw = p.axis[2];
  FOR_ROWS(row, team) {
    if (!row_active) continue;
    const dlb_piece at = piece_of(p.lines, row);
    global const A_T* in = x + p.x + at.n * p.lines.xs[0] + at.c * p.lines.xs[1] +
                           source(ad, p.reflect, at.d) * p.lines.xs[2] + source(ah, p.reflect, at.h) * p.lines.xs[3];
    global A_T* out = y + p.y + offset_of(at, p.lines.ys);
    if (p.lines.channels_inner) {
      in += source(aw, p.reflect, at.w) * p.lines.xs[4];
      COPY_PIECE(out, p.lines.ys[1], at.lanes, in, j * p.lines.xs[1])
    } else {
#ifdef DLB_CPU
      // Most of a line is copied as it lies, which vectorises; source() does not.
      const long in_hop = p.lines.xs[4], out_hop = p.lines.ys[4];
      const int low = clamp(aw.before - at.w, 0, at.lanes), high = clamp(aw.before + aw.in - at.w, low, at.lanes);
      for (int j = 0; j < low; ++j) out[j * out_hop] = in[source(aw, p.reflect, at.w + j) * in_hop];
      global const A_T* inner = in + (at.w - aw.before) * in_hop;
      if (in_hop == 1 && out_hop == 1) {
        DLB_SIMD for (int j = low; j < high; ++j) out[j] = inner[j];
      } else {
        for (int j = low; j < high; ++j) out[j * out_hop] = inner[j * in_hop];
      }
      for (int j = high; j < at.lanes; ++j) out[j * out_hop] = in[source(aw, p.reflect, at.w + j) * in_hop];
#else
      COPY_PIECE(out, p.lines.ys[4], at.lanes, in, source(aw, p.reflect, at.w + j) * p.lines.xs[4])
#endif
    }
  }
}

// x: the gradient of the input, written; y: of the output.
kernel void pad_backward(global A_T* x, global const A_T* y, const PadParams p, const Team team) {
  const PadAxis ad = p.axis[0], ah = p.axis[1], aw = p.axis[2];
  FOR_ROWS(row, team) {
    if (!row_active) continue;
    const dlb_piece at = piece_of(p.lines, row);
    const long base = p.y + at.n * p.lines.ys[0] + at.c * p.lines.ys[1];
    const int nd = readers(ad, p.reflect, at.d), nh = readers(ah, p.reflect, at.h);
    for (int j = 0; j < at.lanes; ++j) {
      const int column = p.lines.channels_inner ? at.w : at.w + j;
      const long lane = base + (p.lines.channels_inner ? j * p.lines.ys[1] : 0);
      const int nw = readers(aw, p.reflect, column);
      T sum = 0;
      for (int kd = 0; kd < nd; ++kd) {
        const int d = reader(ad, p.reflect, at.d, kd);
        for (int kh = 0; kh < nh; ++kh) {
          const int h = reader(ah, p.reflect, at.h, kh);
          for (int kw = 0; kw < nw; ++kw) {
            const int w = reader(aw, p.reflect, column, kw);
            if (d >= 0 && h >= 0 && w >= 0)
              sum += LOAD_A(y, lane + d * p.lines.ys[2] + h * p.lines.ys[3] + w * p.lines.ys[4]);
          }
        }
      }
      STORE_A(x, p.x + offset_of(at, p.lines.xs) + j * (p.lines.channels_inner ? p.lines.xs[1] : p.lines.xs[4]), sum);
    }
  }
}
