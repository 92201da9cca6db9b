// Checks, contiguous memory, parts.
#include "distributed/job_builder.h"

#include <ATen/MemoryOverlap.h>
#include <c10/core/DeviceGuard.h>

#include <cstring>

namespace dlb::distributed {

void Checks::that(bool right, const std::string& message) const {
  TORCH_CHECK(right, "oclgloo::", op_, ": ", message);
}

void Checks::alike(at::ArrayRef<at::Tensor> tensors) const {
  that(!tensors.empty(), "requires non-empty tensor list");
  for (const at::Tensor& tensor : tensors) {
    that(tensor.layout() == at::kStrided, "only supports dense tensors");
    TORCH_CHECK(tensor.device().type() == kDeviceType, "oclgloo::", op_, ": takes tensors on ocl, not on ",
                tensor.device(), ": a group made by init_process_group() takes both");
    that(tensor.device() == tensors[0].device(), "tensors should be on the same device");
    TORCH_CHECK(tensor.scalar_type() == tensors[0].scalar_type(), "oclgloo::", op_,
                ": invalid tensor type (expected ", tensors[0].scalar_type(), ", got ", tensor.scalar_type(),
                ")");
  }
}

void Checks::same_sizes(at::ArrayRef<at::Tensor> tensors) const {
  for (size_t i = 1; i < tensors.size(); ++i)
    TORCH_CHECK(tensors[i].sizes() == tensors[0].sizes(), "oclgloo::", op_, ": invalid tensor size at index ",
                i, " (expected ", tensors[0].sizes(), ", got ", tensors[i].sizes(), ")");
}

void Checks::root(int64_t rank, int size) const {
  that(rank >= 0 && rank < size, "invalid root rank: " + std::to_string(rank));
}

std::string describe(const char* title, at::ArrayRef<at::Tensor> tensors) {
  const char* colon = std::strchr(title, ':');
  std::string text = colon ? colon + 1 : title;
  if (tensors.empty()) return text;
  size_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += tensor.layout() == at::kStrided ? tensor.nbytes() : 0;
  return text + " of " + std::to_string(bytes) + " bytes";
}

JobBuilder::JobBuilder(std::vector<at::Tensor> inputs, std::vector<at::Tensor> outputs)
    : inputs_(std::move(inputs)), outputs_(std::move(outputs)) {
  if (!inputs_.empty())
    job_->device = inputs_[0].device().index();
  else if (!outputs_.empty())
    job_->device = outputs_[0].device().index();
}

at::Tensor JobBuilder::contiguous(const at::Tensor& tensor, Access access) {
  if (tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg()) return tensor;
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  if (writes(access)) at::assert_no_internal_overlap(tensor);
  at::Tensor flat = at::empty(tensor.sizes(), tensor.options().memory_format(at::MemoryFormat::Contiguous));
  if (reads(access)) flat.copy_(tensor);
  if (writes(access)) job_->copies.emplace_back(tensor, flat);
  return flat;
}

std::vector<Region> JobBuilder::regions(at::ArrayRef<at::Tensor> tensors, Access access) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& tensor : tensors) flat.push_back(contiguous(tensor, access));
  return regions_of(flat);
}

void JobBuilder::add_chunked(
    const Operand& whole,
    const std::function<c10::intrusive_ptr<c10d::Work>(std::vector<at::Tensor>& hosts)>& start,
    const std::function<void(std::vector<at::Tensor>& hosts)>& adjust) {
  const size_t bytes = whole.bytes();
  size_t at = 0;
  do {
    Operand chunk = whole;
    chunk.regions = slice(whole.regions, at, kChunk);
    add({{std::move(chunk)}, start, adjust});
    at += kChunk;
  } while (at < bytes);
}

c10::intrusive_ptr<c10d::Work> JobBuilder::submit(Pipeline& pipeline, c10d::OpType type, const char* title,
                                                  const Label& group) {
  std::optional<c10::Device> device;
  if (job_->device >= 0) {
    device.emplace(kDeviceType, job_->device);
    job_->start = Event::record_new(current_stream(job_->device));
  }
  Label label = group;
  label.op = describe(title, inputs_.empty() ? outputs_ : inputs_);
  auto work = c10::make_intrusive<CollectiveWork>(type, title, std::move(inputs_), std::move(outputs_),
                                                  device, std::move(label));
  job_->work = work;
  pipeline.submit(std::move(job_));
  return work;
}

}  // namespace dlb::distributed
