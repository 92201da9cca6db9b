// OpenCL's built-in functions as far as kernels of attention/gpu_wgmma*.cl, gemm/gpu_wgmma.cl and conv/gpu_wgmma.cl call
// them, for a clang that compiles to PTX without NVIDIA's library.
#define OVERLOAD static inline __attribute__((overloadable))

#define get_local_id(d) ((int)__nvvm_read_ptx_sreg_tid_x())
#define get_group_id(d)                                                                      \
  ((int)((d) == 0   ? __nvvm_read_ptx_sreg_ctaid_x()                                         \
         : (d) == 1 ? __nvvm_read_ptx_sreg_ctaid_y()                                         \
                    : __nvvm_read_ptx_sreg_ctaid_z()))
#define get_global_id(d) (get_group_id(d) * (int)__nvvm_read_ptx_sreg_ntid_x() + get_local_id(d))
#define get_num_groups(d) ((int)__nvvm_read_ptx_sreg_nctaid_x())
#define barrier(flags) __nvvm_bar_sync(0)

OVERLOAD uint mul_hi(uint a, uint b) { return (ulong)a * b >> 32; }
#define min(a, b) ((a) < (b) ? (a) : (b))
#define max(a, b) ((a) > (b) ? (a) : (b))
#define fma(a, b, c) __builtin_fmaf(a, b, c)
#define fabs(x) __builtin_fabsf(x)
#define select(a, b, c) ((c) ? (b) : (a))
#define convert_float(x) ((float)(x))
#define convert_float4(x) __builtin_convertvector(x, float4)
#define isfinite(x) ((as_uint(x) >> 23 & 255) != 255)

OVERLOAD int is_nan(float x) { return x != x; }
OVERLOAD int4 is_nan(float4 x) { return x != x; }
OVERLOAD int16 is_nan(float16 x) { return x != x; }
#define isnan(x) is_nan(x)

static inline float larger(float a, float b) {
  float c;
  asm("max.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}
#define fmax(a, b) larger(a, b)
static inline float power_of_two(float x) {
  float y;
  asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#define exp(x) power_of_two((x)*1.44269504f)
static inline float logarithm_of_two(float x) {
  float y;
  asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#define log(x) (logarithm_of_two(x) * 0.69314718f)
static inline float of_half(ushort x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}
#define vload_half(i, p) of_half(((global const ushort*)(p))[i])
static inline ushort to_half(float x) {
  ushort y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}
static inline float4 of_half4(const ushort* p) { return (float4)(of_half(p[0]), of_half(p[1]), of_half(p[2]), of_half(p[3])); }
static inline ushort4 to_half4(float4 x) { return (ushort4)(to_half(x.x), to_half(x.y), to_half(x.z), to_half(x.w)); }
#define vload_half4(i, p) of_half4((const ushort*)(p))
#define vstore_half_rte(x, i, p) (((global ushort*)(p))[i] = to_half(x))
#define vstore_half4_rte(x, i, p) (*(ushort4*)(p) = to_half4(x))
