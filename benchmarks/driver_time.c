/* An OpenCL layer (CL/cl_layer.h) that adds up the time spent in the driver's clEnqueueNDRangeKernel and
 * clSetKernelArg, for benchmarks/host_cost.py: what remains of an op is PyTorch's dispatcher, Python and dlbackend. */
#include <string.h>
#include <time.h>

#include "opencl_layer.h"

static _Thread_local double seconds;

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

static cl_int CL_API_CALL launch(cl_command_queue queue, cl_kernel kernel, cl_uint dims, const size_t* offset,
                                 const size_t* global, const size_t* local, cl_uint waits, const cl_event* list,
                                 cl_event* event) {
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
