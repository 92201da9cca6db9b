// ATen dtypes and scalars for the code generator.
#include "runtime/tensor.h"

#include <array>

namespace dlb {
namespace {

using c10::ScalarType;
using codegen::DType;

// By DType.
constexpr std::array<ScalarType, codegen::kDTypes> kScalarTypes = {ScalarType::Bool,
                                                                   ScalarType::Byte,
                                                                   ScalarType::Char,
                                                                   ScalarType::Short,
                                                                   ScalarType::UInt16,
                                                                   ScalarType::Int,
                                                                   ScalarType::UInt32,
                                                                   ScalarType::Long,
                                                                   ScalarType::UInt64,
                                                                   ScalarType::Half,
                                                                   ScalarType::BFloat16,
                                                                   ScalarType::Float,
                                                                   ScalarType::Double,
                                                                   ScalarType::ComplexFloat,
                                                                   ScalarType::ComplexDouble,
                                                                   ScalarType::ComplexHalf,
                                                                   ScalarType::Float8_e4m3fn,
                                                                   ScalarType::Float8_e5m2,
                                                                   ScalarType::Float8_e4m3fnuz,
                                                                   ScalarType::Float8_e5m2fnuz,
                                                                   ScalarType::Float8_e8m0fnu};

constexpr uint8_t kNone = 0xff;

// The same by ScalarType.
constexpr auto kDTypeOf = [] {
  std::array<uint8_t, static_cast<size_t>(ScalarType::NumOptions) + 1> types{};
  types.fill(kNone);
  for (size_t i = 0; i < kScalarTypes.size(); ++i)
    types[static_cast<size_t>(kScalarTypes[i])] = static_cast<uint8_t>(i);
  return types;
}();

}  // namespace

DType storage_dtype_of(ScalarType type, const char* op) {
  const uint8_t found = kDTypeOf[static_cast<size_t>(type)];
  TORCH_CHECK_NOT_IMPLEMENTED(found != kNone, "\"", op, "\" is not implemented for '", c10::toString(type),
                              "' on ocl");
  return static_cast<DType>(found);
}

DType dtype_of(ScalarType type, const char* op) {
  const DType found = storage_dtype_of(type, op);
  TORCH_CHECK_NOT_IMPLEMENTED(found < DType::E4M3, "\"", op, "\" is not implemented for '",
                              c10::toString(type), "' on ocl");
  return found;
}

ScalarType scalar_type_of(DType type) {
  return kScalarTypes[static_cast<size_t>(type)];
}

bool device_computes(c10::Device device, c10::ScalarType type) {
  const bool wide = type == at::kDouble || type == at::kComplexDouble;
  return !wide || device_of(device.index()).fp64;
}

void check_device_supports(const cl::Device& device, codegen::DType type, const char* op) {
  const bool wide = type == codegen::DType::F64 || type == codegen::DType::C128;
  TORCH_CHECK_NOT_IMPLEMENTED(!wide || device.fp64, "\"", op, "\" needs double precision, which ",
                              device.name, " does not have (no cl_khr_fp64): use float32 or complex64");
}

ScalarArg scalar_arg(const c10::Scalar& value, codegen::DType compute) {
  using codegen::DClass;
  using codegen::DType;
  ScalarArg arg{};
  switch (codegen::class_of(compute)) {
    case DClass::Float:
      if (compute == DType::F64) {
        arg.d = value.toDouble();
        arg.size = sizeof arg.d;
      } else {
        arg.f = static_cast<float>(
            value.toDouble());  // not toFloat: that raises where PyTorch's kernels give inf
        arg.size = sizeof arg.f;
      }
      break;
    case DClass::Complex: {
      const auto z = value.toComplexDouble();
      if (compute == DType::C128) {
        arg.z[0] = z.real(), arg.z[1] = z.imag();
        arg.size = sizeof arg.z;
      } else {
        arg.c[0] = static_cast<float>(z.real()), arg.c[1] = static_cast<float>(z.imag());
        arg.size = sizeof arg.c;
      }
      break;
    }
    default:
      if (value.isFloatingPoint())
        arg.i = compute == DType::Bool ? value.toDouble() != 0 : static_cast<int64_t>(value.toDouble());
      else if (const auto z = value.toComplexDouble(); value.isComplex())
        arg.i = compute == DType::Bool ? z != 0.0 : static_cast<int64_t>(z.real());
      else
        arg.i = value.isUnsigned() ? static_cast<int64_t>(value.toUInt64()) : value.toLong();
      if (compute == DType::Bool) arg.i = arg.i != 0;
      arg.size = sizeof arg.i;
  }
  return arg;
}

namespace {

template <class Narrow>
c10::Scalar rounded(const c10::Scalar& value) {
  return static_cast<float>(Narrow(static_cast<float>(value.toDouble())));
}

}  // namespace

c10::Scalar rounded_to(const c10::Scalar& value, c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Half:
      return rounded<c10::Half>(value);
    case c10::ScalarType::BFloat16:
      return rounded<c10::BFloat16>(value);
    case c10::ScalarType::Float8_e4m3fn:
      return rounded<c10::Float8_e4m3fn>(value);
    case c10::ScalarType::Float8_e5m2:
      return rounded<c10::Float8_e5m2>(value);
    case c10::ScalarType::Float8_e4m3fnuz:
      return rounded<c10::Float8_e4m3fnuz>(value);
    case c10::ScalarType::Float8_e5m2fnuz:
      return rounded<c10::Float8_e5m2fnuz>(value);
    case c10::ScalarType::Float8_e8m0fnu:
      return rounded<c10::Float8_e8m0fnu>(value);
    default:
      return value;
  }
}

