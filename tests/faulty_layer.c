/* An OpenCL layer (CL/cl_layer.h; loaders take the libraries that OPENCL_LAYERS names) that makes a driver fail, or
 * less capable, as environment variables say when a function is called:
 *   FAULTY_CALL=clFinish:2:-5  the second call of clFinish from then on returns -5, once; with 0 every call does,
 *                              with -1 every call until a queue was finished
 *   FAULTY_CALL=clGetDeviceInfo:1:-33  counts calls for the name of a device; each device's takes two
 *   FAULTY_CALL=clGetEventProfilingInfo:2:5000000  the second time that is asked for is 5 ms later than it was
 *   FAULTY_NO_FP64=1           no device has cl_khr_fp64
 *   FAULTY_FP64_BUILD=1        devices list cl_khr_fp64, but programs that enable it do not build
 *   FAULTY_WORK_GROUP=64       no work-group has more work-items: launches of larger ones fail
 *   FAULTY_LOCAL_MEMORY=16384  bytes that a work-group has: launches of kernels that take more fail
 *   FAULTY_GPU=1               devices say that they are GPUs
 *   FAULTY_LAUNCH_US=20        each launch takes the caller that much longer
 *   FAULTY_NO_FP16=1, FAULTY_NO_ATOMICS=1  no device has cl_khr_fp16, or atomics of 64 bits */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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

static size_t limit(const char* name) {
  const char* given = getenv(name);
  return given ? (size_t)atoll(given) : 0;
}

/* What a device with FAULTY_WORK_GROUP and FAULTY_LOCAL_MEMORY says to a launch. */
static cl_int beyond_limits(cl_command_queue queue, cl_kernel kernel, cl_uint dims, const size_t* local) {
  const size_t most = limit("FAULTY_WORK_GROUP"), memory = limit("FAULTY_LOCAL_MEMORY");
  if (!most && !memory) return CL_SUCCESS;
  cl_device_id device;
  cl_ulong used = 0;
  size_t items = 1, required[3] = {0};
  char name[64] = "";
  next->clGetCommandQueueInfo(queue, CL_QUEUE_DEVICE, sizeof device, &device, NULL);
  next->clGetKernelInfo(kernel, CL_KERNEL_FUNCTION_NAME, sizeof name, name, NULL);
  next->clGetKernelWorkGroupInfo(kernel, device, CL_KERNEL_LOCAL_MEM_SIZE, sizeof used, &used, NULL);
  next->clGetKernelWorkGroupInfo(kernel, device, CL_KERNEL_COMPILE_WORK_GROUP_SIZE, sizeof required, required, NULL);
  for (cl_uint d = 0; d < dims && local; d++) items *= local[d];
  if (most && (items > most || required[0] * required[1] * required[2] > most)) {
    fprintf(stderr, "faulty_layer: %s wants a work-group of %zu\n", name, items);
    return CL_INVALID_WORK_GROUP_SIZE;
  }
  if (memory && used > memory) {
    fprintf(stderr, "faulty_layer: %s wants %llu bytes of local memory\n", name, (unsigned long long)used);
    return CL_OUT_OF_RESOURCES;
  }
  return CL_SUCCESS;
}

static void wait_for_launch(void) {
  const struct timespec delay = {0, 1000 * (long)limit("FAULTY_LAUNCH_US")};
  struct timespec start, now;
  if (delay.tv_nsec == 0) return;
  clock_gettime(CLOCK_MONOTONIC, &start);
  do {
    clock_gettime(CLOCK_MONOTONIC, &now);
  } while ((now.tv_sec - start.tv_sec) * 1000000000 + now.tv_nsec - start.tv_nsec < delay.tv_nsec);
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
  const cl_int refused = beyond_limits(queue, kernel, dims, local);
  if (refused) return refused;
  wait_for_launch();
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

static void hide(char* extensions, const char* name) {
  char* found = strstr(extensions, name);
  if (found) memset(found, ' ', strlen(name));
}

static cl_int CL_API_CALL device_info(cl_device_id device, cl_device_info what, size_t size, void* value,
                                      size_t* size_needed) {
  const cl_int fault = what == CL_DEVICE_NAME ? countdown("clGetDeviceInfo") : 0;
  if (fault) return fault;
  const cl_int status = next->clGetDeviceInfo(device, what, size, value, size_needed);
  if (status != CL_SUCCESS || !value) return status;
  const size_t most = limit("FAULTY_WORK_GROUP"), memory = limit("FAULTY_LOCAL_MEMORY");
  if (what == CL_DEVICE_EXTENSIONS) {
    if (getenv("FAULTY_NO_FP64")) hide(value, "cl_khr_fp64");
    if (getenv("FAULTY_NO_FP16")) hide(value, "cl_khr_fp16");
    if (getenv("FAULTY_NO_ATOMICS")) hide(value, "cl_khr_int64_base_atomics"), hide(value, "cl_khr_int64_extended_atomics");
  }
  if (what == CL_DEVICE_TYPE && getenv("FAULTY_GPU")) *(cl_device_type*)value = CL_DEVICE_TYPE_GPU;
  if (what == CL_DEVICE_DOUBLE_FP_CONFIG && getenv("FAULTY_NO_FP64")) memset(value, 0, size);
  if (what == CL_DEVICE_MAX_WORK_GROUP_SIZE && most) *(size_t*)value = most;
  if (what == CL_DEVICE_MAX_WORK_ITEM_SIZES && most)
    for (int d = 0; d < 3; d++) ((size_t*)value)[d] = most;
  if (what == CL_DEVICE_LOCAL_MEM_SIZE && memory) *(cl_ulong*)value = memory;
  return status;
}

static cl_int CL_API_CALL kernel_group_info(cl_kernel kernel, cl_device_id device, cl_kernel_work_group_info what,
                                            size_t size, void* value, size_t* size_needed) {
  const cl_int status = next->clGetKernelWorkGroupInfo(kernel, device, what, size, value, size_needed);
  const size_t most = limit("FAULTY_WORK_GROUP");
  if (status == CL_SUCCESS && value && what == CL_KERNEL_WORK_GROUP_SIZE && most && *(size_t*)value > most)
    *(size_t*)value = most;
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
  mine.clGetKernelWorkGroupInfo = kernel_group_info;
  mine.clGetEventProfilingInfo = event_time;
}
