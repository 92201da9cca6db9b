// Kernels of reductions and scans by their key.
#include "primitives/reduce/reduce.h"
#include "runtime/kernel_cache.h"

namespace dlb {

using codegen::ReduceForm;
using codegen::ReduceKey;

namespace {

struct FormKey {
  ReduceKey key;
  ReduceForm form{};
  bool operator==(const FormKey&) const = default;
};

struct FormHash {
  size_t operator()(const FormKey& k) const noexcept {
    return std::hash<ReduceKey>{}(k.key) * 31 + static_cast<size_t>(k.form);
  }
};

}  // namespace

cl::Kernel& reduce_kernel(const ReduceKey& key, ReduceForm form, cl::Device& device) {
  return KernelCache<FormKey, FormHash>::get(device, {key, form}, [&]() -> cl::Kernel& {
    codegen::check_is_row(*key.op);
    return cl::get_kernel(device, codegen::reduce_source(key), "", codegen::name_of(form));
  });
}

}  // namespace dlb
