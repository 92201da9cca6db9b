// Handles of collectives and of sends and receives, as torch.distributed hands them to programs.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "distributed/staging.h"
#include "runtime/event.h"

namespace dlb::distributed {

// The group, rank and operation that an error belongs to.
struct Label {
  std::string op;  // with the bytes of its tensors
  std::string group;
  int rank = 0, size = 1;
};

// The error that a program sees for one that gloo threw: torch.distributed.DistBackendError naming rank,
// operation and group. What PyTorch itself raises for wrong arguments stays as it is.
std::exception_ptr with_label(std::exception_ptr error, const Label& label);

// A collective. Completed as soon as all its results are enqueued to be copied into the tensors.
class CollectiveWork final : public c10d::Work {
 public:
  CollectiveWork(c10d::OpType type, const char* title, std::vector<at::Tensor> inputs,
                 std::vector<at::Tensor> outputs, std::optional<c10::Device> device, Label label);
  ~CollectiveWork() override;

  // As completed and the copies done. Never waits.
  bool isCompleted() override;
  bool isSuccess() const override;
  // Blocks the host until the network is done, since only then can the copies be enqueued, and from then on
  // the current stream until the copies are done. Throws the collective's error, and DistBackendError when it
  // takes longer than `timeout`.
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override;
  void abort() override {}
  std::vector<at::Tensor> result() override { return outputs_; }
  // Completes on a thread of its own, on which callbacks run: they may wait for other collectives.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

  // Called once, by the pipeline: `done` is recorded on `stream` behind the copies; both null for a
  // collective without tensors or one that failed.
  void complete(std::shared_ptr<Event> done, Stream* stream, std::exception_ptr error);
  const Label& label() const { return label_; }

 private:
  void mark(const c10::intrusive_ptr<c10::ivalue::Future>& future);
  const std::vector<at::Tensor> outputs_;
  const std::optional<c10::Device> device_;
  const Label label_;
  std::shared_ptr<Event> done_;
  Stream* stream_ = nullptr;
  std::atomic<bool> waited_{false};
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // guarded by mutex_
};

// A send or a receive. As with gloo itself, it makes progress by itself but completes only in wait().
class PointToPointWork final : public c10d::Work {
 public:
  PointToPointWork(c10d::OpType type, const char* title, at::Tensor tensor, Label label);

  // Called once: gloo's own work, on host memory that this takes over.
  void started(c10::intrusive_ptr<c10d::Work> gloo, std::optional<Staged> staged);
  void failed(std::exception_ptr error);

  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { wait(kNoTimeout); }
  void abort() override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override { return {tensor_}; }
  const Label& label() const { return label_; }

 private:
  const at::Tensor tensor_;
  const Label label_;
  bool started_ = false;  // guarded by mutex_, as is gloo_
  std::mutex wait_mutex_;
  c10::intrusive_ptr<c10d::Work> gloo_;
  std::optional<Staged> staged_;
};

}  // namespace dlb::distributed
