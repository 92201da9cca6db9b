// Generates reduction programs: macros and small functions from the op's row, in front of the loops in
// csrc/kernels/reduce, which are the same for every op.
#include "codegen/reduce.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "cl/embedded.h"
#include "codegen/expression_text.h"
#include "codegen/functions.h"
#include "codegen/reduce_key.h"
#include "codegen/text.h"

namespace dlb::codegen {
namespace {

// A CPU reads long runs at several places in turns. From so many elements on, the places may fall into the
// same sets of a cache and evict each other's lines.
constexpr size_t kLongRow = 1 << 16;

struct ReduceWriter {
  explicit ReduceWriter(const ReduceKey& key)
      : key(key),
        op(*key.op),
        body(op.body(class_of(key.compute))),
        fields(body.field_count()),
        count(key.operands()),
        first_input(size_t{key.outputs} + key.mapped),
        row_inputs(op.expression ? op.expression->inputs : key.inputs),
        row_results(op.expression ? op.expression->results : key.outputs),
        row_scalars(op.expression ? op.expression->scalars.size() : op.scalars),
        row_mapped(op.expression ? 0 : key.mapped) {
    if (op.expression) around.emplace(*op.expression, key.types.data() + first_input, key.compute);
  }

  DType scalar_type(size_t i) const { return codegen::scalar_type(op, key.compute, i); }
  std::string field_type(size_t f) const { return body.fields[f].type; }
  std::string x_parameters() const {
    return each(row_inputs, [](size_t i) { return "const T x" + num(i) + ", "; });
  }
  std::string s_parameters() const {
    return each(row_scalars, [](size_t i) { return ", const T s" + num(i); });
  }
  std::string s_values() const {
    return each(row_scalars,
                [&](size_t i) { return ", " + (around ? around->row_scalar(i) : "s" + num(i)); });
  }
  std::string a_pointers() const {
    return each(
        fields, [&](size_t f) { return field_type(f) + "* p" + num(f); }, ", ");
  }
  std::string read_a() const {
    return "  " +
           each(fields, [&](size_t f) { return field_type(f) + " a" + num(f) + " = *p" + num(f) + "; "; }) +
           "\n";
  }
  std::string write_a() const {
    return "  " + each(fields, [](size_t f) { return "*p" + num(f) + " = a" + num(f) + "; "; }) + "\n";
  }

  std::string functions() const {
    std::string s = functions_source(std::string(body.step) + body.combine + body.finish +
                                     (body.settle ? body.settle : ""));
    s += "inline void dlb_step(" + a_pointers() + ", " + x_parameters() + "const long i" + s_parameters() +
         each(row_mapped, [](size_t m) { return ", T* r" + num(m); }) + ") {\n" + read_a() +
         each(row_mapped, [](size_t m) { return "  T z" + num(m) + ";\n"; }) + "  " + body.step + "\n" +
         write_a() + each(row_mapped, [](size_t m) { return "  *r" + num(m) + " = z" + num(m) + ";\n"; }) +
         "}\n";
    s += "inline void dlb_combine(" + a_pointers() +
         each(fields, [&](size_t f) { return ", const " + field_type(f) + " b" + num(f); }) + ") {\n" +
         read_a() + "  " + body.combine + "\n" + write_a() + "}\n";
    s += "inline void dlb_settle(" + a_pointers() + ") {\n" +
         (body.settle ? read_a() + "  " + body.settle + "\n" + write_a() : std::string()) + "}\n";
    s += "inline void dlb_finish(" +
         each(fields, [&](size_t f) { return "const " + field_type(f) + " a" + num(f) + ", "; }) +
         "const long n" + s_parameters() +
         each(row_results, [&](size_t o) { return std::string(", ") + result_name(o) + "* r" + num(o); }) +
         ") {\n" +
         each(row_results,
              [&](size_t o) { return std::string("  ") + result_name(o) + " y" + num(o) + ";\n"; }) +
         "  " + body.finish + "\n" +
         each(row_results, [](size_t o) { return "  *r" + num(o) + " = y" + num(o) + ";\n"; }) + "}\n";
    return s;
  }

