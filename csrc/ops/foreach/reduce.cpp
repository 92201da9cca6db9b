// _foreach_norm, _foreach_powsum and _foreach_max: one number for each tensor, from two launches for all of
// them.
#include <ATen/ops/_foreach_max_native.h>
#include <ATen/ops/_foreach_norm_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/zeros.h>
#if __has_include(<ATen/ops/_foreach_powsum_native.h>)
#include <ATen/ops/_foreach_powsum_native.h>
#define DLB_HAS_POWSUM 1
#endif

#include <cmath>
#include <string>
#include <tuple>

#include "ops/foreach/foreach.h"
#include "runtime/fetch_kernel.h"

namespace dlb {
namespace {

using codegen::DType;

enum class Mode : uint8_t {
  SumAbs = 1,
  SumSquares = 2,
  MaxAbs = 3,
  Max = 4
};  // DLB_MODE of foreach_reduce.cl

struct Reduction {
  Mode mode;
  bool root;
};

// The build options of foreach_reduce.cl.
std::string options_of(Reduction reduction) {
  return "-DDLB_MODE=" + std::to_string(static_cast<int>(reduction.mode)) +
         (reduction.root ? " -DDLB_ROOT" : "");
}

// Enqueues both passes; results[i] gets the number of tensors[i]. Tensors without elements are left alone.
void reduce(const char* op, TensorList tensors, TensorList results, Reduction reduction) {
  const DType in = dtype_of(tensors[0].scalar_type(), op), out = dtype_of(results[0].scalar_type(), op);
  const DType compute = codegen::compute_type(out);
  Stream& stream = current_stream(tensors[0].device().index());
  cl::Device& device = stream.device();
  for (DType type : {in, out}) check_device_supports(device, type, op);
  const std::string options = options_of(reduction);
  const auto kernel = [&](const char* name) -> cl::Kernel& {
    return fetch_kernel(device, "foreach/foreach_reduce.cl", name, compute, {in, out}, options);
  };
  cl::Kernel &partials_kernel = kernel("dlb_foreach_partials"),
             &results_kernel = kernel("dlb_foreach_results");
  const bool cpu = device.cls == cl::DeviceClass::kCpu;
  TensorLists lists;
  lists.lists.push_back({tensors, false, false});
  lists.lists.push_back({results, true, true});
  for_each_table(lists, stream, {}, 0, [&](TableLaunch& table) {
    const uint64_t items = (table.params.total + table.params.per_item - 1) / table.params.per_item;
    const uint64_t partials = items + (cpu ? table.params.tensors : 0);
    const c10::DataPtr scratch =
        allocate_bytes(partials * codegen::size_of(compute), tensors[0].device().index());
    const MemRef at = resolve(scratch, scratch.get());
    TORCH_INTERNAL_ASSERT(at.offset % codegen::size_of(compute) == 0);
    auto fill = [&](cl::Kernel::Arguments& arguments) {
      table.add_to(arguments);
      arguments.add(at.mem);
      arguments.add(static_cast<int64_t>(at.offset / codegen::size_of(compute)));
    };
    const size_t local = cpu ? 1 : codegen::kMultiGroup;
    partials_kernel.launch_with(stream.queue(), cl::Range::linear(items, local), fill);
    results_kernel.launch_with(stream.queue(), cl::Range::linear(table.params.tensors, local), fill);
  });
}

// Makes a 0-dim result for each tensor, all in one zeroed buffer. They are not views to autograd, which would
// tie them together.
Tensors make_results(TensorList tensors, c10::ScalarType type) {
  const at::Tensor buffer = at::zeros({static_cast<int64_t>(tensors.size())},
                                      tensors[0].options().dtype(type).requires_grad(false));
  Tensors results;
  results.reserve(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i)
    results.push_back(at::native::as_strided_tensorimpl(buffer, {}, {}, static_cast<int64_t>(i)));
  return results;
}

bool has_empty(TensorList tensors) {
  for (const at::Tensor& t : tensors)
    if (t.numel() == 0) return true;
  return false;
}

bool one_device_dtype(TensorList tensors) {
  return tensors[0].device().type() == kDeviceType && at::native::can_use_fast_route({tensors});
}

// The mode for a norm of that order, or nothing when the order or the lists call for the slow route.
std::optional<Mode> norm_mode(TensorList self, const c10::Scalar& ord, std::optional<c10::ScalarType> dtype) {
  at::native::check_foreach_api_restrictions(self);
  const c10::ScalarType type = dtype.value_or(self[0].scalar_type());
  if (ord.isComplex() || !one_device_dtype(self) || !at::isFloatingType(self[0].scalar_type()) ||
      isFloat8Type(self[0].scalar_type()) || !at::isFloatingType(type) || isFloat8Type(type) ||
      c10::promoteTypes(type, self[0].scalar_type()) != type)
    return std::nullopt;
  const double p = ord.toDouble();
  if (p == 1) return Mode::SumAbs;
  if (p == 2) return Mode::SumSquares;
  if (p == INFINITY && !has_empty(self)) return Mode::MaxAbs;
  return std::nullopt;
}

Tensors norms(const char* op, TensorList self, std::optional<c10::ScalarType> dtype, Reduction reduction) {
  const c10::DeviceGuard guard(self[0].device());
  Tensors results = make_results(self, dtype.value_or(self[0].scalar_type()));
  reduce(op, self, results, reduction);
  return results;
}

Tensors foreach_norm(TensorList self, const c10::Scalar& ord, std::optional<c10::ScalarType> dtype) {
  const auto mode = norm_mode(self, ord, dtype);
  if (!mode) return at::native::foreach_tensor_norm_slow(self, ord, dtype);
  return norms("_foreach_norm", self, dtype, {*mode, *mode == Mode::SumSquares});
}

#ifdef DLB_HAS_POWSUM
Tensors foreach_powsum(TensorList self, const c10::Scalar& ord, std::optional<c10::ScalarType> dtype) {
  const auto mode = norm_mode(self, ord, dtype);
  if (!mode || *mode == Mode::MaxAbs) return at::native::foreach_tensor_powsum_slow(self, ord, dtype);
  return norms("_foreach_powsum", self, dtype, {*mode, false});
}
#endif

Tensors foreach_max(TensorList self) {
  at::native::check_foreach_api_restrictions(self);
  const c10::ScalarType type = self[0].scalar_type();
  const bool ordered = (at::isFloatingType(type) && !isFloat8Type(type)) || at::isIntegralType(type, false);
  if (!ordered || !one_device_dtype(self) || has_empty(self))
    return at::native::foreach_tensor_max_slow(self);
  return norms("_foreach_max", self, std::nullopt, {Mode::Max, false});
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_foreach_norm.Scalar", foreach_norm);
  m.impl("_foreach_max", foreach_max);
#ifdef DLB_HAS_POWSUM
  m.impl("_foreach_powsum.Scalar", foreach_powsum);
#endif
}

}  // namespace dlb
