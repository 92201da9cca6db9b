// Measures how fast a driver copies between a device and host memory of three kinds: what the driver
// allocated (CL_MEM_ALLOC_HOST_PTR, mapped), memory that processes share and that a buffer was made of
// (CL_MEM_USE_HOST_PTR over a memfd, mapped), and such memory as plain pointers. Where the second is as fast
// as the first, collectives could copy between devices and the memory that ranks share without a step
// between.
//
//   g++ -std=c++20 -O2 benchmarks/probes/shared_pages.cpp -lOpenCL -o shared_pages && ./shared_pages
//   [platform]
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr size_t kBytes = 32 << 20;

void check(cl_int status, const char* call) {
  if (status == CL_SUCCESS) return;
  std::fprintf(stderr, "%s: %d\n", call, status);
  std::exit(1);
}

struct Device {
  cl_context context;
  cl_command_queue queue;
  cl_mem memory;
};

Device open_device(size_t platform) {
  std::vector<cl_platform_id> platforms(16);
  cl_uint count = 0;
  check(clGetPlatformIDs(16, platforms.data(), &count), "clGetPlatformIDs");
  if (platform >= count) std::exit((std::fprintf(stderr, "no such platform\n"), 1));
  cl_device_id device;
  check(clGetDeviceIDs(platforms[platform], CL_DEVICE_TYPE_ALL, 1, &device, nullptr), "clGetDeviceIDs");
  cl_int status;
  cl_context context = clCreateContext(nullptr, 1, &device, nullptr, nullptr, &status);
  check(status, "clCreateContext");
  cl_command_queue queue = clCreateCommandQueue(context, device, 0, &status);
  check(status, "clCreateCommandQueue");
  cl_mem memory = clCreateBuffer(context, CL_MEM_READ_WRITE, kBytes, nullptr, &status);
  check(status, "clCreateBuffer");
  return {context, queue, memory};
}

void* share_pages() {
  const int fd = memfd_create("probe", 0);
  if (fd < 0 || ftruncate(fd, kBytes) != 0) std::exit((std::perror("memfd_create"), 1));
  return mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}

// The host's pointer to a buffer made of `pages`, or of what the driver allocates; null where it refuses.
void* map_buffer(const Device& device, cl_mem_flags flags, void* pages) {
  cl_int status;
  cl_mem buffer = clCreateBuffer(device.context, CL_MEM_READ_WRITE | flags, kBytes, pages, &status);
  if (status != CL_SUCCESS) return std::printf("clCreateBuffer: %d\n", status), nullptr;
  void* pointer = clEnqueueMapBuffer(device.queue, buffer, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0, kBytes, 0,
                                     nullptr, nullptr, &status);
  if (status != CL_SUCCESS) return std::printf("clEnqueueMapBuffer: %d\n", status), nullptr;
  if (pages && pointer != pages) std::printf("the mapped pointer is another\n");
  return pointer;
}

// Best of 20, in GB/s, of copies that do not block; then how long the call itself took.
void measure(const Device& device, const char* kind, void* host) {
  if (!host) return;
  std::fill_n(static_cast<char*>(host), kBytes, 1);
  using Clock = std::chrono::steady_clock;
  for (const bool to_host : {true, false}) {
    double best = 1e9, call = 1e9;
    for (int i = 0; i < 20; i++) {
      const auto begin = Clock::now();
      check(to_host ? clEnqueueReadBuffer(device.queue, device.memory, CL_FALSE, 0, kBytes, host, 0, nullptr,
                                          nullptr)
                    : clEnqueueWriteBuffer(device.queue, device.memory, CL_FALSE, 0, kBytes, host, 0, nullptr,
                                           nullptr),
            "clEnqueue");
      call = std::min(call, std::chrono::duration<double>(Clock::now() - begin).count());
      check(clFinish(device.queue), "clFinish");
      best = std::min(best, std::chrono::duration<double>(Clock::now() - begin).count());
    }
    std::printf("%-28s %s  %6.1f GB/s, call %8.1f us\n", kind, to_host ? "to host  " : "to device",
                kBytes / best / 1e9, call * 1e6);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const Device device = open_device(argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 0);
  void* shared = share_pages();
  measure(device, "the driver's own", map_buffer(device, CL_MEM_ALLOC_HOST_PTR, nullptr));
  measure(device, "shared, made a buffer", map_buffer(device, CL_MEM_USE_HOST_PTR, shared));
  measure(device, "shared, plain", share_pages());
}
