// The threads of one process group: copies to the host, gloo's work, copies back, in the order of submission.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "distributed/work.h"

namespace dlb::distributed {

// One call of gloo. Its operands are staged while those before it are on the network.
struct Part {
  std::vector<Operand> operands;
  // Starts gloo's work on the operands' host memory; empty for nothing to do.
  std::function<c10::intrusive_ptr<c10d::Work>(std::vector<at::Tensor>& hosts)> start;
  // Changes what is written back, once gloo is done; may be empty.
  std::function<void(std::vector<at::Tensor>& hosts)> adjust;
};

// One collective.
struct Job {
  c10::intrusive_ptr<CollectiveWork> work;
  std::vector<Part> parts;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;  // after all parts: the first becomes the second
  c10::DeviceIndex device = -1;                           // of all tensors; -1 for no tensors
  std::shared_ptr<Event> start;                           // after what the tensors are made by

  size_t next = 0;                                 // the part to be staged next
  bool out_in_order = false, in_in_order = false;  // the streams wait for `start`
  bool start_failed = false;                       // then the parts after it are not started
  std::exception_ptr error;                        // the first
};

class Pipeline : public std::enable_shared_from_this<Pipeline> {
 public:
  // Threads are made by the first submission.
  explicit Pipeline(c10::intrusive_ptr<c10d::Backend> gloo);
  ~Pipeline();

  // Never waits. Throws when the process is exiting.
  void submit(std::shared_ptr<Job> job);

  // Runs sends, which must not wait for collectives: a peer may receive before it joins these.
  void submit_send(std::function<void()> send);

  // Ends the threads after what was submitted; waits for that until `end`. False if it took longer: then they
  // end when it is done.
  bool stop(std::chrono::steady_clock::time_point end) noexcept;

  c10d::Backend& gloo() { return *gloo_; }

 private:
  struct Flight;  // a part on its way
  void begin_threads();
  void copy_out_and_start();
  void finish_and_copy_back();
  void send_loop();
  void end_thread();
  std::unique_ptr<Flight> take(bool wait);
  void stage(Flight& flight);
  void start(std::unique_ptr<Flight> flight);
  void finish(Flight& flight);
  void complete(Job& job);
  struct Streams {
    Stream *out = nullptr, *in = nullptr;
  };
  Streams streams(c10::DeviceIndex device);

  const c10::intrusive_ptr<c10d::Backend> gloo_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> jobs_;        // not wholly staged
  std::deque<std::unique_ptr<Flight>> started_;  // on the network
  std::deque<std::function<void()>> sends_;
  size_t in_flight_ = 0;  // bytes staged
  int threads_ = 0;       // running
  bool begun_ = false, stopping_ = false, all_started_ = false, sends_begun_ = false;
  std::vector<Streams> streams_;  // by device
};

// Stops all pipelines; as Pipeline::stop().
bool stop_all_pipelines(std::chrono::steady_clock::time_point end) noexcept;

}  // namespace dlb::distributed
