// The order in which a program is looked for before it is compiled.
#include "cl/build.h"

#include <atomic>
#include <vector>

#include "cl/build_mode.h"
#include "cl/compile.h"
#include "cl/compile_process.h"
#include "cl/statistics.h"
#include "cl/stores/disk_cache.h"
#include "cl/stores/driver_cache.h"
#include "cl/stores/portable_program.h"
#include "cl/stores/stored_program.h"

namespace dlb::cl {

namespace {

void prune_driver_cache() {
  static std::atomic<unsigned> stores{0};
  if (stores++ % DiskCache::kPruneEvery == 0) own_driver_programs().prune();
}

}  // namespace

std::string with_device_options(const Device& device, const std::string& options) {
  return options.empty() ? device.build_options : device.build_options + " " + options;
}

namespace {

enum class Origin { kStore, kPack, kOtherProcess, kCompiler };
struct Built {
  cl_program program;
  Origin origin;
  double seconds = 0;  // that compiling took
};

Built find_or_compile(Device& device, const std::string& source, const std::string& options,
                      const Hash128& key) {
  const UrgentBuild urgent;
  const BuildMode mode = build_mode();
  const std::string disk_key = program_key(device, options, source);
  DiskCache& disk = program_disk_cache();
  bool from_pack = false;
  if (auto stored = disk.load(disk_key, &from_pack))
    if (cl_program program = load_stored(device, *stored, source, options, key))
      return {program, from_pack ? Origin::kPack : Origin::kStore};
  if (mode.elsewhere)
    if (const auto seconds = compile_elsewhere(device, source, options))
      if (auto stored = disk.load(disk_key))
        if (cl_program program = load_stored(device, *stored, source, options, key))
          return {program, Origin::kOtherProcess, *seconds};
  // After the other process, which makes machine code of what a pack has: here that would hold up launches.
  if (cl_program program = load_portable(device, source, options)) return {program, Origin::kPack};
  if (!mode.awaited && compile_processes_stopped())
    throw Error(CL_INVALID_OPERATION, "the process ends: nothing is compiled that nobody waits for");
  // Without a store the source gets no marker, so that PoCL finds what it has kept of the plain source.
  const std::string marker =
      !driver_cache_of(device).empty() && disk.can_store() ? new_marker() : std::string();
  const Compiled compiled = compile(device, marked(source, marker), options, key);
  const std::string stored = what_to_store(device, source, compiled, marker);
  if (!stored.empty() && disk.store(disk_key, stored) && device.late_code) prune_driver_cache();
  return {compiled.program, Origin::kCompiler, compiled.seconds};
}

}  // namespace

cl_program build(Device& device, const std::string& source, const std::string& options, const Hash128& key) {
  const Built built = find_or_compile(device, source, options, key);
  if (built.origin == Origin::kStore || built.origin == Origin::kPack) {
    g_counters.loaded++;
    g_counters.loaded_from_pack += built.origin == Origin::kPack;
  } else {
    count_compiled(device, built.program, options, built.seconds);
    g_counters.compiled_elsewhere += built.origin == Origin::kOtherProcess;
  }
  return built.program;
}

bool is_stored(const Device& device, const std::string& source, const std::string& options) {
  return program_disk_cache()
      .load(program_key(device, with_device_options(device, options), source))
      .has_value();
}

bool builds(Device& device, const std::string& source) try {
  const std::string& options = device.build_options;
  api().clReleaseProgram(find_or_compile(device, source, options, hash128(options + "\n" + source)).program);
  return true;
} catch (const Error& error) {
  if (error.code != CL_BUILD_PROGRAM_FAILURE) throw;
  return false;
}

void compile_into_cache(Device& device, const std::string& source, const std::string& options) {
  cl_program program = build(device, source, options, hash128(options + "\n" + source));
  // Some drivers compile machine code only when kernels are made. Their own caches then keep it.
  std::vector<cl_kernel> kernels(64);
  cl_uint count = 0;
  const cl_int status =
      api().clCreateKernelsInProgram(program, static_cast<cl_uint>(kernels.size()), kernels.data(), &count);
  for (cl_uint i = 0; status == CL_SUCCESS && i < count; ++i) api().clReleaseKernel(kernels[i]);
  api().clReleaseProgram(program);
}

std::string complete_binary(Device& device, const std::string& key) {
  const size_t options = device.cache_tag.size() + 1, source = key.find('\n', options) + 1;
  if (key.compare(0, options, device.cache_tag + "\n") != 0 || source == 0)
    throw Error(CL_INVALID_VALUE, "not a key of a program of " + device.name);
  const auto stored = program_disk_cache().load(key);
  const std::string folder = stored && device.late_code ? stored_folder(*stored) : "";
  if (!folder.empty()) check_driver_folder(folder, is_note(*stored) ? "" : *stored);
  const std::string text = marked(key.substr(source), stored ? marker_of(*stored) : "");
  const Compiled compiled = compile(device, text, key.substr(options, source - 1 - options), hash128(key));
  count_compiled(device, compiled.program, key.substr(options, source - 1 - options), compiled.seconds);
  std::string binary = binary_of(compiled.program);
  api().clReleaseProgram(compiled.program);
  return binary;
}

}  // namespace dlb::cl
