// How long a launch takes while another thread of the process waits for the device: whether a driver's
// waiting calls hold the lock that its launches need.
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
}
