// Puts collectives together: checks of arguments, contiguous memory, parts.
#pragma once
#include <string>
#include <vector>

#include "distributed/pipeline.h"

namespace dlb::distributed {

// So many bytes of a tensor travel at once. All ranks must cut in the same way, whatever their devices are.
constexpr size_t kChunk = 8ull << 20;

// Raises what gloo raises for wrong arguments: RuntimeError "oclgloo::<op>: <message>".
class Checks {
 public:
  explicit Checks(const char* op) : op_(op) {}
  void that(bool right, const std::string& message) const;
  // Tensors of one dtype, all strided and on one device of ours.
  void alike(at::ArrayRef<at::Tensor> tensors) const;
  void same_sizes(at::ArrayRef<at::Tensor> tensors) const;
  void root(int64_t rank, int size) const;

 private:
  const char* op_;
};

class JobBuilder {
 public:
  // `all` is every tensor that takes part, on the device of the first.
  JobBuilder(std::vector<at::Tensor> inputs, std::vector<at::Tensor> outputs);

  // The tensor where it is contiguous, else a contiguous copy, which is copied back when it is written.
  at::Tensor contiguous(const at::Tensor& tensor, Access access);
  // All bytes of contiguous() of each.
  std::vector<Region> regions(at::ArrayRef<at::Tensor> tensors, Access access);

  void add(Part part) { job_->parts.push_back(std::move(part)); }

  // Adds parts of at most kChunk bytes, for element-wise collectives on one operand.
  void add_chunked(const Operand& whole,
                   const std::function<c10::intrusive_ptr<c10d::Work>(std::vector<at::Tensor>& hosts)>& start,
                   const std::function<void(std::vector<at::Tensor>& hosts)>& adjust = {});

  // Hands the job to the pipeline. `title` as in profiles: "oclgloo:all_reduce".
  c10::intrusive_ptr<c10d::Work> submit(Pipeline& pipeline, c10d::OpType type, const char* title,
                                        const Label& group);

 private:
  std::vector<at::Tensor> inputs_, outputs_;
  std::shared_ptr<Job> job_ = std::make_shared<Job>();
};

// "all_reduce of 8388608 bytes".
std::string describe(const char* title, at::ArrayRef<at::Tensor> tensors);

}  // namespace dlb::distributed
