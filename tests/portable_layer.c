/* An OpenCL layer that passes a driver off as NVIDIA's of a version and for a GPU that environment variables name: its
 * program binaries are text that looks like PTX, with the source in a comment, and it takes such text.
 *   PORTABLE_DRIVER=580.10     the version of the driver
 *   PORTABLE_TARGET=90         ten times the compute capability
 *   PORTABLE_REFUSES=1         it takes no binary */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../benchmarks/opencl_layer.h"

static const char kSource[] = "// source: ";

static cl_int give(const char* text, size_t size, void* value, size_t* size_needed) {
  const size_t bytes = strlen(text) + 1;
  if (size_needed) *size_needed = bytes;
  if (value && size < bytes) return CL_INVALID_VALUE;
  if (value) memcpy(value, text, bytes);
  return CL_SUCCESS;
}

static cl_int CL_API_CALL platform_info(cl_platform_id platform, cl_platform_info what, size_t size, void* value,
                                        size_t* size_needed) {
  if (what == CL_PLATFORM_NAME) return give("NVIDIA CUDA", size, value, size_needed);
  return next->clGetPlatformInfo(platform, what, size, value, size_needed);
}

static cl_int CL_API_CALL device_info(cl_device_id device, cl_device_info what, size_t size, void* value,
                                      size_t* size_needed) {
  const int target = atoi(getenv("PORTABLE_TARGET"));
  if (what == CL_DRIVER_VERSION) return give(getenv("PORTABLE_DRIVER"), size, value, size_needed);
  if (what == 0x4000 || what == 0x4001) {
    *(cl_uint*)value = (cl_uint)(what == 0x4000 ? target / 10 : target % 10);
    return CL_SUCCESS;
  }
  return next->clGetDeviceInfo(device, what, size, value, size_needed);
}

static cl_int CL_API_CALL program_info(cl_program program, cl_program_info what, size_t size, void* value,
                                       size_t* size_needed) {
  char head[128];
  size_t bytes = 0;
  if (what != CL_PROGRAM_BINARY_SIZES && what != CL_PROGRAM_BINARIES)
    return next->clGetProgramInfo(program, what, size, value, size_needed);
  snprintf(head, sizeof head, "//\n// Made by a layer\n\n.version 8.0\n.target sm_%s, texmode_independent\n\n.entry some_kernel(\n%s",
           getenv("PORTABLE_TARGET"), kSource);
  next->clGetProgramInfo(program, CL_PROGRAM_SOURCE, 0, NULL, &bytes);
  if (what == CL_PROGRAM_BINARY_SIZES) {
    *(size_t*)value = strlen(head) + bytes;
    return CL_SUCCESS;
  }
  char* to = *(char**)value;
  memcpy(to, head, strlen(head));
  return next->clGetProgramInfo(program, CL_PROGRAM_SOURCE, bytes, to + strlen(head), NULL);
}

static cl_program CL_API_CALL create_with_binary(cl_context context, cl_uint count, const cl_device_id* devices,
                                                 const size_t* sizes, const unsigned char** binaries,
                                                 cl_int* binary_status, cl_int* status) {
  (void)count, (void)devices, (void)sizes;
  const char* source = strstr((const char*)binaries[0], kSource);
  const cl_int result = source && !getenv("PORTABLE_REFUSES") ? CL_SUCCESS : CL_INVALID_BINARY;
  *binary_status = *status = result;
  if (result != CL_SUCCESS) return NULL;
  source += strlen(kSource);
  return next->clCreateProgramWithSource(context, 1, &source, NULL, status);
}

static void replace_calls(void) {
  mine.clGetPlatformInfo = platform_info;
  mine.clGetDeviceInfo = device_info;
  mine.clGetProgramInfo = program_info;
  mine.clCreateProgramWithBinary = create_with_binary;
}
