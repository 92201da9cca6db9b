// Text of reduction and scan kernels. An op is a row: accumulator fields, how an element enters them, how two
// accumulators combine, and what the results are. Sizes, strides and splits are run-time arguments, so a new
// shape never needs a new kernel.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "cl/device.h"
#include "codegen/dtype.h"
#include "codegen/pointwise.h"
#include "kernels/reduce/params.h"

namespace dlb::codegen {

constexpr size_t kMaxReduceOperands = params::MOST_REDUCE_OPERANDS;
constexpr size_t kMaxReduceRank = params::REDUCE_RANK;
constexpr size_t kMaxFields = 8;
constexpr size_t kMaxResults = 8;
constexpr size_t kReduceGroup = params::REDUCE_GROUP;
constexpr size_t kColumnBytes = 16384;  // CPU: accumulators of one block of columns
// CPU: how many independent accumulators run along the reduction, or side by side over columns.
size_t reduce_lanes(DType compute);

// One field of an accumulator. `type` is C: T, REAL (the real type of T), ACC (REAL, but double where that is
// float and the device is a CPU), int or long.
struct Field {
  const char* type = nullptr;
  const char* init = nullptr;
};

// The body of an op for one class of compute types; statements of OpenCL C. Names: the accumulator's fields
// a0, a1 ..; the inputs x0, x1 .. (type T); `i`, the element's position in the reduction (long); scalars s0,
// s1 .. (type T). A body without a step: the op is not defined for that class.
struct ReduceBody {
  std::array<Field, kMaxFields> fields{};
  const char* step = nullptr;  // takes x0.. into a0..; sets z0.. where the op has mapped results
  // Takes the accumulator b0.. into a0..; `init` is neutral. Reductions combine in any order; in scans the
  // b's cover later elements.
  const char* combine = nullptr;
  const char* finish = nullptr;  // sets y0.. from a0.. and the number of elements n (long)
  // Optional. step() may keep another form than combine() expects, for at most 64 steps; this converts it.
  const char* settle = nullptr;

  constexpr size_t field_count() const {
    size_t count = 0;
    while (count < kMaxFields && fields[count].type) ++count;
    return count;
  }
};

// The type of a result before it is stored: T, the real type of T, a truth value, or an index or count.
enum class ResultType : uint8_t { Same, Real, Truth, Index };
DType result_dtype(ResultType result, DType type);

struct ReduceExpression;  // codegen/expression.h

struct ReduceOp {
  const char* name;  // the op's id, a C identifier
  ReduceBody on_float{}, on_int{}, on_bool{}, on_complex{};
  std::array<ResultType, kMaxResults> results{};
  uint8_t scalars = 0;
  bool ordered = false;    // `i` matters: it must count in the tensor's own order
  bool from_text = false;  // made at run time of a program's own text, and in no table
  // The expression whose reduction row the bodies are of; `scalars` are then the expression's.
  const ReduceExpression* expression = nullptr;

  constexpr const ReduceBody& body(DClass cls) const {
    switch (cls) {
      case DClass::Bool:
        return on_bool;
      case DClass::Int:
        return on_int;
      case DClass::Float:
        return on_float;
      default:
        return on_complex;
    }
  }
};

// Everything that is compiled into a reduction kernel. A value: hashed and compared bytewise. The operands
// are the reduced outputs, the mapped outputs (one value per input element), the inputs.
struct ReduceKey {
  const ReduceOp* op = nullptr;
  cl::DeviceClass cls = cl::DeviceClass::kGpu;
  DType compute = DType::F32;
  uint8_t outputs = 1;
  uint8_t mapped = 0;
  uint8_t inputs = 1;
  uint8_t wide = 0;        // GPU: 64-bit positions
  uint8_t scan = 0;        // the program of the Scan forms: outputs have one value per element
  uint16_t constants = 0;  // operands (by bit) that do not move along the unit dimension of unit forms
  std::array<DType, kMaxReduceOperands> types{};

  size_t operands() const { return size_t{outputs} + mapped + inputs; }
  bool operator==(const ReduceKey&) const = default;
};

// The kernels of a reduction's program. All take: a buffer per operand, the workspace of partial
// accumulators, ReduceParams, the scalars as scalar_name() of scalar_type().
enum class ReduceForm : uint8_t {
  Rows,             // CPU: lanes along the innermost reduced dimension, contiguous
  RowsStrided,      // CPU: the same with any strides
  Columns,          // CPU: lanes along the innermost kept dimension, contiguous
  ColumnsStrided,   // CPU: the same with any strides
  Group,            // GPU: work-items along the reduction and along the outputs, any strides
  GroupVector,      // GPU: the same, four neighbours of one contiguous run at a time
  GroupVectorRuns,  // GPU: the same for several runs
  Combine,          // second pass over the partial accumulators of a split reduction
  ScanRows,         // a row, or a chunk of one, per work-item
  ScanColumns,      // CPU: neighbouring rows side by side
  ScanGroup,        // GPU: rows, or a chunk of one, per work-group
  ScanChained       // GPU: a tile of a row per work-group, which waits for those before it
};
const char* name_of(ReduceForm form);  // the kernel's name

using params::ReduceParams;

// Bytes of the parameters that a kernel of so many operands takes.
constexpr size_t params_bytes(size_t operands) {
  return offsetof(ReduceParams, operand) + operands * sizeof(params::ReduceOperand);
}

// Whether the GPU program has the vector form: vectors of complex numbers are wider than any load.
bool has_vector_form(const ReduceKey& key);

// The program's source, with all forms of the device class.
std::string reduce_source(const ReduceKey& key);

// GPU scans: neighbours of a row that one work-item holds, a power of two.
size_t scan_held(const ReduceKey& key);
// In ScanChained, whose work-groups hide how long they wait for each other by more elements: in up to 48 KiB
// of local memory.
size_t chained_scan_held(const ReduceKey& key);
constexpr size_t kChainedLocalMemory = 48 << 10;

// CPU: columns that one work-item can take at a time, as compiled.
size_t reduce_columns(const ReduceOp& op, DType compute);

// The type in which scalar i arrives: scalar_name() of it.
DType scalar_type(const ReduceOp& op, DType compute, size_t i);

// Bytes of one accumulator in the workspace.
size_t accumulator_size(const ReduceOp& op, DType compute, cl::DeviceClass cls);

}  // namespace dlb::codegen

template <>
struct std::hash<dlb::codegen::ReduceKey> {
  size_t operator()(const dlb::codegen::ReduceKey& key) const noexcept;
};
