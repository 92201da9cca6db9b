// Generates pointwise kernels. Two shapes: on CPUs one work-item walks a run of consecutive elements with an
// inner loop that the compiler vectorises; on GPUs one work-item does one element, or one vector of them.
#include "codegen/pointwise.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "cl/embedded.h"

namespace dlb::codegen {
namespace {

// On CPUs, bytes of results: a line; what is computed at one place before the next; the least run that is
// computed at several places in turns.
constexpr size_t kLine = 64, kChunk = 512, kStreams = 2, kLongRun = 1 << 17;

// In-place operands alias exactly and others never overlap (TensorIterator checks), which is what this says.
constexpr const char* kSimd = "clang loop vectorize(assume_safety)";

std::string num(size_t i) {
  return std::to_string(i);
}

struct Writer {
  explicit Writer(const PointwiseKey& key) : key(key), op(*key.op), count(key.outputs + key.inputs) {}

  bool has_buffer(size_t i) const { return key.inner[i] != Inner::Value; }
  bool is_output(size_t i) const { return i < key.outputs; }
  std::string input_name(size_t i) const { return "x" + num(i - key.outputs); }

  std::string header() const {
    std::string s = prelude(key.compute, key.types.data(), count) + divider_source();
    s += key.cls == cl::DeviceClass::kCpu ? "#define DLB_CPU 1\n" : "#define DLB_GPU 1\n";
    if (op.functions) s += cl::embedded_source(op.functions);
    s += op_function(op, key.compute, key.inputs, key.outputs);
    if (can_stream(key))
      s += "#define DLB_LINE " + num(kLine / size_of(key.types[0])) + "\n#define DLB_CHUNK " +
           num(kChunk / size_of(key.types[0])) + "\n";
    s += "typedef struct { long offset[" + num(kMaxOperands) + "]; int stride[" + num(kMaxOperands) + "][" +
         num(kMaxRank) + "]; dlb_divider size[" + num(kMaxRank) +
         "]; uint rank, count, per_item, streamed; } dlb_params;\n";
    if (is_wide())
      s += "#ifdef __AVX512F__\n__attribute__((min_vector_width(512)))\n#define DLB_SIMD _Pragma(\"" +
           std::string(kSimd) + " vectorize_width(" + num(kLine / size_of(key.compute)) +
           ")\")\n#else\n#define DLB_SIMD _Pragma(\"" + kSimd + "\")\n#endif\n";
    s += "kernel void pointwise_" + std::string(op.name) + "(";
    for (size_t i = 0; i < count; ++i)
      if (has_buffer(i))
        s += std::string("global ") + (is_output(i) ? "" : "const ") + storage_name(key.types[i]) + "* b" +
             num(i) + ", ";
    s += "const dlb_params p";
    const std::string scalar = scalar_name(key.compute);
    for (size_t i = 0; i < count; ++i)
      if (!has_buffer(i)) s += ", const " + scalar + " v" + num(i);
    for (size_t i = 0; i < op.scalars; ++i) s += ", const " + scalar + " a" + num(i);
    if (op.error) s += ", volatile global int* error, const int site";
    s += ") {\n";
    for (size_t i = 0; i < count; ++i)
      if (!has_buffer(i)) s += "  const T " + input_name(i) + " = (T)v" + num(i) + ";\n";
    for (size_t i = 0; i < op.scalars; ++i) s += "  const T s" + num(i) + " = (T)a" + num(i) + ";\n";
    if (op.error) s += "  int any_bad = 0;\n";
    return s;
  }

  // Whether loops become vectors as wide as the device has them. By itself Clang takes half of AVX-512's, for
  // the clocks of its first processors; enough for ops that wait for memory, not for those with functions.
  bool is_wide() const {
    return key.cls == cl::DeviceClass::kCpu && op.functions && class_of(key.compute) == DClass::Float;
  }

  // Once per work-item: an atomic inside the loop would keep it from being vectorised.
  std::string report() const { return op.error ? "  if (any_bad) dlb_report(error, site, 0, 0);\n" : ""; }

