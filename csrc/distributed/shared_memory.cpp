// The collectives among the ranks of a host, as exchanges in the lanes of a segment.
#include "distributed/shared_memory.h"

#include <algorithm>
#include <cstring>

#include "distributed/host_reduction.h"
#include "distributed/lane.h"

namespace dlb::distributed {
namespace {

using c10d::OpType;
using std::chrono::milliseconds;

constexpr size_t kCacheLine = 64;

class LaneWork final : public c10d::Work {
 public:
  LaneWork(int rank, OpType type) : Work(rank, type) {}

  // Completes with what `task` throws. That leaves this rank out of step with the others.
  void complete_by(Lane& lane, const std::function<void()>& task) {
    try {
      task();
    } catch (...) {
      lane.fail();
      return finish(std::current_exception());
    }
    finish();
  }
};

uint64_t signature_of(OpType type, size_t bytes, int root = 0, c10::ScalarType dtype = c10::ScalarType::Byte,
                      int op = 0) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const uint64_t part :
       {static_cast<uint64_t>(type), static_cast<uint64_t>(bytes), static_cast<uint64_t>(root),
        static_cast<uint64_t>(dtype), static_cast<uint64_t>(op)})
    hash = (hash ^ part) * 0x100000001b3;
  return hash;
}

size_t steps_of(size_t size, size_t step) {
  return (size + step - 1) / step;
}

size_t round_up(size_t bytes) {
  return (bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
}

// Some bytes of a step.
struct Piece {
  size_t begin = 0, bytes = 0;
};

// What the rank of that index reduces of `bytes` bytes that `count` ranks share, in whole cache lines.
Piece share_of(size_t bytes, int index, int count) {
  const size_t share = round_up(steps_of(bytes, static_cast<size_t>(count)));
  const size_t begin = std::min(bytes, static_cast<size_t>(index) * share);
  return {begin, std::min(share, bytes - begin)};
}

struct Reduced {
  HostReduction reduction;
  size_t element;  // bytes
  uint64_t signature;
};

// Reduces `bytes` bytes of each rank at `data`, to the same place where the result is `wanted`.
void reduce_within(Lane& lane, const Reduced& how, char* data, size_t bytes, bool wanted,
                   milliseconds timeout) {
  const int own = lane.index(), count = lane.count();
  const auto share = [&](size_t step, int index) {
    return share_of(std::min(Segment::kHalf, bytes - step * Segment::kHalf), index, count);
  };
  const auto copy_others = [&](size_t step, const auto& copy) {
    for (int index = 0; index < count; ++index)
      if (index != own) copy(index, share(step, index));
  };
  Exchange exchange{how.signature, steps_of(bytes, Segment::kHalf), {}, {}, {}};
  exchange.write = [&](size_t step, uint64_t half) {
    copy_others(step, [&](int, Piece piece) {
      std::memcpy(lane.memory(own, half) + piece.begin, data + step * Segment::kHalf + piece.begin,
                  piece.bytes);
    });
  };
  exchange.reduce = [&](size_t step, uint64_t half) {
    const Piece piece = share(step, own);
    char* result = lane.memory(own, half) + piece.begin;
    char* place = data + step * Segment::kHalf + piece.begin;
    std::vector<const void*> sources;
    for (int index = 0; index < count; ++index)
      sources.push_back(index == own ? place : lane.memory(index, half) + piece.begin);
    how.reduction(result, sources.data(), count, piece.bytes / how.element);
    if (wanted) std::memcpy(place, result, piece.bytes);
  };
  exchange.read = [&](size_t step, uint64_t half) {
    if (!wanted) return;
    copy_others(step, [&](int index, Piece piece) {
      std::memcpy(data + step * Segment::kHalf + piece.begin, lane.memory(index, half) + piece.begin,
                  piece.bytes);
    });
  };
  lane.run(exchange, timeout);
}

// Reduces the `bytes` bytes that lie in `from` for each rank to `to` of that rank.
void reduce_scatter_within(Lane& lane, const Reduced& how, char* to, const char* from, size_t bytes,
                           milliseconds timeout) {
  const int own = lane.index(), count = lane.count();
  const size_t most = Segment::kHalf / static_cast<size_t>(count) / kCacheLine * kCacheLine;
  const auto size = [&](size_t step) { return std::min(most, bytes - step * most); };
  const auto input = [&](size_t step, int index) {
    return from + static_cast<size_t>(index) * bytes + step * most;
  };
  const auto place = [&](int index, int target, uint64_t half) {
    return lane.memory(index, half) + static_cast<size_t>(target) * most;
  };
  Exchange exchange{how.signature, steps_of(bytes, most), {}, {}, {}};
  exchange.write = [&](size_t step, uint64_t half) {
    for (int index = 0; index < count; ++index)
      if (index != own) std::memcpy(place(own, index, half), input(step, index), size(step));
  };
  exchange.reduce = [&](size_t step, uint64_t half) {
    std::vector<const void*> sources;
    for (int index = 0; index < count; ++index)
      sources.push_back(index == own ? input(step, own) : place(index, own, half));
    how.reduction(to + step * most, sources.data(), count, size(step) / how.element);
  };
  lane.run(exchange, timeout);
}

void all_gather_within(Lane& lane, char* to, const char* from, size_t bytes, milliseconds timeout) {
  const int own = lane.index();
  const auto size = [&](size_t step) { return std::min(Segment::kHalf, bytes - step * Segment::kHalf); };
  Exchange exchange{
      signature_of(OpType::_ALLGATHER_BASE, bytes), steps_of(bytes, Segment::kHalf), {}, {}, {}};
  exchange.write = [&](size_t step, uint64_t half) {
    std::memcpy(lane.memory(own, half), from + step * Segment::kHalf, size(step));
  };
  exchange.read = [&](size_t step, uint64_t half) {
    for (int index = 0; index < lane.count(); ++index)
      std::memcpy(to + static_cast<size_t>(index) * bytes + step * Segment::kHalf, lane.memory(index, half),
                  size(step));
  };
  lane.run(exchange, timeout);
}

void broadcast_within(Lane& lane, int root, char* data, size_t bytes, milliseconds timeout) {
  const auto size = [&](size_t step) { return std::min(Segment::kHalf, bytes - step * Segment::kHalf); };
  Exchange exchange{
      signature_of(OpType::BROADCAST, bytes, root), steps_of(bytes, Segment::kHalf), {}, {}, {}};
  exchange.write = [&](size_t step, uint64_t half) {
    if (lane.index() == root) std::memcpy(lane.memory(root, half), data + step * Segment::kHalf, size(step));
  };
  exchange.read = [&](size_t step, uint64_t half) {
    if (lane.index() != root) std::memcpy(data + step * Segment::kHalf, lane.memory(root, half), size(step));
  };
  lane.run(exchange, timeout);
}

void meet_within(Lane& lane, milliseconds timeout) {
  Exchange exchange{signature_of(OpType::BARRIER, 0), 1, {}, {}, {}};
  exchange.read = [](size_t, uint64_t) {};
  lane.run(exchange, timeout);
}

char* bytes_at(const at::Tensor& tensor) {
  return static_cast<char*>(tensor.data_ptr());
}

Reduced reduced(OpType type, const at::Tensor& tensor, const c10d::ReduceOp& op, int root = 0) {
  return {host_reduction(tensor.scalar_type(), op), static_cast<size_t>(tensor.element_size()),
          signature_of(type, tensor.nbytes(), root, tensor.scalar_type(), op.op_)};
}

int find_host(const std::vector<std::vector<int>>& hosts, int rank) {
  for (size_t host = 0; host < hosts.size(); ++host)
    if (std::find(hosts[host].begin(), hosts[host].end(), rank) != hosts[host].end())
      return static_cast<int>(host);
  TORCH_CHECK(false, "rank ", rank, " is on no host");
}

}  // namespace

