// Collectives of host memory among the ranks of a host, through memory that they share.
#pragma once
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "distributed/segment.h"

namespace dlb::distributed {

class Lane;

// A backend for host memory as gloo's is, of the same group. The ranks of this host exchange data through a
// segment: each copies the others' shares of its data there, reduces its own share of all, and copies the
// others' results from there. So all get the same bits, which do not depend on timing.
//
// Where the group has several hosts, the first ranks of these exchange by gloo what is reduced or broadcast
// within the hosts.
//
// A call waits for nobody. Calls are made in the same order on all ranks and by one thread at a time. Works
// raise std::runtime_error that names the rank: at once when its process has ended, after the group's timeout
// when it does not come, and when it called for another collective.
class SharedMemory final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  // `gloo`: of the whole group, whose timeout holds. `hosts`: the ranks of each host. `between`: gloo among
  // the first ranks of the hosts, in their order; null on the other ranks, and where there is one host.
  SharedMemory(c10::intrusive_ptr<c10d::Backend> gloo, std::shared_ptr<Segment> segment,
               std::vector<std::vector<int>> hosts, c10::intrusive_ptr<c10d::Backend> between);
  ~SharedMemory() override;

  const std::string getBackendName() const override { return "shared memory"; }
  void setTimeout(std::chrono::milliseconds timeout) override;

  // Whether these collectives are computed here; those that are not remain gloo's. The same on all ranks.
  bool takes(c10d::OpType type) const;
  bool takes(c10d::OpType type, c10::ScalarType dtype, const c10d::ReduceOp& op) const;

  // As gloo's, for one flat tensor of each rank. reduce() leaves the tensors of other ranks than the root's,
  // and reduce_scatter its input, as they are.
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

 private:
  using Step = std::function<void(Lane& lane, std::chrono::milliseconds timeout)>;
  std::chrono::milliseconds limit(std::chrono::milliseconds timeout) const;
  WorkPtr run(c10d::OpType type, std::chrono::milliseconds timeout, Step step);
  WorkPtr run_between(c10d::OpType type, std::chrono::milliseconds timeout, Step up,
                      std::function<WorkPtr()> across, Step down);
  int index_of(int rank) const;

  const c10::intrusive_ptr<c10d::Backend> gloo_, between_;
  const std::vector<std::vector<int>> hosts_;
  const int host_;  // this rank's, in hosts_
  std::vector<std::shared_ptr<Lane>> lanes_;
  size_t next_lane_ = 0;
};

}  // namespace dlb::distributed
