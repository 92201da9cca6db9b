// A table of signatures, and their expansion for the types and vector widths of OpenCL C.
#include "cl/builtins.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace dlb::cl {

namespace {

// In signatures: G is the type with its width, S its scalar, I and U the signed and unsigned integers of the
// same size and J int, these three with the width. "1:" stands before what scalars have and "v:" before what
// vectors have; without either both do. Types: f for float and double, s for float, i for integers, n for
// signed ones, a for all.
struct Row {
  const char* names;  // between blanks
  char types;
  const char* signatures;  // between semicolons
};

constexpr Row kRows[] = {
    {" acos acosh acospi asin asinh asinpi atan atanh atanpi cbrt ceil cos cosh cospi erf erfc exp exp10 "
     "exp2 "
     "expm1 fabs floor lgamma log log10 log1p log2 logb rint round rsqrt sin sinh sinpi sqrt tan tanh tanpi "
     "tgamma trunc degrees radians sign ",
     'f', "G(G)"},
    {" native_cos native_exp native_exp10 native_exp2 native_log native_log10 native_log2 native_recip "
     "native_rsqrt native_sin native_sqrt native_tan ",
     's', "G(G)"},
    {" native_divide native_powr ", 's', "G(G,G)"},
    {" atan2 atan2pi copysign fdim fmod hypot maxmag minmag nextafter pow powr remainder ", 'f', "G(G,G)"},
    {" fma mad ", 'f', "G(G,G,G)"},
    {" fmax fmin ", 'f', "G(G,G);v:G(G,S)"},
    {" mix ", 'f', "G(G,G,G);v:G(G,G,S)"},
    {" ilogb ", 'f', "J(G)"},
    {" ldexp ", 'f', "G(G,J);v:G(G,int)"},
    {" pown rootn ", 'f', "G(G,J)"},
    {" nan ", 'f', "G(U)"},
    {" isfinite isinf isnan isnormal signbit ", 'f', "1:int(G);v:I(G)"},
    {" isequal isnotequal isgreater isgreaterequal isless islessequal islessgreater isordered isunordered ",
     'f', "1:int(G,G);v:I(G,G)"},
    {" abs ", 'i', "U(G)"},
    {" abs_diff ", 'i', "U(G,G)"},
    {" clz popcount ", 'i', "G(G)"},
    {" add_sat hadd mul_hi rhadd rotate sub_sat ", 'i', "G(G,G)"},
    {" mad_hi mad_sat ", 'i', "G(G,G,G)"},
    {" max min ", 'a', "G(G,G);v:G(G,S)"},
    {" clamp ", 'a', "G(G,G,G);v:G(G,S,S)"},
    {" any all ", 'n', "int(G)"},
    {" bitselect ", 'a', "G(G,G,G)"},
    {" select ", 'a', "G(G,G,I);G(G,G,U)"},
};

struct Fixed {
  const char* names;
  const char* attribute;  // beside overloadable
  const char* signature;
};

constexpr Fixed kFixed[] = {
    {" get_global_id get_global_offset get_global_size get_group_id get_local_id get_local_size "
     "get_num_groups ",
     "const", "size_t(uint)"},
    {" get_work_dim ", "const", "uint(void)"},
    {" barrier ", "convergent", "void(cl_mem_fence_flags)"},
    {" mem_fence read_mem_fence write_mem_fence ", "overloadable", "void(cl_mem_fence_flags)"},
};

struct Type {
  const char* name;
  const char* bits_signed;
  const char* bits_unsigned;
};
constexpr Type kTypes[] = {
    {"char", "char", "uchar"},     {"uchar", "char", "uchar"}, {"short", "short", "ushort"},
    {"ushort", "short", "ushort"}, {"int", "int", "uint"},     {"uint", "int", "uint"},
    {"long", "long", "ulong"},     {"ulong", "long", "ulong"}, {"float", "int", "uint"},
    {"double", "long", "ulong"},
};
constexpr size_t kIntegers = 8, kFloat = 8, kDouble = 9;
constexpr std::array<const char*, 6> kWidths = {"", "2", "3", "4", "8", "16"};
constexpr std::array<const char*, 4> kSpaces = {"global", "local", "private", "constant"};

bool takes(char types, size_t type) {
  switch (types) {
    case 'f':
      return type >= kFloat;
    case 's':
      return type == kFloat;
    case 'i':
      return type < kIntegers;
    case 'n':
      return type < kIntegers && type % 2 == 0;
    default:
      return true;
  }
}

constexpr bool starts_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
constexpr bool in_word(char c) {
  return starts_word(c) || (c >= '0' && c <= '9');
}

// Calls fn(word) for the words of a text: names, not numbers.
template <class Fn>
void for_each_word(std::string_view text, Fn&& fn) {
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    while (at < text.size() && in_word(text[at])) at++;
    if (at == begin)
      at++;
    else if (starts_word(text[begin]))
      fn(text.substr(begin, at - begin));
  }
}