SharedMemory::SharedMemory(c10::intrusive_ptr<c10d::Backend> gloo, std::shared_ptr<Segment> segment,
                           std::vector<std::vector<int>> hosts, c10::intrusive_ptr<c10d::Backend> between)
    : Backend(gloo->getRank(), gloo->getSize()),
      gloo_(std::move(gloo)),
      between_(std::move(between)),
      hosts_(std::move(hosts)),
      host_(find_host(hosts_, rank_)) {
  const std::vector<int>& own = hosts_[static_cast<size_t>(host_)];
  for (int lane = 0; lane < segment->lanes(); ++lane)
    lanes_.push_back(std::make_shared<Lane>(segment, lane, index_of(rank_), own));
}

SharedMemory::~SharedMemory() {
  for (const auto& lane : lanes_) lane->stop();
}

void SharedMemory::setTimeout(milliseconds timeout) {
  if (between_) between_->setTimeout(timeout);  // that of gloo_ is the caller's
}

bool SharedMemory::takes(OpType type) const {
  return hosts_.size() == 1 || type == OpType::ALLREDUCE || type == OpType::BROADCAST ||
         type == OpType::BARRIER;
}

bool SharedMemory::takes(OpType type, c10::ScalarType dtype, const c10d::ReduceOp& op) const {
  return takes(type) && host_reduction(dtype, op);
}

