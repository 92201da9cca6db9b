/* An OpenCL layer (CL/cl_layer.h; loaders take the libraries that OPENCL_LAYERS names) that makes a driver fail, or
 * less capable, as environment variables say when a function is called:
 *   FAULTY_CALL=clFinish:2:-5  the second call of clFinish from then on returns -5, once; with 0 every call does,
 *                              with -1 every call until a queue was finished
 *   FAULTY_CALL=clGetDeviceInfo:1:-33  counts calls for the name of a device; each device's takes two
 *   FAULTY_CALL=clGetEventProfilingInfo:2:5000000  the second time that is asked for is 5 ms later than it was
 *   FAULTY_NO_FP64=1           no device has cl_khr_fp64
 *   FAULTY_FP64_BUILD=1        devices list cl_khr_fp64, but programs that enable it do not build */
#include <stdlib.h>
#include <string.h>

#include "../benchmarks/opencl_layer.h"

static int finishes; /* of queues so far */

static int countdown(const char* name) {
  static char seen[128];
  static int failing_call, calls, finishes_before;
  const char* wanted = getenv("FAULTY_CALL");
  const size_t length = strlen(name);
  if (!wanted) seen[0] = 0;
  if (!wanted || strncmp(wanted, name, length) != 0 || wanted[length] != ':') return 0;
  if (strcmp(seen, wanted) != 0) {
    strncpy(seen, wanted, sizeof seen - 1);
    failing_call = atoi(wanted + length + 1);
    calls = 0;
    finishes_before = finishes;
  }
  if (failing_call > 0 && ++calls != failing_call) return 0;
  if (failing_call < 0 && finishes != finishes_before) return 0;
  return atoi(strchr(wanted + length + 1, ':') + 1);
}

static cl_int CL_API_CALL finish(cl_command_queue queue) {
  const cl_int status = next->clFinish(queue), fault = countdown("clFinish");
  finishes++;
  return fault ? fault : status;
}

static cl_int CL_API_CALL launch(cl_command_queue queue, cl_kernel kernel, cl_uint dims, const size_t* offset,
                                 const size_t* global, const size_t* local, cl_uint waits, const cl_event* list,
                                 cl_event* event) {
  const cl_int fault = countdown("clEnqueueNDRangeKernel");
  if (fault) return fault;
  return next->clEnqueueNDRangeKernel(queue, kernel, dims, offset, global, local, waits, list, event);
}

static cl_int CL_API_CALL read_buffer(cl_command_queue queue, cl_mem buffer, cl_bool blocking, size_t offset,
                                      size_t bytes, void* to, cl_uint waits, const cl_event* list,
                                      cl_event* event) {
  const cl_int fault = countdown("clEnqueueReadBuffer");
  if (fault) return fault;
  return next->clEnqueueReadBuffer(queue, buffer, blocking, offset, bytes, to, waits, list, event);
}

static cl_mem CL_API_CALL create_buffer(cl_context context, cl_mem_flags flags, size_t bytes, void* host,
                                        cl_int* status) {
  const cl_int fault = countdown("clCreateBuffer");
  if (!fault) return next->clCreateBuffer(context, flags, bytes, host, status);
  if (status) *status = fault;
  return NULL;
}

static cl_program CL_API_CALL create_program(cl_context context, cl_uint count, const char** texts,
                                             const size_t* lengths, cl_int* status) {
  static const char* refused = "#error this compiler has no double\n";
  if (getenv("FAULTY_FP64_BUILD") && count == 1 && strstr(texts[0], "cl_khr_fp64"))
    return next->clCreateProgramWithSource(context, 1, &refused, NULL, status);
  return next->clCreateProgramWithSource(context, count, texts, lengths, status);
}

static cl_int CL_API_CALL build(cl_program program, cl_uint count, const cl_device_id* devices, const char* options,
                                void(CL_CALLBACK* notify)(cl_program, void*), void* user) {
  const cl_int fault = countdown("clBuildProgram");
  return fault ? fault : next->clBuildProgram(program, count, devices, options, notify, user);
}

static cl_int CL_API_CALL device_info(cl_device_id device, cl_device_info what, size_t size, void* value,
                                      size_t* size_needed) {
  const cl_int fault = what == CL_DEVICE_NAME ? countdown("clGetDeviceInfo") : 0;
  if (fault) return fault;
  const cl_int status = next->clGetDeviceInfo(device, what, size, value, size_needed);
  if (status != CL_SUCCESS || !value || !getenv("FAULTY_NO_FP64")) return status;
  if (what == CL_DEVICE_EXTENSIONS) {
    char* found = strstr(value, "cl_khr_fp64");
    if (found) memset(found, ' ', strlen("cl_khr_fp64"));
  } else if (what == CL_DEVICE_DOUBLE_FP_CONFIG) {
    memset(value, 0, size);
  }
  return status;
}

static cl_int CL_API_CALL event_time(cl_event event, cl_profiling_info what, size_t size, void* value,
                                     size_t* size_needed) {
  const cl_int status = next->clGetEventProfilingInfo(event, what, size, value, size_needed);
  if (status == CL_SUCCESS && value) *(cl_ulong*)value += (cl_ulong)countdown("clGetEventProfilingInfo");
  return status;
}

static void replace_calls(void) {
  mine.clFinish = finish;
  mine.clEnqueueNDRangeKernel = launch;
  mine.clEnqueueReadBuffer = read_buffer;
  mine.clCreateBuffer = create_buffer;
  mine.clCreateProgramWithSource = create_program;
  mine.clBuildProgram = build;
  mine.clGetDeviceInfo = device_info;
  mine.clGetEventProfilingInfo = event_time;
}