  // Calls the op on x0.. and leaves the results in y0..
  std::string call() const {
    std::string s = std::string(result_name(op, key.compute));
    for (size_t o = 0; o < key.outputs; ++o) s += (o ? ", y" : " y") + num(o);
    if (op.error) s += "; int bad";
    s += "; dlb_op_" + std::string(op.name) + "(";
    for (size_t i = 0; i < key.inputs; ++i) s += "x" + num(i) + ", ";
    for (size_t i = 0; i < op.scalars; ++i) s += "s" + num(i) + ", ";
    for (size_t o = 0; o < key.outputs; ++o) s += std::string(o ? ", " : "") + "&y" + num(o);
    if (op.error) return s + ", &bad); any_bad |= bad;";
    return s + ");";
  }

  std::string stored(size_t output) const {
    return store(result_type(op, key.compute), key.types[output], "y" + num(output));
  }

  std::string cpu() const {
    std::string s = header();
    s += "  uint at = get_global_id(0) * p.per_item;\n"
         "  const uint end = min(at + p.per_item, p.count);\n"
         "  uint index[" +
         num(kMaxRank) + "]; uint rest = at;\n";
    for (size_t i = 0; i < count; ++i)
      if (has_buffer(i)) s += "  b" + num(i) + " += p.offset[" + num(i) + "];\n";
    s += "  for (uint d = 0; d < p.rank; ++d) {\n"
         "    const uint q = rest / p.size[d].divisor; index[d] = rest - q * p.size[d].divisor; rest = q;\n";
    for (size_t i = 0; i < count; ++i)
      if (has_buffer(i)) s += "    b" + num(i) + " += (long)index[d] * p.stride[" + num(i) + "][d];\n";
    s += "  }\n  while (at < end) {\n    const uint n = min(p.size[0].divisor - index[0], end - at);\n";
    s += inner_loop();
    s += "    at += n;\n    if (at >= end) break;\n";
    for (size_t i = 0; i < count; ++i)
      if (has_buffer(i)) s += "    b" + num(i) + " -= (long)index[0] * p.stride[" + num(i) + "][0];\n";
    s += "    index[0] = 0;\n    for (uint d = 1; d < p.rank; ++d) {\n";
    for (size_t i = 0; i < count; ++i)
      if (has_buffer(i)) s += "      b" + num(i) + " += p.stride[" + num(i) + "][d];\n";
    s += "      if (++index[d] < p.size[d].divisor) break;\n";
    for (size_t i = 0; i < count; ++i)
      if (has_buffer(i))
        s += "      b" + num(i) + " -= (long)p.size[d].divisor * p.stride[" + num(i) + "][d];\n";
    s += "      index[d] = 0;\n    }\n  }\n";
    if (can_stream(key)) s += "  if (p.streamed) __atomic_thread_fence(__ATOMIC_SEQ_CST);\n";
    return s + report() + "}\n";
  }

  std::string inner_loop() const {
    std::string s;
    for (size_t i = key.outputs; i < count; ++i)
      if (key.inner[i] == Inner::Zero)
        s += "    const T " + input_name(i) + " = " + load_at(key.types[i], key.compute, "b" + num(i), "0") +
             ";\n";
    std::string element;
    for (size_t i = key.outputs; i < count; ++i)
      if (key.inner[i] == Inner::Unit || key.inner[i] == Inner::Strided)
        element += "      const T " + input_name(i) + " = " +
                   load_at(key.types[i], key.compute, "b" + num(i), position(i)) + ";\n";
    element += "      " + call() + "\n";
    std::string plain = element;
    for (size_t o = 0; o < key.outputs; ++o)
      plain += "      b" + num(o) + "[" + position(o) + "] = " + stored(o) + ";\n";
    const std::string pragma = is_wide() ? "DLB_SIMD\n" : "#pragma " + std::string(kSimd) + "\n";
    if (!can_stream(key)) return s + pragma + "    for (uint j = 0; j < n; ++j) {\n" + plain + "    }\n";
    return s + streams_begin() + "      if (whole) {\n        while (j < stop) {\n          union { " +
           storage_name(key.types[0]) + " e[DLB_LINE]; uint16 line; } to;\n" + pragma +
           "          for (uint l = 0; l < DLB_LINE; ++l, ++j) {\n" + element +
           "      to.e[l] = " + stored(0) +
           ";\n          }\n          __builtin_nontemporal_store(to.line, (global uint16*)(b0 + j) - 1);\n"
           "        }\n      } else {\n" +
           pragma + "        for (; j < stop; ++j) {\n" + plain + "        }\n      }\n" + streams_end();
  }

