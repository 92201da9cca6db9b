#include "solver/prepared.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>

namespace dlb::solver {

std::shared_ptr<PreparedWeights> PreparedWeights::of(const c10::Storage& storage) {
  return std::static_pointer_cast<PreparedWeights>(attached(
      storage.data_ptr(), [] { return std::shared_ptr<void>(std::make_shared<PreparedWeights>()); }));
}

PreparedWeights::Form* PreparedWeights::find(uint64_t form, int64_t offset, uint32_t version,
                                             Stream& stream) {
  // Forms of an older version are never asked for again.
  std::erase_if(forms_, [&](const Form& f) { return f.offset == offset && f.version != version; });
  const auto it = std::find_if(forms_.begin(), forms_.end(),
                               [&](const Form& f) { return f.form == form && f.offset == offset; });
  if (it == forms_.end()) return nullptr;
  std::rotate(it, it + 1, forms_.end());
  Form& found = forms_.back();
  if (found.stream != stream.id()) {
    if (!found.made->query()) found.made->block(stream);
    allocator()->recordStream(found.memory, stream.unwrap());
  }
  return &found;
}

PreparedWeights::Form PreparedWeights::allocate(uint64_t form, int64_t offset, uint32_t version,
                                                uint64_t bytes, Stream& stream) {
  return {form,        offset,
          version,     allocate_bytes(bytes, static_cast<c10::DeviceIndex>(stream.device().index)),
          stream.id(), nullptr};
}

void PreparedWeights::keep(Form made, Stream& stream) {
  made.made = Event::record_new(stream);
  if (forms_.size() == kMost) forms_.erase(forms_.begin());
  forms_.push_back(std::move(made));
}

StoredOperands with_prepared(const Problem& problem, const Solution& solution, const Operands& operands,
                             Stream& stream) {
  StoredOperands ready(operands, problem.op->operand_bytes());
  if (solution.prepared > 0) {
    const MemRef memory = operands.kept->get(
        solution.invoker->form(), operands.kept_offset, operands.kept_version, solution.prepared, stream,
        [&](const MemRef& to) { solution.invoker->prepare_any(stream, operands, to); });
    ready->prepared = {memory.mem, static_cast<int64_t>(memory.offset)};
  }
  return ready;
}

}  // namespace dlb::solver
