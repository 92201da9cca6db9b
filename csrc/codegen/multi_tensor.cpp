// Generates multi-tensor kernels. CPU: a work-item walks an equal share of all elements. GPU: a work-group
// takes one chunk of one tensor, by vectors where every list is aligned.
#include "codegen/multi_tensor.h"

#include "cl/embedded.h"

namespace dlb::codegen {
namespace {

std::string num(size_t i) {
  return std::to_string(i);
}

struct Writer {
  explicit Writer(const MultiTensorKey& key) : key(key), op(*key.op), count(key.operands()) {}

  std::string input_name(size_t i) const { return "x" + num(i - key.outputs); }
  bool scalar_in_list(size_t i) const { return key.scalar_lists >> i & 1; }
  std::string memory(size_t i) const { return "b" + num(key.alias[i] == kNoAlias ? i : key.alias[i]); }
  std::string load_input(size_t i, const std::string& index) const {
    return "const T " + input_name(i) + " = " + load_at(key.types[i], key.compute, memory(i), index) + ";";
  }

  std::string header() const {
    std::string s =
        prelude(key.compute, key.types.data(), count) + cl::embedded_source("foreach/multi_tensor.clh");
    if (op.functions) s += cl::embedded_source(op.functions);
    const std::string scalar = scalar_name(key.compute);
    s += "kernel void dlb_multi_" + std::string(op.name) +
         "(DLB_SEGMENTS, global const ulong* ring, const dlb_multi p";
    for (size_t i = key.outputs; i < count; ++i)
      if (key.source[i] == Source::Value) s += ", const " + scalar + " v" + num(i);
    for (size_t i = 0; i < op.scalars; ++i)
      if (!scalar_in_list(i)) s += ", const " + scalar + " a" + num(i);
    s += ") {\n  global const ulong* const start = ring + p.table;\n  global const " + scalar +
         "* const lists = (global const " + scalar + "*)(ring + p.lists);\n";
    for (size_t i = key.outputs; i < count; ++i)
      if (key.source[i] == Source::Value) s += "  const T " + input_name(i) + " = (T)v" + num(i) + ";\n";
    for (size_t i = 0; i < op.scalars; ++i)
      if (!scalar_in_list(i)) s += "  const T s" + num(i) + " = (T)a" + num(i) + ";\n";
    return s;
  }

  // Pointers, per-tensor values and the op's setup for tensor t, beginning at its element `first`.
  std::string tensor() const {
    size_t row = 1;
    for (size_t i = 0; i < count; ++i) row += key.in_table(i);
    std::string s =
        "    global const ulong* const row = start + p.tensors + 1 + (ulong)t * " + num(row) + ";\n";
    size_t place = 1;
    for (size_t i = 0; i < count; ++i) {
      if (!key.in_table(i)) continue;
      s += std::string("    global ") + storage_name(key.types[i]) + "* b" + num(i) + " = DLB_AT(" +
           storage_name(key.types[i]) + ", row[" + num(place++) + "])" +
           (key.source[i] == Source::List ? " + first" : "") + ";\n";
    }
    size_t list = 0;
    auto listed = [&](const std::string& name) {
      s += "    const T " + name + " = (T)lists[" + num(list++) + " * p.tensors + t];\n";
    };
    for (size_t i = key.outputs; i < count; ++i) {
      if (key.source[i] == Source::ValueList) listed(input_name(i));
      if (key.source[i] == Source::Single) s += "    " + load_input(i, "0") + "\n";
    }
    for (size_t i = 0; i < op.scalars; ++i)
      if (scalar_in_list(i)) listed("s" + num(i));
    if (key.setup) s += std::string("    ") + key.setup + "\n";
    return s;
  }

  std::string body() const {
    std::string s = result_name(op, key.compute);
    for (size_t o = 0; o < key.outputs; ++o) s += (o ? ", y" : " y") + num(o);
    const std::string text = op.body(class_of(key.compute));
    return s + "; " + (text.find("y0 =") != std::string::npos ? text : "y0 = (" + text + ");");
  }
  std::string stored(size_t o) const {
    return store(result_type(op, key.compute), key.types[o], "y" + num(o));
  }

  // The op on element j of every list.
  std::string element(const std::string& indent) const {
    std::string s;
    for (size_t i = key.outputs; i < count; ++i)
      if (key.source[i] == Source::List) s += indent + load_input(i, "j") + "\n";
    s += indent + body() + "\n";
    for (size_t o = 0; o < key.outputs; ++o) s += indent + "b" + num(o) + "[j] = " + stored(o) + ";\n";
    return s;
  }
  std::string after() const { return key.after ? std::string("    ") + key.after + "\n" : ""; }

