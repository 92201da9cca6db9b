// Generates pointwise kernels: macros for the op and its operands, in front of a skeleton of
// csrc/kernels/pointwise.
#include "codegen/pointwise.h"

#include <algorithm>
#include <bit>
#include <cctype>
#include <string_view>
#include <vector>

#include "cl/embedded.h"
#include "codegen/expression_text.h"
#include "codegen/functions.h"
#include "codegen/op_text.h"
#include "codegen/text.h"

namespace dlb::codegen {
namespace {

// A CPU computes a long run at several places in turns, which keeps more of its prefetchers busy. In bytes of
// results: a cache line, what is computed at one place before it goes to the next, and the shortest run that
// is so divided.
constexpr size_t kLine = 64, kChunk = 512, kLongRun = 1 << 17;
constexpr size_t kStreams = 2;  // the number of places

// Whether a body divides or calls a function, the device's or one of ours, so that in a cache its arithmetic
// takes longer than its loads. C() makes literals.
bool is_long(std::string_view body) {
  for (size_t at = body.find_first_of("/("); at != std::string_view::npos;
       at = body.find_first_of("/(", at + 1)) {
    if (body[at] == '/') return true;
    size_t begin = at;
    while (begin > 0 && (std::isalnum(static_cast<unsigned char>(body[begin - 1])) || body[begin - 1] == '_'))
      --begin;
    if (begin < at && body.substr(begin, at - begin) != "C") return true;
  }
  return false;
}

// Calls f with each body that the op is computed by.
template <class F>
bool any_body(const PointwiseOp& op, DType compute, F&& f) {
  if (!op.expression) return f(op.body(class_of(compute)));
  return std::any_of(
      op.expression->nodes.begin(), op.expression->nodes.end(),
      [&](const Expression::Node& node) { return f(node.op->body(class_of(compute_type(node.type)))); });
}

struct PointwiseWriter {
  explicit PointwiseWriter(const PointwiseKey& key)
      : key(key),
        op(*key.op),
        count(size_t{key.outputs} + key.inputs),
        text(op, key.compute, key.types.data(), key.outputs, key.inputs, key.rounded) {}

  bool has_buffer(size_t i) const { return key.inner[i] != Inner::Value; }
  std::string buffer(size_t i) const { return "b" + num(i); }
  template <class F>
  std::string each_input(F&& f) const {
    return each(key.inputs, [&](size_t k) { return f(key.outputs + k); });
  }
  template <class F>
  std::string each_buffer(F&& f) const {
    return each(count, [&](size_t i) { return has_buffer(i) ? f(i) : std::string(); });
  }

  // The kernel's parameters, and what the skeleton declares from them.
  std::string arguments() const {
    std::string s = each_buffer([&](size_t i) {
      return std::string("global ") + (i < key.outputs ? "" : "const ") + storage_name(key.types[i]) + "* " +
             buffer(i) + ", ";
    });
    s += "const PointwiseParams p";
    std::string constants;
    const auto add = [&](DType type, const std::string& argument, const std::string& name) {
      s += std::string(", const ") + scalar_name(type) + " " + argument;
      constants += OpText::constant(type, name, argument);
    };
    for (size_t i = 0; i < count; ++i)
      if (!has_buffer(i)) add(text.in_register(i), "v" + num(i), text.input_name(i));
    for (size_t i = 0; i < op.scalars; ++i) add(scalar_type(op, key.compute, i), "a" + num(i), "s" + num(i));
    if (op.error) s += ", volatile global int* error, const int site";
    return define("DLB_ARGUMENTS", s) + define("DLB_CONSTANTS", constants);
  }

  // Where the skeleton loads an input, along the innermost dimension.
  std::string loads() const {
    const bool cpu = key.cls == cl::DeviceClass::kCpu;
    const auto position = [&](size_t i) {
      if (!cpu) return std::string("0");  // the work-item's only element
      return key.inner[i] == Inner::Unit ? std::string("j")
                                         : "(long)(j) * p.operand[" + num(i) + "].stride[0]";
    };
    const auto is_fixed = [&](size_t i) { return key.inner[i] == Inner::Zero; };
    std::string s = define("DLB_LOAD_FIXED", each_input([&](size_t i) {
                             return is_fixed(i) ? text.load(i, buffer(i), "0") : std::string();
                           }));
    return s + define("DLB_LOAD(j)", each_input([&](size_t i) {
                        return has_buffer(i) && !is_fixed(i) ? text.load(i, buffer(i), position(i))
                                                             : std::string();
                      })) +
           define("DLB_STORE(j)", each(key.outputs, [&](size_t o) {
                    return buffer(o) + "[" + position(o) + "] = " + text.stored(o) + "; ";
                  }));
  }

