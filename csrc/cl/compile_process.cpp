// Starts processes to compile in, hands them programs, and takes part in no computation.
#include "cl/compile_process.h"

#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <unordered_set>
#include <vector>

#include "cl/log.h"
#include "cl/settings.h"
#include "cl/stores/disk_cache.h"
#include "cl/stores/paths.h"

extern char** environ;

namespace dlb::cl {
namespace {

using Clock = std::chrono::steady_clock;

constexpr unsigned kMostProcesses = 8, kCoresPerProcess = 2;
constexpr unsigned kMostImproving = 4;                           // on a CPU, whose cores compute meanwhile
constexpr uint64_t kDeviceMemoryPerProcess = uint64_t{8} << 30;  // a context takes up to 0.5 GiB of it
constexpr int kMostSeconds = 300;                                // after which a program counts as failed
constexpr unsigned kMostFailures = 3;  // no more processes are started after so many were lost

bool send_all(int socket, const void* data, size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t sent = ::send(socket, at, size, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    at += sent, size -= static_cast<size_t>(sent);
  }
  return true;
}

bool send_request(int socket, const Device& device, const std::string& options, const std::string& source,
                  const std::string& launches) {
  const CompileRequest request{static_cast<uint32_t>(device.cache_tag.size()),
                               static_cast<uint32_t>(options.size()), static_cast<uint32_t>(source.size()),
                               static_cast<uint32_t>(launches.size())};
  return send_all(socket, &request, sizeof request) &&
         send_all(socket, device.cache_tag.data(), device.cache_tag.size()) &&
         send_all(socket, options.data(), options.size()) && send_all(socket, source.data(), source.size()) &&
         send_all(socket, launches.data(), launches.size());
}

// Starts a process and returns its socket, or -1. The process forks and ends at once (main.cpp), so that the
// wait here is short and this process keeps no child.
int start_process() {
  const std::string program = package_dir() + "/dlbackend-compiler";
  if (package_dir().empty() || ::access(program.c_str(), X_OK) != 0) return -1;
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return -1;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDIN_FILENO);
  const std::string prefix = python_prefix();
  char* const arguments[] = {const_cast<char*>(program.c_str()), const_cast<char*>(prefix.c_str()),
                             const_cast<char*>(package_dir().c_str()), nullptr};
  pid_t pid = -1;
  // Threads of this library block signals, which must reach the process.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  const int failed = posix_spawn(&pid, program.c_str(), &actions, &attributes, arguments, environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  if (failed) {
    ::close(ends[0]);
    return -1;
  }
  while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  return ends[0];
}

// Whether what the calling thread starts has a lower priority than what the program does: the background
// thread's has, and an ordinary user cannot raise it again.
bool has_low_priority() {
  return ::getpriority(PRIO_PROCESS, 0) > ::getpriority(PRIO_PROCESS, static_cast<id_t>(::getpid()));
}

class Pool {
 public:
  // In one of at most so many processes.
  std::optional<CompiledElsewhere> compile(const Device& device, const std::string& source,
                                           const std::string& options, bool urgent, unsigned most,
                                           const std::string& launches = {}) {
    const Process process = take(most, urgent);
    if (process.socket < 0) return {};
    CompileReply reply{};
    const bool answered = send_request(process.socket, device, options, source, launches) &&
                          receive_all(process.socket, &reply, sizeof reply, kMostSeconds);
    give_back(process, answered);
    if (!answered || !reply.done) return {};
    return CompiledElsewhere{reply.seconds, reply.from_pack != 0};
  }