  const char* result_name(size_t output) const {
    return compute_name(result_dtype(op.results[output], key.compute));
  }
  // Declares w0.., the kernel's results, from the row's, y0...
  std::string results() const {
    if (around) return around->results();
    return each(key.outputs, [&](size_t o) {
      return std::string("const ") + result_name(o) + " w" + num(o) + " = y" + num(o) + "; ";
    });
  }
  // The type of w<output>.
  DType kernel_result(size_t output) const {
    return around ? around->result_type(output) : result_dtype(op.results[output], key.compute);
  }

  // Declares x0.., the row's inputs, from the elements of the operands, and stores an expression's mapped
  // results.
  template <class Position>
  std::string element_inputs(Position&& position, const char* source) const {
    std::string s = each(key.inputs, [&](size_t i) {
      const size_t o = first_input + i;
      const DType type = around ? compute_type(key.types[o]) : key.compute;
      return std::string("const ") + compute_name(type) + (around ? " u" : " x") + num(i) + " = " +
             load_at(key.types[o], type, source + num(o), position(o)) + "; ";
    });
    if (!around) return s;
    return s + around->row_inputs() + each(key.mapped, [&](size_t m) {
             const size_t o = key.outputs + m;
             return "q" + num(o) + "[" + position(o) + "] = " + around->stored_mapped(m, key.types[o]) + "; ";
           });
  }

  // Accumulators are arrays, one per field, named v0, v1 .. for the macro argument v.
  std::string accumulator_macros() const {
    std::string s = "typedef struct { " +
                    each(fields, [&](size_t f) { return field_type(f) + " a" + num(f) + "; "; }) +
                    "} dlb_accumulator;\n";
    auto addresses = [&](const char* v, const char* l) {
      return each(
          fields, [&](size_t f) { return "&" + (v + ("##" + num(f))) + "[" + l + "]"; }, ", ");
    };
    auto values = [&](const char* v, const char* l) {
      return each(
          fields, [&](size_t f) { return v + ("##" + num(f)) + "[" + l + "]"; }, ", ");
    };
    s += "#define DLB_DECLARE(v, size) " +
         each(fields, [&](size_t f) { return field_type(f) + " v##" + num(f) + "[size]; "; }) + "\n";
    s += "#define DLB_INIT(v, l) { " +
         each(fields,
              [&](size_t f) {
                return "v##" + num(f) + "[l] = (" + field_type(f) + ")(" + body.fields[f].init + "); ";
              }) +
         "}\n";
    s += "#define DLB_COMBINE(v, l, w, m) dlb_combine(" + addresses("v", "l") + ", " + values("w", "m") +
         ")\n";
    s += "#define DLB_SETTLE(v, l) dlb_settle(" + addresses("v", "l") + ")\n";
    s += "#define DLB_COMBINE_WITH(v, l, c) dlb_combine(" + addresses("v", "l") +
         each(fields, [](size_t f) { return ", (c).a" + num(f); }) + ")\n";
    s += "#define DLB_COPY(v, l, w, m) { " +
         each(fields, [](size_t f) { return "v##" + num(f) + "[l] = w##" + num(f) + "[m]; "; }) + "}\n";
    s += "#define DLB_SAVE(c, v, l) { " +
         each(fields, [](size_t f) { return "(c).a" + num(f) + " = v##" + num(f) + "[l]; "; }) + "}\n";
    s += "#define DLB_LOAD(v, l, c) " +
         each(fields, [](size_t f) { return "v##" + num(f) + "[l] = (c).a" + num(f) + "; "; }) + "\n";
    // Stores the results of accumulator l, `at` results along kept dimension 0.
    s += "#define DLB_FINISH(v, l, at) { " +
         each(row_results, [&](size_t o) { return std::string(result_name(o)) + " y" + num(o) + "; "; }) +
         "dlb_finish(" + values("v", "l") + ", p.count" + s_values() +
         each(row_results, [](size_t o) { return ", &y" + num(o); }) + "); " + results() +
         each(key.outputs,
              [&](size_t o) {
                return "q" + num(o) + "[(long)(at) * p.operand[" + num(o) +
                       "].stride[0]] = " + store(kernel_result(o), key.types[o], "w" + num(o)) + "; ";
              }) +
         "}\n";
    return s;
  }