  // Lists never overlap except exactly, in place (the caller checks), which is what the pragma says.
  std::string cpu() const {
    std::string s = header();
    s += "  ulong at = get_global_id(0) * p.per_item;\n"
         "  const ulong end = min(at + p.per_item, p.total);\n"
         "  if (at >= end) return;\n"
         "  for (uint t = dlb_find_tensor(start, p.tensors, at); at < end; ++t) {\n"
         "    const ulong first = at - start[t];\n"
         "    ulong left = min(end, start[t + 1]) - at;\n" +
         tensor() +
         "    at += left;\n"
         "    while (left > 0) {\n"
         "      const uint n = (uint)min(left, 1UL << 30);\n"
         "#pragma clang loop vectorize(assume_safety)\n"
         "      for (uint j = 0; j < n; ++j) {\n" +
         element("        ") + "      }\n";
    for (size_t i = 0; i < count; ++i)
      if (key.in_table(i) && key.source[i] == Source::List) s += "      b" + num(i) + " += n;\n";
    return s + "      left -= n;\n    }\n" + after() + "  }\n}\n";
  }

  bool vectorisable() const {
    for (size_t i = 0; i < count; ++i)
      if (key.source[i] == Source::List && class_of(key.types[i]) == DClass::Complex) return false;
    return true;
  }

  std::string gpu() const {
    std::string s = header();
    s += "  const ulong chunk = get_group_id(0);\n  {\n"
         "    const uint t = dlb_find_tensor(start, p.tensors, chunk);\n"
         "    const ulong first = (chunk - start[t]) * " +
         num(kMultiChunk) + ";\n" + tensor() + "    const uint n = (uint)min(row[0] - first, (ulong)" +
         num(kMultiChunk) + ");\n    uint begin = 0;\n";
    if (vectorisable()) s += gpu_vectors();
    s += "    for (uint j = begin + get_local_id(0); j < n; j += " + num(kMultiGroup) + ") {\n" +
         element("      ") + "    }\n";
    return s + after() + "  }\n}\n";
  }

  // Whole vectors of a chunk whose lists are all aligned; leaves in `begin` where the rest begins.
  std::string gpu_vectors() const {
    const std::string width = num(kGpuVector);
    std::string s = "    size_t address = 0;\n";
    for (size_t i = 0; i < count; ++i)
      if (key.in_table(i) && key.source[i] == Source::List)
        s += "    address |= (size_t)b" + num(i) + " / sizeof(*b" + num(i) + ");\n";
    s += "    if (address % " + width + " == 0) {\n      begin = n / " + width + " * " + width +
         ";\n      for (uint j = get_local_id(0) * " + width +
         "; j < begin; j += " + num(kMultiGroup * kGpuVector) + ") {\n";
    for (size_t i = key.outputs; i < count; ++i)
      if (key.source[i] == Source::List) {
        const std::string type = storage_name(key.types[i]) + width;
        s += "        const " + type + " w" + num(i) + " = *(global const " + type + "*)(" + memory(i) +
             " + j);\n";
      }
    for (size_t o = 0; o < key.outputs; ++o)
      s += std::string("        ") + storage_name(key.types[o]) + width + " r" + num(o) + ";\n";
    for (size_t lane = 0; lane < kGpuVector; ++lane) {
      s += "        {\n";
      for (size_t i = key.outputs; i < count; ++i)
        if (key.source[i] == Source::List)
          s += "          const T " + input_name(i) + " = " +
               load(key.types[i], key.compute, "w" + num(i) + ".s" + num(lane)) + ";\n";
      s += "          " + body() + "\n";
      for (size_t o = 0; o < key.outputs; ++o)
        s += "          r" + num(o) + ".s" + num(lane) + " = " + stored(o) + ";\n";
      s += "        }\n";
    }
    for (size_t o = 0; o < key.outputs; ++o)
      s += std::string("        *(global ") + storage_name(key.types[o]) + width + "*)(b" + num(o) +
           " + j) = r" + num(o) + ";\n";
    return s + "      }\n    }\n";
  }

  const MultiTensorKey& key;
  const PointwiseOp& op;
  const size_t count;
};

}  // namespace

std::string multi_tensor_source(const MultiTensorKey& key) {
  const Writer writer(key);
  return key.cls == cl::DeviceClass::kCpu ? writer.cpu() : writer.gpu();
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
