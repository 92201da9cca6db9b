// Generates multi-tensor kernels: macros for the op and its operands, in front of a skeleton of
// csrc/kernels/foreach.
#include "codegen/multi_tensor.h"

#include "cl/embedded.h"
#include "codegen/functions.h"
#include "codegen/op_text.h"
#include "codegen/text.h"

namespace dlb::codegen {
namespace {

struct MultiTensorWriter {
  explicit MultiTensorWriter(const MultiTensorKey& key)
      : key(key),
        op(*key.op),
        count(key.operands()),
        text(op, key.compute, key.types.data(), key.outputs, key.inputs) {}

  bool is_list(size_t i) const { return key.source[i] == Source::List; }
  bool scalar_in_list(size_t i) const { return key.scalar_lists >> i & 1; }
  std::string memory(size_t i) const { return "b" + num(key.alias[i] == kNoAlias ? i : key.alias[i]); }
  template <class F>
  std::string each_input(F&& f) const {
    return each(key.inputs, [&](size_t k) { return f(key.outputs + k); });
  }

  // The kernel's parameters, and what the skeleton declares from them.
  std::string arguments() const {
    const std::string scalar = scalar_name(key.compute);
    std::string s = "DLB_SEGMENTS, global const ulong* ring, const MultiTensorParams p", constants;
    for (size_t i = key.outputs; i < count; ++i) {
      if (key.source[i] != Source::Value) continue;
      s += ", const " + scalar + " v" + num(i);
      constants += OpText::constant(key.compute, text.input_name(i), "v" + num(i));
    }
    for (size_t i = 0; i < op.scalars; ++i) {
      if (scalar_in_list(i)) continue;
      s += ", const " + scalar + " a" + num(i);
      constants += OpText::constant(key.compute, "s" + num(i), "a" + num(i));
    }
    return define("DLB_ARGUMENTS", s) + define("DLB_CONSTANTS", constants) + define("DLB_LIST_VALUE", scalar);
  }

  // Pointers and values of tensor t, whose place in the table is `row`.
  std::string tensor() const {
    size_t words = 1, list = 0;
    std::string s;
    for (size_t i = 0; i < count; ++i) {
      if (!key.in_table(i)) continue;
      const std::string type = storage_name(key.types[i]);
      s += "global " + type + "* b" + num(i) + " = DLB_AT(" + type + ", row[" + num(words++) + "])" +
           (is_list(i) ? " + first" : "") + "; ";
    }
    const auto listed = [&](const std::string& name) {
      s += OpText::constant(key.compute, name, "lists[" + num(list++) + " * p.tensors + t]");
    };
    for (size_t i = key.outputs; i < count; ++i) {
      if (key.source[i] == Source::ValueList) listed(text.input_name(i));
      if (key.source[i] == Source::Single) s += text.load(i, memory(i), "0");
    }
    for (size_t i = 0; i < op.scalars; ++i)
      if (scalar_in_list(i)) listed("s" + num(i));
    return define("DLB_ROW_WORDS", num(words)) +
           define("DLB_BEGIN_TENSOR", s + (key.setup ? key.setup : "")) +
           define("DLB_END_TENSOR", key.after ? key.after : "");
  }

  std::string elements() const {
    return define("DLB_LOAD(j)", each_input([&](size_t i) {
                    return is_list(i) ? text.load(i, memory(i), "j") : std::string();
                  })) +
           define("DLB_COMPUTE", text.declare_results() + text.body()) +
           define(
               "DLB_STORE(j)",
               each(key.outputs, [&](size_t o) { return "b" + num(o) + "[j] = " + text.stored(o) + "; "; })) +
           define("DLB_EACH_LIST(DO)", each(count, [&](size_t i) {
                    return key.in_table(i) && is_list(i) ? "DO(" + num(i) + ") " : std::string();
                  }));
  }

  // Vectors of complex numbers would be wider than any device loads at once.
  bool vectorisable() const {
    for (size_t i = 0; i < count; ++i)
      if (is_list(i) && !fits_vectors(key.types[i])) return false;
    return true;
  }
  std::string gpu_macros() const {
    if (!vectorisable()) return "";
    return define("DLB_VECTORS", num(kGpuVector)) +
           text.vector_macros([&](size_t i) { return is_list(i); }, [&](size_t i) { return memory(i); });
  }

  std::string source() const {
    const bool cpu = key.cls == cl::DeviceClass::kCpu;
    std::string s = prelude(key.compute, key.types.data(), count) + device_macro(key.cls);
    s += functions_source(op.body(class_of(key.compute))) + cl::embedded_source("foreach/multi_tensor.clh");
    s += define("DLB_KERNEL", std::string("dlb_multi_") + op.name) + arguments() + tensor() + elements();
    if (!cpu) s += gpu_macros();
    return s + cl::embedded_source(cpu ? "foreach/multi_tensor_cpu.clh" : "foreach/multi_tensor_gpu.clh");
  }

  const MultiTensorKey& key;
  const PointwiseOp& op;
  const size_t count;
  const OpText text;
};

}  // namespace

std::string multi_tensor_source(const MultiTensorKey& key) {
  return MultiTensorWriter(key).source();
}

}  // namespace dlb::codegen

size_t std::hash<dlb::codegen::MultiTensorKey>::operator()(
    const dlb::codegen::MultiTensorKey& key) const noexcept {
  // Fibonacci hashing over the op and the packed bytes of the rest.
  constexpr uint64_t kGolden = 0x9E3779B97F4A7C15ull;
  uint64_t h = (reinterpret_cast<uint64_t>(key.op) ^ reinterpret_cast<uint64_t>(key.setup) << 9) * kGolden;
  h ^= static_cast<uint64_t>(key.cls) | static_cast<uint64_t>(key.compute) << 8 |
       uint64_t{key.outputs} << 16 | uint64_t{key.inputs} << 24 | uint64_t{key.scalar_lists} << 32;
  for (size_t i = 0; i < dlb::codegen::kMaxMultiOperands; ++i) {
    h = (h ^ (static_cast<uint64_t>(key.types[i]) << 16 | static_cast<uint64_t>(key.source[i]) << 8 |
              key.alias[i])) *
        kGolden;
    h ^= h >> 29;
  }
  return h;
}
