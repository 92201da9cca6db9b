// The OpenCL API as a table of function pointers, loaded at run time so that a machine without OpenCL can
// import us.
#pragma once
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#include <CL/cl.h>

#include <stdexcept>
#include <string>

namespace dlb::cl {

// Every entry point we use. All are OpenCL 1.2 and exported by every loader.
// (clang-format indents such a list further at every run, so it is kept off.)
// clang-format off
// The entry points that may run commands, wait for them, or end their events (serialize_commands()).
#define DLB_CL_COMMANDS(X) \
  X(clEnqueueNDRangeKernel) X(clEnqueueReadBuffer) X(clEnqueueWriteBuffer) X(clEnqueueCopyBuffer) \
  X(clEnqueueFillBuffer) X(clEnqueueMapBuffer) X(clEnqueueUnmapMemObject) \
  X(clEnqueueMarkerWithWaitList) X(clEnqueueBarrierWithWaitList) X(clFlush) X(clFinish) \
  X(clWaitForEvents) X(clGetEventInfo) X(clReleaseEvent) X(clSetEventCallback)
#define DLB_CL_FUNCTIONS(X) \
  X(clGetPlatformIDs) X(clGetPlatformInfo) X(clGetDeviceIDs) X(clGetDeviceInfo) X(clCreateContext) \
  X(clReleaseContext) X(clCreateCommandQueue) X(clReleaseCommandQueue) X(clCreateBuffer) \
  X(clReleaseMemObject) X(clGetMemObjectInfo) X(clCreateProgramWithSource) X(clCreateProgramWithBinary) \
  X(clReleaseProgram) X(clBuildProgram) X(clGetProgramInfo) X(clGetProgramBuildInfo) \
  X(clCreateKernel) X(clCreateKernelsInProgram) X(clReleaseKernel) X(clSetKernelArg) X(clGetKernelWorkGroupInfo) \
  X(clGetEventProfilingInfo) X(clRetainEvent) X(clGetKernelInfo) X(clRetainMemObject) DLB_CL_COMMANDS(X)
// clang-format on

struct Api {
#define DLB_CL_POINTER(f) decltype(&::f) f = nullptr;
  DLB_CL_FUNCTIONS(DLB_CL_POINTER)
#undef DLB_CL_POINTER
};

// An OpenCL call that failed. `code` is the CL_* status; what() names call, status and what to try.
class Error : public std::runtime_error {
 public:
  Error(cl_int code, const std::string& message) : std::runtime_error(message), code(code) {}
  const cl_int code;
};

// The loaded API. Loads the library on first use; throws Error when none is found, or in a child process
// forked after OpenCL was used (drivers hang there).
const Api& api();

// True when the library can be loaded (never throws).
bool library_available() noexcept;

// Path or name of the loaded library, empty before the first successful load.
std::string library_name();

// From now on one thread at a time makes those calls that may run commands, wait for them or end their
// events. For drivers that run a command on the thread that enqueues it, and deadlock where another thread
// enqueues one that depends on it. To be called while devices are looked for, before any other thread calls
// the driver.
void serialize_commands();

// True in a process forked from one that had used OpenCL: no OpenCL function may be called there.
bool in_bad_fork() noexcept;

// "CL_OUT_OF_RESOURCES" for -5 and so on.
const char* status_name(cl_int code);

// Throws Error for a failed call. `context` says what the call was for, such as a kernel's or op's name.
// Where the driver had no memory for a command, the function that was given to on_out_of_memory() throws
// instead.
[[noreturn]] void throw_error(cl_int code, const char* call, const std::string& context = {});

// Sets the function that throws when a command finds no memory. The runtime sets one that throws PyTorch's
// exception, which this layer does not know.
void on_out_of_memory(void (*throws)(const std::string& message)) noexcept;

inline void check(cl_int code, const char* call) {
  if (code != CL_SUCCESS) [[unlikely]]
    throw_error(code, call);
}

}  // namespace dlb::cl

// Calls an OpenCL function that returns its status, and throws dlb::cl::Error when it is not CL_SUCCESS.
#define DLB_CL(fn, ...) ::dlb::cl::check(::dlb::cl::api().fn(__VA_ARGS__), #fn)
