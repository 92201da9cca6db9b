// Kernels of reductions and scans by their key.
#include <array>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "cl/program_table.h"
#include "primitives/reduce/reduce.h"

namespace dlb {

using codegen::ReduceForm;
using codegen::ReduceKey;

cl::Kernel& reduce_kernel(const ReduceKey& key, ReduceForm form, cl::Device& device) {
  struct Slot {
    ReduceKey key;
    cl::Device* device = nullptr;
    ReduceForm form{};
    cl::Kernel* kernel = nullptr;
  };
  constexpr size_t kSlots = 256;
  thread_local auto slots = std::make_unique<std::array<Slot, kSlots>>();
  Slot& slot = (*slots)[(std::hash<ReduceKey>{}(key)*31 + static_cast<size_t>(form)) % kSlots];
  if (slot.device == &device && slot.form == form && slot.key == key) [[likely]]
    return *slot.kernel;
  // Behind the slots, one table of programs' sources per process: text is generated once per key.
  static std::mutex mutex;
  static auto* sources = new std::unordered_map<ReduceKey, std::unique_ptr<std::string>>;
  const std::string* source = nullptr;
  {
    std::lock_guard<std::mutex> lock(mutex);
    auto& text = (*sources)[key];
    codegen::check_is_row(*key.op);
    if (!text) text = std::make_unique<std::string>(codegen::reduce_source(key));
    source = text.get();
  }
  cl::Kernel& kernel = cl::get_kernel(device, *source, "", codegen::name_of(form));
  slot = {key, &device, form, &kernel};
  return kernel;
}

}  // namespace dlb
