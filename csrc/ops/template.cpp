// The template API: turns the caller's text into rows for the code generators, and registers it as the ops
// dlbackend::template and dlbackend::template_out; and expressions of the library's own rows as
// dlbackend::rows and dlbackend::rows_out.
#include "ops/template.h"

#include <ATen/native/TypeProperties.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "cl/build_mode.h"
#include "cl/hash.h"
#include "ops/common/fused.h"

namespace dlb {
namespace {

using codegen::PointwiseOp;
using codegen::ReduceBody;
using codegen::ReduceOp;

std::string num(size_t i) {
  return std::to_string(i);
}

// The rows made of one text. Kernels are found by the rows' addresses, so they live as long as the process.
struct Rows {
  std::vector<std::string> inits;
  std::string name, pointwise_body, step, combine, finish;
  PointwiseOp pointwise{};
  ReduceOp reduce{};
  std::vector<bool> reduced;  // of each output
};

void write_reduction(const Template& what, Rows& rows) {
  ReduceBody body;
  std::string declare, declare_results, results, pack, unpack;
  size_t reduced = 0, mapped = 0;
  for (size_t k = 0; k < what.outputs.size(); ++k) {
    declare += "T y" + num(k) + "; ";
    rows.reduced.push_back(what.outputs[k].has_value());
    if (!what.outputs[k]) {
      pack += " z" + num(mapped++) + " = y" + num(k) + ";";
      continue;
    }
    const std::string f = num(reduced), combined = " a" + f + " = (" + what.outputs[k]->combine + "); }\n";
    rows.inits.push_back(what.outputs[k]->init);
    pack += " { const T a = a" + f + ", b = y" + num(k) + ";" + combined;
    rows.combine += "  { const T a = a" + f + ", b = b" + f + ";" + combined;
    // The generator numbers reduced results alone; the caller's text knows all outputs' numbers.
    declare_results += "T w" + f + "; ";
    results += "T y" + num(k) + " = a" + f + "; ";
    unpack += " w" + f + " = y" + num(k) + ";";
    ++reduced;
  }
  rows.step = declare + what.expression + "\n " + pack;
  rows.finish = declare_results + "{ " + results + what.finish + "\n" + unpack + " }";
  for (size_t f = 0; f < reduced; ++f) rows.finish += " y" + num(f) + " = w" + num(f) + ";";
  for (size_t f = 0; f < reduced; ++f) body.fields[f] = {"T", rows.inits[f].c_str()};
  body.step = rows.step.c_str();
  body.combine = rows.combine.c_str();
  body.finish = rows.finish.c_str();
  rows.reduce.on_float = rows.reduce.on_int = rows.reduce.on_bool = rows.reduce.on_complex = body;
}

const Rows& rows_of(const Template& what, size_t scalars) {
  std::string text = num(scalars) + "\n" + what.expression + "\n" + what.finish;
  for (const auto& output : what.outputs)
    text += output ? "\nreduced\n" + output->init + "\n" + output->combine : "\nmapped";
  static std::mutex mutex;
  static auto* all = new std::unordered_map<std::string, std::unique_ptr<Rows>>;
  std::lock_guard<std::mutex> lock(mutex);
  auto& rows = (*all)[text];
  if (rows) return *rows;
  auto made = std::make_unique<Rows>();
  made->name = "template_" + cl::hash128(text).hex().substr(0, 12);
  // The first statement tells the generator that statements follow.
  made->pointwise_body = "y0 = (T)(0);\n" + what.expression;
  const char* const body = made->pointwise_body.c_str();
  made->pointwise = {.name = made->name.c_str(),
                     .on_float = body,
                     .on_int = body,
                     .on_bool = body,
                     .on_complex = body,
                     .scalars = static_cast<uint8_t>(scalars),
                     .from_text = true};
  made->reduce.name = made->name.c_str();
  made->reduce.from_text = true;
  made->reduce.scalars = static_cast<uint8_t>(scalars);
  write_reduction(what, *made);
  rows = std::move(made);
  return *rows;
}

constexpr size_t kMaxInputs = 8;
static_assert(kMaxInputs + codegen::kMaxResults <=
              std::min(codegen::kMaxReduceOperands, codegen::kMaxOperands));

void check_counts(const Template& what, size_t inputs, size_t scalars) {
  TORCH_CHECK_VALUE(inputs > 0, "template: at least one input is needed");
  TORCH_CHECK_VALUE(!what.outputs.empty(), "template: at least one output is needed");
  TORCH_CHECK_VALUE(inputs <= kMaxInputs && what.outputs.size() <= codegen::kMaxResults, "template: at most ",
                    kMaxInputs, " inputs and ", codegen::kMaxResults, " outputs, not ", inputs, " and ",
                    what.outputs.size());
  TORCH_CHECK_VALUE(scalars <= codegen::kMaxScalars, "template: at most ", codegen::kMaxScalars,
                    " scalars, not ", scalars);
}

bool reduces(const Template& what) {
  return std::any_of(what.outputs.begin(), what.outputs.end(), [](const auto& o) { return o.has_value(); });
}

at::ScalarType output_dtype(const Template& what, size_t output, at::ScalarType compute) {
  return output < what.dtypes.size() ? what.dtypes[output] : compute;
}

// The dtype that a call computes in.
at::ScalarType compute_of(const Template& what, at::TensorList inputs) {
  if (what.compute) return *what.compute;
  at::native::ResultTypeState state = {};
  for (const at::Tensor& input : inputs) state = at::native::update_result_type_state(input, state);
  return at::native::result_type(state);
}

ResultShapes shapes_of(const Template& what, at::TensorList inputs, size_t scalars) {
  check_counts(what, inputs.size(), scalars);
  return {inputs, reduces(what), at::IntArrayRef(what.dims), what.keepdim};
}

void launch(const Template& what, const ResultShapes& shapes, at::TensorList inputs,
            c10::ArrayRef<c10::Scalar> scalars, at::TensorList outputs) {
  const Rows& rows = rows_of(what, scalars.size());
  const cl::WithBuildMode mode({.deferred = false});  // the caller's text may not compile
  launch_results({"template", rows.pointwise, rows.reduce, rows.reduced, compute_of(what, inputs)}, shapes,
                 inputs, scalars, outputs);
}

// The ops' arguments as a Template: outputs with an empty init are not reduced.
Template template_of(c10::string_view expression, const c10::List<std::string>& inits,
                     const c10::List<std::string>& combines, at::IntArrayRef dims, bool keepdim,
                     c10::string_view finish, std::optional<at::ScalarType> compute,
                     std::vector<at::ScalarType> dtypes) {
  TORCH_CHECK_VALUE(inits.size() == combines.size(), "template: as many inits as combines are needed");
  Template what{std::string(expression), {},      dims.vec(),       keepdim,
                std::string(finish),     compute, std::move(dtypes)};
  for (size_t k = 0; k < inits.size(); ++k) {
    std::optional<Reduction> reduction;
    if (!inits.get(k).empty()) reduction = Reduction{inits.get(k), combines.get(k)};
    what.outputs.push_back(std::move(reduction));
  }
  return what;
}

std::vector<at::Tensor> template_op(std::string expression, at::TensorList inputs,
                                    at::ArrayRef<at::Scalar> scalars, const c10::List<std::string>& inits,
                                    const c10::List<std::string>& combines, at::IntArrayRef dims,
                                    bool keepdim, std::string finish, std::optional<at::ScalarType> compute,
                                    std::vector<at::ScalarType> dtypes) {
  const auto what =
      template_of(expression, inits, combines, dims, keepdim, finish, compute, std::move(dtypes));
  return run_template(what, inputs, scalars);
}

void template_out_op(std::string expression, at::TensorList inputs, at::ArrayRef<at::Scalar> scalars,
                     const c10::List<std::string>& inits, const c10::List<std::string>& combines,
                     at::IntArrayRef dims, bool keepdim, std::string finish,
                     std::optional<at::ScalarType> compute, at::TensorList outputs) {
  const auto what = template_of(expression, inits, combines, dims, keepdim, finish, compute, {});
  run_template_out(what, inputs, scalars, outputs);
}

std::string source_op(std::string expression, std::vector<at::ScalarType> inputs, int64_t scalars,
                      const c10::List<std::string>& inits, const c10::List<std::string>& combines,
                      std::string finish, std::optional<at::ScalarType> compute,
                      std::vector<at::ScalarType> dtypes, bool cpu) {
  const auto what = template_of(expression, inits, combines, {}, false, finish, compute, std::move(dtypes));
  return template_source(what, inputs, static_cast<size_t>(scalars),
                         cpu ? TemplateDevice::kCpu : TemplateDevice::kGpu);
}

// The types of all operands: reduced outputs first, then the other outputs, then the inputs.
template <size_t N>
void fill_types(std::array<codegen::DType, N>& types, const Template& what,
                c10::ArrayRef<at::ScalarType> inputs, at::ScalarType compute) {
  size_t at = 0;
  for (const bool reduced : {true, false})
    for (size_t k = 0; k < what.outputs.size(); ++k)
      if (what.outputs[k].has_value() == reduced)
        types[at++] = dtype_of(output_dtype(what, k, compute), "template");
  for (const at::ScalarType input : inputs) types[at++] = dtype_of(input, "template");
}

std::vector<at::Tensor> rows_op(std::string text, at::TensorList inputs, at::ArrayRef<at::Scalar> scalars,
                                at::OptionalIntArrayRef dims, bool keepdim,
                                std::vector<at::ScalarType> dtypes) {
  return run_fused(fused_op_of(text), {inputs, scalars, dims, keepdim}, dtypes);
}

void rows_out_op(std::string text, at::TensorList inputs, at::ArrayRef<at::Scalar> scalars,
                 at::OptionalIntArrayRef dims, bool keepdim, at::TensorList outputs) {
  run_fused_out(fused_op_of(text), {inputs, scalars, dims, keepdim}, outputs);
}

}  // namespace

std::string template_source(const Template& what, c10::ArrayRef<at::ScalarType> inputs, size_t scalars,
                            TemplateDevice device) {
  check_counts(what, inputs.size(), scalars);
  at::ScalarType compute = what.compute.value_or(inputs[0]);
  if (!what.compute)
    for (const at::ScalarType input : inputs) compute = c10::promoteTypes(compute, input);
  const Rows& rows = rows_of(what, scalars);
  const auto cls = device == TemplateDevice::kCpu ? cl::DeviceClass::kCpu : cl::DeviceClass::kGpu;
  const auto in_kernel = codegen::compute_type(dtype_of(compute, "template"));
  if (reduces(what)) {
    codegen::ReduceKey key{.op = &rows.reduce, .cls = cls, .compute = in_kernel};
    key.outputs = 0;
    for (const auto& output : what.outputs) ++(output ? key.outputs : key.mapped);
    key.inputs = static_cast<uint8_t>(inputs.size());
    fill_types(key.types, what, inputs, compute);
    return codegen::reduce_source(key);
  }
  codegen::PointwiseKey key{.op = &rows.pointwise, .cls = cls, .compute = in_kernel};
  key.outputs = static_cast<uint8_t>(what.outputs.size());
  key.inputs = static_cast<uint8_t>(inputs.size());
  fill_types(key.types, what, inputs, compute);
  key.vectorised = cls == cl::DeviceClass::kGpu &&
                   std::all_of(key.types.begin(), key.types.begin() + key.outputs + key.inputs,
                               [](codegen::DType type) { return codegen::fits_vectors(type); });
  if (cls == cl::DeviceClass::kGpu && !key.vectorised)
    std::fill_n(key.inner.begin(), key.outputs + key.inputs, codegen::Inner::Strided);
  return codegen::pointwise_source(key);
}

std::vector<at::Tensor> run_template(const Template& what, at::TensorList inputs,
                                     c10::ArrayRef<c10::Scalar> scalars) {
  const ResultShapes shapes = shapes_of(what, inputs, scalars.size());
  const at::TensorOptions options = result_options(inputs);
  std::vector<at::Tensor> outputs;
  for (size_t k = 0; k < what.outputs.size(); ++k)
    outputs.push_back(at::empty(what.outputs[k] ? shapes.reduced : shapes.whole,
                                options.dtype(output_dtype(what, k, compute_of(what, inputs)))));
  if (options.device().is_meta()) return outputs;
  check_on_device("template", options.device());
  launch(what, shapes, inputs, scalars, outputs);
  return outputs;
}

void run_template_out(const Template& what, at::TensorList inputs, c10::ArrayRef<c10::Scalar> scalars,
                      at::TensorList outputs) {
  launch(what, shapes_of(what, inputs, scalars.size()), inputs, scalars, outputs);
}

TORCH_LIBRARY_FRAGMENT(dlbackend, m) {
  m.def(
      "template(str expression, Tensor[] inputs, Scalar[] scalars, str[] inits, str[] combines, int[] dims, "
      "bool keepdim, str finish, ScalarType? compute, ScalarType[] dtypes) -> Tensor[]",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "template_out(str expression, Tensor[] inputs, Scalar[] scalars, str[] inits, str[] combines, int[] "
      "dims, "
      "bool keepdim, str finish, ScalarType? compute, Tensor(a!)[] outputs) -> ()");
  m.def(
      "template_source(str expression, ScalarType[] inputs, int scalars, str[] inits, str[] combines, "
      "str finish, ScalarType? compute, ScalarType[] dtypes, bool cpu) -> str",
      source_op);
  m.def(
      "rows(str expression, Tensor[] inputs, Scalar[] scalars, int[]? dims, bool keepdim, ScalarType[] "
      "dtypes) "
      "-> Tensor[]",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "rows_out(str expression, Tensor[] inputs, Scalar[] scalars, int[]? dims, bool keepdim, Tensor(a!)[] "
      "outputs) -> ()");
}
TORCH_LIBRARY_IMPL(dlbackend, PrivateUse1, m) {
  m.impl("template", template_op);
  m.impl("template_out", template_out_op);
  m.impl("rows", rows_op);
  m.impl("rows_out", rows_out_op);
}
TORCH_LIBRARY_IMPL(dlbackend, Meta, m) {
  m.impl("template", template_op);
  m.impl("rows", rows_op);
}

}  // namespace dlb
