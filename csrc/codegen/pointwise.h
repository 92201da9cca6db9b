// Text of pointwise kernels: every output element is a function of the input elements at the same (broadcast,
// strided) position. Sizes, strides and offsets are run-time arguments, so a new shape never needs a new
// kernel.
#pragma once
#include <array>
#include <cstdint>
#include <string>

#include "cl/device.h"
#include "codegen/dtype.h"

namespace dlb::codegen {

constexpr size_t kMaxOperands = 12;
constexpr size_t kMaxRank = 10;  // of the collapsed iteration; more is iterated by the host
constexpr size_t kMaxScalars = 6;
constexpr uint32_t kGpuVector = 4;  // elements per work-item of the vectorised GPU form

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
  // What is wrong with the data, for ops that can find out on the device: bodies are statements that also set
  // `bad` (0 or 1), and the next synchronising call raises RuntimeError with this message.
  const char* error = nullptr;
  bool from_text = false;  // made at run time of a program's own text, and in no table

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
  uint8_t vectorised = 0;                   // GPU: kGpuVector elements per work-item
  std::array<DType, kMaxOperands> types{};  // outputs first
  std::array<Inner, kMaxOperands> inner{};

  bool operator==(const PointwiseKey&) const = default;
};

// Division by a run-time constant d, for n < 2^31: q = (mul_hi(n, magic) + n) >> shift (Granlund and
// Montgomery, "Division by invariant integers using multiplication", PLDI 1994).
struct Divider {
  uint32_t divisor = 1, magic = 0, shift = 0;
};
Divider make_divider(uint32_t divisor);

// Run-time arguments, laid out exactly as the kernel declares them (after the buffers, before the scalars).
struct PointwiseParams {
  int64_t offset[kMaxOperands];            // elements from the start of the buffer
  int32_t stride[kMaxOperands][kMaxRank];  // elements; 0 for Value operands
  Divider size[kMaxRank];                  // innermost first
  uint32_t rank;
  uint32_t count;     // elements in all (GPU, vectorised: groups of kGpuVector)
  uint32_t per_item;  // CPU: consecutive elements of one work-item
  uint32_t streamed;  // CPU, where can_stream(): whether results go past the cache
};

// GPUs: whether the vectorised form takes operands of that type that are not a Value or Zero: of complex
// numbers kGpuVector would be wider than any device loads at once.
bool fits_vectors(DType type);

// CPUs: whether the kernel can write its results past the cache, as the caller asks where they are larger
// than that: no line is read before it is written, and what others will read stays. Not of ops that call math
// functions, which memory does not bound.
bool can_stream(const PointwiseKey& key);

// The kernel's source; its one kernel is called pointwise_NAME. Arguments: a buffer per operand that is not a
// Value (outputs first), PointwiseParams, then the Value operands and the scalars s0.. as
// scalar_name(compute), and for ops that report errors the error buffer and the number of the site. The
// latter need dlb_report, which the caller puts in front.
std::string pointwise_source(const PointwiseKey& key);

// The C declarations of Divider and dlb_divide.
std::string divider_source();

// "#define DLB_CPU 1" or "#define DLB_GPU 1".
const char* device_macro(cl::DeviceClass cls);

// The type of an op's results before they are stored.
DType result_type(const PointwiseOp& op, DType compute);

}  // namespace dlb::codegen

template <>
struct std::hash<dlb::codegen::PointwiseKey> {
  size_t operator()(const dlb::codegen::PointwiseKey& key) const noexcept;
};
