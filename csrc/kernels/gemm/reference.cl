// GEMM of any dtype and layout, one work-item per output: out = alpha * A * B + beta * D within bounds. Slow and
// plain.
#include "common/operands.clh"
#ifdef A_INTEGERS
#define LOAD_A(p, i) ((ACC)(p)[i])
#else
#define LOAD_A LOAD
#endif
#ifdef B_INTEGERS
#define LOAD_B(p, i) ((ACC)(p)[i])
#else
#define LOAD_B LOAD
#endif

kernel void gemm_reference(global const A_T* A, long oa, long sab, long sam, long sak, global const B_T* B, long ob,
                           long sbb, long sbk, long sbn, global T* C, long oc, long scb, long scm, long scn,
                           global const T* D, long od, long sdb, long sdm, long sdn, S alpha, S beta, int has_d,
                           float low, float high, long batch, long M, long N, long K EPILOGUE_PARAMETERS) {
  const long id = get_global_id(0);
  if (id >= batch * M * N) return;
  const long b = id / (M * N), i = id / N % M, j = id % N;
  ACC sum = ZERO;
  for (long k = 0; k < K; k++)
    sum += MUL(LOAD_A(A, oa + b * sab + i * sam + k * sak), LOAD_B(B, ob + b * sbb + k * sbk + j * sbn));
  sum = MUL(alpha, sum);
  if (has_d) sum += MUL(beta, LOAD(D, od + b * sdb + i * sdm + j * sdn));
  const long at = b * scb + i * scm + j * scn;
  STORE(FINISH(sum, low, high, at, i, j), C, oc + at);
}