  // A run whose operands are contiguous, as pieces [j, stop): the elements up to the first whole line of
  // results, then chunks at DLB_STREAMS places in turns where the run is long (processors look ahead within
  // pages: the more pages are under way, the more of memory's bandwidth a core gets), then the rest. Places
  // are an odd number of chunks apart, so that they share no set of a cache. `whole`: a chunk to be written
  // past the cache.
  std::string streams_begin() const {
    const size_t size = size_of(key.types[0]);
    return "    const uint streams = n >= " + num(kLongRun / size) + " ? " + num(kStreams) +
           " : p.streamed;\n    const uint head = streams ? min(n, (uint)(-(ulong)b0 & 63) / " + num(size) +
           ") : n;\n    const uint chunks = streams ? (n - head) / (streams * DLB_CHUNK) : 0;\n"
           "    const uint part = chunks ? ((chunks - 1) | 1) * DLB_CHUNK : 0;\n"
           "    ulong j = 0, stop = head;\n    uint v = 0, place = 0;\n    bool whole = false;\n    for (;;) "
           "{\n";
  }
  static std::string streams_end() {
    return "      if (v < part) {\n        j = head + place * part + v;\n        stop = j + DLB_CHUNK;\n"
           "        whole = p.streamed;\n"
           "        if (++place == streams) place = 0, v += DLB_CHUNK;\n      } else if (stop < n || whole) "
           "{\n"
           "        j = head + streams * part;\n        stop = n;\n        whole = false;\n"
           "      } else {\n        break;\n      }\n    }\n";
  }
  std::string position(size_t i) const {
    switch (key.inner[i]) {
      case Inner::Unit:
        return "j";
      case Inner::Zero:
        return "0";
      default:
        return "(long)j * p.stride[" + num(i) + "][0]";
    }
  }

  std::string gpu() const {
    std::string s = header();
    s += "  const uint g = get_global_id(0);\n  if (g >= p.count) return;\n";
    for (size_t i = 0; i < count; ++i)
      if (has_buffer(i)) s += "  b" + num(i) + " += p.offset[" + num(i) + "];\n";
    s += "  uint rest = g;\n  for (uint d = 0; d < p.rank; ++d) {\n"
         "    const uint q = dlb_divide(rest, p.size[d]), k = rest - q * p.size[d].divisor; rest = q;\n";
    for (size_t i = 0; i < count; ++i)
      if (has_buffer(i)) s += "    b" + num(i) + " += (long)k * p.stride[" + num(i) + "][d];\n";
    s += "  }\n";
    return s + (key.vectorised ? gpu_vector() : gpu_scalar()) + report() + "}\n";
  }

  std::string gpu_scalar() const {
    std::string s;
    for (size_t i = key.outputs; i < count; ++i)
      if (has_buffer(i))
        s += "  const T " + input_name(i) + " = " + load_at(key.types[i], key.compute, "b" + num(i), "0") +
             ";\n";
    s += "  " + call() + "\n";
    for (size_t o = 0; o < key.outputs; ++o) s += "  b" + num(o) + "[0] = " + stored(o) + ";\n";
    return s;
  }

  std::string gpu_vector() const {
    const std::string width = num(kGpuVector);
    std::string s;
    for (size_t i = key.outputs; i < count; ++i) {
      if (!has_buffer(i)) continue;
      const std::string type = storage_name(key.types[i]);
      if (key.inner[i] == Inner::Unit)
        s += "  const " + type + width + " w" + num(i) + " = *(global const " + type + width + "*)b" +
             num(i) + ";\n";
      else
        s += "  const T " + input_name(i) + " = " + load_at(key.types[i], key.compute, "b" + num(i), "0") +
             ";\n";
    }
    for (size_t o = 0; o < key.outputs; ++o)
      s += std::string("  ") + storage_name(key.types[o]) + width + " r" + num(o) + ";\n";
    for (size_t lane = 0; lane < kGpuVector; ++lane) {
      s += "  {\n";
      for (size_t i = key.outputs; i < count; ++i)
        if (key.inner[i] == Inner::Unit)
          s += "    const T " + input_name(i) + " = " +
               load(key.types[i], key.compute, "w" + num(i) + ".s" + num(lane)) + ";\n";
      s += "    " + call() + "\n";
      for (size_t o = 0; o < key.outputs; ++o)
        s += "    r" + num(o) + ".s" + num(lane) + " = " + stored(o) + ";\n";
      s += "  }\n";
    }
    for (size_t o = 0; o < key.outputs; ++o)
      s += std::string("  *(global ") + storage_name(key.types[o]) + width + "*)b" + num(o) + " = r" +
           num(o) + ";\n";
    return s;
  }

