// The functions of CUDA that PyTorch's runtime for AOTInductor's packages calls, implemented for ocl
// (dlb_package.h). The runtime uses them for constants, and to learn when a model has run, as it keeps the
// model from running again before that. Its runs share nothing that they change, so here the next one need
// not wait.
#pragma once
#include <torch/csrc/stable/c/shim.h>

#include <dlb_calls.h>

using cudaError_t = int32_t;
using cudaStream_t = void*;
using cudaEvent_t = void*;
constexpr cudaError_t cudaSuccess = AOTI_TORCH_SUCCESS, cudaErrorNotReady = -1;
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDefault };

inline const char* cudaGetErrorString(cudaError_t) {
  return torch_exception_get_what_without_backtrace();
}
inline cudaError_t cudaGetLastError() {
  return cudaSuccess;
}
inline cudaError_t cudaGetDevice(int32_t* device) {
  return aoti_torch_get_current_device_index(device);
}
inline cudaError_t cudaSetDevice(int32_t device) {
  return dlb_aoti_set_device(device);
}
inline cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  return dlb_aoti_allocate(bytes, pointer);
}
inline cudaError_t cudaFree(void* pointer) {
  return dlb_aoti_free(pointer);
}
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  return dlb_aoti_copy(to, from, bytes);
}
inline cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = nullptr;
  return cudaSuccess;
}
inline cudaError_t cudaEventDestroy(cudaEvent_t) {
  return cudaSuccess;
}
inline cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) {
  return cudaSuccess;
}
inline cudaError_t cudaEventQuery(cudaEvent_t) {
  return cudaSuccess;
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t) {
  return dlb_aoti_synchronize();
}

// The runtime unloads CUDA kernels, which packages for ocl do not have.
using CUmodule = void*;
using CUresult = int32_t;
constexpr CUresult CUDA_SUCCESS = 0;
inline CUresult cuModuleUnload(CUmodule) {
  return CUDA_SUCCESS;
}
inline CUresult cuGetErrorString(CUresult, const char** text) {
  *text = nullptr;
  return CUDA_SUCCESS;
}
