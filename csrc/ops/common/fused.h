// Expressions of rows on tensors: what would be several launches as one.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <array>
#include <atomic>
#include <string>
#include <variant>

#include "codegen/expression.h"
#include "primitives/reduce/reduce.h"

namespace dlb {

// An expression as an op. Lives as long as the process, because kernels are found by its address.
struct FusedOp {
  std::string name, text;
  std::variant<codegen::Expression, codegen::ReduceExpression> rows;
  codegen::PointwiseOp pointwise{};  // one of the two
  codegen::ReduceOp reduce{};
  c10::ScalarType compute{};  // of the reduction; of a pointwise op, double where a row is of that
  std::vector<bool> reduced;  // of y0, y1 ..

  const codegen::ReduceExpression* reduction() const { return std::get_if<codegen::ReduceExpression>(&rows); }
  // The part that takes the inputs.
  const codegen::Expression& front() const {
    return reduction() ? reduction()->before : std::get<codegen::Expression>(rows);
  }
  // The dtype of y<y>.
  codegen::DType dtype_of(size_t y, const codegen::DType* inputs) const {
    return reduction() ? reduction()->dtype_of(y, inputs) : front().dtype_of(front().results[y], inputs);
  }
};

// The op of the text (codegen/expression.h). Takes a lock. Throws c10::ValueError for text that is no
// expression.
const FusedOp& fused_op_of(const std::string& text);

// An expression that the library runs: its op for each dtype, which ".T" in the text stands for:
//   const FusedRows kMeanOfSquares("v = mul.T(x0, x0); y0 = mean.T(v)");
class FusedRows {
 public:
  explicit FusedRows(std::string text) : text_(std::move(text)) {}
  // Takes no lock and makes no string after the first call for the dtype.
  const FusedOp& of(c10::ScalarType type) const;

 private:
  const std::string text_;
  mutable std::array<std::atomic<const FusedOp*>, codegen::kDTypes> ops_{};
};

struct FusedArguments {
  at::TensorList inputs;                    // on one device, broadcast with each other
  c10::ArrayRef<c10::Scalar> scalars = {};  // s0, s1 ..
  at::OptionalIntArrayRef dims = {};        // of the broadcast shape, over which is reduced; all by default
  bool keepdim = false;
};

// Computes the results y0, y1 .., of `dtypes`, or of the rows' dtypes for those missing. Enqueued like any
// op. Throws c10::ValueError for other numbers of inputs or scalars than the expression has, c10::Error for
// shapes that do not broadcast or tensors of another device, NotImplementedError for a type that the device
// lacks.
std::vector<at::Tensor> run_fused(const FusedOp& op, const FusedArguments& arguments,
                                  c10::ArrayRef<c10::ScalarType> dtypes = {});

// The same into tensors of the results' shapes, of any dtypes and strides.
void run_fused_out(const FusedOp& op, const FusedArguments& arguments, at::TensorList outputs);

// What expressions and templates (ops/template.h) share: kernels of several results, each with one value per
// element of the broadcast inputs or reduced.
struct ResultShapes {
  at::DimVector whole, reduced;
  DimMask mask;  // of the dimensions that are reduced

  ResultShapes(at::TensorList inputs, bool reduces, at::OptionalIntArrayRef dims, bool keepdim);
};

struct ResultsLaunch {
  const char* api;  // for messages
  const codegen::PointwiseOp& pointwise;
  const codegen::ReduceOp& reduce;   // runs where a result is reduced
  const std::vector<bool>& reduced;  // of each result
  c10::ScalarType compute;
};

// The options of the results: those of the inputs that are not numbers on the CPU.
at::TensorOptions result_options(at::TensorList inputs);

// Checks the results' shapes and devices, and enqueues the kernel.
void launch_results(const ResultsLaunch& launch, const ResultShapes& shapes, at::TensorList inputs,
                    c10::ArrayRef<c10::Scalar> scalars, at::TensorList outputs);

// Throws c10::Error for results on another device than ocl.
void check_on_device(const char* api, c10::Device device);

}  // namespace dlb
