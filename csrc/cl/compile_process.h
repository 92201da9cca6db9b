// Compiling in other processes. Some drivers compile one program at a time in a process, and let launches
// wait while they make machine code; what another process compiled is then in the caches, from where it loads
// in a millisecond. The processes (csrc/compiler/main.cpp) are started when they are needed or about to be,
// serve this one alone, and end when it does or when nothing came for kIdleSeconds.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "cl/device.h"

namespace dlb::cl {

// How many processes may compile for this device: DLBACKEND_COMPILE_PROCESSES, else a number that depends on
// the host's cores and on the device's memory, where each holds a context. 0 for CPUs, whose own cores
// compile anyway, where there is no cache on disk, and after processes failed to start.
unsigned compile_processes(const Device& device);

// Has a program compiled, which is then in the program cache. Waits for a process to be free: what is urgent
// goes first, and what is not leaves it a quarter of the processes. Nothing where that failed for
// whatever reason: then this process compiles it itself, and tells of errors. Thread-safe.
struct CompiledElsewhere {
  double seconds;
  bool from_pack;  // a pack had it, so that only machine code was made
};
std::optional<CompiledElsewhere> compile_elsewhere(const Device& device, const std::string& source,
                                                   const std::string& options, bool urgent);

// How many processes may compile programs whose first tier runs (cl/tiers.h): DLBACKEND_COMPILE_PROCESSES,
// else half of the cores, on CPUs too.
unsigned improving_processes(const Device& device);

// As compile_elsewhere() of what is not urgent, for such a program, with launches whose machine code is to be
// compiled too (cl/launch_sample.h).
std::optional<CompiledElsewhere> improve_elsewhere(const Device& device, const std::string& source,
                                                   const std::string& options, const std::string& launches);

// Starts the processes of a device that nothing was ever compiled for, since a first iteration is about to
// need them all, and each takes half a second to open the device and load the compiler. Where the store has
// programs, they are started when they are needed. For a device's first stream; does nothing later, and never
// throws.
void start_compile_processes(const Device& device) noexcept;

// Has this process compile everything itself from now on, since what others compile does not reach it.
void give_up_compile_processes(const std::string& reason) noexcept;

// Ends the processes and starts no more. Threads that wait for one get nothing, as if compiling had failed.
void stop_compile_processes() noexcept;
bool compile_processes_stopped() noexcept;

// The protocol, over a socket that is the process's standard input. A request: the header, then the device's
// cache_tag, the options, the source and what was noted of launches. Both ends come from the same build.
struct CompileRequest {
  uint32_t tag, options, source,
      launches;  // bytes; without a source the process gets ready for the device, and does not reply
};
struct CompileReply {
  uint32_t done;       // 1, or 0 where it failed
  uint32_t from_pack;  // 1 where a pack had the program
  double seconds;
};
constexpr int kIdleSeconds = 20;

// Receives so many bytes. False when the other end is gone, or nothing came for so many seconds.
bool receive_all(int socket, void* data, size_t size, int seconds);

}  // namespace dlb::cl
