// The two threads behind collectives, and one for sends.
#include "distributed/pipeline.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <set>
#include <thread>

#include "distributed/threads.h"

namespace dlb::distributed {
namespace {

// So much is staged at once; then copying waits for the network. A larger part goes alone.
constexpr size_t kMostInFlight = 64ull << 20;

struct Pipelines {
  std::mutex mutex;
  std::set<Pipeline*> running;  // with threads
  static Pipelines& instance() {
    static auto* pipelines = new Pipelines;
    return *pipelines;
  }
};

std::vector<at::Tensor> hosts_of(const std::vector<Staged>& staged) {
  std::vector<at::Tensor> hosts;
  hosts.reserve(staged.size());
  for (const Staged& one : staged) hosts.push_back(one.host());
  return hosts;
}

}  // namespace

struct Pipeline::Flight {
  std::shared_ptr<Job> job;
  Part* part = nullptr;
  bool last = false;
  size_t bytes = 0;
  std::vector<Staged> staged;
  std::shared_ptr<Event> copied;
  c10::intrusive_ptr<c10d::Work> work;
  std::exception_ptr error;
};

Pipeline::Pipeline(c10::intrusive_ptr<c10d::Backend> gloo) : gloo_(std::move(gloo)) {}

Pipeline::~Pipeline() = default;

void Pipeline::submit(std::shared_ptr<Job> job) {
  TORCH_CHECK(!is_exiting(), "no collective can begin while the process exits");
  std::lock_guard<std::mutex> lock(mutex_);
  if (!begun_) begin_threads();
  jobs_.push_back(std::move(job));
  changed_.notify_all();
}

void Pipeline::submit_send(std::function<void()> send) {
  TORCH_CHECK(!is_exiting(), "nothing can be sent while the process exits");
  std::lock_guard<std::mutex> lock(mutex_);
  if (!begun_) begin_threads();
  if (!sends_begun_) {
    sends_begun_ = true;
    ++threads_;
    std::thread([self = shared_from_this()] { self->send_loop(); }).detach();
  }
  sends_.push_back(std::move(send));
  changed_.notify_all();
}

// Threads keep the pipeline alive, so that nobody has to wait for one that waits for a peer.
void Pipeline::begin_threads() {
  begun_ = true;
  threads_ = 2;
  std::thread([self = shared_from_this()] { self->copy_out_and_start(); }).detach();
  std::thread([self = shared_from_this()] { self->finish_and_copy_back(); }).detach();
  Pipelines& all = Pipelines::instance();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.running.insert(this);
}

void Pipeline::end_thread() {
  park_when_exiting();
  Pipelines& all = Pipelines::instance();
  std::scoped_lock lock(all.mutex, mutex_);
  if (--threads_ == 0) all.running.erase(this);
  changed_.notify_all();
}

bool Pipeline::stop(std::chrono::steady_clock::time_point end) noexcept {
  std::unique_lock<std::mutex> lock(mutex_);
  stopping_ = true;
  changed_.notify_all();
  return changed_.wait_until(lock, end, [this] { return threads_ == 0; });
}

Pipeline::Streams Pipeline::streams(c10::DeviceIndex device) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto index = static_cast<size_t>(device);
  if (streams_.size() <= index) streams_.resize(index + 1);
  Streams& found = streams_[index];
  if (!found.out) found = {&next_pool_stream(device), &next_pool_stream(device)};
  return found;
}

// The next part, counted as in flight; null when stopping, and without `wait` also when there is none or no
// room for it.
std::unique_ptr<Pipeline::Flight> Pipeline::take(bool wait) {
  auto flight = std::make_unique<Flight>();
  {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto ready = [&] {
      if (jobs_.empty()) return false;
      flight->bytes = 0;
      for (const Operand& operand : jobs_.front()->parts[jobs_.front()->next].operands)
        flight->bytes += operand.bytes();
      return in_flight_ == 0 || in_flight_ + flight->bytes <= kMostInFlight;
    };
    if (wait) changed_.wait(lock, [&] { return ready() || (stopping_ && jobs_.empty()); });
    if (!ready()) return nullptr;
    flight->job = jobs_.front();
    flight->part = &flight->job->parts[flight->job->next++];
    flight->last = flight->job->next == flight->job->parts.size();
    if (flight->last) jobs_.pop_front();
    in_flight_ += flight->bytes;
  }
  try {
    stage(*flight);
  } catch (...) {
    flight->error = std::current_exception();
  }
  return flight;
}

