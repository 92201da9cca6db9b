// The pointwise part of LSTM and GRU cells, after the two matrix products. A_T: the type of all tensors, dense.
// Gates lie side by side in a row of a sample: input, forget, cell, output (LSTM); reset, update, new (GRU).
#include "common/team.clh"
#include "kernels/rnn/params.h"

#ifdef DLB_CPU
#define FOR_CELLS(n, j) FOR_ROWS(n, team) DLB_SIMD for (int j = 0; j < size; ++j)
#else
// One work-item per cell.
#define FOR_CELLS(n, j) \
  FOR_ROWS(cell, team)  \
  for (int n = cell / size, j = cell - n * size, once = cell_active; once; once = 0)
#endif

inline T sigmoid(T x) { return C(1.0) / (C(1.0) + exp(-x)); }

kernel void lstm_cell(global const A_T* input, global const A_T* hidden, global const A_T* bias_i,
                      global const A_T* bias_h, global const A_T* cx, global A_T* hy, global A_T* cy,
                      global A_T* workspace, const RnnParams p, const Team team) {
  const int size = p.size, biased = p.offset[2] >= 0;
  input += p.offset[0], hidden += p.offset[1];
  cx += p.offset[4], hy += p.offset[5], cy += p.offset[6], workspace += p.offset[7];
  if (biased) bias_i += p.offset[2], bias_h += p.offset[3];
  FOR_CELLS(n, j) {
    const long row = (long)n * 4 * size + j, at = (long)n * size + j;
    T gate[4];
    for (int k = 0; k < 4; ++k) {
      gate[k] = LOAD_A(input, row + k * size) + LOAD_A(hidden, row + k * size);
      if (biased) gate[k] += LOAD_A(bias_i, k * size + j) + LOAD_A(bias_h, k * size + j);
      gate[k] = k == 2 ? tanh(gate[k]) : sigmoid(gate[k]);
      STORE_A(workspace, row + k * size, gate[k]);
    }
    const T state = gate[1] * LOAD_A(cx, at) + gate[0] * gate[2];
    STORE_A(cy, at, state);
    STORE_A(hy, at, gate[3] * tanh(state));
  }
}

kernel void lstm_cell_backward(global const A_T* grad_hy, global const A_T* grad_cy, global const A_T* cx,
                               global const A_T* cy, global const A_T* workspace, global A_T* grad_gates,
                               global A_T* grad_cx, const RnnParams p, const Team team) {
  const int size = p.size, from_h = p.offset[0] >= 0, from_c = p.offset[1] >= 0;
  if (from_h) grad_hy += p.offset[0];
  if (from_c) grad_cy += p.offset[1];
  cx += p.offset[2], cy += p.offset[3], workspace += p.offset[4], grad_gates += p.offset[5], grad_cx += p.offset[6];
  FOR_CELLS(n, j) {
    const long row = (long)n * 4 * size + j, at = (long)n * size + j;
    const T i = LOAD_A(workspace, row), f = LOAD_A(workspace, row + size), g = LOAD_A(workspace, row + 2 * size),
            o = LOAD_A(workspace, row + 3 * size), t = tanh(LOAD_A(cy, at));
    const T dh = from_h ? LOAD_A(grad_hy, at) : 0;
    const T dc = dh * o * (1 - t * t) + (from_c ? LOAD_A(grad_cy, at) : 0);
    STORE_A(grad_gates, row, dc * g * (1 - i) * i);
    STORE_A(grad_gates, row + size, dc * LOAD_A(cx, at) * (1 - f) * f);
    STORE_A(grad_gates, row + 2 * size, dc * i * (1 - g * g));
    STORE_A(grad_gates, row + 3 * size, dh * t * (1 - o) * o);
    STORE_A(grad_cx, at, dc * f);
  }
}

// workspace: reset, update, new, hx and the hidden part of new, five values a cell.
kernel void gru_cell(global const A_T* input, global const A_T* hidden, global const A_T* bias_i,
                     global const A_T* bias_h, global const A_T* hx, global A_T* hy, global A_T* workspace,
                     const RnnParams p, const Team team) {
  const int size = p.size, biased = p.offset[2] >= 0;
  input += p.offset[0], hidden += p.offset[1], hx += p.offset[4], hy += p.offset[5], workspace += p.offset[6];
  if (biased) bias_i += p.offset[2], bias_h += p.offset[3];
  FOR_CELLS(n, j) {
    const long row = (long)n * 3 * size + j, at = (long)n * size + j, save = (long)n * 5 * size + j;
    T in[3], hid[3];
    for (int k = 0; k < 3; ++k) {
      in[k] = LOAD_A(input, row + k * size) + (biased ? LOAD_A(bias_i, k * size + j) : 0);
      hid[k] = LOAD_A(hidden, row + k * size) + (biased ? LOAD_A(bias_h, k * size + j) : 0);
    }
    const T r = sigmoid(in[0] + hid[0]), z = sigmoid(in[1] + hid[1]), fresh = tanh(in[2] + r * hid[2]);
    const T h = LOAD_A(hx, at);
    STORE_A(hy, at, fresh + z * (h - fresh));
    STORE_A(workspace, save, r);
    STORE_A(workspace, save + size, z);
    STORE_A(workspace, save + 2 * size, fresh);
    STORE_A(workspace, save + 3 * size, h);
    STORE_A(workspace, save + 4 * size, hid[2]);
  }
}

kernel void gru_cell_backward(global const A_T* grad_hy, global const A_T* workspace, global A_T* grad_input,
                              global A_T* grad_hidden, global A_T* grad_hx, const RnnParams p, const Team team) {
  const int size = p.size;
  grad_hy += p.offset[0], workspace += p.offset[1];
  grad_input += p.offset[2], grad_hidden += p.offset[3], grad_hx += p.offset[4];
  FOR_CELLS(n, j) {
    const long row = (long)n * 3 * size + j, at = (long)n * size + j, save = (long)n * 5 * size + j;
    const T r = LOAD_A(workspace, save), z = LOAD_A(workspace, save + size), fresh = LOAD_A(workspace, save + 2 * size),
            h = LOAD_A(workspace, save + 3 * size), hid = LOAD_A(workspace, save + 4 * size);
    const T d = LOAD_A(grad_hy, at);
    const T dz = d * (h - fresh) * (1 - z) * z, dn = d * (1 - z) * (1 - fresh * fresh), dr = dn * hid * (1 - r) * r;
    STORE_A(grad_input, row, dr);
    STORE_A(grad_input, row + size, dz);
    STORE_A(grad_input, row + 2 * size, dn);
    STORE_A(grad_hidden, row, dr);
    STORE_A(grad_hidden, row + size, dz);
    STORE_A(grad_hidden, row + 2 * size, dn * r);
    STORE_A(grad_hx, at, d * z);
  }
}
