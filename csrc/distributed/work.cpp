// Handles: completion, futures and errors.
#include "distributed/work.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>

#include "distributed/threads.h"
#include "runtime/allocator.h"

namespace dlb::distributed {

std::exception_ptr with_label(std::exception_ptr error, const Label& label) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error&) {
    return error;
  } catch (const std::exception& from_gloo) {
    try {
      TORCH_CHECK_WITH(DistBackendError, false, "oclgloo: ", label.op, " failed on rank ", label.rank, " of ",
                       label.size, " (group ", label.group, "): ", from_gloo.what());
    } catch (...) {
      return std::current_exception();
    }
  } catch (...) {
  }
  return error;
}

CollectiveWork::CollectiveWork(c10d::OpType type, const char* title, std::vector<at::Tensor> inputs,
                               std::vector<at::Tensor> outputs, std::optional<c10::Device> device,
                               Label label)
    : Work(label.rank, type, title, inputs),
      outputs_(std::move(outputs)),
      device_(device),
      label_(std::move(label)) {}

// A caller that never waited may free the tensors while the copies into them are still in their queue.
CollectiveWork::~CollectiveWork() {
  if (waited_ || !stream_ || cl::in_bad_fork()) return;
  for (const at::Tensor& tensor : outputs_)
    if (tensor.layout() == at::kStrided)
      allocator()->recordStream(tensor.storage().data_ptr(), stream_->unwrap());
}

bool CollectiveWork::isCompleted() {
  std::lock_guard<std::mutex> lock(mutex_);
  return completed_ && (!done_ || done_->query());
}

bool CollectiveWork::isSuccess() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return completed_ && !exception_;
}

bool CollectiveWork::wait(std::chrono::milliseconds timeout) {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto completed = [this] { return completed_; };
    if (timeout == kNoTimeout)
      cv_.wait(lock, completed);
    else
      TORCH_CHECK_WITH(DistBackendError, cv_.wait_for(lock, timeout, completed), "oclgloo: ", label_.op,
                       " on rank ", label_.rank, " of ", label_.size, " (group ", label_.group,
                       ") ran time out after waiting for ", timeout.count(), " milliseconds");
    if (exception_) std::rethrow_exception(exception_);
  }
  synchronize();
  return true;
}

void CollectiveWork::synchronize() {
  if (!done_) return;
  done_->block(current_stream(device_->index()));
  waited_ = true;
}

void CollectiveWork::complete(std::shared_ptr<Event> done, Stream* stream, std::exception_ptr error) {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    done_ = std::move(done);
    stream_ = stream;
    future = future_;
  }
  finish(std::move(error));
  if (future)
    run_callbacks([self = c10::intrusive_ptr<CollectiveWork>::unsafe_reclaim_from_nonowning(this),
                   future = std::move(future)] { self->mark(future); });
}

void CollectiveWork::mark(const c10::intrusive_ptr<c10::ivalue::Future>& future) {
  if (exception_) return future->setError(exception_);
  // The future records events on the current streams.
  std::optional<c10::StreamGuard> guard;
  if (stream_) guard.emplace(stream_->unwrap());
  future->markCompleted(c10::IValue(outputs_));
}

c10::intrusive_ptr<c10::ivalue::Future> CollectiveWork::getFuture() {
  bool now = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!future_) {
      std::vector<c10::Device> devices;
      if (device_) devices.push_back(*device_);
      future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                         std::move(devices));
      now = completed_;
    }
  }
  if (now) mark(future_);
  return future_;
}

PointToPointWork::PointToPointWork(c10d::OpType type, const char* title, at::Tensor tensor, Label label)
    : Work(label.rank, type, title, std::vector<at::Tensor>{tensor}),
      tensor_(std::move(tensor)),
      label_(std::move(label)) {}

void PointToPointWork::started(c10::intrusive_ptr<c10d::Work> gloo, std::optional<Staged> staged) {
  std::lock_guard<std::mutex> lock(mutex_);
  gloo_ = std::move(gloo);
  if (staged) staged_.emplace(std::move(*staged));
  started_ = true;
  cv_.notify_all();
}

void PointToPointWork::failed(std::exception_ptr error) {
  finish(with_label(std::move(error), label_));
}

bool PointToPointWork::wait(std::chrono::milliseconds timeout) {
  std::lock_guard<std::mutex> one_at_a_time(wait_mutex_);
  {
    std::unique_lock<std::mutex> lock(mutex_);
    cv_.wait(lock, [this] { return started_ || completed_; });
    if (exception_) std::rethrow_exception(exception_);
    if (completed_) return true;
  }
  try {
    if (!gloo_->wait(timeout)) return false;
    if (staged_) staged_->write_back(current_stream(tensor_.device().index()));
    staged_.reset();
  } catch (...) {
    finishAndThrow(with_label(std::current_exception(), label_));
  }
  finish();
  return true;
}

void PointToPointWork::abort() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (gloo_) gloo_->abort();
}

int PointToPointWork::sourceRank() const {
  std::lock_guard<std::mutex> lock(mutex_);
  TORCH_CHECK(gloo_, "the receive has not started");
  return gloo_->sourceRank();
}

}  // namespace dlb::distributed
