// The backend's life, barriers, sends and receives.
#include "distributed/backend.h"

#include <c10/core/DeviceGuard.h>

#include "distributed/threads.h"

namespace dlb::distributed {
namespace {

// How long a group that is destroyed waits for collectives in flight. Those that take longer go on without
// it.
constexpr std::chrono::seconds kStopLimit{10};

void check_single(at::ArrayRef<at::Tensor> tensors) {
  TORCH_CHECK(tensors.size() == 1, "oclgloo::send takes a single tensor");
  Checks("send").alike(tensors);
  TORCH_CHECK(tensors[0].is_contiguous(), "input tensor has to be contiguous");
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_backend(c10::intrusive_ptr<c10d::Backend> gloo,
                                               c10::intrusive_ptr<SharedMemory> shared) {
  return c10::make_intrusive<OclGloo>(std::move(gloo), std::move(shared));
}

OclGloo::OclGloo(c10::intrusive_ptr<c10d::Backend> gloo, c10::intrusive_ptr<SharedMemory> shared)
    : Backend(gloo->getRank(), gloo->getSize()),
      gloo_(std::move(gloo)),
      shared_(std::move(shared)),
      pipeline_(std::make_shared<Pipeline>(gloo_)) {}

OclGloo::~OclGloo() {
  shutdown();
}

void OclGloo::shutdown() {
  if (!is_exiting()) pipeline_->stop(std::chrono::steady_clock::now() + kStopLimit);
}

void OclGloo::setTimeout(std::chrono::milliseconds timeout) {
  gloo_->setTimeout(timeout);
  if (shared_) shared_->setTimeout(timeout);
}

c10::intrusive_ptr<c10d::Backend> OclGloo::mover(c10d::OpType type) const {
  if (shared_ && shared_->takes(type)) return shared_;
  return gloo_;
}

c10::intrusive_ptr<c10d::Backend> OclGloo::reducer(c10d::OpType type, c10::ScalarType dtype,
                                                   const c10d::ReduceOp& op) const {
  if (shared_ && shared_->takes(type, dtype, op)) return shared_;
  return gloo_;
}

OclGloo::WorkPtr OclGloo::barrier(const c10d::BarrierOptions& options) {
  JobBuilder job({}, {});
  c10d::BarrierOptions on_host = options;
  on_host.device = at::Device(at::kCPU);
  job.add(
      {{}, [host = mover(c10d::OpType::BARRIER), on_host](Tensors&) { return host->barrier(on_host); }, {}});
  return job.submit(*pipeline_, c10d::OpType::BARRIER, "oclgloo:barrier", label());
}

void OclGloo::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  gloo_->monitoredBarrier(options, wait_all_ranks);
}

OclGloo::WorkPtr OclGloo::send(Tensors& tensors, int destination, int tag) {
  check_single(tensors);
  const at::Tensor& tensor = tensors[0];
  Label described = label();
  described.op = describe("send", tensors) + " to rank " + std::to_string(destination);
  auto work = c10::make_intrusive<PointToPointWork>(c10d::OpType::SEND, "oclgloo:send", tensor, described);
  auto before = Event::record_new(current_stream(tensor.device().index()));
  pipeline_->submit_send([=, gloo = gloo_] {
    try {
      park_when_exiting();
      before->synchronize();
      const c10::DeviceGuard guard(tensor.device());
      Stream& stream = next_pool_stream(tensor.device().index());
      Staged staged({regions_of(tensor), Access::kRead}, stream);
      Event::record_new(stream)->synchronize();
      park_when_exiting();
      Tensors hosts{staged.host()};
      auto sent = gloo->send(hosts, destination, tag);
      work->started(std::move(sent), std::move(staged));
    } catch (...) {
      work->failed(std::current_exception());
    }
  });
  return work;
}

// The caller's thread posts the receive, which neither reads the tensor nor waits; the tensor is written in
// wait().
template <class Start>
OclGloo::WorkPtr OclGloo::receive(Tensors& tensors, c10d::OpType type, const char* title, Start&& start) {
  check_single(tensors);
  Label described = label();
  described.op = describe(title, tensors);
  auto work = c10::make_intrusive<PointToPointWork>(type, title, tensors[0], described);
  const c10::DeviceGuard guard(tensors[0].device());
  Staged staged({regions_of(tensors[0]), Access::kWrite}, current_stream(), false);
  Tensors hosts{staged.host()};
  auto received = start(hosts);
  work->started(std::move(received), std::move(staged));
  return work;
}

OclGloo::WorkPtr OclGloo::recv(Tensors& tensors, int source, int tag) {
  return receive(tensors, c10d::OpType::RECV, "oclgloo:recv",
                 [&](Tensors& hosts) { return gloo_->recv(hosts, source, tag); });
}

OclGloo::WorkPtr OclGloo::recvAnysource(Tensors& tensors, int tag) {
  return receive(tensors, c10d::OpType::RECVANYSOURCE, "oclgloo:recv_any_source",
                 [&](Tensors& hosts) { return gloo_->recvAnysource(hosts, tag); });
}

}  // namespace dlb::distributed
