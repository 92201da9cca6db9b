// dlbackend-compiler: compiles programs for the process that started it (cl/compile_process.h), into the
// cache on disk. Arguments: the Python prefix and the package's folder. Standard input: the socket.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <string>

#include "cl/build.h"
#include "cl/compile.h"
#include "cl/compile_process.h"
#include "cl/log.h"
#include "cl/stores/paths.h"

namespace {

using namespace dlb::cl;

constexpr int kSocket = STDIN_FILENO;
constexpr uint32_t kMostBytes = 64 << 20;  // a text that claims to be longer is no request

// Closes the files that the starting process had open, which this process must not keep open.
void close_inherited() {
#ifdef SYS_close_range
  if (::syscall(SYS_close_range, STDERR_FILENO + 1, ~0U, 0) == 0) return;
#endif
  for (long fd = ::sysconf(_SC_OPEN_MAX) - 1; fd > STDERR_FILENO; --fd) ::close(static_cast<int>(fd));
}

bool receive(std::string& text, uint32_t size) {
  if (size > kMostBytes) return false;
  text.resize(size);
  return receive_all(kSocket, text.data(), size, kIdleSeconds);
}

// The device of that tag, or none.
Device* device_of(const std::string& tag) {
  for (int i = 0; i < device_count(); ++i)
    if (device(i).cache_tag == tag) return &device(i);
  return nullptr;
}

// Opens the device, and has the driver load its compiler.
void get_ready(const std::string& tag) {
  const std::string source = "kernel void ready() {}";
  try {
    if (Device* device = device_of(tag))
      api().clReleaseProgram(build_source(*device, source, "", hash128(source)));
  } catch (...) {
    // The same error comes again when something is compiled.
  }
}

CompileReply compile(const std::string& tag, const std::string& options, const std::string& source,
                     const std::string& launches) {
  const auto start = std::chrono::steady_clock::now();
  CompileReply reply{};
  try {
    if (Device* device = device_of(tag)) {
      reply.from_pack = compile_into_cache(*device, source, options, launches);
      reply.done = 1;
    }
  } catch (...) {
    // This process has nowhere to report to. The requester falls back to compiling itself, and raises the
    // error.
  }
  reply.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return reply;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  if (::fork() != 0) ::_exit(0);  // the starting process need not wait for the one that goes on
  ::setsid();                     // the user's Ctrl-C must reach the program only
  close_inherited();
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  if (null >= 0) {
    ::dup2(null, STDOUT_FILENO);
    ::dup2(null, STDERR_FILENO);
  }
  set_verbosity(0);
  set_python_prefix(argv[1]);
  set_package_dir(argv[2]);
  CompileRequest request{};
  std::string tag, options, source, launches;
  while (receive_all(kSocket, &request, sizeof request, kIdleSeconds) && receive(tag, request.tag) &&
         receive(options, request.options) && receive(source, request.source) &&
         receive(launches, request.launches)) {
    if (source.empty()) {
      get_ready(tag);
      continue;
    }
    const CompileReply reply = compile(tag, options, source, launches);
    if (::send(kSocket, &reply, sizeof reply, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof reply)) break;
  }
  ::_exit(0);  // skips the drivers' destructors, which may wait
}