  // Scans: stores the results of accumulator l at `place(output)`, an expression of the macro arguments j and
  // d.
  template <class Place>
  std::string emit_macro(const char* name, Place&& place) const {
    return std::string("#define ") + name + "(v, l, j, d) { " +
           each(key.outputs, [&](size_t o) { return std::string(result_name(o)) + " y" + num(o) + "; "; }) +
           "dlb_finish(" + each(fields, [](size_t f) { return "v##" + num(f) + "[l], "; }) + "0" +
           s_values() + each(key.outputs, [](size_t o) { return ", &y" + num(o); }) + "); " +
           each(key.outputs,
                [&](size_t o) {
                  return place(o) + " = " +
                         store(result_dtype(op.results[o], key.compute), key.types[o], "y" + num(o)) + "; ";
                }) +
           "}\n";
  }

  // GPU scans: elements that a work-item asks for before it uses one, and the tile of a work-group in local
  // memory, which has DLB_PLACES places for the input and for the results.
  std::string tile_macros() const {
    const std::string in = num(first_input), type = storage_name(key.types[first_input]);
    const auto operand = [](size_t o) { return "p.operand[" + num(o) + "]"; };
    const auto at_row = [&](size_t o) {
      return "q" + num(o) + "[(row) * " + operand(o) + ".stride[0] + (long)(j) * " + operand(o) +
             ".stride[d]]";
    };
    std::string s = "#define SCAN_ASKED " + num(scan_held(key)) + "\n#define DLB_INPUT p.operand[" + in +
                    "]\n#define DLB_HELD(size) " + type + " e" + in +
                    "[size];\n#define DLB_HOLD_ELEMENT(k, at) e" + in + "[k] = q" + in +
                    "[at];\n#define DLB_HELD_TO_TILE(k, place) t" + in + "[place] = e" + in +
                    "[k];\n#define DLB_ROW_TO_TILE(place, row, j, d) t" + in +
                    "[place] = " + at_row(first_input) + ";\n#define DLB_TILE_POINTERS ";
    size_t bytes = 0;
    for (size_t o = 0; o < count; ++o) {
      if (o == first_input && replaces_input(key)) {
        s += "local " + type + "* const t" + in + " = t0; ";
        continue;
      }
      const std::string name = storage_name(key.types[o]);
      s += "local " + name + "* const t" + num(o) + " = (local " + name + "*)((local uchar*)tile + " +
           num(bytes) + " * DLB_PLACES); ";
      bytes += size_of(key.types[o]);
    }
    s += "\n#define DLB_TILE_BYTES (" + num(bytes) +
         " * DLB_PLACES)\n#define DLB_TILE_TO_ROW(place, row, j, d) { " +
         each(key.outputs, [&](size_t o) { return at_row(o) + " = t" + num(o) + "[place]; "; }) +
         "}\n#define DLB_SEEK_RESULTS(row, j, d) " +
         each(key.outputs,
              [&](size_t o) {
                return "global " + std::string(storage_name(key.types[o])) + "* r" + num(o) + " = &" +
                       at_row(o) + "; const long step" + num(o) + " = DLB_STEP(" + operand(o) + "), turn" +
                       num(o) + " = DLB_TURN(" + operand(o) + "); ";
              }) +
         "\n#define DLB_TILE_TO_RESULTS(place) { " +
         each(key.outputs, [&](size_t o) { return "*r" + num(o) + " = t" + num(o) + "[place]; "; }) +
         "}\n#define DLB_NEXT_RESULTS(turns) { " +
         each(key.outputs,
              [&](size_t o) {
                return "r" + num(o) + " += step" + num(o) + "; if (turns) r" + num(o) + " += turn" + num(o) +
                       "; ";
              }) +
         "}\n";
    const auto at_place = [](size_t) { return std::string("j"); };
    return s + emit_macro("DLB_EMIT_TO_TILE", [](size_t o) { return "t" + num(o) + "[j]"; }) +
           element_macro("DLB_HELD_ELEMENT", at_place, "e") +
           element_macro("DLB_TILE_ELEMENT", at_place, "t");
  }