class Declarations {
 public:
  Declarations(bool fp64, bool int64_atomics)
      : types_(fp64 ? kDouble + 1 : kDouble), int64_atomics_(int64_atomics) {}

  // Declares the function of that name with all overloads, if it is known.
  void declare(std::string_view name) {
    if (const auto known = named().find(name); known != named().end()) {
      if (known->second.row) return declare_row(*known->second.row, name);
      return add(known->second.fixed->attribute, name, known->second.fixed->signature);
    }
    if (name.starts_with("atom")) return declare_atomic(name);
    if (name.starts_with("vload") || name.starts_with("vstore")) return declare_vector_access(name);
    if (name.starts_with("convert_")) return declare_conversion(name);
  }

  // Declares the functions whose names a macro makes of this beginning and a width.
  void declare_all_widths(const std::string& beginning) {
    for (const char* width : kWidths) declare(beginning + width);
  }

  std::string text() && { return std::move(text_); }

 private:
  struct Known {
    const Row* row = nullptr;
    const Fixed* fixed = nullptr;
  };
  // The rows by the names in them.
  static const std::unordered_map<std::string_view, Known>& named() {
    static const auto* names = [] {
      auto* result = new std::unordered_map<std::string_view, Known>;
      for (const Row& row : kRows) for_each_word(row.names, [&](auto name) { (*result)[name].row = &row; });
      for (const Fixed& fixed : kFixed)
        for_each_word(fixed.names, [&](auto name) { (*result)[name].fixed = &fixed; });
      return result;
    }();
    return *names;
  }

  // "size_t(uint)" for get_group_id: "size_t __attribute__((overloadable,const)) get_group_id(uint);".
  void add(std::string_view attribute, std::string_view name, std::string_view signature) {
    const size_t open = signature.find('(');
    text_.append(signature.substr(0, open)).append(" __attribute__((overloadable,").append(attribute);
    text_.append(")) ").append(name).append(signature.substr(open)).append(";\n");
  }

  void declare_row(const Row& row, std::string_view name) {
    for (size_t type = 0; type < types_; ++type)
      for (const char* width : kWidths) {
        if (!takes(row.types, type)) continue;
        std::string_view rest = row.signatures;
        while (!rest.empty()) {
          std::string_view one = rest.substr(0, rest.find(';'));
          rest.remove_prefix(std::min(rest.size(), one.size() + 1));
          const bool conditional = one.size() > 1 && one[1] == ':';
          if (conditional && (one[0] == 'v') != (*width != '\0')) continue;
          add("const", name, expanded(conditional ? one.substr(2) : one, kTypes[type], width));
        }
      }
  }

  static std::string expanded(std::string_view signature, const Type& type, const char* width) {
    std::string result;
    for (const char c : signature) switch (c) {
        case 'G':
          result.append(type.name).append(width);
          break;
        case 'S':
          result += type.name;
          break;
        case 'I':
          result.append(type.bits_signed).append(width);
          break;
        case 'U':
          result.append(type.bits_unsigned).append(width);
          break;
        case 'J':
          result.append("int").append(width);
          break;
        default:
          result += c;
      }
    return result;
  }

