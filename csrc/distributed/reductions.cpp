// Collectives that compute: all_reduce, reduce, reduce_scatter.
#include <torch/library.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "distributed/backend.h"

namespace dlb::distributed {
namespace {

using c10d::ReduceOp;
using Adjust = std::function<void(std::vector<at::Tensor>& hosts)>;

// Averages are sums here, divided by the number of ranks afterwards, since gloo averages only in newer
// versions. A sum of bools is made true or false again: kernels rely on it.
template <class Options>
Adjust take_average(Options& options, c10::ScalarType dtype, int size) {
  if (options.reduceOp == ReduceOp::AVG) {
    options.reduceOp = ReduceOp::SUM;
    return [size](std::vector<at::Tensor>& hosts) { hosts[0].div_(size); };
  }
  if (dtype == at::kBool && options.reduceOp == ReduceOp::SUM)
    return [](std::vector<at::Tensor>& hosts) { hosts[0].copy_(hosts[0].view(at::kByte).ne(0)); };
  return {};
}

}  // namespace

// A sparse tensor goes whole and on the caller's time: its size depends on data.
OclGloo::WorkPtr OclGloo::reduce_sparse(at::Tensor& tensor, const c10d::AllreduceOptions& options) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  at::Tensor host = tensor.to(at::kCPU).coalesce();
  JobBuilder job({}, {});
  job.add({{},
           [gloo = gloo_, host, options](Tensors&) {
             Tensors hosts{host};
             return gloo->allreduce(hosts, options);
           },
           {}});
  job.submit(*pipeline_, c10d::OpType::_ALLREDUCE_SPARSE, "oclgloo:sparse_all_reduce", label())->wait();
  tensor.copy_(host);
  JobBuilder done({}, {tensor});
  done.add({});
  return done.submit(*pipeline_, c10d::OpType::_ALLREDUCE_SPARSE, "oclgloo:sparse_all_reduce", label());
}

OclGloo::WorkPtr OclGloo::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const Checks checks("allreduce");
  if (tensors.size() == 1 && tensors[0].layout() == at::kSparse) return reduce_sparse(tensors[0], options);
  checks.alike(tensors);
  checks.same_sizes(tensors);
  checks.that(tensors.size() == 1, "takes one tensor of each process");
  const c10d::AllreduceCoalescedOptions coalesced{options};
  return allreduce_coalesced(tensors, coalesced);
}

OclGloo::WorkPtr OclGloo::allreduce_coalesced(Tensors& tensors,
                                              const c10d::AllreduceCoalescedOptions& options) {
  Checks("allreduce_coalesced").alike(tensors);
  const c10::ScalarType dtype = tensors[0].scalar_type();
  c10d::AllreduceOptions sum = options;
  Adjust adjust = take_average(sum, dtype, size_);
  JobBuilder job(tensors, tensors);
  const Operand whole{job.regions(tensors, Access::kReadWrite), Access::kReadWrite, dtype};
  const auto host = reducer(c10d::OpType::ALLREDUCE, dtype, sum.reduceOp);
  job.add_chunked(
      whole, [host, sum](Tensors& hosts) { return host->allreduce(hosts, sum); }, adjust);
  const bool several = tensors.size() > 1;
  return job.submit(*pipeline_, several ? c10d::OpType::ALLREDUCE_COALESCED : c10d::OpType::ALLREDUCE,
                    several ? "oclgloo:all_reduce_coalesced" : "oclgloo:all_reduce", label());
}

OclGloo::WorkPtr OclGloo::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const Checks checks("reduce");
  checks.alike(tensors);
  checks.that(tensors.size() == 1, "requires a single-element tensor list");
  checks.root(options.rootRank, size_);
  const c10::ScalarType dtype = tensors[0].scalar_type();
  c10d::ReduceOptions sum = options;
  Adjust adjust = take_average(sum, dtype, size_);
  const bool root = rank_ == options.rootRank;
  const Access access = root ? Access::kReadWrite : Access::kRead;
  JobBuilder job(tensors, root ? tensors : Tensors());
  const auto host = reducer(c10d::OpType::REDUCE, dtype, sum.reduceOp);
  const Operand whole{job.regions(tensors, access), access, dtype, !root && needs_scratch(host)};
  job.add_chunked(
      whole, [host, sum](Tensors& hosts) { return host->reduce(hosts, sum); }, adjust);
  return job.submit(*pipeline_, c10d::OpType::REDUCE, "oclgloo:reduce", label());
}

void OclGloo::add_reduce_scatter(JobBuilder& job, std::vector<Region> output, std::vector<Region> input,
                                 c10::ScalarType dtype, const c10d::ReduceScatterOptions& options) {
  c10d::ReduceScatterOptions sum = options;
  Adjust adjust = take_average(sum, dtype, size_);
  const Operand whole{std::move(output), Access::kWrite, dtype};
  const size_t bytes = whole.bytes();
  const auto host = reducer(c10d::OpType::_REDUCE_SCATTER_BASE, dtype, sum.reduceOp);
  const auto start = [host, sum](Tensors& hosts) {
    return host->_reduce_scatter_base(hosts[0], hosts[1], sum);
  };
  size_t at = 0;
  do {
    Operand to{slice(whole.regions, at, kChunk), Access::kWrite, dtype},
        from{slice_each(input, size_, bytes, at, std::min(kChunk, bytes - at)), Access::kRead, dtype,
             needs_scratch(host)};
    job.add({{std::move(to), std::move(from)}, start, adjust});
    at += kChunk;
  } while (at < bytes);
}

