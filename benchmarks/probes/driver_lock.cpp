// Measures what a driver does at once. First: how long a launch takes while another thread of the process
// waits for the device, that is, whether waiting calls hold the lock that launches need. Second: when a copy
// of 32 MiB that depends on a finished kernel ends, while a later kernel of 50 to 100 ms runs in the queue of
// that kernel.
//
//   g++ -std=c++20 -O2 benchmarks/probes/driver_lock.cpp -lOpenCL -pthread -o driver_lock && ./driver_lock
//   [device]
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

void check(cl_int status, const char* call) {
  if (status == CL_SUCCESS) return;
  std::fprintf(stderr, "%s: %d\n", call, status);
  std::exit(1);
}

const char* const kSource =
    "kernel void nothing(global float* x) { if (get_global_id(0) == 1 << 30) x[0] = 1; }\n"
    "kernel void turns(global float* x, int n) { float a = x[1]; for (int i = 0; i < n; i++) a = a * 1.0001f "
    "+ 1e-3f; x[0] = a; }\n";

struct Machine {
  cl_device_id device = nullptr;
  cl_context context = nullptr;
  cl_command_queue busy = nullptr, other = nullptr;
  cl_kernel nothing = nullptr, turns = nullptr;
  cl_mem memory = nullptr;

  explicit Machine(size_t index) {
    std::vector<cl_device_id> devices;
    cl_uint count = 0;
    clGetPlatformIDs(0, nullptr, &count);
    std::vector<cl_platform_id> platforms(count);
    clGetPlatformIDs(count, platforms.data(), nullptr);
    for (cl_platform_id platform : platforms) {
      cl_device_id found[16];
      cl_uint number = 0;
      if (clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 16, found, &number) == CL_SUCCESS)
        devices.insert(devices.end(), found, found + number);
    }
    if (index >= devices.size()) std::exit((std::fprintf(stderr, "no such device\n"), 1));
    device = devices[index];
    cl_int status;
    context = clCreateContext(nullptr, 1, &device, nullptr, nullptr, &status);
    check(status, "clCreateContext");
    busy = clCreateCommandQueue(context, device, 0, &status);
    other = clCreateCommandQueue(context, device, 0, &status);
    check(status, "clCreateCommandQueue");
    const char* source = kSource;
    cl_program program = clCreateProgramWithSource(context, 1, &source, nullptr, &status);
    check(clBuildProgram(program, 1, &device, "", nullptr, nullptr), "clBuildProgram");
    nothing = clCreateKernel(program, "nothing", &status);
    turns = clCreateKernel(program, "turns", &status);
    memory = clCreateBuffer(context, CL_MEM_READ_WRITE, 1024, nullptr, &status);
    check(clSetKernelArg(nothing, 0, sizeof memory, &memory), "clSetKernelArg");
    check(clSetKernelArg(turns, 0, sizeof memory, &memory), "clSetKernelArg");
  }

  cl_event start_turns(int n) const {
    const size_t one = 1;
    cl_event event;
    clSetKernelArg(turns, 1, sizeof n, &n);
    check(clEnqueueNDRangeKernel(busy, turns, 1, nullptr, &one, &one, 0, nullptr, &event), "turns");
    clFlush(busy);
    return event;
  }
};

enum Wait { kNone, kEvent, kFinish, kRead, kPoll };
const char* const kNames[] = {"nobody waits", "clWaitForEvents", "clFinish", "blocking read",
                              "polling each 20 us"};