void Pipeline::stage(Flight& flight) {
  park_when_exiting();
  Job& job = *flight.job;
  if (job.device < 0) return;
  const c10::DeviceGuard guard({kDeviceType, job.device});
  Stream& out = *streams(job.device).out;
  if (!std::exchange(job.out_in_order, true)) job.start->block(out);
  flight.staged.reserve(flight.part->operands.size());
  for (const Operand& operand : flight.part->operands) flight.staged.emplace_back(operand, out);
  flight.copied = Event::record_new(out);
}

void Pipeline::copy_out_and_start() {
  std::unique_ptr<Flight> flight = take(true);
  while (flight) {
    std::unique_ptr<Flight> ahead = take(false);  // is copied while this one starts
    start(std::move(flight));
    flight = ahead ? std::move(ahead) : take(true);
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    all_started_ = true;
  }
  end_thread();
}

void Pipeline::start(std::unique_ptr<Flight> flight) {
  Job& job = *flight->job;
  if (!flight->error && !job.start_failed && flight->part->start) {
    try {
      if (flight->copied) flight->copied->synchronize();
      park_when_exiting();
      std::vector<at::Tensor> hosts = hosts_of(flight->staged);
      flight->work = flight->part->start(hosts);
    } catch (...) {
      flight->error = std::current_exception();
    }
  }
  if (flight->error) job.start_failed = true;
  std::lock_guard<std::mutex> lock(mutex_);
  started_.push_back(std::move(flight));
  changed_.notify_all();
}

void Pipeline::finish_and_copy_back() {
  for (;;) {
    std::unique_ptr<Flight> flight;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return !started_.empty() || all_started_; });
      if (started_.empty()) break;
      flight = std::move(started_.front());
      started_.pop_front();
    }
    finish(*flight);
    flight->staged.clear();
    if (flight->last) complete(*flight->job);
    std::lock_guard<std::mutex> lock(mutex_);
    in_flight_ -= flight->bytes;
    changed_.notify_all();
    flight.reset();
  }
  end_thread();
}

void Pipeline::finish(Flight& flight) {
  Job& job = *flight.job;
  try {
    if (flight.error) std::rethrow_exception(flight.error);
    if (flight.work) flight.work->wait();
    park_when_exiting();
    if (job.error || job.device < 0) return;
    const c10::DeviceGuard guard({kDeviceType, job.device});
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    Stream& in = *streams(job.device).in;
    if (!std::exchange(job.in_in_order, true))
      job.start->block(in);  // nothing before the collective may see its results
    std::vector<at::Tensor> hosts = hosts_of(flight.staged);
    if (flight.part->adjust) flight.part->adjust(hosts);
    for (Staged& staged : flight.staged) staged.write_back(in);
  } catch (...) {
    park_when_exiting();
    if (!job.error) job.error = with_label(std::current_exception(), job.work->label());
  }
}

void Pipeline::complete(Job& job) {
  std::shared_ptr<Event> done;
  Stream* in = nullptr;
  if (!job.error && job.device >= 0) try {
      const c10::DeviceGuard guard({kDeviceType, job.device});
      in = streams(job.device).in;
      const c10::StreamGuard stream(in->unwrap());
      const at::AutoDispatchBelowADInplaceOrView no_autograd;
      for (auto& [to, from] : job.copies) {
        to.copy_(from);
        c10::impl::VirtualGuardImpl(kDeviceType)
            .recordDataPtrOnStream(from.storage().data_ptr(), in->unwrap());
      }
      done = Event::record_new(*in);
    } catch (...) {
      job.error = std::current_exception();
    }
  job.work->complete(std::move(done), in, job.error);
  job.work.reset();
  job.parts.clear();
  job.copies.clear();
}

void Pipeline::send_loop() {
  for (;;) {
    std::function<void()> send;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return !sends_.empty() || stopping_; });
      if (sends_.empty()) break;
      send = std::move(sends_.front());
      sends_.pop_front();
    }
    send();
  }
  end_thread();
}

bool stop_all_pipelines(std::chrono::steady_clock::time_point end) noexcept {
  Pipelines& all = Pipelines::instance();
  std::vector<std::shared_ptr<Pipeline>> running;
  {
    std::lock_guard<std::mutex> lock(all.mutex);
    for (Pipeline* pipeline : all.running)
      if (auto shared = pipeline->weak_from_this().lock()) running.push_back(std::move(shared));
  }
  bool stopped = true;
  for (const auto& pipeline : running) stopped &= pipeline->stop(end);
  return stopped;
}

}  // namespace dlb::distributed