OclGloo::WorkPtr OclGloo::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                               const c10d::ReduceScatterOptions& options) {
  Tensors outputs{output}, inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

OclGloo::WorkPtr OclGloo::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                          const c10d::ReduceScatterOptions& options) {
  const Checks checks("reduce_scatter");
  checks.that(!outputs.empty() && inputs.size() == outputs.size(),
              "requires input/output tensor lists to have the same length");
  JobBuilder job(inputs, outputs);
  for (size_t i = 0; i < outputs.size(); ++i) {
    checks.alike({outputs[i], inputs[i]});
    checks.that(outputs[i].numel() * size_ == inputs[i].numel(),
                "the input must have as many elements as the outputs of all ranks together");
    checks.alike({outputs[0], outputs[i]});
    add_reduce_scatter(job, job.regions(outputs[i], Access::kWrite), job.regions(inputs[i], Access::kRead),
                       outputs[i].scalar_type(), options);
  }
  return job.submit(*pipeline_, c10d::OpType::_REDUCE_SCATTER_BASE, "oclgloo:reduce_scatter", label());
}

// One rank's share of a reduce_scatter of shares of several sizes.
void OclGloo::add_reduce_to(JobBuilder& job, int rank, std::vector<Region> output, const at::Tensor& input,
                            const c10d::ReduceScatterOptions& options) {
  const c10::ScalarType dtype = input.scalar_type();
  c10d::ReduceOptions sum{options.reduceOp, rank, 0, options.timeout};
  Adjust average = take_average(sum, dtype, size_);
  const auto host = reducer(c10d::OpType::REDUCE, dtype, sum.reduceOp);
  Part part;
  part.operands = {{std::move(output), Access::kWrite, dtype},
                   {regions_of(input), Access::kRead, dtype, true}};
  part.start = [host, sum](Tensors& hosts) {
    Tensors own{hosts[1]};
    return host->reduce(own, sum);
  };
  if (rank == rank_)
    part.adjust = [average](Tensors& hosts) {
      hosts[0].copy_(hosts[1]);
      if (average) average(hosts);
    };
  job.add(std::move(part));
}

OclGloo::WorkPtr OclGloo::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                         const c10d::ReduceScatterOptions& options) {
  const Checks checks("reduce_scatter");
  checks.that(outputs.size() == 1, "requires a single-element output tensor list");
  checks.that(inputs.size() == 1 && inputs[0].size() == static_cast<size_t>(size_),
              "requires a single-element input list with one tensor for each rank");
  checks.alike(inputs[0]);
  checks.alike({outputs[0], inputs[0][0]});
  checks.that(outputs[0].numel() == inputs[0][static_cast<size_t>(rank_)].numel(),
              "the output must have the size of the input for this rank");
  JobBuilder job(inputs[0], outputs);
  const c10::ScalarType dtype = outputs[0].scalar_type();
  const bool equal = std::all_of(inputs[0].begin(), inputs[0].end(), [&](const at::Tensor& tensor) {
    return tensor.numel() == inputs[0][0].numel();
  });
  const std::vector<Region> output = job.regions(outputs, Access::kWrite);
  if (equal) {
    add_reduce_scatter(job, output, job.regions(inputs[0], Access::kRead), dtype, options);
  } else {
    for (int rank = 0; rank < size_; ++rank)
      add_reduce_to(job, rank, rank == rank_ ? output : std::vector<Region>(),
                    job.contiguous(inputs[0][static_cast<size_t>(rank)], Access::kRead), options);
  }
  return job.submit(*pipeline_, c10d::OpType::REDUCE_SCATTER, "oclgloo:reduce_scatter", label());
}

namespace {

// PyTorch has this op for dense tensors of our device alone.
std::tuple<std::vector<at::Tensor>, c10::intrusive_ptr<c10d::Work>> allreduce_sparse(
    at::TensorList tensors, const c10::intrusive_ptr<c10d::ProcessGroup>& group,
    const c10::intrusive_ptr<ReduceOp>& op, const std::optional<at::Tensor>&, bool async, int64_t timeout) {
  std::vector<at::Tensor> own = tensors.vec();
  c10d::AllreduceOptions options;
  options.reduceOp = *op;
  options.timeout = std::chrono::milliseconds(timeout);
  options.asyncOp = async;
  auto work = group->getBackend(kDeviceType)->allreduce(own, options);
  return {std::move(own), std::move(work)};
}

TORCH_LIBRARY_IMPL(c10d, SparsePrivateUse1, m) {
  m.impl("allreduce_", allreduce_sparse);
}

}  // namespace
}  // namespace dlb::distributed
