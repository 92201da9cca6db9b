// Runs rows in two ways: through a TensorIterator, which takes any operands, and without one, which takes
// dense operands of one shape.
#include "ops/pointwise/rows.h"

#include <ATen/EmptyTensor.h>
#include <ATen/TensorIterator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>

namespace dlb {
namespace {

at::TensorIterator build_iterator(Promote promote, Inputs inputs, at::Tensor& out, bool may_overlap) {
  at::TensorIteratorConfig config;
  config.set_check_mem_overlap(!may_overlap).allow_cpu_scalars(true).add_output(out);
  for (const at::Tensor* input : inputs) config.add_const_input(*input);
  if (promote == Promote::Fixed) {
    // Where the iterator makes the result, it answers different dtypes with an internal assert.
    for (const at::Tensor* input : inputs)
      TORCH_CHECK(input->scalar_type() == inputs[0]->scalar_type(), "Found dtype ", input->scalar_type(),
                  " but expected ", inputs[0]->scalar_type());
    return config.check_all_same_dtype(true).build();
  }
  config.promote_inputs_to_common_dtype(true);
  if (gives_bool(promote)) {
    // Comparisons write any dtype into out= tensors, and make bool ones.
    config.check_all_same_dtype(false);
    if (!out.defined()) config.declare_static_dtype(at::kBool);
  } else {
    config.cast_common_dtype_to_outputs(true).enforce_safe_casting_to_output(true);
    if (promote == Promote::Float) config.promote_integer_inputs_to_float(true);
  }
  return config.build();
}

// Whether a CPU scalar leaves the result in the dtype of the tensor beside it.
bool keeps_dtype(const at::Tensor& number, c10::ScalarType dtype) {
  if (number.dim() != 0 || !number.device().is_cpu()) return false;
  if (number.scalar_type() == dtype) return true;
  if (!number.unsafeGetTensorImpl()->is_wrapped_number()) return false;
  if (c10::isComplexType(dtype)) return true;
  if (c10::isFloatingType(dtype)) return !number.is_complex();
  return dtype != at::kBool && c10::isIntegralType(number.scalar_type(), /*includeBool=*/true);
}

// Whether a contiguous tensor has the strides that a new one of its sizes gets; those of dimensions of one
// element may differ.
bool has_new_strides(const at::Tensor& t) {
  int64_t stride = 1;
  for (int64_t d = t.dim() - 1; d >= 0; --d) {
    if (t.stride(d) != stride) return false;
    stride *= t.size(d);
  }
  return true;
}

// The first tensor on the device, if every operand is dense and has its shape and dtype, or is a number.
const at::Tensor* flat_reference(Inputs inputs) {
  const at::Tensor* reference = nullptr;
  for (const at::Tensor* input : inputs) {
    if (input->device().type() != kDeviceType) continue;
    if (!reference) {
      if (!input->is_contiguous() || input->numel() == 0 || input->numel() >= int64_t{1} << 31)
        return nullptr;
      reference = input;
    } else if (input->scalar_type() != reference->scalar_type() || !input->is_contiguous() ||
               input->sizes() != reference->sizes() || input->device() != reference->device()) {
      return nullptr;
    }
  }
  if (reference)
    for (const at::Tensor* input : inputs)
      // Beside a number a result takes the tensor's strides, which is for the iterator to do.
      if (input->device().type() != kDeviceType &&
          (!keeps_dtype(*input, reference->scalar_type()) || !has_new_strides(*reference)))
        return nullptr;
  return reference;
}

}  // namespace

bool run_op(const codegen::PointwiseOp& op, Promote promote, Inputs inputs, Scalars scalars, at::Tensor& out,
            Check check, bool may_overlap) {
  TORCH_CHECK(promote != Promote::Truth || !out.defined() || out.scalar_type() == at::kBool, op.name,
              " does not support non-boolean outputs.");
  auto iter = build_iterator(promote, inputs, out, may_overlap);
  const c10::ScalarType common = promote == Promote::Fixed ? inputs[0]->scalar_type() : iter.common_dtype();
  if (check) check(inputs, scalars, common);
  if (!has_kernel(op, common, iter.device(0))) return false;
  run_pointwise(op, iter, common, scalars, promote != Promote::Fixed);
  if (!out.defined()) out = iter.output();
  return true;
}

at::Tensor& run_or_raise(const codegen::PointwiseOp& op, at::Tensor& out, Inputs inputs, Scalars scalars,
                         Promote promote) {
  TORCH_CHECK_NOT_IMPLEMENTED(run_op(op, promote, inputs, scalars, out), "\"", op.name,
                              "\" not implemented for '", inputs[0]->scalar_type(), "'");
  return out;
}

bool run_row_flat(const PointwiseRow& row, Inputs inputs, Scalars scalars, at::Tensor& out) {
  const at::Tensor* reference = flat_reference(inputs);
  if (!reference) return false;
  const c10::ScalarType dtype = reference->scalar_type();
  if (row.promote == Promote::Float && c10::isIntegralType(dtype, true)) return false;
  if (!has_kernel(row.op, dtype, reference->device())) return false;
  if (out.defined()) {
    if (&out != inputs[0] || reference != inputs[0] || gives_bool(row.promote)) return false;
    for (const at::Tensor* input : inputs)
      if (input != inputs[0] && input->is_alias_of(out) && input->const_data_ptr() != out.const_data_ptr())
        return false;  // a partial overlap is for the iterator to refuse
  }
  if (row.check) row.check(inputs, scalars, dtype);
  if (!out.defined()) {
    const c10::OptionalDeviceGuard guard(
        reference->device().index() == current_device() ? std::nullopt : std::optional(reference->device()));
    out = at::detail::empty_generic(reference->sizes(), allocator(),
                                    c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                    gives_bool(row.promote) ? at::kBool : dtype, std::nullopt);
  }
  std::array<const at::TensorBase*, codegen::kMaxOperands> operands{&out};
  std::copy(inputs.begin(), inputs.end(), operands.begin() + 1);
  run_pointwise_flat(row.op, {operands.data(), inputs.size() + 1}, 1, dtype, scalars);
  return true;
}

void check_scalar_fits(const c10::Scalar& value, c10::ScalarType type) {
  switch (type) {
    case at::kByte:
      value.to<uint8_t>();
      break;
    case at::kChar:
      value.to<int8_t>();
      break;
    case at::kShort:
      value.to<int16_t>();
      break;
    case at::kInt:
      value.to<int32_t>();
      break;
    case at::kLong:
      value.to<int64_t>();
      break;
    case at::kHalf:
      value.to<c10::Half>();
      break;
    case at::kBFloat16:
      value.to<c10::BFloat16>();
      break;
    case at::kFloat:
      value.to<float>();
      break;
    case at::kDouble:
      value.to<double>();
      break;
    case at::kBool:
      value.to<bool>();
      break;
    case at::kComplexFloat:
      value.to<c10::complex<float>>();
      break;
    default:
      break;
  }
}

void check_scalar_fits_compute(const c10::Scalar& value, c10::ScalarType type) {
  check_scalar_fits(value, at::isReducedFloatingType(type) ? at::kFloat : type);
}
void check_scalars_fit(Inputs, Scalars scalars, c10::ScalarType common) {
  for (const c10::Scalar& scalar : scalars) check_scalar_fits(scalar, common);
}
void check_scalars_fit_compute(Inputs, Scalars scalars, c10::ScalarType common) {
  for (const c10::Scalar& scalar : scalars) check_scalar_fits_compute(scalar, common);
}

}  // namespace dlb
