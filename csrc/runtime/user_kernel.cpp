// Checks and launches of users' kernels.
#include "runtime/user_kernel.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <optional>

#include "runtime/tensor.h"

namespace dlb {
namespace {

// The most work-items that are put into a work-group when the caller gives no size.
constexpr size_t kChosenGroupCpu = 64, kChosenGroupGpu = 256;

std::string text_of(const std::array<size_t, 3>& sizes, cl_uint dims) {
  std::string text = "(" + std::to_string(sizes[0]);
  for (cl_uint d = 1; d < dims; ++d) text += ", " + std::to_string(sizes[d]);
  return text + (dims == 1 ? ",)" : ")");
}

size_t product(const std::array<size_t, 3>& sizes) {
  return sizes[0] * sizes[1] * sizes[2];
}

bool has_zero(const std::array<size_t, 3>& sizes) {
  return std::find(sizes.begin(), sizes.end(), size_t{0}) != sizes.end();
}

std::string dtypes_of(const UserKernel::Parameter& parameter) {
  std::string text;
  for (int8_t type = 0; type < static_cast<int8_t>(c10::ScalarType::NumOptions); ++type)
    if (parameter.dtypes >> type & 1)
      text += (text.empty() ? "" : " or ") + std::string(c10::toString(static_cast<c10::ScalarType>(type)));
  return text;
}

}  // namespace

UserKernel::UserKernel(cl::Device& device, const std::string& source, const std::string& options,
                       const std::string& name, std::vector<Parameter> parameters)
    : facts_(cl::kernel_facts(device, source, options, name)), parameters_(std::move(parameters)) {
  size_t expected = 0;
  for (const Parameter& parameter : parameters_) expected += parameter.kind == Kind::kBuffer ? 2 : 1;
  TORCH_CHECK_VALUE(
      facts_.arguments == expected, name,
      ": the compiler sees other arguments of this kernel than its text shows, which may be because a "
      "condition (#if) asks for a macro of the driver's own");
  reports_ = !parameters_.empty() && parameters_.back().name == "dlb_errors" &&
             parameters_.back().kind == Kind::kBuffer;
  if (reports_) parameters_.pop_back();
}

void UserKernel::set_tensor(Argument& argument, const at::Tensor& tensor, const Parameter& parameter) const {
  const auto index = static_cast<c10::DeviceIndex>(device().index);
  TORCH_CHECK(tensor.device().type() == kDeviceType && tensor.device().index() == index,
              "Expected all tensors to be on the same device, but found at least two devices, ",
              c10::Device(kDeviceType, index), " (kernel ", name(), ") and ", tensor.device(), " (argument '",
              parameter.name, "')!");
  TORCH_CHECK(!parameter.dtypes || parameter.dtypes >> static_cast<int>(tensor.scalar_type()) & 1, name(),
              ": expected scalar type ", dtypes_of(parameter), " but found ", tensor.scalar_type(),
              " for argument '", parameter.name, "' (", parameter.type, ")");
  TORCH_CHECK(tensor.layout() == at::kStrided && !tensor.is_conj() && !tensor.is_neg(), name(),
              ": argument '", parameter.name,
              "' must be strided and no lazy view: use to_dense(), resolve_conj(), resolve_neg()");
  if (parameter.written && !tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
  argument.mem = nullptr, argument.offset = 0;
  if (tensor.numel() == 0) return;
  const MemRef memory = mem_of(tensor);
  argument.mem = memory.mem, argument.offset = memory.offset;
}

void UserKernel::check_group(const Sizes& sizes) const {
  const auto& local = sizes.local;
  const auto group = [&] { return "work-groups of " + text_of(local, sizes.dims); };
  TORCH_CHECK_VALUE(!has_zero(local), name(), ": ", group(), ", but each size must be above 0");
  TORCH_CHECK_VALUE(facts_.required_group[0] == 0 || local == facts_.required_group, name(), ": ", group(),
                    ", but the kernel's attribute reqd_work_group_size asks for ",
                    text_of(facts_.required_group, 3));
  for (size_t d = 0; d < 3; ++d) {
    TORCH_CHECK_VALUE(sizes.global[d] % local[d] == 0, name(), ": the global size ",
                      text_of(sizes.global, sizes.dims), " is no multiple of the local size ",
                      text_of(local, 3), ": round it up, and let the kernel leave out what is too much");
    TORCH_CHECK_VALUE(local[d] <= facts_.max_items[d], name(), ": ", group(), ", but ", device().name,
                      " takes at most ", text_of(facts_.max_items, 3));
  }
  TORCH_CHECK_VALUE(product(local) <= facts_.max_group, name(), ": ", group(), " have ", product(local),
                    " work-items, but this kernel takes at most ", facts_.max_group, " on ", device().name);
}

void UserKernel::check_local_memory(std::span<const Argument> arguments) const {
  const uint64_t has = device().local_mem;
  uint64_t left = has - std::min(has, facts_.local_bytes);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].kind != Kind::kLocal) continue;
    TORCH_CHECK_VALUE(arguments[i].size <= left, name(), ": ", arguments[i].size,
                      " bytes of local memory for argument '", parameters_[i].name, "', but ", device().name,
                      " has ", has, ", of which other variables take ", has - left);
    left -= arguments[i].size;
  }
}

// Powers of two, so that a driver which compiles machine code for each size of work-groups (PoCL) does that
// for few.
std::array<size_t, 3> UserKernel::chosen_group(const Sizes& sizes) const {
  if (facts_.required_group[0] != 0) return facts_.required_group;
  std::array<size_t, 3> local{1, 1, 1};
  const size_t most = device().cls == cl::DeviceClass::kCpu ? kChosenGroupCpu : kChosenGroupGpu;
  size_t left = std::bit_floor(std::min(most, facts_.max_group));
  for (cl_uint d = 0; d < sizes.dims; ++d) {
    const size_t divisor = size_t{1} << std::countr_zero(sizes.global[d]);
    local[d] = std::min({left, divisor, std::bit_floor(facts_.max_items[d])});
    left /= local[d];
  }
  return local;
}

void UserKernel::launch(Stream& stream, const Sizes& sizes, std::span<const Argument> arguments) {
  check_local_memory(arguments);
  if (has_zero(sizes.global)) return;
  cl::Range range{sizes.dims};
  Sizes whole = sizes;
  if (!sizes.has_local) whole.local = chosen_group(sizes);
  check_group(whole);
  std::copy_n(whole.global.begin(), 3, range.global);
  std::copy_n(whole.local.begin(), 3, range.local);
  std::optional<ErrorBuffer> errors;
  if (reports_) errors.emplace(stream);
  facts_.kernel.launch_with(stream.queue(), range, [&](cl::Kernel::Arguments& list) {
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const Argument& argument = arguments[i];
      switch (parameters_[i].kind) {
        case Kind::kBuffer:
          list.add_bytes(&argument.mem, sizeof(void*));  // whose device set_tensor() has looked at
          list.add(argument.offset);
          break;
        case Kind::kLocal:
          list.add(cl::Local{argument.size});
          break;
        case Kind::kValue:
          list.add_bytes(argument.value, argument.size);
      }
    }
    if (errors) {
      const cl_mem words = errors->mem();
      list.add_bytes(&words, sizeof(void*));
      list.add(uint64_t{0});
    }
  });
}

}  // namespace dlb
