// The process group backend `oclgloo`: collectives of ocl tensors, computed on host memory.
#pragma once
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "distributed/job_builder.h"
#include "distributed/shared_memory.h"

namespace dlb::distributed {

// A backend over gloo's own, which must be used by nobody else, and, unless that is null, over the memory
// that ranks of a host share, which computes what it takes in gloo's stead. Collectives run in the order of
// the calls, on every rank the same; calls never wait for the device or the network. Every dtype travels;
// reductions take the dtypes and operations that gloo takes, and raise what gloo raises for others. Tensors
// that are not contiguous are copied. Errors name the rank and the operation:
// torch.distributed.DistBackendError.
c10::intrusive_ptr<c10d::Backend> make_backend(c10::intrusive_ptr<c10d::Backend> gloo,
                                               c10::intrusive_ptr<SharedMemory> shared);

class OclGloo final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  OclGloo(c10::intrusive_ptr<c10d::Backend> gloo, c10::intrusive_ptr<SharedMemory> shared);
  ~OclGloo() override;

  const std::string getBackendName() const override { return "oclgloo"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return gloo_->getBackendOptions(); }
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setSequenceNumberForGroup() override { gloo_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return gloo_->getSequenceNumberForGroup(); }
  void shutdown() override;

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;
  WorkPtr send(Tensors& tensors, int destination, int tag) override;
  WorkPtr recv(Tensors& tensors, int source, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

 private:
  Label label() const { return {"", pg_uid_, rank_, size_}; }
  // What computes a collective on the host: the host's shared memory or gloo.
  c10::intrusive_ptr<c10d::Backend> mover(c10d::OpType type) const;
  c10::intrusive_ptr<c10d::Backend> reducer(c10d::OpType type, c10::ScalarType dtype,
                                            const c10d::ReduceOp& op) const;
  // Whether that may change what it only reads.
  bool needs_scratch(const c10::intrusive_ptr<c10d::Backend>& host) const { return host == gloo_; }
  WorkPtr reduce_sparse(at::Tensor& tensor, const c10d::AllreduceOptions& options);
  // Chunks of `input`, all ranks' of which are gathered in `output`, rank by rank.
  void add_allgather(JobBuilder& job, std::vector<Region> output, std::vector<Region> input,
                     const c10d::AllgatherOptions& options);
  void add_reduce_scatter(JobBuilder& job, std::vector<Region> output, std::vector<Region> input,
                          c10::ScalarType dtype, const c10d::ReduceScatterOptions& options);
  void add_reduce_to(JobBuilder& job, int rank, std::vector<Region> output, const at::Tensor& input,
                     const c10d::ReduceScatterOptions& options);
  Tensors list_of_root(const Checks& checks, int64_t root, const char* own_side, const Tensors& own,
                       const std::string& side, const std::vector<Tensors>& lists) const;
  template <class Start>
  WorkPtr receive(Tensors& tensors, c10d::OpType type, const char* title, Start&& start);

  const c10::intrusive_ptr<c10d::Backend> gloo_;
  const c10::intrusive_ptr<SharedMemory> shared_;
  const std::shared_ptr<Pipeline> pipeline_;
};

}  // namespace dlb::distributed
