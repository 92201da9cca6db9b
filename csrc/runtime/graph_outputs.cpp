// Storages over a graph's memory that give way to the next replay.
#include "runtime/graph_outputs.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <cstring>

#include "runtime/allocator.h"
#include "runtime/stream.h"

namespace dlb {
namespace {

// A storage of its own over the memory of another, which it keeps.
c10::Storage alias_of(const c10::Storage& storage) {
  auto* kept = new c10::Storage(storage);
  const auto release = [](void* context) { delete static_cast<c10::Storage*>(context); };
  c10::DataPtr data(storage.mutable_data(), kept, release, storage.device());
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), storage.nbytes(), std::move(data), nullptr, /*resizable=*/false));
}

// Gives a storage memory of its own, with what it holds.
void move_out(c10::StorageImpl& storage) {
  const size_t bytes = storage.nbytes();
  if (bytes == 0) return;
  if (storage.device().is_cpu()) {
    c10::DataPtr fresh = c10::GetCPUAllocator()->allocate(bytes);
    std::memcpy(fresh.get(), storage.data(), bytes);
    storage.set_data_ptr_noswap(std::move(fresh));
    return;
  }
  const c10::DeviceGuard guard(storage.device());
  c10::DataPtr fresh = allocate_bytes(bytes, storage.device().index());
  allocator()->copy_data(fresh.get(), storage.data(), bytes);
  storage.set_data_ptr_noswap(std::move(fresh));
}

}  // namespace

GraphOutputs::GraphOutputs(const std::vector<at::Tensor>& captured) {
  for (const at::Tensor& tensor : captured) {
    const auto same = [&](const Memory& memory) { return memory.captured.is_alias_of(tensor.storage()); };
    const auto found = std::find_if(memory_.begin(), memory_.end(), same);
    outputs_.push_back({tensor.detach(), static_cast<size_t>(found - memory_.begin())});
    if (found == memory_.end()) memory_.push_back({tensor.storage(), std::nullopt});
  }
}

std::vector<at::Tensor> GraphOutputs::renew() {
  std::vector<c10::Storage> fresh;
  fresh.reserve(memory_.size());
  for (Memory& memory : memory_) {
    if (const auto given = memory.given ? memory.given->lock() : nullptr) move_out(*given);
    fresh.push_back(alias_of(memory.captured));
    memory.given = fresh.back().getWeakStorageImpl();
  }
  std::vector<at::Tensor> given;
  given.reserve(outputs_.size());
  for (const Output& output : outputs_) {
    const at::Tensor& captured = output.captured;
    at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(fresh[output.memory]),
                                                                 captured.key_set(), captured.dtype());
    tensor.unsafeGetTensorImpl()->set_storage_offset(captured.storage_offset());
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(captured.sizes(), captured.strides());
    given.push_back(std::move(tensor));
  }
  return given;
}

}  // namespace dlb
