/* An OpenCL layer (CL/cl_layer.h) that adds up the time spent in the driver's clEnqueueNDRangeKernel and
 * clSetKernelArg, for benchmarks/host_cost.py: what remains of an op is PyTorch's dispatcher, Python and dlbackend.
 * It also begins and ends callgrind's profiles, where valgrind's headers are installed. */
#include <string.h>
#include <time.h>

#include "opencl_layer.h"

#if __has_include(<valgrind/callgrind.h>)
#include <valgrind/callgrind.h>
#else
#define CALLGRIND_ZERO_STATS
#define CALLGRIND_START_INSTRUMENTATION
#define CALLGRIND_STOP_INSTRUMENTATION
#define CALLGRIND_DUMP_STATS_AT(name) (void)(name)
#endif

static _Thread_local double seconds;
static int skips;

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* The calling thread's seconds in both functions since its last call of this one. */
double driver_seconds(void) {
  const double spent = seconds;
  seconds = 0;
  return spent;
}

/* Whether launches are lost from now on: the host's part alone is left. */
void driver_skip(int skip) { skips = skip; }

void profile_begin(void) {
  CALLGRIND_START_INSTRUMENTATION;
  CALLGRIND_ZERO_STATS;
}
void profile_end(const char* name) {
  CALLGRIND_DUMP_STATS_AT(name);
  CALLGRIND_STOP_INSTRUMENTATION;
}

static cl_int CL_API_CALL launch(cl_command_queue queue, cl_kernel kernel, cl_uint dims, const size_t* offset,
                                 const size_t* global, const size_t* local, cl_uint waits, const cl_event* list,
                                 cl_event* event) {
  if (skips && !event) return CL_SUCCESS;
  const double start = now();
  const cl_int status = next->clEnqueueNDRangeKernel(queue, kernel, dims, offset, global, local, waits, list, event);
  seconds += now() - start;
  return status;
}

static cl_int CL_API_CALL set_argument(cl_kernel kernel, cl_uint position, size_t size, const void* value) {
  const double start = now();
  const cl_int status = next->clSetKernelArg(kernel, position, size, value);
  seconds += now() - start;
  return status;
}

static void replace_calls(void) {
  mine.clEnqueueNDRangeKernel = launch;
  mine.clSetKernelArg = set_argument;
}