  void declare_atomic(std::string_view name) {
    const bool old_name = name.starts_with("atom_");  // has long where the newer has none
    const std::string_view what = name.substr(std::min(name.size(), name.find('_') + 1));
    const std::string prefix = old_name ? "atom_" : "atomic_";
    if (name != prefix + std::string(what)) return;
    size_t operands = 3;
    for_each_word("add sub xchg min max and or xor",
                  [&](auto one) { operands = one == what ? 1 : operands; });
    if (what == "inc" || what == "dec") operands = 0;
    if (what == "cmpxchg") operands = 2;
    if (operands > 2) return;
    for (const char* type : {"int", "uint", "long", "ulong", "float"}) {
      const bool is_long = std::string_view(type).ends_with("long");
      if (is_long && !(old_name && int64_atomics_)) continue;
      if (*type == 'f' && (old_name || what != "xchg")) continue;
      for (const char* space : {"global", "local"}) {
        std::string signature = std::string(type) + "(volatile " + space + " " + type + "*";
        for (size_t i = 0; i < operands; ++i) signature += "," + std::string(type);
        add("overloadable", name, signature + ")");
      }
    }
  }

  void declare_conversion(std::string_view name) {
    for (size_t to = 0; to < types_; ++to)
      for (const char* width : kWidths)
        if (name.substr(8) == std::string(kTypes[to].name) + width)
          for (size_t from = 0; from < types_; ++from)
            add("const", name, std::string(kTypes[to].name) + width + "(" + kTypes[from].name + width + ")");
  }

  void declare_vector_access(std::string_view name) {
    for (const char* width : kWidths) {
      if (*width && name == "vload" + std::string(width)) declare_load(name, width);
      if (*width && name == "vstore" + std::string(width)) declare_store(name, width);
      if (name == "vload_half" + std::string(width)) declare_load_half(name, width);
      for (const char* mode : {"", "_rte", "_rtz", "_rtp", "_rtn"})
        if (name == "vstore_half" + std::string(width) + mode) declare_store_half(name, width);
    }
  }
  void declare_load(std::string_view name, const std::string& width) {
    for (const char* space : kSpaces)
      for (size_t type = 0; type < types_; ++type)
        add("pure", name,
            kTypes[type].name + width + "(size_t,const " + space + " " + kTypes[type].name + "*)");
  }
  void declare_store(std::string_view name, const std::string& width) {
    for (size_t space = 0; space < 3; ++space)
      for (size_t type = 0; type < types_; ++type)
        add("overloadable", name,
            "void(" + (kTypes[type].name + width) + ",size_t," + kSpaces[space] + " " + kTypes[type].name +
                "*)");
  }
  void declare_load_half(std::string_view name, const std::string& width) {
    for (const char* space : kSpaces)
      add("pure", name, "float" + width + "(size_t,const " + space + " half*)");
  }
  void declare_store_half(std::string_view name, const std::string& width) {
    for (size_t space = 0; space < 3; ++space)
      for (size_t type = kFloat; type < types_; ++type)
        add("overloadable", name,
            "void(" + (kTypes[type].name + width) + ",size_t," + kSpaces[space] + " half*)");
  }

  const size_t types_;
  const bool int64_atomics_;
  std::string text_;
};

}  // namespace

const char* const kSkipBuiltinsHeader = " -D_OPENCL_H_";

bool reads_builtins_header(const Device& device) {
  return device.clang_on_host && !device.fp16.listed();
}

std::string builtin_declarations(const Device& device, std::string_view source) {
  Declarations declarations(device.fp64.listed(), device.int64_atomics.listed());
  std::unordered_set<std::string_view> seen;
  for_each_word(source, [&](std::string_view word) {
    const auto end = static_cast<size_t>(word.data() + word.size() - source.data());
    if (source.substr(end, 2) == "##")
      declarations.declare_all_widths(std::string(word));
    else if (seen.insert(word).second)
      declarations.declare(word);
  });
  return std::move(declarations).text();
}

}  // namespace dlb::cl