int SharedMemory::index_of(int rank) const {
  const std::vector<int>& ranks = hosts_[static_cast<size_t>(find_host(hosts_, rank))];
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

milliseconds SharedMemory::limit(milliseconds timeout) const {
  return timeout == c10d::kUnsetTimeout ? gloo_->getBackendOptions()->timeout : timeout;
}

// Collectives take the lanes in turns, and so go on side by side.
SharedMemory::WorkPtr SharedMemory::run(OpType type, milliseconds timeout, Step step) {
  auto work = c10::make_intrusive<LaneWork>(rank_, type);
  const std::shared_ptr<Lane>& lane = lanes_[next_lane_++ % lanes_.size()];
  lane->post([lane, work, step = std::move(step), timeout] {
    work->complete_by(*lane, [&] { step(*lane, timeout); });
  });
  return work;
}

// `up` runs in the first lane, then `across` begins on the hosts' first ranks, and `down` follows it in the
// second lane. So the three overlap with those of other collectives, and gloo sees all in their order.
SharedMemory::WorkPtr SharedMemory::run_between(OpType type, milliseconds timeout, Step up,
                                                std::function<WorkPtr()> across, Step down) {
  auto work = c10::make_intrusive<LaneWork>(rank_, type);
  lanes_[0]->post([=, first = lanes_[0], second = lanes_[1], between = between_] {
    WorkPtr crossing;
    try {
      up(*first, timeout);
      if (between) crossing = across();
    } catch (...) {
      return work->complete_by(*first, [error = std::current_exception()] { std::rethrow_exception(error); });
    }
    second->post([=] {
      work->complete_by(*second, [&] {
        if (crossing) crossing->wait();
        down(*second, timeout);
      });
    });
  });
  return work;
}

SharedMemory::WorkPtr SharedMemory::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const at::Tensor tensor = tensors[0];
  const Reduced how = reduced(OpType::ALLREDUCE, tensor, options.reduceOp);
  const auto within = [=](bool wanted) {
    return [=](Lane& lane, milliseconds timeout) {
      reduce_within(lane, how, bytes_at(tensor), tensor.nbytes(), wanted, timeout);
    };
  };
  if (hosts_.size() == 1) return run(OpType::ALLREDUCE, limit(options.timeout), within(true));
  return run_between(
      OpType::ALLREDUCE, limit(options.timeout), within(between_.defined()),
      [tensor, options, between = between_] {
        Tensors own{tensor};
        return between->allreduce(own, options);
      },
      [tensor](Lane& lane, milliseconds timeout) {
        broadcast_within(lane, 0, bytes_at(tensor), tensor.nbytes(), timeout);
      });
}

SharedMemory::WorkPtr SharedMemory::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const int root = static_cast<int>(options.rootRank);
  return run(OpType::REDUCE, limit(options.timeout),
             [tensor = tensors[0], how = reduced(OpType::REDUCE, tensors[0], options.reduceOp, root),
              wanted = root == rank_](Lane& lane, milliseconds timeout) {
               reduce_within(lane, how, bytes_at(tensor), tensor.nbytes(), wanted, timeout);
             });
}

SharedMemory::WorkPtr SharedMemory::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                         const c10d::ReduceScatterOptions& options) {
  return run(OpType::_REDUCE_SCATTER_BASE, limit(options.timeout),
             [output, input, how = reduced(OpType::_REDUCE_SCATTER_BASE, output, options.reduceOp)](
                 Lane& lane, milliseconds timeout) {
               reduce_scatter_within(lane, how, bytes_at(output), bytes_at(input), output.nbytes(), timeout);
             });
}

SharedMemory::WorkPtr SharedMemory::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                    const c10d::AllgatherOptions& options) {
  return run(OpType::_ALLGATHER_BASE, limit(options.timeout),
             [output, input](Lane& lane, milliseconds timeout) {
               all_gather_within(lane, bytes_at(output), bytes_at(input), input.nbytes(), timeout);
             });
}

SharedMemory::WorkPtr SharedMemory::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const int root = static_cast<int>(options.rootRank), from = find_host(hosts_, root);
  const auto within = [tensor = tensors[0]](int index) {
    return [=](Lane& lane, milliseconds timeout) {
      broadcast_within(lane, index, bytes_at(tensor), tensor.nbytes(), timeout);
    };
  };
  const Step nothing = [](Lane&, milliseconds) {}, own = within(index_of(root));
  if (hosts_.size() == 1) return run(OpType::BROADCAST, limit(options.timeout), own);
  const auto across = [tensor = tensors[0], options, from, between = between_] {
    Tensors one{tensor};
    c10d::BroadcastOptions between_hosts = options;
    between_hosts.rootRank = from;
    return between->broadcast(one, between_hosts);
  };
  return from == host_ ? run_between(OpType::BROADCAST, limit(options.timeout), own, across, nothing)
                       : run_between(OpType::BROADCAST, limit(options.timeout), nothing, across, within(0));
}

SharedMemory::WorkPtr SharedMemory::barrier(const c10d::BarrierOptions& options) {
  if (hosts_.size() == 1) return run(OpType::BARRIER, limit(options.timeout), meet_within);
  return run_between(
      OpType::BARRIER, limit(options.timeout), meet_within,
      [options, between = between_] { return between->barrier(options); }, meet_within);
}

}  // namespace dlb::distributed
