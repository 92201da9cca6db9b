// Public template API: kernels from expressions that the caller writes. One call computes several outputs
// from several broadcast inputs, each output kept as it is or reduced, in one pass over the data. Compiled
// once for each text and combination of dtypes, whatever the sizes; see docs/template-api.md.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <optional>
#include <string>
#include <vector>

namespace dlb {

// How values are reduced. `init`: OpenCL C expression of the neutral value. `combine`: expression of a and b.
// Both are of the compute type T. It must not matter in which order values combine.
struct Reduction {
  std::string init, combine;

  static Reduction sum() { return {"0", "a + b"}; }
  static Reduction prod() { return {"1", "a * b"}; }
  static Reduction max() { return {"T_LOWEST", "b > a || b != b ? b : a"}; }  // NaN wins
  static Reduction min() { return {"T_HIGHEST", "b < a || b != b ? b : a"}; }
};

struct Template {
  // OpenCL C statements that set y0, y1 .. (type T) from the inputs x0, x1 .. and the scalars s0, s1 .. (type
  // T): "y0 = x0; y1 = x0 * x0;".
  std::string expression;
  // One entry per output: how it is reduced, or nothing for an output with one value per element.
  std::vector<std::optional<Reduction>> outputs;
  // Dimensions of the broadcast shape over which outputs are reduced; all of them when empty.
  std::vector<int64_t> dims;
  bool keepdim = false;
  // Statements over the reduced y0, y1 .. and the number n (long) of elements reduced into each, run once for
  // each result: "y1 = y1 / n - y0 * y0;". Empty: nothing more to do.
  std::string finish;
  // The type T that expressions are evaluated in: float for half and bfloat16. By default what the inputs
  // promote to.
  std::optional<at::ScalarType> compute;
  // Dtype of each output; T's for those missing.
  std::vector<at::ScalarType> dtypes;
};

// Computes the outputs. Inputs (at most 8; outputs are at most 8 too) are ocl tensors that broadcast with
// each other and may have any dtypes and strides. Throws c10::Error for a shape that does not broadcast, and
// std::runtime_error with the build log and the name of a file with the numbered source for text that does
// not compile.
std::vector<at::Tensor> run_template(const Template& what, at::TensorList inputs,
                                     c10::ArrayRef<c10::Scalar> scalars = {});

// The same into tensors that the caller gives, of the right shapes and any dtypes and strides.
void run_template_out(const Template& what, at::TensorList inputs, c10::ArrayRef<c10::Scalar> scalars,
                      at::TensorList outputs);

// The OpenCL C source of the kernel that run_template() compiles for inputs of these dtypes and as many
// scalars, contiguous, on devices of that class; for other layouts it differs in how elements are addressed.
// Needs no device. Throws c10::ValueError as run_template().
enum class TemplateDevice { kCpu, kGpu };
std::string template_source(const Template& what, c10::ArrayRef<at::ScalarType> inputs, size_t scalars,
                            TemplateDevice device);

}  // namespace dlb
