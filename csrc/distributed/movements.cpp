// Collectives that only move data: they see bytes, so that every dtype travels.
#include <torch/csrc/distributed/c10d/Utils.hpp>

#include "distributed/backend.h"

namespace dlb::distributed {
namespace {

using Tensors = OclGloo::Tensors;

Operand bytes_of(std::vector<Region> regions, Access access) {
  return {std::move(regions), access, c10::ScalarType::Byte};
}

// The rows of equal size that one piece of host memory holds.
Tensors rows(const at::Tensor& flat, int count) {
  return flat.view({count, flat.numel() / count}).unbind(0);
}

// The bytes that each rank gets of a tensor whose first dimension is split.
std::vector<int64_t> bytes_of_splits(const std::vector<int64_t>& splits, const at::Tensor& tensor) {
  const int64_t length = tensor.dim() == 0 ? 1 : tensor.size(0);
  const int64_t row = length == 0 ? 0 : static_cast<int64_t>(tensor.nbytes()) / length;
  std::vector<int64_t> bytes;
  for (const int64_t split : splits) bytes.push_back(split * row);
  return bytes;
}

std::vector<int64_t> bytes_of_each(const Tensors& tensors) {
  std::vector<int64_t> bytes;
  for (const at::Tensor& tensor : tensors) bytes.push_back(static_cast<int64_t>(tensor.nbytes()));
  return bytes;
}

}  // namespace

OclGloo::WorkPtr OclGloo::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const Checks checks("broadcast");
  checks.alike(tensors);
  checks.that(tensors.size() == 1, "takes one tensor of each process");
  checks.root(options.rootRank, size_);
  checks.that(options.rootTensor == 0, "invalid root tensor: " + std::to_string(options.rootTensor));
  const Access access = rank_ == options.rootRank ? Access::kRead : Access::kWrite;
  JobBuilder job(tensors, tensors);
  job.add_chunked(bytes_of(job.regions(tensors, access), access),
                  [host = mover(c10d::OpType::BROADCAST), options](Tensors& hosts) {
                    return host->broadcast(hosts, options);
                  });
  return job.submit(*pipeline_, c10d::OpType::BROADCAST, "oclgloo:broadcast", label());
}

void OclGloo::add_allgather(JobBuilder& job, std::vector<Region> output, std::vector<Region> input,
                            const c10d::AllgatherOptions& options) {
  const Operand whole = bytes_of(std::move(input), Access::kRead);
  const size_t bytes = whole.bytes();
  const auto start = [host = mover(c10d::OpType::_ALLGATHER_BASE), options](Tensors& hosts) {
    return host->_allgather_base(hosts[0], hosts[1], options);
  };
  size_t at = 0;
  do {
    Operand to = bytes_of(slice_each(output, size_, bytes, at, std::min(kChunk, bytes - at)), Access::kWrite),
            from = bytes_of(slice(whole.regions, at, kChunk), Access::kRead);
    job.add({{std::move(to), std::move(from)}, start, {}});
    at += kChunk;
  } while (at < bytes);
}

OclGloo::WorkPtr OclGloo::_allgather_base(at::Tensor& output, at::Tensor& input,
                                          const c10d::AllgatherOptions& options) {
  Tensors outputs{output}, inputs{input};
  return allgather_into_tensor_coalesced(outputs, inputs, options);
}

OclGloo::WorkPtr OclGloo::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                          const c10d::AllgatherOptions& options) {
  const Checks checks("allgather");
  checks.that(!inputs.empty() && inputs.size() == outputs.size(),
              "requires input/output tensor lists to have the same length");
  JobBuilder job(inputs, outputs);
  for (size_t i = 0; i < inputs.size(); ++i) {
    checks.alike({inputs[i], outputs[i]});
    checks.that(inputs[i].device() == inputs[0].device(), "tensors should be on the same device");
    checks.that(inputs[i].numel() * size_ == outputs[i].numel(),
                "the output must have as many elements as the inputs of all ranks together");
    // The output first: in-place gathers give the input as a part of it.
    std::vector<Region> to = job.regions({outputs[i]}, Access::kWrite);
    add_allgather(job, std::move(to), job.regions({inputs[i]}, Access::kRead), options);
  }
  return job.submit(*pipeline_, c10d::OpType::_ALLGATHER_BASE, "oclgloo:all_gather_into_tensor", label());
}

