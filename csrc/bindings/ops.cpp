// Python bindings of the table of ops: what each computes, as text, for generators of fused kernels and for
// the tables in docs/. docs/op-table.md says what the fields mean.
#include "bindings/bindings.h"

#include <pybind11/stl.h>

#include <stdexcept>

#include "cl/embedded.h"
#include "codegen/functions.h"
#include "codegen/op_functions.h"
#include "codegen/registry.h"
#include "runtime/device_error.h"

namespace py = pybind11;

namespace {

using dlb::codegen::DClass;
using dlb::codegen::DType;
using dlb::codegen::OpRow;
using dlb::codegen::ReduceBody;
using dlb::codegen::RowKind;

constexpr std::pair<DClass, const char*> kClasses[] = {
    {DClass::Bool, "bool"}, {DClass::Int, "int"}, {DClass::Float, "float"}, {DClass::Complex, "complex"}};

py::object text_or_none(const char* text) {
  return text ? py::object(py::str(text)) : py::object(py::none());
}

void add_pointwise(const OpRow& row, py::dict& to) {
  const auto& op = *row.pointwise;
  py::dict bodies, functions;
  for (const auto& [cls, name] : kClasses) {
    if (!op.body(cls)) continue;
    bodies[name] = op.body(cls);
    functions[name] = dlb::codegen::functions_used(op.body(cls));
  }
  to["bodies"] = bodies;
  to["functions"] = functions;
  to["scalars"] = op.scalars;
  to["bool_result"] = op.bool_result;
  to["real_result"] = op.real_result;
  to["exact_number"] = op.exact_number;
  to["rounded_scalars"] = op.rounded_scalars;
  to["error"] = text_or_none(op.error);
  if (row.kind != RowKind::MultiTensor) return;
  to["setup"] = text_or_none(row.setup);
  to["after"] = text_or_none(row.after);
}

py::dict body_of(const ReduceBody& body) {
  py::list fields;
  for (size_t f = 0; f < body.field_count(); ++f)
    fields.append(py::make_tuple(body.fields[f].type, body.fields[f].init));
  py::dict to;
  to["fields"] = fields;
  to["step"] = body.step;
  to["combine"] = body.combine;
  to["finish"] = body.finish;
  to["settle"] = text_or_none(body.settle);
  return to;
}

void add_reduce(const OpRow& row, py::dict& to) {
  constexpr const char* kResults[] = {"same", "real", "truth", "index"};
  const auto& op = *row.reduce;
  py::dict bodies, functions;
  for (const auto& [cls, name] : kClasses) {
    const ReduceBody& body = op.body(cls);
    if (!body.step) continue;
    bodies[name] = body_of(body);
    functions[name] =
        dlb::codegen::functions_used(std::string(body.step) + " " + body.combine + " " + body.finish);
  }
  py::list results;
  for (size_t o = 0; o < dlb::codegen::outputs_of(row); ++o)
    results.append(kResults[static_cast<size_t>(op.results[o])]);
  to["bodies"] = bodies;
  to["functions"] = functions;
  to["results"] = results;
  to["scalars"] = op.scalars;
  to["ordered"] = op.ordered;
}

py::list op_table() {
  constexpr const char* kKinds[] = {"pointwise", "multi_tensor", "reduce", "scan"};
  py::list rows;
  for (const OpRow* row : dlb::codegen::all_rows()) {
    py::dict to;
    to["id"] = row->id();
    to["kind"] = kKinds[static_cast<size_t>(row->kind)];
    to["overloads"] = row->overloads;
    to["promotion"] = row->promotion;
    to["inputs"] = dlb::codegen::inputs_of(*row);
    to["outputs"] = dlb::codegen::outputs_of(*row);
    if (row->pointwise)
      add_pointwise(*row, to);
    else
      add_reduce(*row, to);
    rows.append(to);
  }
  return rows;
}

DType dtype_named(const std::string& name) {
  if (const auto type = dlb::codegen::dtype_named(name)) return *type;
  throw py::value_error("there is no element type " + name);
}

std::string device_functions(const std::string& text, const std::string& compute,
                             const std::vector<std::string>& types, bool cpu) {
  std::vector<DType> used;
  for (const std::string& type : types) used.push_back(dtype_named(type));
  const DType to = dtype_named(compute);
  return dlb::codegen::prelude(to, used.data(), used.size()) +
         dlb::codegen::device_macro(cpu ? dlb::cl::DeviceClass::kCpu : dlb::cl::DeviceClass::kGpu) +
         dlb::codegen::limit_macros(to) + dlb::codegen::functions_source(text);
}

// A function of the row that returns its first result, such as `float dlb_value_exp_f32(const float x0)`.
std::string value_function(const dlb::codegen::PointwiseOp& op, DType compute, size_t inputs,
                           const std::string& function) {
  const std::string type = dlb::codegen::compute_name(compute), suffix = function.substr(7);
  const std::string result = dlb::codegen::compute_name(dlb::codegen::result_type(op, compute));
  std::string parameters, arguments;
  for (size_t i = 0; i < inputs + op.scalars; ++i) {
    const std::string name = "v" + std::to_string(i);
    parameters += (i ? ", const " : "const ") + type + " " + name;
    arguments += name + ", ";
  }
  return "DLB_INLINE " + result + " dlb_value_" + suffix + "(" + parameters + ") { " + result + " y; " +
         (op.error ? "int bad; " : "") + function + "(" + arguments + "&y" + (op.error ? ", &bad" : "") +
         "); return y; }\n";
}

std::string op_functions(const std::vector<std::pair<std::string, std::string>>& rows,
                         const std::vector<std::string>& types, bool cpu) {
  std::vector<DType> used;
  for (const std::string& type : types) used.push_back(dtype_named(type));
  dlb::codegen::OpFunctions functions;
  std::string values;
  for (const auto& [id, type] : rows) {
    const OpRow* row = dlb::codegen::find_row(id);
    const DType compute = dtype_named(type);
    if (!row || !row->pointwise || !row->pointwise->body(dlb::codegen::class_of(compute)))
      throw py::value_error("no pointwise row " + id + " computes in " + type);
    const size_t inputs = dlb::codegen::inputs_of(*row);
    const std::string name = functions.add(*row->pointwise, compute, inputs, dlb::codegen::outputs_of(*row));
    if (dlb::codegen::outputs_of(*row) == 1) values += value_function(*row->pointwise, compute, inputs, name);
  }
  return dlb::codegen::conversions_source(used.data(), used.size()) +
         dlb::codegen::device_macro(cpu ? dlb::cl::DeviceClass::kCpu : dlb::cl::DeviceClass::kGpu) +
         functions.source() + values;
}

}  // namespace

void bind_ops(py::module_& m) {
  m.def("op_table", &op_table, "What each op computes, by id: see docs/op-table.md.");
  m.def("device_functions", &device_functions, py::arg("text"), py::arg("compute"), py::arg("types"),
        py::arg("cpu"),
        "The OpenCL C that stands in front of a kernel with this text: T, REAL, C() and conversions for the "
        "compute type and the element types (\"f32\"), and the math functions that the text calls.");
  m.def("kernel_file", &dlb::cl::embedded_source, py::arg("name"),
        "The text of csrc/kernels/<name>, such as \"common/philox.clh\".");
  m.attr("DEVICE_ERROR_SOURCE") = dlb::kDeviceErrorSource;
  m.attr("COMPILED_SITE") = dlb::kCompiledSite;
  m.def("op_functions", &op_functions, py::arg("rows"), py::arg("types"), py::arg("cpu"),
        "The OpenCL C that stands in front of kernels which compute in several types: conversions for the "
        "element types, and a function dlb_op_<id>_<type> for each (id, type) of pointwise rows. A row with "
        "one result also has dlb_value_<id>_<type>, which returns it. ValueError where a row has no such "
        "body.");
}