c10::Scalar cpu_scalar(const at::TensorBase& tensor) {
  const void* data = tensor.const_data_ptr();
  switch (tensor.scalar_type()) {
    case c10::ScalarType::Double:
      return *static_cast<const double*>(data);
    case c10::ScalarType::Float:
      return *static_cast<const float*>(data);
    case c10::ScalarType::Long:
      return *static_cast<const int64_t*>(data);
    case c10::ScalarType::Int:
      return *static_cast<const int32_t*>(data);
    case c10::ScalarType::Bool:
      return *static_cast<const bool*>(data);
    case c10::ScalarType::Half:
      return static_cast<float>(*static_cast<const c10::Half*>(data));
    case c10::ScalarType::BFloat16:
      return static_cast<float>(*static_cast<const c10::BFloat16*>(data));
    case c10::ScalarType::Short:
      return *static_cast<const int16_t*>(data);
    case c10::ScalarType::Char:
      return *static_cast<const int8_t*>(data);
    case c10::ScalarType::Byte:
      return *static_cast<const uint8_t*>(data);
    case c10::ScalarType::UInt16:
      return static_cast<int64_t>(*static_cast<const uint16_t*>(data));
    case c10::ScalarType::UInt32:
      return static_cast<int64_t>(*static_cast<const uint32_t*>(data));
    case c10::ScalarType::UInt64:
      return *static_cast<const uint64_t*>(data);
    case c10::ScalarType::ComplexFloat:
      return *static_cast<const c10::complex<float>*>(data);
    case c10::ScalarType::ComplexDouble:
      return *static_cast<const c10::complex<double>*>(data);
    case c10::ScalarType::ComplexHalf:
      return c10::complex<float>(*static_cast<const c10::complex<c10::Half>*>(data));
    case c10::ScalarType::Float8_e4m3fn:
      return static_cast<float>(*static_cast<const c10::Float8_e4m3fn*>(data));
    case c10::ScalarType::Float8_e5m2:
      return static_cast<float>(*static_cast<const c10::Float8_e5m2*>(data));
    case c10::ScalarType::Float8_e4m3fnuz:
      return static_cast<float>(*static_cast<const c10::Float8_e4m3fnuz*>(data));
    case c10::ScalarType::Float8_e5m2fnuz:
      return static_cast<float>(*static_cast<const c10::Float8_e5m2fnuz*>(data));
    case c10::ScalarType::Float8_e8m0fnu:
      return static_cast<float>(*static_cast<const c10::Float8_e8m0fnu*>(data));
    default:
      TORCH_CHECK_NOT_IMPLEMENTED(false, "'", tensor.scalar_type(),
                                  "' CPU scalars are not supported beside ocl tensors");
  }
}

}  // namespace dlb
