#include "solver/background.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>

#include "cl/build_mode.h"
#include "cl/compile_process.h"
#include "cl/library.h"
#include "cl/log.h"
#include "cl/queue.h"
#include "cl/tiers.h"
#include "runtime/stream.h"

namespace dlb::solver {
namespace {

constexpr int kLowestPriority = 19;
constexpr std::chrono::seconds kQuiet{1};  // without other tasks, before one that waits for that
constexpr std::chrono::milliseconds kAskAgain{3};

struct Pending {
  std::function<bool()> ready;
  std::function<void()> task;
};

using SteadyClock = std::chrono::steady_clock;

struct Worker {
  std::mutex mutex;
  std::condition_variable wake, idle;
  std::deque<std::function<void()>> tasks, idle_tasks;
  std::deque<Pending> pending;
  SteadyClock::time_point changed{};  // when a task came or ended: others often follow
  unsigned waiting = 0;               // threads that wait until all is done
  bool busy = false, started = false;
  std::atomic<bool> stopping{false};
  std::thread thread;

  void work() {
    ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), kLowestPriority);
    const cl::WithBuildMode mode({.waited_by = cl::WaitedBy::kNobody, .elsewhere = true});
    std::unique_lock<std::mutex> lock(mutex);
    while (const std::function<void()> task = next(lock)) {
      busy = true;
      lock.unlock();
      try {
        task();
      } catch (...) {
        cl::log_dropped("background task");  // the thread goes on with the next one
      }
      lock.lock();
      busy = false;
      changed = SteadyClock::now();
      if (at_rest()) idle.notify_all();
    }
  }

  // Waits for a task and takes it; null where the thread is to end. With the lock held.
  std::function<void()> next(std::unique_lock<std::mutex>& lock) {
    const auto has_task = [this] { return stopping || take_ready() || !tasks.empty(); };
    const auto has_idle_task = [this] {
      return !idle_tasks.empty() && pending.empty() &&
             (waiting > 0 || SteadyClock::now() - changed >= kQuiet);
    };
    while (!has_task() && !has_idle_task()) {
      if (!pending.empty())
        wake.wait_for(lock, kAskAgain);
      else if (!idle_tasks.empty())
        wake.wait_for(lock, kQuiet);
      else
        wake.wait(lock);
    }
    if (stopping) return nullptr;
    auto& queue = tasks.empty() ? idle_tasks : tasks;
    std::function<void()> task = std::move(queue.front());
    queue.pop_front();
    return task;
  }

  // Moves the first task whose time has come in front of the others. False where there is none.
  bool take_ready() {
    const auto it = std::find_if(pending.begin(), pending.end(), [](const Pending& p) { return p.ready(); });
    if (it == pending.end()) return false;
    tasks.push_front(std::move(it->task));
    pending.erase(it);
    return true;
  }

  bool at_rest() const {
    return stopping || (tasks.empty() && idle_tasks.empty() && pending.empty() && !busy);
  }

  // Begins with a new task, the first of which starts the thread. False where there will be none. With the
  // lock held.
  bool begin() {
    if (stopping) return false;
    if (!started) try {
        thread = std::thread([this] { work(); });
        started = true;
      } catch (const std::system_error& error) {  // the system's limit of threads is reached
        cl::log(1, std::string("no background thread,") + error.what());
        return false;
      }
    changed = SteadyClock::now();
    return true;
  }
};

Worker& worker() {
  static auto* instance = new Worker;
  return *instance;
}

// Waits for what is in the device's default stream now. Errors are left to those who wait for results.
void wait_for_enqueued(const cl::Device& device) {
  cl_event event = nullptr;
  {
    Stream& stream = stream_of(static_cast<c10::DeviceIndex>(device.index), 0);
    if (stream.graph()) return;  // it takes part in a capture, and nothing runs there
    const cl::Command command(stream.use());
    if (cl::api().clEnqueueMarkerWithWaitList(command.queue(), 0, nullptr, &event) != CL_SUCCESS) return;
  }
  cl::api().clWaitForEvents(1, &event);
  cl::api().clReleaseEvent(event);
}

}  // namespace

void in_background(std::function<void()> task, bool when_idle) {
  Worker& w = worker();
  std::lock_guard<std::mutex> lock(w.mutex);
  if (!w.begin()) return;
  (when_idle ? w.idle_tasks : w.tasks).push_back(std::move(task));
  w.wake.notify_one();
}

void in_background_when(std::function<bool()> ready, std::function<void()> task) {
  Worker& w = worker();
  std::lock_guard<std::mutex> lock(w.mutex);
  if (!w.begin()) return;
  w.pending.push_back({std::move(ready), std::move(task)});
  w.wake.notify_one();
}

void wait_while_program_starts(const cl::Device& device) {
  // On CPU-like devices the first launch of a kernel compiles too, and takes the cores from the kernels that
  // run there.
  cl::wait_for_improvements(background_stopping);
  const double quiet = device.cls == cl::DeviceClass::kCpu ? 1.0 : 0.1;
  do {
    while (!background_stopping() && cl::seconds_since_urgent_build() < quiet)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (!device.late_code || background_stopping()) return;
    wait_for_enqueued(device);  // first launches, which compile, may lie far behind the host's builds
  } while (cl::seconds_since_urgent_build() < quiet);
}

bool background_stopping() noexcept {
  return worker().stopping;
}

void wait_for_background() {
  Worker& w = worker();
  std::unique_lock<std::mutex> lock(w.mutex);
  w.waiting++;
  w.wake.notify_one();
  w.idle.wait(lock, [&] { return w.at_rest(); });
  w.waiting--;
  lock.unlock();
  cl::wait_for_improvements(background_stopping);
}

void stop_background() noexcept {
  if (cl::in_bad_fork()) return;  // a forked process has no copy of the thread
  Worker& w = worker();
  {
    std::lock_guard<std::mutex> lock(w.mutex);
    w.stopping = true;
    w.tasks.clear();
    w.idle_tasks.clear();
    w.pending.clear();
    w.wake.notify_all();
    w.idle.notify_all();
  }
  cl::stop_compile_processes();
  if (w.thread.joinable()) w.thread.join();
}

}  // namespace dlb::solver