  std::string pointer_macros() const {
    std::string s = "#define DLB_ARGUMENTS " +
                    each(count,
                         [&](size_t i) {
                           return std::string("global ") + (i < first_input ? "" : "const ") +
                                  storage_name(key.types[i]) + "* b" + num(i) + ", ";
                         }) +
                    "global uchar* bytes, const ReduceParams p" +
                    each(op.scalars,
                         [&](size_t i) {
                           return std::string(", const ") + scalar_name(scalar_type(i)) + " v" + num(i);
                         }) +
                    "\n";
    s += "#define DLB_WORKSPACE ((global dlb_accumulator*)(bytes + p.workspace))\n#define DLB_START " +
         each(count,
              [&](size_t i) {
                return std::string("global ") + (i < first_input ? "" : "const ") +
                       storage_name(key.types[i]) + "* q" + num(i) + " = b" + num(i) + " + p.operand[" +
                       num(i) + "].offset; ";
              }) +
         "\n";
    s += "#define DLB_SCALARS " +
         each(op.scalars,
              [&](size_t i) {
                const std::string type = compute_name(scalar_type(i));
                return "const " + type + " s" + num(i) + " = (" + type + ")v" + num(i) + "; ";
              }) +
         "\n";
    auto move = [&](size_t from, size_t to) {
      return each(to - from,
                  [&](size_t i) {
                    const std::string o = num(from + i);
                    return "q" + o + " += (long)(k) * p.operand[" + o + "].stride[d]; ";
                  }) +
             "\n";
    };
    s += "#define DLB_MOVE_OUTPUTS(d, k) " + move(0, key.outputs);
    s += "#define DLB_MOVE(d, k) " + move(key.outputs, count);
    // Hints that the first `bytes` of the next run along dimension d come soon; its address may lie outside.
    s += "#define DLB_PREFETCH(d, bytes) for (int k_ = 0; k_ < (bytes); k_ += 64) { " +
         each(key.inputs,
              [&](size_t x) {
                const std::string o = num(first_input + x);
                return "DLB_TOUCH((global const uchar*)(q" + o + " + p.operand[" + o + "].stride[d]) + k_); ";
              }) +
         "}\n";
    s += "#define DLB_HOLD " +
         each(count - key.outputs,
              [&](size_t i) {
                const size_t o = key.outputs + i;
                return std::string("global ") + (o < first_input ? "" : "const ") +
                       storage_name(key.types[o]) + "* const h" + num(o) + " = q" + num(o) + "; ";
              }) +
         "\n";
    s += "#define DLB_RETURN " +
         each(count - key.outputs,
              [&](size_t i) { return "q" + num(key.outputs + i) + " = h" + num(key.outputs + i) + "; "; }) +
         "\n";
    return s;
  }

  // Four neighbouring elements at position r of a contiguous run, as arrays e1, e2 ..
  std::string vector_macros() const {
    return "#define DLB_VECTORS(r) " +
           each(key.inputs,
                [&](size_t x) {
                  const std::string o = num(first_input + x), type = storage_name(key.types[first_input + x]);
                  if (key.constants >> (first_input + x) & 1)
                    return "const " + type + " e" + o + "[4] = {q" + o + "[0], q" + o + "[0], q" + o +
                           "[0], q" + o + "[0]}; ";
                  return "const " + type + "4 w" + o + " = *(global const " + type + "4*)(q" + o +
                         " + (r)); const " + type + " e" + o + "[4] = {w" + o + ".x, w" + o + ".y, w" + o +
                         ".z, w" + o + ".w}; ";
                }) +
           "\n" +
           element_macro(
               "DLB_VECTOR_ELEMENT", [](size_t) { return std::string("l"); }, "e");
  }