  const PointwiseKey& key;
  const PointwiseOp& op;
  const size_t count;
};

}  // namespace

Divider make_divider(uint32_t divisor) {
  Divider d{divisor, 0, static_cast<uint32_t>(std::bit_width(divisor - 1))};
  d.magic = static_cast<uint32_t>(((uint64_t{1} << 32) * ((uint64_t{1} << d.shift) - divisor)) / divisor + 1);
  return d;
}

std::string divider_source() {
  return "typedef struct { uint divisor, magic, shift; } dlb_divider;\n"
         "inline uint dlb_divide(uint n, dlb_divider d) { return (mul_hi(n, d.magic) + n) >> d.shift; }\n";
}

bool fits_vectors(DType type) {
  return class_of(type) != DClass::Complex;
}

bool can_stream(const PointwiseKey& key) {
  if (key.cls != cl::DeviceClass::kCpu || key.outputs != 1 || key.op->functions || size_of(key.types[0]) > 8)
    return false;
  const auto inner = key.inner.begin();
  return key.inner[0] == Inner::Unit &&
         std::none_of(inner, inner + 1 + key.inputs, [](Inner i) { return i == Inner::Strided; });
}

const char* result_name(const PointwiseOp& op, DType compute) {
  return compute_name(result_type(op, compute));
}

DType result_type(const PointwiseOp& op, DType compute) {
  if (op.bool_result) return DType::Bool;
  if (op.real_result && compute == DType::C64) return DType::F32;
  if (op.real_result && compute == DType::C128) return DType::F64;
  return compute;
}

std::string op_function(const PointwiseOp& op, DType compute, size_t inputs, size_t outputs) {
  const std::string body = op.body(class_of(compute));
  std::string s =
      std::string(op.functions ? "DLB_INLINE" : "inline") + " void dlb_op_" + std::string(op.name) + "(";
  for (size_t i = 0; i < inputs; ++i) s += "const T x" + num(i) + ", ";
  for (size_t i = 0; i < op.scalars; ++i) s += "const T s" + num(i) + ", ";
  const std::string result = result_name(op, compute);
  for (size_t o = 0; o < outputs; ++o) s += (o ? ", " : "") + result + "* p_y" + num(o);
  if (op.error) s += ", int* p_bad";
  s += ") {\n";
  for (size_t o = 0; o < outputs; ++o) s += "  " + result + " y" + num(o) + ";\n";
  if (op.error) s += "  int bad = 0;\n";
  const bool statements = body.find("y0 =") != std::string::npos;
  s += statements ? "  " + body + "\n" : "  y0 = (" + body + ");\n";
  for (size_t o = 0; o < outputs; ++o) s += "  *p_y" + num(o) + " = y" + num(o) + ";\n";
  if (op.error) s += "  *p_bad = bad;\n";
  return s + "}\n";
}

std::string pointwise_source(const PointwiseKey& key) {
  const Writer writer(key);
  return key.cls == cl::DeviceClass::kCpu ? writer.cpu() : writer.gpu();
}

}  // namespace dlb::codegen

size_t std::hash<dlb::codegen::PointwiseKey>::operator()(
    const dlb::codegen::PointwiseKey& key) const noexcept {
  // Fibonacci hashing over the op and the packed bytes of the rest.
  uint64_t h = reinterpret_cast<uint64_t>(key.op) * 0x9E3779B97F4A7C15ull;
  h ^= static_cast<uint64_t>(key.cls) | static_cast<uint64_t>(key.compute) << 8 |
       static_cast<uint64_t>(key.outputs) << 16 | static_cast<uint64_t>(key.inputs) << 24 |
       static_cast<uint64_t>(key.vectorised) << 32;
  for (size_t i = 0; i < dlb::codegen::kMaxOperands; i += 4) {
    uint64_t pack = 0;
    for (size_t j = i; j < i + 4; ++j)
      pack = pack << 16 | static_cast<uint64_t>(key.types[j]) << 8 | static_cast<uint64_t>(key.inner[j]);
    h = (h ^ pack) * 0x9E3779B97F4A7C15ull;
    h ^= h >> 29;
  }
  return h;
}
