// From a pointwise op and its operands to an enqueued kernel. Where the kernel is known, nothing is allocated
// and no string is made on the way.
#include "primitives/pointwise/launch.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "codegen/registry.h"
#include "kernels/pointwise/traffic.h"
#include "runtime/device_error.h"
#include "runtime/kernel_cache.h"

namespace dlb::pointwise {
namespace {

using codegen::Inner;
using codegen::kGpuVector;
using codegen::kMaxOperands;
using codegen::PointwiseKey;
using codegen::PointwiseOp;
using codegen::PointwiseParams;

constexpr size_t kGpuGroup = 256;
// A CPU work-item takes at least this many elements: less does not pay for handing it to another core.
constexpr uint32_t kCpuGrain = 8192;
constexpr uint32_t kCpuItemsPerUnit = 4;  // evens out cores that are disturbed

cl::Kernel& kernel_for(const PointwiseKey& key, cl::Device& device) {
  return KernelCache<PointwiseKey>::get(device, key, [&]() -> cl::Kernel& {
    codegen::check_is_row(*key.op);
    const std::string source = (key.op->error ? kDeviceErrorSource : "") + codegen::pointwise_source(key);
    return cl::get_kernel(device, source, "", std::string("pointwise_") + key.op->name);
  });
}

// The error site of an op that reports wrong data. It is registered at the op's first launch.
int32_t error_site(const PointwiseOp& op) {
  static std::mutex mutex;
  static auto* sites = new std::unordered_map<const PointwiseOp*, int32_t>;
  std::lock_guard<std::mutex> lock(mutex);
  int32_t& site = (*sites)[&op];
  if (!site) site = register_error_site({op.name, op.error, false});
  return site;
}

void enqueue_form(Launch& launch, Stream& stream) {
  const PointwiseKey& key = launch.key;
  PointwiseParams& p = launch.params;
  cl::Range range;
  if (key.cls == cl::DeviceClass::kCpu) {
    const uint32_t most = stream.device().compute_units * kCpuItemsPerUnit;
    const uint32_t items = std::clamp<uint32_t>(p.count / kCpuGrain, 1, most);
    p.per_item = ((p.count + items - 1) / items + 63) / 64 * 64;
    range = cl::Range::linear((p.count + p.per_item - 1) / p.per_item, 1);
  } else {
    range = cl::Range::linear((p.count + kGpuGroup - 1) / kGpuGroup, kGpuGroup);
  }
  std::optional<ErrorBuffer> errors;
  if (key.op->error) errors.emplace(stream);
  kernel_for(key, stream.device()).launch_with(stream.queue(), range, [&](cl::Kernel::Arguments& arguments) {
    const size_t count = key.outputs + key.inputs;
    for (size_t i = 0; i < count; ++i)
      if (key.inner[i] != Inner::Value) arguments.add(launch.mem[i]);
    arguments.add_bytes(&p, codegen::pointwise_params_bytes(count));
    for (size_t i = 0; i < count; ++i)
      if (key.inner[i] == Inner::Value) arguments.add_bytes(&launch.values[i], launch.values[i].size);
    for (size_t i = 0; i < key.op->scalars; ++i)
      arguments.add_bytes(&launch.scalars[i], launch.scalars[i].size);
    if (errors) {
      arguments.add(errors->mem());
      arguments.add(error_site(*key.op));
    }
  });
}

// GPU: whether work-items can take kGpuVector neighbours. Every buffer is contiguous or constant innermost,
// and every row of it starts at a multiple of the vector.
bool vectorisable(const Launch& launch) {
  const PointwiseParams& p = launch.params;
  if (p.size[0].divisor % kGpuVector != 0) return false;
  const size_t count = launch.key.outputs + launch.key.inputs;
  for (size_t i = 0; i < count; ++i) {
    const Inner inner = launch.key.inner[i];
    if (inner == Inner::Value || inner == Inner::Zero) continue;
    if (inner != Inner::Unit || p.operand[i].offset % kGpuVector != 0) return false;
    if (!codegen::fits_vectors(launch.key.types[i])) return false;
    for (uint32_t d = 1; d < p.rank; ++d)
      if (p.operand[i].stride[d] % static_cast<int32_t>(kGpuVector) != 0) return false;
  }
  return true;
}

// CPU: where operands are expected (kernels/pointwise/traffic.h). Results that exceed the last cache will not
// be there when they are wanted next, so they go past it, unless an input is overwritten in place. The op's
// body is looked at last, because that takes longest.
uint32_t traffic_of(const Launch& launch, const cl::Device& device) {
  const PointwiseKey& key = launch.key;
  if (key.cls != cl::DeviceClass::kCpu || key.outputs != 1) return params::POINTWISE_CACHED;
  uint64_t bytes = 0;
  bool in_place = false;
  for (size_t i = 0; i <= key.inputs; ++i) {
    if (key.inner[i] != Inner::Unit) continue;
    if (i > 0 && launch.mem[i] == launch.mem[0] &&
        launch.params.operand[i].offset == launch.params.operand[0].offset)
      in_place = true;
    else
      bytes += uint64_t{launch.params.count} * codegen::size_of(key.types[i]);
  }
  if (bytes <= device.cache || !codegen::can_stream(key)) return params::POINTWISE_CACHED;
  return in_place ? params::POINTWISE_IN_PLACE : params::POINTWISE_STREAMED;
}

}  // namespace

void enqueue(Launch& launch, Stream& stream) {
  PointwiseKey& key = launch.key;
  PointwiseParams& p = launch.params;
  const size_t count = key.outputs + key.inputs;
  for (size_t i = 0; i < count; ++i) {
    if (key.inner[i] == Inner::Value) continue;
    const int32_t stride = p.operand[i].stride[0];
    key.inner[i] = p.size[0].divisor == 1 || stride == 1 ? Inner::Unit
                   : stride == 0                         ? Inner::Zero
                                                         : Inner::Strided;
  }
  if (key.cls == cl::DeviceClass::kGpu) {
    key.vectorised = vectorisable(launch);
    if (key.vectorised) {
      p.count /= kGpuVector;
      p.size[0] = codegen::make_divider(p.size[0].divisor / kGpuVector);
      for (size_t i = 0; i < count; ++i)
        if (key.inner[i] == Inner::Unit) p.operand[i].stride[0] = kGpuVector;
    } else {
      for (size_t i = 0; i < count; ++i)
        if (key.inner[i] != Inner::Value) key.inner[i] = Inner::Strided;
    }
  }
  p.streamed = traffic_of(launch, stream.device());
  enqueue_form(launch, stream);
}

void prepare(Launch& launch, const PointwiseOp& op, size_t outputs, size_t inputs,
             c10::ScalarType compute_dtype, c10::ArrayRef<c10::Scalar> scalars, cl::Device& device) {
  TORCH_INTERNAL_ASSERT(outputs + inputs <= kMaxOperands && scalars.size() == op.scalars, op.name);
  launch.key.op = &op;
  launch.key.cls = device.cls;
  launch.key.compute = codegen::compute_type(dtype_in(op, compute_dtype));
  launch.key.outputs = static_cast<uint8_t>(outputs);
  launch.key.inputs = static_cast<uint8_t>(inputs);
  check_device_supports(device, launch.key.compute, op.name);
  TORCH_CHECK_NOT_IMPLEMENTED(op.expression || op.body(codegen::class_of(launch.key.compute)), "\"", op.name,
                              "\" not implemented for '", c10::toString(compute_dtype), "'");
  for (size_t i = 0; i < scalars.size(); ++i)
    launch.scalars[i] = scalar_arg(op.rounded_scalars ? rounded_to(scalars[i], compute_dtype) : scalars[i],
                                   codegen::scalar_type(op, launch.key.compute, i));
}

void run(const PointwiseOp& op, Stream& stream, c10::ArrayRef<PlacedBuffer> operands, size_t outputs,
         const std::array<uint32_t, 3>& sizes, c10::ScalarType compute_dtype) {
  Launch launch;
  prepare(launch, op, outputs, operands.size() - outputs, compute_dtype, {}, stream.device());
  PointwiseParams& p = launch.params;
  p.rank = p.per_item = p.streamed = 0;
  p.count = 1;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 1 && (d + 1 < sizes.size() || p.rank > 0)) continue;
    p.size[p.rank] = codegen::make_divider(sizes[d]);
    p.count *= sizes[d];
    for (size_t i = 0; i < operands.size(); ++i) p.operand[i].stride[p.rank] = operands[i].strides[d];
    ++p.rank;
  }
  for (size_t i = 0; i < operands.size(); ++i) {
    launch.key.types[i] = operands[i].type;
    launch.key.inner[i] = Inner::Unit;
    launch.mem[i] = operands[i].mem;
    p.operand[i].offset = operands[i].offset;
  }
  enqueue(launch, stream);
}

}  // namespace dlb::pointwise
