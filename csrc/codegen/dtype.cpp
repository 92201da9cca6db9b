// Conversions between element types, defined to match PyTorch on the CPU and not the driver's casts.
#include "codegen/dtype.h"

#include <array>
#include <vector>

#include "cl/embedded.h"

namespace dlb::codegen {
namespace {

struct Row {
  const char* name;
  const char* storage;
  const char* compute;
  const char* scalar;
  uint8_t size;
  DClass cls;
  bool is_signed;
};

constexpr std::array<Row, kDTypes> kRows = {{
    {"bool", "uchar", "int", "long", 1, DClass::Bool, false},
    {"u8", "uchar", "uchar", "long", 1, DClass::Int, false},
    {"i8", "char", "char", "long", 1, DClass::Int, true},
    {"i16", "short", "short", "long", 2, DClass::Int, true},
    {"u16", "ushort", "ushort", "long", 2, DClass::Int, false},
    {"i32", "int", "int", "long", 4, DClass::Int, true},
    {"u32", "uint", "uint", "long", 4, DClass::Int, false},
    {"i64", "long", "long", "long", 8, DClass::Int, true},
    {"u64", "ulong", "ulong", "long", 8, DClass::Int, false},
    {"f16", "ushort", "float", "float", 2, DClass::Float, true},
    {"bf16", "ushort", "float", "float", 2, DClass::Float, true},
    {"f32", "float", "float", "float", 4, DClass::Float, true},
    {"f64", "double", "double", "double", 8, DClass::Float, true},
    {"c64", "float2", "float2", "float2", 8, DClass::Complex, true},
    {"c128", "double2", "double2", "double2", 16, DClass::Complex, true},
    {"c32", "uint", "float2", "float2", 4, DClass::Complex, true},
    {"e4m3", "uchar", "float", "float", 1, DClass::Float, true},
    {"e5m2", "uchar", "float", "float", 1, DClass::Float, true},
    {"e4m3z", "uchar", "float", "float", 1, DClass::Float, true},
    {"e5m2z", "uchar", "float", "float", 1, DClass::Float, true},
    {"e8m0", "uchar", "float", "float", 1, DClass::Float, false},
}};

const Row& row(DType type) {
  return kRows[static_cast<size_t>(type)];
}

}  // namespace

size_t size_of(DType type) {
  return row(type).size;
}
DClass class_of(DType type) {
  return row(type).cls;
}
DType bits_of(size_t bytes) {
  switch (bytes) {
    case 1:
      return DType::U8;
    case 2:
      return DType::U16;
    case 4:
      return DType::U32;
    case 8:
      return DType::U64;
    default:
      return DType::C128;
  }
}

bool is_signed(DType type) {
  return row(type).is_signed;
}
const char* name_of(DType type) {
  return row(type).name;
}
std::optional<DType> dtype_named(std::string_view name) {
  for (size_t i = 0; i < kDTypes; ++i)
    if (name == kRows[i].name) return static_cast<DType>(i);
  return std::nullopt;
}
DType real_type(DType type) {
  switch (type) {
    case DType::C32:
      return DType::F16;
    case DType::C64:
      return DType::F32;
    case DType::C128:
      return DType::F64;
    default:
      return type;
  }
}
DType compute_type(DType type) {
  if (type == DType::C32) return DType::C64;
  return class_of(type) == DClass::Float && size_of(type) < 4 ? DType::F32 : type;
}
const char* storage_name(DType type) {
  return row(type).storage;
}
const char* compute_name(DType type) {
  return row(type).compute;
}
const char* scalar_name(DType compute) {
  return row(compute).scalar;
}

// Converts between compute types. C's own conversion from float to integer is undefined out of range, and
// drivers differ there.
std::string convert(DType from, DType to, const std::string& e) {
  if (from == to) return e;
  const DClass source = class_of(from), target = class_of(to);
  if (source == DClass::Complex && target != DClass::Complex) {
    if (target == DClass::Bool) return "((" + e + ").x != 0 || (" + e + ").y != 0)";
    return convert(real_type(from), to, "(" + e + ").x");
  }
  switch (target) {
    case DClass::Bool:
      return "((" + e + ") != 0)";
    case DClass::Complex:
      if (source == DClass::Complex) return std::string("convert_") + row(to).compute + "(" + e + ")";
      return std::string("((") + row(to).compute + ")((" + (to == DType::C64 ? "float" : "double") + ")(" +
             e + "), 0))";
    case DClass::Float:
      return std::string("((") + row(to).compute + ")(" + e + "))";
    case DClass::Int:
      if (source != DClass::Float) return std::string("((") + row(to).compute + ")(" + e + "))";
      // Narrow integers go through a wider one and wrap, as x86 code does.
      if (size_of(to) == 8 || to == DType::U8 || to == DType::U32)
        return std::string("((") + row(to).compute + ")dlb_" + row(from).name + "_to_i64(" + e + "))";
      return std::string("((") + row(to).compute + ")dlb_" + row(from).name + "_to_i32(" + e + "))";
  }
  return e;
}

std::string load(DType from, DType to, const std::string& e) {
  switch (from) {
    case DType::F16:
      return convert(DType::F32, to, "dlb_from_f16(" + e + ")");
    case DType::BF16:
      return convert(DType::F32, to, "dlb_from_bf16(" + e + ")");
    case DType::E4M3:
    case DType::E5M2:
    case DType::E4M3Z:
    case DType::E5M2Z:
    case DType::E8M0:
      return convert(DType::F32, to, std::string("dlb_from_") + name_of(from) + "(" + e + ")");
    case DType::C32:
      return convert(DType::C64, to, "dlb_from_c32(" + e + ")");
    case DType::Bool:  // memory may hold any byte, of which all but 0 mean true
      return convert(DType::Bool, to, "((" + e + ") != 0)");
    default:
      return convert(from, to, e);
  }
}

std::string store(DType from, DType to, const std::string& e) {
  switch (to) {
    case DType::F16:
      return "dlb_to_f16(" + convert(from, DType::F32, e) + ")";
    case DType::BF16:
      return "dlb_to_bf16(" + convert(from, DType::F32, e) + ")";
    case DType::E4M3:
    case DType::E5M2:
    case DType::E4M3Z:
    case DType::E5M2Z:
    case DType::E8M0:
      return std::string("dlb_to_") + name_of(to) + "(" + convert(from, DType::F32, e) + ")";
    case DType::C32:
      return "dlb_to_c32(" + convert(from, DType::C64, e) + ")";
    case DType::Bool:
      return "(uchar)" + convert(from, to, "(" + e + ")");
    default:
      return convert(from, to, "(" + e + ")");
  }
}

bool loses_digits(DType from, DType to) {
  return class_of(to) == DClass::Float && size_of(to) < 4 && from != to;
}

std::string rounded(DType compute, DType to, const std::string& e) {
  return load(to, compute, store(compute, to, e));
}

std::string load_at(DType from, DType to, const std::string& pointer, const std::string& index) {
  return load(from, to, pointer + "[" + index + "]");
}

std::string conversions_source(const DType* used, size_t count) {
  bool f64 = false, narrow = false;
  for (size_t i = 0; i < count; ++i) {
    f64 |= used[i] == DType::F64 || used[i] == DType::C128;
    narrow |= used[i] >= DType::C32;
  }
  std::string text = "#pragma OPENCL FP_CONTRACT OFF\n";
  text += cl::embedded_source("common/types.clh");
  if (narrow) text += cl::embedded_source("common/types_narrow.clh");
  if (f64) text += cl::embedded_source("common/types_fp64.clh");
  return text;
}

std::string compute_macros(DType compute) {
  const bool wide = compute == DType::F64 || compute == DType::C128;
  std::string text = std::string("#define T ") + compute_name(compute) + "\n";
  text += std::string("#define DLB_COMPUTE_") + name_of(compute) + "\n";
  text += std::string("#define REAL ") + (wide ? "double" : "float") + "\n";
  text += wide ? "#define C(v) (v)\n" : "#define C(v) (v##f)\n";
  if (class_of(compute) == DClass::Complex) text += cl::embedded_source("common/complex.clh");
  return text;
}

std::string end_compute_macros(DType compute) {
  return std::string(
             "#undef T\n#undef REAL\n#undef C\n#undef ACC\n#undef DLB_OWN_MATH\n#undef DLB_COMPUTE_") +
         name_of(compute) + "\n";
}

std::string prelude(DType compute, const DType* used, size_t count) {
  std::vector<DType> all(used, used + count);
  all.push_back(compute);
  return conversions_source(all.data(), all.size()) + compute_macros(compute);
}

std::string limit_macros(DType compute) {
  if (class_of(compute) == DClass::Complex) return "";
  if (class_of(compute) == DClass::Float) return "#define T_LOWEST (-INFINITY)\n#define T_HIGHEST INFINITY\n";
  if (class_of(compute) == DClass::Bool) return "#define T_LOWEST 0\n#define T_HIGHEST 1\n";
  const std::string bits = std::to_string(size_of(compute) * 8);
  if (!is_signed(compute))
    return "#define T_LOWEST 0\n#define T_HIGHEST ((T)(~0UL >> (64 - " + bits + ")))\n";
  return "#define T_LOWEST ((T)(-1L << (" + bits + " - 1)))\n#define T_HIGHEST ((T)(~0UL >> (65 - " + bits +
         ")))\n";
}

}  // namespace dlb::codegen