  // Has one more process get ready for the device. False where there shall be no more.
  bool prepare(const Device& device) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!usable() || idle_.size() + busy_.size() + starting_ >= compile_processes(device)) return false;
      starting_++;
    }
    const int socket = start_process();
    const bool ready = socket >= 0 && send_request(socket, device, "", "", "");
    std::lock_guard<std::mutex> lock(mutex_);
    starting_--;
    if (ready && !stopped_)
      idle_.push_back({{socket, has_low_priority()}, Clock::now()});
    else if (socket >= 0)
      ::close(socket);
    free_.notify_all();
    return ready;
  }

  void stop() noexcept {
    std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
    for (const Idle& idle : idle_) ::close(idle.process.socket);
    idle_.clear();
    for (const int socket : busy_) ::shutdown(socket, SHUT_RDWR);  // the thread that waits for it closes it
    free_.notify_all();
  }
  bool stopped() noexcept {
    std::lock_guard<std::mutex> lock(mutex_);
    return stopped_;
  }
  void give_up(const std::string& reason) noexcept {
    std::lock_guard<std::mutex> lock(mutex_);
    if (failures_.exchange(kMostFailures) < kMostFailures) log(1, "no process to compile in," + reason);
    free_.notify_all();
  }
  // Whether processes cannot be started, were lost too often, or are of no use.
  bool failed() const noexcept { return failures_.load(std::memory_order_relaxed) >= kMostFailures; }

 private:
  struct Process {
    int socket = -1;
    bool slow = false;  // has_low_priority()
  };
  struct Idle {
    Process process;
    Clock::time_point since;
  };

  bool usable() const { return !stopped_ && failures_ < kMostFailures; }

  // A process that is free, or a new one; without a socket where there can be none.
  Process take(unsigned most, bool urgent) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (urgent)
      urgent_++;
    else
      most = most < 2 ? most : most - (most + 3) / 4;
    free_.wait(lock,
               [&] { return !usable() || (busy_.size() + starting_ < most && (urgent || urgent_ == 0)); });
    if (urgent && --urgent_ == 0) free_.notify_all();
    if (!usable() || most == 0) return {};
    while (!idle_.empty()) {
      const Idle last = idle_.back();
      idle_.pop_back();
      const bool fresh = Clock::now() - last.since < std::chrono::seconds(kIdleSeconds / 2);
      if (fresh && !(urgent && last.process.slow)) {
        busy_.insert(last.process.socket);
        return last.process;
      }
      ::close(last.process.socket);  // about to end by itself, or too slow for what somebody waits for
    }
    starting_++;
    lock.unlock();
    const Process process{start_process(), has_low_priority()};
    lock.lock();
    starting_--;
    if (process.socket < 0) {
      failures_ = kMostFailures;
      log(1, "no process to compile in," + package_dir() + "/dlbackend-compiler cannot be started");
      free_.notify_all();
      return {};
    }
    busy_.insert(process.socket);
    if (stopped_) ::shutdown(process.socket, SHUT_RDWR);
    return process;
  }

  void give_back(const Process& process, bool sound) {
    std::lock_guard<std::mutex> lock(mutex_);
    busy_.erase(process.socket);
    if (sound && !stopped_) {
      idle_.push_back({process, Clock::now()});
    } else {
      ::close(process.socket);
      if (!stopped_ && ++failures_ >= kMostFailures) log(1, "no process to compile in,they end unasked");
    }
    free_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable free_;
  std::vector<Idle> idle_;
  std::unordered_set<int> busy_;
  unsigned starting_ = 0;
  unsigned urgent_ = 0;  // programs that wait for a process and are urgent
  std::atomic<unsigned> failures_{0};
  bool stopped_ = false;
};

Pool& pool() {
  static auto* instance = new Pool;
  return *instance;
}

}  // namespace

bool receive_all(int socket, void* data, size_t size, int seconds) {
  char* at = static_cast<char*>(data);
  while (size > 0) {
    pollfd ready{socket, POLLIN, 0};
    const int events = ::poll(&ready, 1, seconds * 1000);
    if (events < 0 && errno == EINTR) continue;
    if (events <= 0) return false;
    const ssize_t got = ::recv(socket, at, size, 0);
    if (got <= 0) return false;
    at += got, size -= static_cast<size_t>(got);
  }
  return true;
}

namespace {

// What the user has chosen, or 0 where there can be none; else nothing.
std::optional<unsigned> settled_processes() {
  static const std::optional<unsigned> chosen = settings::compile_processes();
  if (cache_dir().empty() || pool().failed()) return 0;
  return chosen;
}

// The share of one of the host's ranks.
unsigned of_one_rank(unsigned most) {
  static const unsigned ranks = settings::local_ranks();
  return most < ranks ? std::min(most, 1U) : most / ranks;
}

}  // namespace

unsigned compile_processes(const Device& device) {
  if (const auto settled = settled_processes()) return *settled;
  if (device.host_memory || device.late_code) return 0;
  const auto by_memory =
      static_cast<unsigned>(std::min<uint64_t>(device.global_mem / kDeviceMemoryPerProcess, 64));
  // Those of all ranks share the cores, and the memory of the first of several equal devices.
  const unsigned cores = std::thread::hardware_concurrency() / kCoresPerProcess;
  return of_one_rank(std::min({kMostProcesses, cores, by_memory}));
}

unsigned improving_processes(const Device& device) {
  if (const auto settled = settled_processes()) return *settled;
  if (!device.host_memory) return compile_processes(device);
  return of_one_rank(std::clamp(std::thread::hardware_concurrency() / kCoresPerProcess, 1U, kMostImproving));
}

std::optional<CompiledElsewhere> compile_elsewhere(const Device& device, const std::string& source,
                                                   const std::string& options, bool urgent) {
  if (compile_processes(device) == 0) return {};
  return pool().compile(device, source, options, urgent, compile_processes(device));
}

std::optional<CompiledElsewhere> improve_elsewhere(const Device& device, const std::string& source,
                                                   const std::string& options, const std::string& launches) {
  const unsigned most = improving_processes(device);
  return most == 0 ? std::nullopt : pool().compile(device, source, options, false, most, launches);
}

void start_compile_processes(const Device& device) noexcept {
  static std::array<std::atomic<bool>, kMostDevices> done{};
  if (done[static_cast<size_t>(device.index)].exchange(true)) return;
  try {
    if (compile_processes(device) == 0 || !program_disk_cache().is_empty()) return;
    while (pool().prepare(device)) {
    }
  } catch (...) {
    log_dropped("starting processes to compile in");  // those who need one start it
  }
}

void give_up_compile_processes(const std::string& reason) noexcept {
  pool().give_up(reason);
}

void stop_compile_processes() noexcept {
  pool().stop();
}
bool compile_processes_stopped() noexcept {
  return pool().stopped();
}

}  // namespace dlb::cl