void wait_as(Wait how, const Machine& m, cl_event event) {
  float value;
  cl_int status = CL_QUEUED;
  switch (how) {
    case kNone:
      return;
    case kEvent:
      check(clWaitForEvents(1, &event), "clWaitForEvents");
      return;
    case kFinish:
      check(clFinish(m.busy), "clFinish");
      return;
    case kRead:
      check(clEnqueueReadBuffer(m.busy, m.memory, CL_TRUE, 0, sizeof value, &value, 0, nullptr, nullptr),
            "read");
      return;
    case kPoll:
      while (clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, nullptr) ==
                 CL_SUCCESS &&
             status > CL_COMPLETE)
        std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

// Page-locked memory, as far as the driver gives any.
void* pinned_memory(const Machine& m, size_t bytes) {
  cl_int status;
  cl_mem memory = clCreateBuffer(m.context, CL_MEM_ALLOC_HOST_PTR, bytes, nullptr, &status);
  check(status, "clCreateBuffer");
  void* pointer = clEnqueueMapBuffer(m.other, memory, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0, bytes, 0,
                                     nullptr, nullptr, &status);
  check(status, "clEnqueueMapBuffer");
  return pointer;
}

enum Order { kAlone, kIndependent, kAfterEvent, kAfterMarker, kAfterWaiting };
const char* const kOrders[] = {"device idle", "kernel runs elsewhere", "after the event", "after a marker",
                               "host waits for the event"};

void copies(const Machine& m, int turns) {
  constexpr size_t kBytes = 32u << 20;
  cl_int status;
  cl_mem memory = clCreateBuffer(m.context, CL_MEM_READ_WRITE, kBytes, nullptr, &status);
  check(status, "clCreateBuffer");
  void* pinned = pinned_memory(m, kBytes);
  std::vector<char> pageable(kBytes, 1);
  std::printf("\n%-10s %-9s %-26s %10s %10s %10s\n", "copy", "memory", "order", "call us", "done us",
              "kernel us");
  for (bool write : {false, true})
    for (void* host : {pinned, static_cast<void*>(pageable.data())})
      for (Order order : {kAlone, kIndependent, kAfterEvent, kAfterMarker, kAfterWaiting})
        for (int round = 0; round < 2; ++round) {
          const auto start = Clock::now();
          cl_event before = m.start_turns(1), running = nullptr, copied;
          if (order == kAlone)
            clFinish(m.busy);
          else
            running = m.start_turns(turns);
          const auto call = Clock::now();
          cl_uint count = 0;
          cl_event wait = before;
          if (order == kAfterMarker) {
            check(clEnqueueMarkerWithWaitList(m.other, 1, &before, &wait), "marker");
            count = 1;
          } else if (order == kAfterEvent) {
            count = 1;
          } else if (order == kAfterWaiting) {
            clWaitForEvents(1, &before);
          }
          check(write ? clEnqueueWriteBuffer(m.other, memory, CL_FALSE, 0, kBytes, host, count,
                                             count ? &wait : nullptr, &copied)
                      : clEnqueueReadBuffer(m.other, memory, CL_FALSE, 0, kBytes, host, count,
                                            count ? &wait : nullptr, &copied),
                "copy");
          clFlush(m.other);
          const double called = microseconds_since(call);
          clWaitForEvents(1, &copied);
          const double done = microseconds_since(call);
          if (running) clWaitForEvents(1, &running);
          const double ended = microseconds_since(start);
          if (round == 1)
            std::printf("%-10s %-9s %-26s %10.0f %10.0f %10.0f\n", write ? "write" : "read",
                        host == pinned ? "pinned" : "pageable", kOrders[order], called, done,
                        running ? ended : 0);
        }
}

}  // namespace

int main(int argc, char** argv) {
  const Machine m(argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 0);
  int n = 1 << 16;  // so many turns that they take 50 ms
  for (double us = 0; us < 50'000 && n < 1 << 29; n *= 2) {
    const auto start = Clock::now();
    cl_event event = m.start_turns(n);
    clWaitForEvents(1, &event);
    us = microseconds_since(start);
  }
  std::printf("%-20s %10s %10s %10s   launches in the first 20 ms of a wait, us\n", "meanwhile", "median",
              "99 %", "longest");
  for (Wait how : {kNone, kEvent, kFinish, kRead, kPoll}) {
    std::vector<double> times;
    cl_event event = m.start_turns(n);
    std::thread waiter([&] { wait_as(how, m, event); });
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    const auto begin = Clock::now();
    while (microseconds_since(begin) < 20'000) {
      const size_t one = 64;
      const auto start = Clock::now();
      check(clEnqueueNDRangeKernel(m.other, m.nothing, 1, nullptr, &one, &one, 0, nullptr, nullptr),
            "nothing");
      times.push_back(microseconds_since(start));
    }
    waiter.join();
    clFinish(m.busy), clFinish(m.other);
    std::sort(times.begin(), times.end());
    std::printf("%-20s %10.2f %10.2f %10.2f   %zu\n", kNames[how], times[times.size() / 2],
                times[times.size() * 99 / 100], times.back(), times.size());
  }
  copies(m, n);
}