  // Takes one element into accumulator l of v. `position(operand)` is the index expression in macro argument
  // j; i is the position in the reduction.
  template <class Position>
  std::string element_macro(const char* name, Position&& position, const char* source = "q") const {
    return std::string("#define ") + name + "(v, l, j, i, d) { " + element_inputs(position, source) +
           each(row_mapped, [](size_t m) { return "T z" + num(m) + "; "; }) + "dlb_step(" +
           each(fields, [](size_t f) { return "&v##" + num(f) + "[l], "; }) +
           each(row_inputs, [](size_t x) { return "x" + num(x) + ", "; }) + "i" + s_values() +
           each(row_mapped, [](size_t m) { return ", &z" + num(m); }) + "); " +
           each(row_mapped,
                [&](size_t m) {
                  const size_t o = key.outputs + m;
                  return "q" + num(o) + "[" + position(o) +
                         "] = " + store(key.compute, key.types[o], "z" + num(m)) + "; ";
                }) +
           "}\n";
  }
  std::string element_macros() const {
    return element_macro("DLB_ELEMENT_UNIT",
                         [&](size_t o) { return key.constants >> o & 1 ? "0" : std::string("j"); }) +
           element_macro("DLB_ELEMENT_STRIDED",
                         [](size_t o) { return "(long)(j) * p.operand[" + num(o) + "].stride[d]"; });
  }

  std::string form(ReduceForm form, bool unit, const char* file) const {
    return std::string("#define DLB_KERNEL ") + name_of(form) + "\n#define DLB_ELEMENT " +
           (unit ? "DLB_ELEMENT_UNIT" : "DLB_ELEMENT_STRIDED") + "\n" + cl::embedded_source(file) +
           "#undef DLB_KERNEL\n#undef DLB_ELEMENT\n";
  }

  // CPUs: up to four places are read in turns. Their offsets from operand I's pointer are called fI.
  std::string place_macros() const {
    const auto all = [&](auto&& f) { return each(count, [&](size_t i) { return f(num(i)); }) + "\n"; };
    std::string s = "#define DLB_PLACES_DECLARE " +
                    all([](const std::string& o) { return "long f" + o + "[4] = {0, 0, 0, 0}; "; });
    s += "#define DLB_REWIND " +
         all([](const std::string& o) { return "q" + o + " = b" + o + " + p.operand[" + o + "].offset; "; });
    s += "#define DLB_PLACE_KEEP(s) " +
         all([](const std::string& o) { return "f" + o + "[s] = q" + o + " - b" + o + "; "; });
    s += "#define DLB_PLACES_RELATIVE " + all([](const std::string& o) {
           return "for (int s_ = 3; s_ >= 0; --s_) f" + o + "[s_] -= f" + o + "[0]; ";
         });
    s += "#define DLB_PLACE_SET(s, k, d) { " +
         each(count - key.outputs,
              [&](size_t i) {
                const std::string o = num(key.outputs + i);
                return "f" + o + "[s] = (k) * p.operand[" + o + "].stride[d]; ";
              }) +
         "}\n";
    // Between these two macros the pointers are those of place s.
    const auto pointer = [&](size_t i) {
      return std::string("global ") + (i < first_input ? "" : "const ") + storage_name(key.types[i]) + "* ";
    };
    s += "#define DLB_AT_PLACE(s) { " +
         each(count,
              [&](size_t i) {
                return pointer(i) + "const t" + num(i) + " = q" + num(i) + " + f" + num(i) + "[s]; ";
              }) +
         "{ ";
    s += each(count, [&](size_t i) { return pointer(i) + "q" + num(i) + " = t" + num(i) + "; "; }) + "\n";
    return s + "#define DLB_LEAVE_PLACE }}\n";
  }

  // The forms whose kernels walk rows on a CPU.
  std::string rows_forms() const {
    return place_macros() + "#define DLB_LONG_RUN " + num(kLongRow) + "\n" +
           form(ReduceForm::Rows, true, "reduce/reduce_rows_cpu.clh") +
           form(ReduceForm::RowsStrided, false, "reduce/reduce_rows_cpu.clh");
  }

