// Text of pointwise kernels: every output element is a function of the input elements at the same (broadcast,
// strided) position. Sizes, strides and offsets are run-time arguments, so a new shape never needs a new
// kernel.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "cl/device.h"
#include "codegen/dtype.h"
#include "kernels/pointwise/params.h"

namespace dlb::codegen {

constexpr size_t kMaxOperands = params::MOST_POINTWISE_OPERANDS;
constexpr size_t kMaxRank = params::POINTWISE_RANK;
constexpr size_t kMaxScalars = 6;
constexpr uint32_t kGpuVector = 4;  // elements per work-item of the vectorised GPU form

struct Expression;  // codegen/expression.h

// One pointwise op. A body is OpenCL C over inputs x0, x1 ... and scalars s0, s1 ... of compute type T. It is
// either one expression (the value of y0) or statements that assign y0, y1 ... A null body: the op is not
// defined for that class. Functions of csrc/kernels/common/math may be called by name.
struct PointwiseOp {
  const char* name;  // the op's id, a C identifier; the kernel is pointwise_NAME
  const char* on_float = nullptr;
  const char* on_int = nullptr;
  const char* on_bool = nullptr;
  const char* on_complex = nullptr;
  bool bool_result = false;  // y's are truth values (int), not T
  bool real_result = false;  // y's are REAL where T is complex (abs, angle)
  uint8_t scalars = 0;
  // A number as x1 keeps digits that a common dtype of 16 bits lacks, as on the CPU.
  bool exact_number = false;
  bool rounded_scalars = false;  // scalars are rounded to such a dtype
  // A message for ops that check their data on the device: bodies are statements that also set
  // `bad` (0 or 1), and the next synchronising call raises RuntimeError with this message.
  const char* error = nullptr;
  bool from_text = false;  // made at run time of a program's own text, and in no table
  // In place of bodies: an expression of other rows.
  const Expression* expression = nullptr;
  bool takes_float8 = false;  // PyTorch's op does: it chooses, compares or multiplies

  const char* body(DClass cls) const {
    const char* const bodies[] = {on_bool, on_int, on_float, on_complex};
    return bodies[static_cast<size_t>(cls)];
  }
};

// How an operand moves along the innermost collapsed dimension.
enum class Inner : uint8_t {
  Unit,     // contiguous
  Zero,     // the same element throughout
  Strided,  // any stride
  Value     // no memory: a scalar passed by value
};

// Everything that is compiled into a pointwise kernel. A value: hashed and compared bytewise.
struct PointwiseKey {
  const PointwiseOp* op = nullptr;
  cl::DeviceClass cls = cl::DeviceClass::kGpu;
  DType compute = DType::F32;
  uint8_t outputs = 1;
  uint8_t inputs = 0;
  uint8_t vectorised = 0;  // GPU: kGpuVector elements per work-item
  // F16 or BF16: operands of other types, and results of wider ones, have no more digits. Else F32.
  DType rounded = DType::F32;
  std::array<DType, kMaxOperands> types{};  // outputs first
  std::array<Inner, kMaxOperands> inner{};

  bool operator==(const PointwiseKey&) const = default;
};

using params::Divider;
using params::PointwiseParams;

// Bytes of the parameters that a kernel of so many operands takes.
constexpr size_t pointwise_params_bytes(size_t operands) {
  return offsetof(PointwiseParams, operand) + operands * sizeof(params::PointwiseOperand);
}

Divider make_divider(uint32_t divisor);

// GPUs: whether the vectorised form takes operands of that type that are neither a Value nor Zero. A vector
// of kGpuVector complex numbers would be wider than any device loads at once.
bool fits_vectors(DType type);

// CPUs: whether the kernel can write its results past the cache. Callers ask for that where results are
// larger than the cache: no line is read before it is written, and what others will read stays cached. Ops
// that call math functions cannot, because memory does not bound them.
bool can_stream(const PointwiseKey& key);

// The kernel's source; its one kernel is called pointwise_NAME. Arguments: a buffer per operand that is not a
// Value (outputs first), PointwiseParams, then the Value operands as scalar_name() of the compute type, in
// expressions of their own dtype's, and the scalars s0.. as scalar_name() of scalar_type(), and for ops that
// report errors the error buffer and the number of the site. The latter need dlb_report, which the caller
// puts in front.
std::string pointwise_source(const PointwiseKey& key);

// The OpenCL C declarations of Divider and dlb_divide.
std::string divider_source();

// "#define DLB_CPU 1" or "#define DLB_GPU 1".
const char* device_macro(cl::DeviceClass cls);

// The type in which scalar i arrives: scalar_name() of it.
DType scalar_type(const PointwiseOp& op, DType compute, size_t i);

// The type of an op's results before they are stored.
DType result_type(const PointwiseOp& op, DType compute);

}  // namespace dlb::codegen

template <>
struct std::hash<dlb::codegen::PointwiseKey> {
  size_t operator()(const dlb::codegen::PointwiseKey& key) const noexcept;
};
