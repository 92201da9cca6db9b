// Calls the driver's compiler, and makes its errors readable.
#include "cl/compile.h"

#include <chrono>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "cl/builtins.h"
#include "cl/log.h"
#include "cl/ptx.h"
#include "cl/settings.h"
#include "cl/statistics.h"
#include "cl/stores/paths.h"

namespace dlb::cl {

namespace {

std::string build_log(cl_program program, cl_device_id device) {
  size_t size = 0;
  if (api().clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, 0, nullptr, &size) != CL_SUCCESS)
    return "";
  std::string log(size, '\0');
  api().clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, size, log.data(), nullptr);
  while (!log.empty() && (log.back() == '\0' || log.back() == '\n')) log.pop_back();
  return log;
}

std::string dump_source(const std::string& source, const std::string& options, const Hash128& key) {
  const std::string file = settings::temporary_folder() + "/dlbackend-" + key.hex().substr(0, 12) + ".cl";
  std::ofstream out(file);
  out << "// options: " << options << "\n";
  std::istringstream lines(source);
  int number = 1;
  for (std::string line; std::getline(lines, line);) out << "/*" << number++ << "*/ " << line << "\n";
  return out ? file : "";
}

[[noreturn]] void throw_build_error(cl_int status, const Device& device, const std::string& log,
                                    const std::string& source, const std::string& options,
                                    const Hash128& key) {
  const std::string file = dump_source(source, options, key);
  throw_error(status, "clBuildProgram",
              device.name + " (" + device.driver_version + "). Build log:\n" + log.substr(0, 4000) +
                  (file.empty() ? "" : "\nThe numbered source is in " + file));
}

// "compiled,ocl:0,0.412 s,<options>,<kernels>"
void log_compiled(const Device& device, cl_program program, const std::string& options, double seconds) {
  if (verbosity() < 1) return;
  size_t size = 0;
  DLB_CL(clGetProgramInfo, program, CL_PROGRAM_KERNEL_NAMES, 0, nullptr, &size);
  std::string names(size, '\0');
  DLB_CL(clGetProgramInfo, program, CL_PROGRAM_KERNEL_NAMES, size, names.data(), nullptr);
  char time[32];
  std::snprintf(time, sizeof time, "%.3f s", seconds);
  log(1, "compiled,ocl:" + std::to_string(device.index) + "," + time + "," + options + "," + names.c_str());
}

}  // namespace

std::string binary_of(cl_program program) {
  size_t size = 0;
  DLB_CL(clGetProgramInfo, program, CL_PROGRAM_BINARY_SIZES, sizeof size, &size, nullptr);
  std::string binary(size, '\0');
  auto* data = reinterpret_cast<unsigned char*>(binary.data());
  DLB_CL(clGetProgramInfo, program, CL_PROGRAM_BINARIES, sizeof data, &data, nullptr);
  return binary;
}

void check_room(const Device& device) {
  if (!device.late_code) return;
  const std::string full = driver_cache_without_room();
  if (!full.empty())
    throw Error(CL_INVALID_OPERATION, "the disk of " + full + " is full, where " + device.name +
                                          " keeps what it compiles: free some of it and go on, or set "
                                          "POCL_CACHE_DIR to a folder with room");
}

cl_program load_binary(Device& device, const std::string& binary, const std::string& options) {
  check_room(device);
  const auto* data = reinterpret_cast<const unsigned char*>(binary.data());
  const size_t size = binary.size();
  cl_int status = CL_SUCCESS, loaded = CL_SUCCESS;
  cl_program program =
      api().clCreateProgramWithBinary(device.context(), 1, &device.id, &size, &data, &loaded, &status);
  if (status != CL_SUCCESS || loaded != CL_SUCCESS) return nullptr;
  if (api().clBuildProgram(program, 1, &device.id, options.c_str(), nullptr, nullptr) != CL_SUCCESS) {
    api().clReleaseProgram(program);
    return nullptr;
  }
  return program;
}

namespace {

// The program, or null with the reason in `log` and `status`.
cl_program try_to_build(Device& device, const std::string& source, const std::string& options,
                        std::string& log, cl_int& status) {
  const char* text = source.c_str();
  cl_program program = api().clCreateProgramWithSource(device.context(), 1, &text, nullptr, &status);
  check(status, "clCreateProgramWithSource");
  status = api().clBuildProgram(program, 1, &device.id, options.c_str(), nullptr, nullptr);
  if (status == CL_SUCCESS) return program;
  log = build_log(program, device.id);
  api().clReleaseProgram(program);
  return nullptr;
}

}  // namespace

cl_program build_source(Device& device, const std::string& source, const std::string& options,
                        const Hash128& key) {
  check_room(device);
  std::string log;
  cl_int status = CL_SUCCESS;
  if (reads_builtins_header(device)) {
    const std::string whole = builtin_declarations(device, source) + source;
    if (cl_program program = try_to_build(device, whole, options + kSkipBuiltinsHeader, log, status))
      return program;
    if (status != CL_BUILD_PROGRAM_FAILURE) throw_build_error(status, device, log, source, options, key);
    dlb::cl::log(1, "built with the driver's header," + log.substr(0, log.find('\n')));
  }
  if (cl_program program = try_to_build(device, source, options, log, status)) return program;
  throw_build_error(status, device, log, source, options, key);
}

void count_compiled(const Device& device, cl_program program, const std::string& options, double seconds) {
  g_counters.compiled++;
  g_counters.compile_ns += static_cast<uint64_t>(seconds * 1e9);
  log_compiled(device, program, options, seconds);
}

namespace {

// Builds a program again with its instructions for sm_90a, and releases the first.
cl_program rebuilt_for_sm90a(Device& device, cl_program program, const std::string& source,
                             const std::string& options, const Hash128& key) {
  const std::string binary = with_sm90a(binary_of(program));
  api().clReleaseProgram(program);
  cl_program rebuilt = binary.empty() ? nullptr : load_binary(device, binary, options);
  if (!rebuilt)
    throw_build_error(CL_BUILD_PROGRAM_FAILURE, device,
                      binary.empty() ? "the program's binary is not PTX for sm_90"
                                     : "the driver refuses the program's instructions for sm_90a",
                      source, options, key);
  return rebuilt;
}

}  // namespace

Compiled compile(Device& device, const std::string& source, const std::string& options, const Hash128& key) {
  const auto start = std::chrono::steady_clock::now();
  cl_program program = build_source(device, source, options, key);
  if (needs_sm90a(source)) program = rebuilt_for_sm90a(device, program, source, options, key);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  return {program, taken.count()};
}

cl_kernel kernel_of(cl_program program, const std::string& name) {
  cl_int status = CL_SUCCESS;
  cl_kernel handle = api().clCreateKernel(program, name.c_str(), &status);
  if (status != CL_SUCCESS) throw_error(status, "clCreateKernel", "kernel " + name);
  return handle;
}

}  // namespace dlb::cl