  std::string source() const {
    const bool cpu = key.cls == cl::DeviceClass::kCpu;
    const size_t lanes = reduce_lanes(key.compute);
    const size_t columns = reduce_columns(op, key.compute);
    const bool wide = key.scan && wide_sums(key.compute, key.cls);
    const bool complex = class_of(key.compute) == DClass::Complex;
    std::vector<DType> used(key.types.begin(), key.types.begin() + static_cast<ptrdiff_t>(count));
    used.insert(used.end(), {key.compute, wide ? DType::F64 : key.compute});
    if (around) around->add_types(used);
    std::string s = conversions_source(used.data(), used.size()) + device_macro(key.cls) +
                    (around ? around->functions() : "") + compute_macros(key.compute) +
                    limit_macros(key.compute) + divider_source();
    s += wide ? "#define ACC double\n" : complex ? "#define ACC REAL\n" : "#define ACC T\n";
    s += "#define REDUCE_OPERANDS " + num(count) + "\n#define DLB_LANES " + num(lanes) +
         "\n#define DLB_COLUMNS " + num(columns) + "\n#define DLB_WIDE " + num(key.wide) + "\n";
    s += accumulator_macros() + pointer_macros() + element_macros() + functions();
    s += cl::embedded_source("reduce/reduce.clh");
    if (key.scan) {
      s += emit_macro(
               "DLB_EMIT",
               [](size_t o) { return "q" + num(o) + "[(long)(j) * p.operand[" + num(o) + "].stride[d]]"; }) +
           cl::embedded_source("reduce/scan.clh");
      if (cpu)
        return s + cl::embedded_source("reduce/scan_rows_cpu.clh") +
               cl::embedded_source("reduce/scan_columns_cpu.clh");
      return s + tile_macros() + cl::embedded_source("reduce/scan_rows_gpu.clh") +
             cl::embedded_source("reduce/scan_tile_gpu.clh") + "#define DLB_CHAINED 0\n#define SCAN_HELD " +
             num(scan_held(key)) + "\n" + form(ReduceForm::ScanGroup, false, "reduce/scan_group_gpu.clh") +
             "#undef DLB_CHAINED\n#undef SCAN_HELD\n#define DLB_CHAINED 1\n#define SCAN_HELD " +
             num(chained_scan_held(key)) + "\n" +
             form(ReduceForm::ScanChained, false, "reduce/scan_group_gpu.clh");
    }
    if (cpu)
      s += rows_forms() + form(ReduceForm::Columns, true, "reduce/reduce_columns_cpu.clh") +
           form(ReduceForm::ColumnsStrided, false, "reduce/reduce_columns_cpu.clh") +
           form(ReduceForm::Combine, false, "reduce/reduce_combine_cpu.clh");
    else
      s += vector_macros() + form(ReduceForm::Group, false, "reduce/reduce_group_gpu.clh") +
           (has_vector_form(key) ? "#define DLB_RUNS 0\n" +
                                       form(ReduceForm::GroupVector, true, "reduce/reduce_vector_gpu.clh") +
                                       "#undef DLB_RUNS\n#define DLB_RUNS 1\n" +
                                       form(ReduceForm::GroupVectorRuns, true, "reduce/reduce_vector_gpu.clh")
                                 : std::string()) +
           form(ReduceForm::Combine, false, "reduce/reduce_combine_gpu.clh");
    return s;
  }

  const ReduceKey& key;
  const ReduceOp& op;
  const ReduceBody& body;
  const size_t fields, count, first_input;
  // Of the row, which are not the kernel's where it is part of an expression.
  const size_t row_inputs, row_results, row_scalars, row_mapped;
  std::optional<ReductionText> around;
};

}  // namespace

DType result_dtype(ResultType result, DType type) {
  switch (result) {
    case ResultType::Truth:
      return DType::Bool;
    case ResultType::Index:
      return DType::I64;
    case ResultType::Real:
      return real_type(type);
    default:
      return type;
  }
}

std::string reduce_source(const ReduceKey& key) {
  return ReduceWriter(key).source();
}

}  // namespace dlb::codegen
