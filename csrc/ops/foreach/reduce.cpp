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
#include <tuple>
#include <unordered_map>

#include "cl/embedded.h"
#include "cl/program_table.h"
#include "ops/foreach/foreach.h"

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

std::string source_of(const cl::Device& device, Reduction reduction, DType in, DType out, DType compute) {
  const DType types[] = {in, out};
  const bool floating = codegen::class_of(compute) == codegen::DClass::Float;
  // Two's complement: the lowest integer of a width is the sign bit alone; unsigned ones begin at 0.
  const std::string lowest = floating                      ? "-INFINITY"
                             : codegen::is_signed(compute) ? "((T)(1L << (8 * sizeof(T) - 1)))"
                                                           : "((T)0)";
  std::string s = codegen::prelude(compute, types, 2);
  s += device.cls == cl::DeviceClass::kCpu ? "#define DLB_CPU 1\n" : "#define DLB_GPU 1\n";
  s += "#define DLB_MODE " + std::to_string(static_cast<int>(reduction.mode)) + "\n#define DLB_LOWEST " +
       lowest + "\n";
  if (reduction.root) s += "#define DLB_ROOT 1\n";
  s += std::string("#define A_T ") + codegen::storage_name(in) + "\n#define B_T " +
       codegen::storage_name(out) + "\n#define LOAD_A(p, i) " + codegen::load_at(in, compute, "(p)", "(i)") +
       "\n#define STORE_B(p, i, v) ((p)[i] = " + codegen::store(compute, out, "(v)") + ")\n";
  return s + cl::embedded_source("foreach/multi_tensor.clh") +
         cl::embedded_source("foreach/foreach_reduce.cl");
}

struct Kernels {
  cl::Kernel* partials;
  cl::Kernel* results;
};

Kernels kernels_for(cl::Device& device, Reduction reduction, DType in, DType out, DType compute) {
  static std::mutex mutex;
  static auto* known = new std::unordered_map<uint64_t, Kernels>;
  const uint64_t key = static_cast<uint64_t>(device.index) << 40 |
                       static_cast<uint64_t>(reduction.mode) << 32 | uint64_t{reduction.root} << 24 |
                       static_cast<uint64_t>(in) << 16 | static_cast<uint64_t>(out) << 8 |
                       static_cast<uint64_t>(compute);
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (const auto it = known->find(key); it != known->end()) return it->second;
  }
  const std::string source = source_of(device, reduction, in, out, compute);
  const Kernels kernels{&cl::get_kernel(device, source, "", "dlb_foreach_partials"),
                        &cl::get_kernel(device, source, "", "dlb_foreach_results")};
  std::lock_guard<std::mutex> lock(mutex);
  return known->emplace(key, kernels).first->second;
}

// Enqueues both passes; results[i] gets the number of tensors[i]. Tensors without elements are left alone.
void reduce(const char* op, TensorList tensors, TensorList results, Reduction reduction) {
  const DType in = dtype_of(tensors[0].scalar_type(), op), out = dtype_of(results[0].scalar_type(), op);
  const DType compute = codegen::compute_type(out);
  Stream& stream = current_stream(tensors[0].device().index());
  cl::Device& device = stream.device();
  for (DType type : {in, out}) check_device_supports(device, type, op);
  const Kernels kernels = kernels_for(device, reduction, in, out, compute);
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
    kernels.partials->launch_with(stream.queue(), cl::Range::linear(items, local), fill);
    kernels.results->launch_with(stream.queue(), cl::Range::linear(table.params.tensors, local), fill);
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
