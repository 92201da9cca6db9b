/* An OpenCL layer (CL/cl_layer.h) that adds up the time spent in the driver's clEnqueueNDRangeKernel and
 * clSetKernelArg, for benchmarks/host_cost.py: what remains of an op is PyTorch's dispatcher, Python and dlbackend. */
#include <CL/cl_layer.h>
#include <string.h>
#include <time.h>

static const struct _cl_icd_dispatch* next;
static struct _cl_icd_dispatch mine;
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

CL_API_ENTRY cl_int CL_API_CALL clGetLayerInfo(cl_layer_info what, size_t size, void* value, size_t* size_needed) {
  if (what != CL_LAYER_API_VERSION) return CL_INVALID_VALUE;
  if (value && size >= sizeof(cl_layer_api_version)) *(cl_layer_api_version*)value = CL_LAYER_API_VERSION_100;
  if (size_needed) *size_needed = sizeof(cl_layer_api_version);
  return CL_SUCCESS;
}

CL_API_ENTRY cl_int CL_API_CALL clInitLayer(cl_uint entries, const struct _cl_icd_dispatch* target,
                                            cl_uint* entries_made, const struct _cl_icd_dispatch** made) {
  next = target;
  memcpy(&mine, target, entries * sizeof(void*) < sizeof mine ? entries * sizeof(void*) : sizeof mine);
  mine.clEnqueueNDRangeKernel = launch;
  mine.clSetKernelArg = set_argument;
  *made = &mine;
  *entries_made = sizeof mine / sizeof(void*);
  return CL_SUCCESS;
}
