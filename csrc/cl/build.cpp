// The order in which a program is looked for before it is compiled.
#include "cl/build.h"

#include <atomic>
#include <vector>

#include "cl/build_mode.h"
#include "cl/compile.h"
#include "cl/compile_process.h"
#include "cl/launch_sample.h"
#include "cl/log.h"
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

// Whether the driver makes machine code of a program when it loads it, as of what a pack has. Other processes
// do that too, since here it holds up launches; the driver's own cache then has it, and the store the
// program, so that it is loaded in milliseconds from then on.
bool still_compiles(const Device& device, bool from_pack) {
  return from_pack && compile_processes(device) > 0 && compiles_to_ptx(device);
}

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
  auto stored = disk.load(disk_key, &from_pack);
  const auto load = [&] {
    cl_program program = stored ? load_stored(device, *stored, source, options, key) : nullptr;
    if (program && still_compiles(device, from_pack)) disk.store(disk_key, *stored);
    return program;
  };
  if (!mode.elsewhere || !still_compiles(device, from_pack))
    if (cl_program program = load()) return {program, from_pack ? Origin::kPack : Origin::kStore};
  if (mode.elsewhere) {
    // Only to be told of damage: the other process has no stderr.
    if (!stored && compile_processes(device) > 0) has_portable(device, source, options);
    const auto reply = compile_elsewhere(device, source, options, mode.waited_by != WaitedBy::kNobody);
    if (reply) stored = disk.load(disk_key, &from_pack);
    if (reply && !stored) give_up_compile_processes("the cache does not keep what they compile");
    if (reply || still_compiles(device, from_pack))
      if (cl_program program = load())
        return {program, !reply || reply->from_pack ? Origin::kPack : Origin::kOtherProcess,
                reply ? reply->seconds : 0};
  }
  if (cl_program program = load_portable(device, source, options)) {
    if (still_compiles(device, true)) disk.store(disk_key, binary_of(program));
    return {program, Origin::kPack};
  }
  // A launch that still needs the program then builds it.
  if (mode.waited_by != WaitedBy::kCaller && compile_processes_stopped())
    throw Error(CL_INVALID_OPERATION, "the process ends: nothing is compiled that nobody waits for");
  // Without a store the source gets no marker, so that PoCL finds what it has kept of the plain source.
  const std::string marker =
      !driver_cache_of(device).empty() && disk.can_store() ? new_marker() : std::string();
  const Compiled compiled = compile(device, marked(source, marker), options, key);
  const std::string kept = what_to_store(device, source, compiled, marker);
  if (!kept.empty() && disk.store(disk_key, kept) && device.late_code) prune_driver_cache();
  return {compiled.program, Origin::kCompiler, compiled.seconds};
}

}  // namespace

cl_program build(Device& device, const std::string& source, const std::string& options, const Hash128& key,
                 bool counted) {
  const Built built = find_or_compile(device, source, options, key);
  if (!counted) return built.program;
  if (built.origin == Origin::kStore || built.origin == Origin::kPack) {
    g_counters.loaded++;
    g_counters.loaded_from_pack += built.origin == Origin::kPack;
  } else {
    count_compiled(device, built.program, options, built.seconds);
    g_counters.compiled_elsewhere += built.origin == Origin::kOtherProcess;
  }
  return built.program;
}

bool has_stored(const Device& device, const std::string& source, const std::string& all_options,
                const std::string& kernel) {
  bool from_pack = false;
  const auto stored = program_disk_cache().load(program_key(device, all_options, source), &from_pack);
  if (!stored || still_compiles(device, from_pack)) return false;
  const std::string folder = kernel.empty() || !device.late_code ? "" : stored_folder(*stored);
  return folder.empty() || has_driver_code(folder, kernel);
}

bool is_stored(const Device& device, const std::string& source, const std::string& options) {
  return has_stored(device, source, with_device_options(device, options));
}

bool builds(Device& device, const std::string& source) try {
  const std::string& options = device.build_options;
  api().clReleaseProgram(find_or_compile(device, source, options, hash128(options + "\n" + source)).program);
  return true;
} catch (const Error& error) {
  if (error.code != CL_BUILD_PROGRAM_FAILURE) throw;
  return false;
}

namespace {

// The driver's cache then has their machine code, with checksums that let other processes believe it.
void prepare_launches(Device& device, cl_program program, const std::string& program_key,
                      const std::string& launches) {
  try {
    repeat_launches(device, program, launches);
  } catch (const Error&) {
    log_dropped("repeating launches");  // their machine code is compiled where it is needed
  }
  const auto stored = device.late_code ? program_disk_cache().load(program_key) : std::nullopt;
  const std::string folder = stored ? stored_folder(*stored) : "";
  if (!folder.empty()) record_driver_folder(folder);
}

}  // namespace

bool compile_into_cache(Device& device, const std::string& source, const std::string& options,
                        const std::string& launches) {
  const auto [program, origin, seconds] =
      find_or_compile(device, source, options, hash128(options + "\n" + source));
  // Some drivers compile machine code only when kernels are made. Their own caches then keep it.
  std::vector<cl_kernel> kernels(64);
  cl_uint count = 0;
  const cl_int status =
      api().clCreateKernelsInProgram(program, static_cast<cl_uint>(kernels.size()), kernels.data(), &count);
  for (cl_uint i = 0; status == CL_SUCCESS && i < count; ++i) api().clReleaseKernel(kernels[i]);
  if (!launches.empty()) prepare_launches(device, program, program_key(device, options, source), launches);
  api().clReleaseProgram(program);
  return origin == Origin::kPack;
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