OclGloo::WorkPtr OclGloo::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                    const c10d::AllgatherOptions& options) {
  const Checks checks("allgather");
  checks.that(inputs.size() == 1, "requires a single-element input tensor list");
  checks.that(outputs.size() == 1 && outputs[0].size() == static_cast<size_t>(size_),
              "requires an output list with one tensor for each rank");
  Tensors all = inputs;
  all.insert(all.end(), outputs[0].begin(), outputs[0].end());
  checks.alike(all);
  checks.same_sizes(all);
  JobBuilder job(inputs, outputs[0]);
  std::vector<Region> to = job.regions(outputs[0], Access::kWrite);
  add_allgather(job, std::move(to), job.regions(inputs, Access::kRead), options);
  return job.submit(*pipeline_, c10d::OpType::ALLGATHER, "oclgloo:all_gather", label());
}

OclGloo::WorkPtr OclGloo::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& options) {
  const Checks checks("allgather_coalesced");
  checks.that(!inputs.empty(), "requires non-empty input tensor list");
  checks.that(outputs.size() == static_cast<size_t>(size_), "output lists should be equal to world size");
  Tensors all;
  for (const Tensors& of_rank : outputs) {
    checks.that(of_rank.size() == inputs.size(), "output lists must be as long as the input list");
    all.insert(all.end(), of_rank.begin(), of_rank.end());
  }
  JobBuilder job(inputs, all);
  for (size_t i = 0; i < inputs.size(); ++i) {
    Tensors alike{inputs[i]}, of_ranks;
    for (const Tensors& of_rank : outputs) of_ranks.push_back(of_rank[i]);
    alike.insert(alike.end(), of_ranks.begin(), of_ranks.end());
    checks.alike(alike);
    checks.same_sizes(alike);
    std::vector<Region> to = job.regions(of_ranks, Access::kWrite);
    add_allgather(job, std::move(to), job.regions({inputs[i]}, Access::kRead), options);
  }
  return job.submit(*pipeline_, c10d::OpType::ALLGATHER_COALESCED, "oclgloo:all_gather_coalesced", label());
}

// Checks the arguments of gather and scatter: `own` is every rank's one tensor. On the root `lists` holds one
// list with a tensor for each rank, which is returned; on the others it is empty.
OclGloo::Tensors OclGloo::list_of_root(const Checks& checks, int64_t root, const char* own_side,
                                       const Tensors& own, const std::string& side,
                                       const std::vector<Tensors>& lists) const {
  checks.root(root, size_);
  checks.that(own.size() == 1, std::string("requires a single-element ") + own_side + " tensor list");
  if (rank_ == root)
    checks.that(
        lists.size() == 1 && lists[0].size() == static_cast<size_t>(size_),
        "requires a single-element " + side + " list containing a list with one tensor for each rank");
  else
    checks.that(lists.empty(), "requires empty " + side + " on non-root");
  Tensors of_ranks = rank_ == root ? lists[0] : Tensors(), all = own;
  all.insert(all.end(), of_ranks.begin(), of_ranks.end());
  checks.alike(all);
  checks.same_sizes(all);
  return of_ranks;
}

OclGloo::WorkPtr OclGloo::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                 const c10d::GatherOptions& options) {
  const Tensors of_ranks =
      list_of_root(Checks("gather"), options.rootRank, "input", inputs, "output", outputs);
  JobBuilder job(inputs, of_ranks);
  Operand to = bytes_of(job.regions(of_ranks, Access::kWrite), Access::kWrite);
  Operand from = bytes_of(job.regions(inputs, Access::kRead), Access::kRead);
  job.add({{std::move(to), std::move(from)},
           [gloo = gloo_, options, root = rank_ == options.rootRank, size = size_](Tensors& hosts) {
             std::vector<Tensors> to;
             if (root) to.push_back(rows(hosts[0], size));
             Tensors from{hosts[1]};
             return gloo->gather(to, from, options);
           },
           {}});
  return job.submit(*pipeline_, c10d::OpType::GATHER, "oclgloo:gather", label());
}

