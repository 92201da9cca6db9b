// The reference that the other solvers are checked against: a work-item for each result, a sum over all numbers. Wants
// fft/common.clh.

// table: the roots of unity of order p.points. p.count results from p.first_result on. Sums of 256 products are added
// up, because a long chain of additions loses digits.
kernel void fft_reference(global const REAL* input, global REAL* output, global const REAL* table, const FftEdge p,
                          const REAL scale, const int in_count, const int first_result) {
  const long id = get_global_id(0);
  if (id >= (long)p.transforms * p.count) return;
  const int transform = id / p.count, k = id - (long)transform * p.count, n = p.points;
  long from = p.in.offset, to = p.out.offset;
  fft_locate(&p.in, &p.out, p.sizes, transform, &from, &to);
  const int inverse = p.flags & FFT_SWAP_IN ? 1 : 0;
  table += p.table;
  REAL re = 0, im = 0;
  for (int begin = 0; begin < n; begin += 256) {
    REAL r = 0, i = 0;
    for (int j = begin; j < min(n, begin + 256); ++j) {
      const int mirrored = j >= in_count, l = mirrored ? n - j : j;
      global const REAL* at = input + from + l * p.in.step;
      const REAL a = at[0];
      REAL b = p.in.im ? at[p.in.im] : 0;
      if (mirrored) b = -b;
      if (p.flags & FFT_HERMITIAN && (j == 0 || 2 * j == n)) b = 0;
      const long power = (long)j * (k + first_result) % n;
      const REAL c = table[2 * power], d = inverse ? -table[2 * power + 1] : table[2 * power + 1];
      r += a * c - b * d, i += a * d + b * c;
    }
    re += r, im += i;
  }
  global REAL* out = output + to + k * p.out.step;
  out[0] = re * scale;
  if (p.out.im) out[p.out.im] = im * scale;
}
