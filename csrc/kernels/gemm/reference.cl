// GEMM of any dtype and layout, one work-item per output: out = alpha * A * B + beta * D within bounds. Slow and
// plain.
#include "common/operands.clh"
#ifdef A_NARROW
#define LOAD_A(p, i) ((ACC)A_NUMBER((p)[i]))
#else
#define LOAD_A LOAD
#endif
#if defined(B_NIBBLES)
inline ACC of_group(global const uchar* B, long i, global const T* scale) {
  return ((B[i / 2] >> (i % 2 ? 0 : 4) & 15) - 8) * LOAD(scale, 0) + LOAD(scale, 1);
}
#define LOAD_B(k, j) of_group(B + ob, (k)*sbk + (j)*sbn, GROUP_OF(k, j))
#elif defined(B_NARROW)
#define LOAD_B(k, j) ((ACC)B_NUMBER(B[ob + b * sbb + (k)*sbk + (j)*sbn]))
#else
#define LOAD_B(k, j) LOAD(B, ob + b * sbb + (k)*sbk + (j)*sbn)
#endif

kernel void gemm_reference(global const A_T* A, long oa, long sab, long sam, long sak, global const B_T* B, long ob,
                           long sbb, long sbk, long sbn, global C_T* C, long oc, long scb, long scm, long scn,
                           global const T* D, long od, long sdb, long sdm, long sdn, S alpha, S beta, int has_d,
                           float low, float high, long batch, long M, long N,
                           long K GROUP_PARAMETERS EPILOGUE_PARAMETERS) {
  const long id = get_global_id(0);
  if (id >= batch * M * N) return;
  const long b = id / (M * N), i = id / N % M, j = id % N;
  ACC sum = ZERO;
  for (long k = 0; k < K; k++) sum += MUL(LOAD_A(A, oa + b * sab + i * sam + k * sak), LOAD_B(k, j));
  sum = MUL(alpha, sum);
  if (has_d) sum += MUL(beta, LOAD(D, od + b * sdb + i * sdm + j * sdn));
  const long at = b * scb + i * scm + j * scn;
  STORE_C(FINISH(sum, low, high, at, i, j), C, oc + at);
}