OclGloo::WorkPtr OclGloo::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                  const c10d::ScatterOptions& options) {
  const Tensors of_ranks =
      list_of_root(Checks("scatter"), options.rootRank, "output", outputs, "input", inputs);
  JobBuilder job(of_ranks, outputs);
  Operand to = bytes_of(job.regions(outputs, Access::kWrite), Access::kWrite);
  Operand from = bytes_of(job.regions(of_ranks, Access::kRead), Access::kRead);
  job.add({{std::move(to), std::move(from)},
           [gloo = gloo_, options, root = rank_ == options.rootRank, size = size_](Tensors& hosts) {
             std::vector<Tensors> from;
             if (root) from.push_back(rows(hosts[1], size));
             Tensors to{hosts[0]};
             return gloo->scatter(to, from, options);
           },
           {}});
  return job.submit(*pipeline_, c10d::OpType::SCATTER, "oclgloo:scatter", label());
}

OclGloo::WorkPtr OclGloo::alltoall_base(at::Tensor& output, at::Tensor& input,
                                        std::vector<int64_t>& output_splits,
                                        std::vector<int64_t>& input_splits,
                                        const c10d::AllToAllOptions& options) {
  const Checks checks("alltoall_base");
  checks.alike({output, input});
  const bool equal = output_splits.empty() && input_splits.empty();
  if (equal) checks.that(output.numel() == input.numel(), "the output must be as large as the input");
  c10d::checkSplitSizes(input_splits, input, size_);
  c10d::checkSplitSizes(output_splits, output, size_);
  const auto split = [&](std::vector<int64_t>& splits, const at::Tensor& tensor) {
    if (splits.empty()) splits.assign(static_cast<size_t>(size_), tensor.size(0) / size_);
    return bytes_of_splits(splits, tensor);
  };
  std::vector<int64_t> to_bytes, from_bytes;
  if (!equal) {
    std::vector<int64_t> to_splits = output_splits, from_splits = input_splits;
    to_bytes = split(to_splits, output);
    from_bytes = split(from_splits, input);
  }
  JobBuilder job({input}, {output});
  Operand to = bytes_of(job.regions({output}, Access::kWrite), Access::kWrite);
  Operand from = bytes_of(job.regions({input}, Access::kRead), Access::kRead);
  job.add({{std::move(to), std::move(from)},
           [gloo = gloo_, options, to_bytes, from_bytes](Tensors& hosts) mutable {
             return gloo->alltoall_base(hosts[0], hosts[1], to_bytes, from_bytes, options);
           },
           {}});
  return job.submit(*pipeline_, c10d::OpType::ALLTOALL_BASE, "oclgloo:all_to_all", label());
}

OclGloo::WorkPtr OclGloo::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  const Checks checks("alltoall");
  for (const Tensors* list : {&inputs, &outputs})
    checks.that(list->size() == static_cast<size_t>(size_),
                "tensor lists must have one tensor for each rank");
  Tensors all = outputs;
  all.insert(all.end(), inputs.begin(), inputs.end());
  checks.alike(all);
  JobBuilder job(inputs, outputs);
  Operand to = bytes_of(job.regions(outputs, Access::kWrite), Access::kWrite);
  Operand from = bytes_of(job.regions(inputs, Access::kRead), Access::kRead);
  job.add({{std::move(to), std::move(from)},
           [gloo = gloo_, options, to_bytes = bytes_of_each(outputs),
            from_bytes = bytes_of_each(inputs)](Tensors& hosts) mutable {
             return gloo->alltoall_base(hosts[0], hosts[1], to_bytes, from_bytes, options);
           },
           {}});
  return job.submit(*pipeline_, c10d::OpType::ALLTOALL, "oclgloo:all_to_all", label());
}

}  // namespace dlb::distributed
