// Leads from a TensorIterator to a kernel launch. Where the kernel is known, nothing is allocated and no
// string is made on the way.
#include "ops/common/pointwise.h"

#include <algorithm>

#include "primitives/pointwise/launch.h"

namespace dlb {
namespace {

using codegen::Inner;
using codegen::kMaxRank;
using codegen::PointwiseOp;
using codegen::PointwiseParams;
using pointwise::Launch;

// Iterates dimensions beyond what a kernel handles on the host: `dim` is the outermost of those left.
void launch_outer(Launch& launch, const at::TensorIteratorBase& iter, int dim, Stream& stream) {
  if (dim < static_cast<int>(kMaxRank)) {
    Launch inner = launch;  // enqueue() changes sizes and form
    return pointwise::enqueue(inner, stream);
  }
  const size_t count = launch.key.outputs + launch.key.inputs;
  for (int64_t k = 0; k < iter.shape()[static_cast<size_t>(dim)]; ++k) {
    launch_outer(launch, iter, dim - 1, stream);
    for (size_t i = 0; i < count; ++i)
      if (launch.key.inner[i] != Inner::Value)
        launch.params.operand[i].offset += iter.strides(static_cast<int>(i))[static_cast<size_t>(dim)] /
                                           iter.element_size(static_cast<int>(i));
  }
  for (size_t i = 0; i < count; ++i)
    if (launch.key.inner[i] != Inner::Value)
      launch.params.operand[i].offset -= iter.shape()[static_cast<size_t>(dim)] *
                                         iter.strides(static_cast<int>(i))[static_cast<size_t>(dim)] /
                                         iter.element_size(static_cast<int>(i));
}

// Whether a tensor has values that a common dtype of 16 bits has not: as an operand it is rounded to that.
bool has_more_digits(c10::ScalarType type, c10::ScalarType common) {
  return type != common && type != at::kBool && type != at::kByte && type != at::kChar;
}

// A number as an operand that stands for a tensor of `dtype`. It arrives converted, so that one kernel serves
// scalars of all dtypes; an expression takes it in its own, which its rows are told by.
void set_number(const at::TensorBase& tensor, c10::ScalarType dtype, Launch& launch, size_t operand) {
  const PointwiseOp& op = *launch.key.op;
  codegen::DType type = launch.key.compute;
  if (op.expression) type = codegen::compute_type(dtype_of(tensor.scalar_type(), op.name));
  const bool exact = op.expression || (op.exact_number && operand == launch.key.outputs + size_t{1} &&
                                       !c10::isFloat8Type(dtype));
  const c10::Scalar value = cpu_scalar(tensor);
  launch.key.inner[operand] = Inner::Value;
  launch.key.types[operand] = type;
  launch.values[operand] = scalar_arg(exact ? value : rounded_to(value, dtype), type);
  launch.params.operand[operand].offset = 0;
}

}  // namespace

void run_pointwise(const PointwiseOp& op, at::TensorIteratorBase& iter, c10::ScalarType compute_dtype,
                   c10::ArrayRef<c10::Scalar> scalars, bool common) {
  if (iter.numel() == 0) return;
  if (!iter.can_use_32bit_indexing()) {
    for (auto& part : iter.with_32bit_indexing()) run_pointwise(op, part, compute_dtype, scalars, common);
    return;
  }
  Stream& stream = current_stream(iter.device(0).index());
  Launch launch;
  pointwise::prepare(launch, op, static_cast<size_t>(iter.noutputs()), static_cast<size_t>(iter.ninputs()),
                     compute_dtype, scalars, stream.device());
  const int rank = std::max(1, iter.ndim());
  const int kernel_rank = std::min<int>(rank, kMaxRank);
  PointwiseParams& p = launch.params;
  p.rank = static_cast<uint32_t>(kernel_rank);
  p.count = 1;
  p.per_item = p.streamed = 0;
  for (int d = 0; d < kernel_rank; ++d) {
    const auto size = iter.ndim() == 0 ? 1u : static_cast<uint32_t>(iter.shape()[static_cast<size_t>(d)]);
    p.size[d] = codegen::make_divider(size);
    p.count *= size;
  }
  for (int i = 0; i < iter.ntensors(); ++i) {
    const auto at = static_cast<size_t>(i);
    const at::TensorBase& tensor = iter.tensor_base(i);
    launch.key.types[at] = pointwise::dtype_in(op, tensor.scalar_type());
    if (iter.is_cpu_scalar(i)) {
      set_number(tensor, common ? compute_dtype : at::kFloat, launch, at);
      check_device_supports(stream.device(), launch.key.types[at], op.name);
      continue;
    }
    launch.key.inner[at] = Inner::Unit;
    if (common && at::isReducedFloatingType(compute_dtype) &&
        has_more_digits(tensor.scalar_type(), compute_dtype)) [[unlikely]] {
      const bool is_exact = op.exact_number && i == iter.noutputs() + 1 && tensor.dim() == 0;
      if (i < iter.noutputs() ? !op.bool_result : !is_exact)
        launch.key.rounded = dtype_of(compute_dtype, op.name);
    }
    check_device_supports(stream.device(), launch.key.types[at], op.name);
    const MemRef ref = resolve(tensor.storage().data_ptr(), iter.data_ptr(i));
    const int64_t bytes = iter.element_size(i);
    launch.mem[at] = ref.mem;
    p.operand[at].offset = static_cast<int64_t>(ref.offset) / bytes;
    for (int d = 0; d < kernel_rank; ++d)
      p.operand[at].stride[d] =
          iter.ndim() == 0 ? 0 : static_cast<int32_t>(iter.strides(i)[static_cast<size_t>(d)] / bytes);
  }
  if (rank <= static_cast<int>(kMaxRank)) [[likely]]
    pointwise::enqueue(launch, stream);
  else
    launch_outer(launch, iter, rank - 1, stream);
}

void run_pointwise_flat(const PointwiseOp& op, c10::ArrayRef<const at::TensorBase*> operands, size_t outputs,
                        c10::ScalarType compute_dtype, c10::ArrayRef<c10::Scalar> scalars) {
  const int64_t count = operands[0]->numel();
  if (count == 0) return;
  TORCH_INTERNAL_ASSERT(count < (int64_t{1} << 31));
  Stream& stream = current_stream(operands[0]->device().index());
  Launch launch;
  pointwise::prepare(launch, op, outputs, operands.size() - outputs, compute_dtype, scalars, stream.device());
  PointwiseParams& p = launch.params;
  p.rank = 1;
  p.count = static_cast<uint32_t>(count);
  p.per_item = p.streamed = 0;
  p.size[0] = codegen::make_divider(p.count);
  for (size_t i = 0; i < operands.size(); ++i) {
    if (operands[i]->device().is_cpu()) {
      set_number(*operands[i], compute_dtype, launch, i);
      p.operand[i].stride[0] = 0;
      continue;
    }
    launch.key.types[i] = pointwise::dtype_in(op, operands[i]->scalar_type());
    launch.key.inner[i] = Inner::Unit;
    const at::TensorBase& tensor = *operands[i];
    // What is only read may go on sharing its memory with lazy clones.
    const MemRef ref =
        i < outputs ? mem_of(tensor) : resolve(tensor.storage().data_ptr(), tensor.const_data_ptr());
    launch.mem[i] = ref.mem;
    p.operand[i].offset = static_cast<int64_t>(ref.offset / tensor.itemsize());
    p.operand[i].stride[0] = 1;
  }
  pointwise::enqueue(launch, stream);
}

}  // namespace dlb
