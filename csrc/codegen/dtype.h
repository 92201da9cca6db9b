// Element types in generated code: storage types of tensors, the types that kernels compute in, and the
// OpenCL C text that converts between them. No device and no torch: pure functions on strings.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dlb::codegen {

// Storage types. As a compute type, Bool is an int that holds 0 or 1, and those of fewer than 32 bits do not
// occur. C32 is a pair of halves. The types of 8 bits are float8_e4m3fn, _e5m2, _e4m3fnuz, _e5m2fnuz and
// _e8m0fnu, which are converted, compared and chosen among, and take part in no arithmetic but products.
enum class DType : uint8_t {
  Bool,
  U8,
  I8,
  I16,
  U16,
  I32,
  U32,
  I64,
  U64,
  F16,
  BF16,
  F32,
  F64,
  C64,
  C128,
  C32,
  E4M3,
  E5M2,
  E4M3Z,
  E5M2Z,
  E8M0
};
constexpr size_t kDTypes = 21;

// The class of a dtype, which chooses among an op's bodies.
enum class DClass : uint8_t { Bool, Int, Float, Complex };

size_t size_of(DType type);  // bytes
DClass class_of(DType type);
bool is_signed(DType type);
DType bits_of(size_t bytes);      // of that size, for kernels that only move elements: unsigned up to 8 bytes
const char* name_of(DType type);  // "f32", for kernel names and keys
std::optional<DType> dtype_named(std::string_view name);  // that name_of() gives the name of
DType real_type(DType type);                              // of the parts of a complex type; itself for others

// The type that arithmetic on `type` is done in: float (or a pair) for those of fewer than 32 bits, itself
// otherwise.
DType compute_type(DType type);

// OpenCL C type of a value in memory ("ushort" for bf16) and in registers ("float", "int" for bool, "float2"
// for c64).
const char* storage_name(DType type);
const char* compute_name(DType type);

// The kernel argument type that carries scalars of a compute type: long for integers, float, double, float2,
// double2.
const char* scalar_name(DType compute);

// Expression that turns the value `expression` of compute type `from` into compute type `to`.
std::string convert(DType from, DType to, const std::string& expression);

// Expression that turns the storage value `expression` of type `from` into compute type `to`.
std::string load(DType from, DType to, const std::string& expression);

// Expression that turns the compute value `expression` of type `from` into the storage type `to`.
std::string store(DType from, DType to, const std::string& expression);

// Whether a value of `from` may have digits that `to`, a float of 16 or 8 bits, has not.
bool loses_digits(DType from, DType to);

// The value `expression` of compute type `compute` without digits that the float type `to` has not.
std::string rounded(DType compute, DType to, const std::string& expression);

// Statement-free load of element `index` of the pointer `pointer`, converted to compute type `to`.
std::string load_at(DType from, DType to, const std::string& pointer, const std::string& index);

// What conversions between storage types and compute types call, for a program that has values of these types
// in memory and in registers. Stands in front of everything else.
std::string conversions_source(const DType* used, size_t count);

// Defines T, REAL, C(literal) and DLB_COMPUTE_<name_of(compute)>, which bodies of ops are written in, and the
// arithmetic of complex numbers where T is one.
std::string compute_macros(DType compute);

// Takes these macros away again, so that those of another type may follow.
std::string end_compute_macros(DType compute);

// Both, for programs that compute in one type.
std::string prelude(DType compute, const DType* used, size_t count);

// Defines T_LOWEST and T_HIGHEST, the least and greatest values of a real compute type, infinities included.
std::string limit_macros(DType compute);

}  // namespace dlb::codegen