  // Results that go past the cache, and vectors as wide as the device has them.
  std::string cpu_macros() const {
    std::string s;
    if (can_stream(key)) {
      const size_t size = size_of(key.types[0]);
      s += define("DLB_STREAMS", num(kStreams)) + define("DLB_LINE", num(kLine / size)) +
           define("DLB_CHUNK", num(kChunk / size)) + define("DLB_LONG_RUN", num(kLongRun / size)) +
           define("DLB_RESULT_TYPE", storage_name(key.types[0])) + define("DLB_RESULT", text.stored(0));
    }
    const DClass cls = class_of(key.compute);
    const bool halves =
        std::find(key.types.begin(), key.types.begin() + count, DType::F16) != key.types.begin() + count;
    if (cls == DClass::Float && (halves || any_body(op, key.compute, is_long)))
      s += define("DLB_WIDE", num(kLine / size_of(key.compute)));
    return s;
  }

  std::string gpu_macros() const {
    if (!key.vectorised) return "";
    return define("DLB_VECTORS", num(kGpuVector)) +
           text.vector_macros([&](size_t i) { return key.inner[i] == Inner::Unit; },
                              [&](size_t i) { return buffer(i); });
  }

  // The types of values in memory and in registers.
  std::vector<DType> used() const {
    std::vector<DType> types(key.types.begin(), key.types.begin() + static_cast<ptrdiff_t>(count));
    types.push_back(key.compute);
    if (op.expression) add_types(*op.expression, types);
    return types;
  }

  std::string source() const {
    const bool cpu = key.cls == cl::DeviceClass::kCpu;
    const std::vector<DType> types = used();
    std::string s = conversions_source(types.data(), types.size()) + device_macro(key.cls) +
                    define("POINTWISE_OPERANDS", num(count)) + divider_source() + text.function();
    s += define("DLB_KERNEL", std::string("pointwise_") + op.name);
    s += arguments() + loads();
    s += define("DLB_EACH_BUFFER(DO)", each_buffer([](size_t i) { return "DO(" + num(i) + ") "; }));
    if (op.error) s += define("DLB_REPORTS", "1");
    s += (cpu ? cpu_macros() : gpu_macros()) + cl::embedded_source("pointwise/pointwise.clh");
    return s + cl::embedded_source(cpu ? "pointwise/pointwise_cpu.clh" : "pointwise/pointwise_gpu.clh");
  }

  const PointwiseKey& key;
  const PointwiseOp& op;
  const size_t count;
  const OpText text;
};

}  // namespace

Divider make_divider(uint32_t divisor) {
  Divider d{divisor, 0, static_cast<uint32_t>(std::bit_width(divisor - 1))};
  d.magic = static_cast<uint32_t>(((uint64_t{1} << 32) * ((uint64_t{1} << d.shift) - divisor)) / divisor + 1);
  return d;
}

std::string divider_source() {
  return cl::embedded_source("common/divider.clh");
}
const char* device_macro(cl::DeviceClass cls) {
  return cls == cl::DeviceClass::kCpu ? "#define DLB_CPU 1\n" : "#define DLB_GPU 1\n";
}

bool fits_vectors(DType type) {
  return class_of(type) != DClass::Complex;
}

bool can_stream(const PointwiseKey& key) {
  if (key.cls != cl::DeviceClass::kCpu || key.outputs != 1 || size_of(key.types[0]) > 8) return false;
  const auto inner = key.inner.begin();
  return key.inner[0] == Inner::Unit &&
         std::none_of(inner, inner + 1 + key.inputs, [](Inner i) { return i == Inner::Strided; }) &&
         !any_body(*key.op, key.compute, uses_functions);
}

DType scalar_type(const PointwiseOp& op, DType compute, size_t i) {
  return op.expression ? op.expression->scalars[i] : compute;
}

DType result_type(const PointwiseOp& op, DType compute) {
  return op.bool_result ? DType::Bool : op.real_result ? real_type(compute) : compute;
}

std::string pointwise_source(const PointwiseKey& key) {
  return PointwiseWriter(key).source();
}

}  // namespace dlb::codegen

size_t std::hash<dlb::codegen::PointwiseKey>::operator()(
    const dlb::codegen::PointwiseKey& key) const noexcept {
  // Fibonacci hashing over the op and the packed bytes of the rest.
  uint64_t h = reinterpret_cast<uint64_t>(key.op) * 0x9E3779B97F4A7C15ull;
  h ^= static_cast<uint64_t>(key.cls) | static_cast<uint64_t>(key.compute) << 8 |
       static_cast<uint64_t>(key.outputs) << 16 | static_cast<uint64_t>(key.inputs) << 24 |
       static_cast<uint64_t>(key.vectorised) << 32 | static_cast<uint64_t>(key.rounded) << 40;
  for (size_t i = 0; i < dlb::codegen::kMaxOperands; i += 4) {
    uint64_t pack = 0;
    for (size_t j = i; j < i + 4; ++j)
      pack = pack << 16 | static_cast<uint64_t>(key.types[j]) << 8 | static_cast<uint64_t>(key.inner[j]);
    h = (h ^ pack) * 0x9E3779B97F4A7C15ull;
    h ^= h >> 29;
  }
  return h;
}
