// Keys of problems: written and read through the problem's own list of fields.
#include "solver/problem.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <initializer_list>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace dlb::solver {
namespace {

struct DtypeName {
  c10::ScalarType type;
  const char* name;
};
constexpr DtypeName kDtypes[] = {{c10::ScalarType::Bool, "bool"},
                                 {c10::ScalarType::Byte, "uint8"},
                                 {c10::ScalarType::Char, "int8"},
                                 {c10::ScalarType::Short, "int16"},
                                 {c10::ScalarType::Int, "int32"},
                                 {c10::ScalarType::Long, "int64"},
                                 {c10::ScalarType::Half, "float16"},
                                 {c10::ScalarType::BFloat16, "bfloat16"},
                                 {c10::ScalarType::Float, "float32"},
                                 {c10::ScalarType::Double, "float64"},
                                 {c10::ScalarType::ComplexFloat, "complex64"},
                                 {c10::ScalarType::ComplexDouble, "complex128"}};

const char* dtype_name(c10::ScalarType type) {
  for (const DtypeName& dtype : kDtypes)
    if (dtype.type == type) return dtype.name;
  return "?";
}
c10::ScalarType parse_dtype(const std::string& name) {
  for (const DtypeName& dtype : kDtypes)
    if (name == dtype.name) return dtype.type;
  throw std::invalid_argument("problem key: unknown dtype '" + name + "'");
}

// No stream: every problem that is new has its key written while the program waits.
struct Writer {
  std::string out;
  void begin(const char* name) { out.append(1, ' ').append(name).append(1, '='); }
  void put(int64_t number) {
    char digits[24];
    out.append(digits, std::to_chars(digits, std::end(digits), number).ptr);
  }
  void put(c10::ScalarType type) { out += dtype_name(type); }
  template <class T>
  void operator()(const char* name, const T& value) {
    begin(name);
    put(value);
  }
  // A last field, 0 or 1, which keys lack where it is 0.
  template <class T>
  void if_set(const char* name, const T& value) {
    if (value) (*this)(name, value);
  }
  template <size_t N>
  void operator()(const char* name, const char (&text)[N]) {
    begin(name);
    out += text[0] ? text : "-";
  }
  template <class T, size_t N>
  void operator()(const char* name, const T (&values)[N]) {
    (*this)(name, values, N);
  }
  template <class T>
  void operator()(const char* name, const T* values, size_t count) {
    begin(name);
    for (size_t i = 0; i < count; i++) {
      if (i) out += ',';
      put(values[i]);
    }
  }
};

struct Reader {
  std::istringstream in;
  void expect(const std::string& text) {
    std::string found(text.size(), '\0');
    if (!in.read(found.data(), static_cast<std::streamsize>(text.size())) || found != text)
      throw std::invalid_argument("problem key: expected '" + text + "'");
  }
  template <class T>
  void number(T& value) {
    int64_t read;
    if (!(in >> read)) throw std::invalid_argument("problem key: expected a number");
    value = static_cast<T>(read);
  }
  template <class T>
  void operator()(const char* name, T& value) {
    expect(std::string(" ") + name + "=");
    number(value);
  }
  template <class T>
  void if_set(const char* name, T& value) {
    if (in.peek() == std::istringstream::traits_type::eof()) return;
    const std::string set = std::string(" ") + name + "=1";
    const auto begin = in.tellg();
    std::string found(set.size(), '\0');
    if (in.read(found.data(), static_cast<std::streamsize>(set.size())) && found == set)
      value = 1;
    else
      in.clear(), in.seekg(begin);
  }
  void number(c10::ScalarType& type) {
    std::string name;
    while (std::isalnum(in.peek())) name += static_cast<char>(in.get());
    type = parse_dtype(name);
  }
  template <size_t N>
  void operator()(const char* name, char (&text)[N]) {
    expect(std::string(" ") + name + "=");
    std::string word;
    while (std::isgraph(in.peek()) && word.size() < N - 1) word += static_cast<char>(in.get());
    if (word != "-") word.copy(text, N - 1);
  }
  template <class T, size_t N>
  void operator()(const char* name, T (&values)[N]) {
    (*this)(name, values, N);
  }
  template <class T>
  void operator()(const char* name, T* values, size_t count) {
    expect(std::string(" ") + name + "=");
    for (size_t i = 0; i < count; i++) {
      if (i) expect(",");
      number(values[i]);
    }
  }
};

constexpr size_t kUsualKey = 400;  // bytes

template <class Problem>
std::string write(const Problem& problem) {
  Writer writer;
  writer.out.reserve(kUsualKey);
  writer.out.append(op_name(problem.op())).append(1, ':').append(dtype_name(problem.dtype));
  Problem::visit(problem, writer);
  return std::move(writer.out);
}

// Reads the key of a problem whose op is known.
template <class Problem>
Problem read(const std::string& key, int device, Problem problem) {
  Reader reader{std::istringstream(key)};
  reader.expect(std::string(op_name(problem.op())) + ":");
  reader.number(problem.dtype);
  Problem::visit(problem, reader);
  if (reader.in.peek() != std::istringstream::traits_type::eof())
    throw std::invalid_argument("problem key: text after the last field");
  if constexpr (requires { problem.tf32; })
    if (problem.tf32 && problem.dtype != c10::ScalarType::Float)
      throw std::invalid_argument("problem key: tf32 is for float32");
  problem.device = static_cast<int8_t>(device);
  return problem;
}

}  // namespace

const char* op_name(Op op) {
  constexpr const char* names[kOps] = {
      "gemm",           "conv_fwd",   "conv_bwd_data", "conv_bwd_weight", "softmax",        "softmax_bwd",
      "reduce",         "norm_stats", "norm_sums",     "norm_apply",      "norm_apply_bwd", "layer_norm",
      "layer_norm_bwd", "max_pool",   "max_pool_bwd",  "avg_pool",        "avg_pool_bwd"};
  return names[static_cast<int>(op)];
}

Op op_of_key(const std::string& key) {
  const std::string name = key.substr(0, key.find(':'));
  for (int i = 0; i < kOps; i++)
    if (name == op_name(static_cast<Op>(i))) return static_cast<Op>(i);
  throw std::invalid_argument("problem key: no op is named '" + name + "'");
}

void GemmProblem::normalize() {
  for (int64_t* s : {a, b, c, d})
    if (batch == 1) s[0] = 0;
  if (m == 1) a[1] = c[1] = d[1] = 0;
  if (n == 1) b[2] = c[2] = d[2] = 0;
  if (k == 1) a[2] = b[1] = 0;
  if (!has_d) d[0] = d[1] = d[2] = 0;
}

void ConvProblem::normalize() {
  // trivial dimensions go to the front, so that a 1-d convolution is one however it was written
  for (int pass = 0; pass < 2; pass++)
    for (int i = 2; i > 0; i--) {
      if (in[i] != 1 || out[i] != 1 || filter[i] != 1 || padding[i] != 0) continue;
      for (int32_t* v : {in, out, filter, stride, padding, dilation}) std::swap(v[i], v[i - 1]);
      for (int64_t* v : {xs, ws, ys}) std::swap(v[2 + i], v[1 + i]);
    }
  if (n == 1) xs[0] = ys[0] = 0;
  if (c == groups) ws[1] = 0;
  if (c == 1) xs[1] = 0;
  if (k == 1) ws[0] = ys[1] = 0;
  for (int i = 0; i < 3; i++) {
    if (in[i] == 1) xs[2 + i] = 0;
    if (out[i] == 1) ys[2 + i] = 0;
    if (filter[i] == 1) ws[2 + i] = 0, dilation[i] = 1;
    if (out[i] == 1 && filter[i] == 1 && padding[i] == 0 && in[i] == 1) stride[i] = 1;
  }
}

namespace {

// Elements from the first to the last of a tensor.
int64_t extent(std::initializer_list<int64_t> sizes, const int64_t* strides) {
  int64_t last = 0;
  for (int64_t size : sizes) {
    if (size == 0) return 0;
    last += (size - 1) * *strides++;
  }
  return last + 1;
}

// A stride as neighbourhoods know it: sizes tell how long it is.
int64_t coarse_stride(int64_t stride) {
  return stride <= 1 ? stride : 2 + (stride % 4 == 0);
}

constexpr int kWindow = 8;  // of a part, along each dimension of the result, at most
// What a part may cost the reference solver. One result may cost more, and is checked all the same.
constexpr double kMostPartFlops = 1e8;
constexpr int64_t kSibling = 512;  // sizes of a sibling at most

// The strides that a tensor of these sizes has without gaps, its dimensions in the order that `strides` says;
// a stride of zero stays.
void close_gaps(std::initializer_list<int64_t> sizes, int64_t* strides) {
  std::vector<std::pair<int64_t, int64_t>> order;  // stride, dimension
  for (size_t i = 0; i < sizes.size(); i++)
    if (strides[i] != 0) order.emplace_back(strides[i], static_cast<int64_t>(i));
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  int64_t next = 1;
  for (const auto& [stride, dimension] : order) {
    strides[dimension] = next;
    next *= sizes.begin()[dimension];
  }
}

}  // namespace

std::vector<Span<GemmProblem::Operands>> GemmProblem::spans() const {
  std::vector<Span<Operands>> list = {{&Operands::a, extent({batch, m, k}, a), dtype},
                                      {&Operands::b, extent({batch, k, n}, b), dtype},
                                      {&Operands::c, extent({batch, m, n}, c), dtype, true}};
  if (has_d) list.push_back({&Operands::d, extent({batch, m, n}, d), dtype});
  return list;
}

std::vector<Part<GemmProblem>> GemmProblem::parts() const {
  std::vector<Part<GemmProblem>> list;
  for (const bool last : {false, true}) {
    Part<GemmProblem> part{*this};
    GemmProblem& p = part.problem;
    p.batch = 1;
    int64_t window = 4 * kWindow;
    do {
      window /= 2;
      p.m = std::min(m, window), p.n = std::min(n, window);
    } while (window > 1 && p.flops() > kMostPartFlops);
    const int64_t at = last ? batch - 1 : 0, row = last ? m - p.m : 0, column = last ? n - p.n : 0;
    part.shift.a.offset = at * a[0] + row * a[1];
    part.shift.b.offset = at * b[0] + column * b[2];
    part.shift.c.offset = at * c[0] + row * c[1] + column * c[2];
    part.shift.d.offset = at * d[0] + row * d[1] + column * d[2];
    list.push_back(part);
  }
  return list;
}

GemmProblem GemmProblem::sibling() const {
  GemmProblem p = *this;
  p.batch = std::min<int64_t>(batch, 2);
  for (int64_t* size : {&p.m, &p.n, &p.k}) *size = std::min(*size, kSibling);
  close_gaps({p.batch, p.m, p.k}, p.a), close_gaps({p.batch, p.k, p.n}, p.b);
  close_gaps({p.batch, p.m, p.n}, p.c), close_gaps({p.batch, p.m, p.n}, p.d);
  p.normalize();
  return p;
}

std::vector<uint64_t> GemmProblem::families() const {
  GemmProblem p = *this;
  p.batch = batch > 1;
  for (int64_t* strides : {p.a, p.b, p.c, p.d})
    for (int i = 0; i < 3; i++) strides[i] = std::min<int64_t>(strides[i], 2);
  std::vector<uint64_t> list;
  const auto without = [&](int64_t GemmProblem::*size) {
    GemmProblem member = p;
    member.*size = 0;
    list.push_back(hash(member));
  };
  without(&GemmProblem::m);  // the rows of a linear layer and of its input's gradient
  without(&GemmProblem::k);  // the rows, in the weight's gradient; what attention reads
  // Not of every product: a network has layers of several widths with one input.
  if (n <= m || batch > 1) without(&GemmProblem::n);
  return list;
}

uint64_t GemmProblem::neighbourhood() const {
  GemmProblem p = *this;
  for (int64_t* size : {&p.batch, &p.m, &p.n, &p.k}) *size = coarse(*size);
  for (int64_t* strides : {p.a, p.b, p.c, p.d})
    for (int i = 0; i < 3; i++) strides[i] = coarse_stride(strides[i]);
  return hash(p);
}

std::vector<Span<ConvProblem::Operands>> ConvProblem::spans() const {
  std::vector<Span<Operands>> list = {
      {&Operands::x, extent({n, c, in[0], in[1], in[2]}, xs), dtype, direction == Op::kConvInputGrad},
      {&Operands::w, extent({k, c / groups, filter[0], filter[1], filter[2]}, ws), dtype,
       direction == Op::kConvWeightGrad},
      {&Operands::y, extent({n, k, out[0], out[1], out[2]}, ys), dtype, direction == Op::kConvForward}};
  if (has_bias) list.push_back({&Operands::bias, direction == Op::kConvInputGrad ? c : k, dtype});
  return list;
}

std::vector<Part<ConvProblem>> ConvProblem::parts() const {
  // The first or the last of the result, with at most `window` along each of its dimensions.
  const auto part_of = [this](bool last, int32_t window) {
    Part<ConvProblem> part{*this};
    ConvProblem& p = part.problem;
    ConvProblem::Operands& shift = part.shift;
    const int32_t group = last ? groups - 1 : 0;
    p.groups = 1, p.c = c / groups, p.k = k / groups;
    int64_t c0 = 0, k0 = 0, n0 = 0;
    const auto crop = [last](int32_t& size, int32_t most, int64_t& begin) {
      begin = last && size > most ? size - most : 0;
      size = std::min(size, most);
    };
    const int32_t channels = direction == Op::kConvWeightGrad ? std::max(1, window / 2) : window;
    if (direction != Op::kConvInputGrad) crop(p.k, channels, k0);
    if (direction != Op::kConvForward) crop(p.c, channels, c0);
    if (direction != Op::kConvWeightGrad) crop(p.n, 1, n0);
    shift.x.offset = n0 * xs[0] + (group * (c / groups) + c0) * xs[1];
    shift.y.offset = n0 * ys[0] + (group * (k / groups) + k0) * ys[1];
    shift.w.offset = (group * (k / groups) + k0) * ws[0] + c0 * ws[1];
    shift.bias.offset =
        direction == Op::kConvInputGrad ? group * (c / groups) + c0 : group * (k / groups) + k0;
    // A window of the image is one with another padding.
    for (int i = 0; i < 3; i++) {
      int64_t begin = 0;
      if (direction == Op::kConvForward) {
        crop(p.out[i], window, begin);
        p.padding[i] = padding[i] - static_cast<int32_t>(begin) * stride[i];
        shift.y.offset += begin * ys[2 + i];
      } else if (direction == Op::kConvInputGrad) {
        crop(p.in[i], window, begin);
        p.padding[i] = padding[i] + static_cast<int32_t>(begin);
        shift.x.offset += begin * xs[2 + i];
      } else {  // and so is a window of the filter
        crop(p.filter[i], window, begin);
        p.padding[i] = padding[i] - static_cast<int32_t>(begin) * dilation[i];
        shift.w.offset += begin * ws[2 + i];
      }
    }
    return part;
  };
  std::vector<Part<ConvProblem>> list;
  for (const bool last : {false, true}) {
    int32_t window = kWindow;
    while (window > 1 && part_of(last, window).problem.flops() > kMostPartFlops) window /= 2;
    list.push_back(part_of(last, window));
  }
  return list;
}

ConvProblem ConvProblem::sibling() const {
  constexpr int32_t kPixels = 32;  // in each direction
  ConvProblem p = *this;
  p.n = std::min(n, 2);
  for (int i = 0; i < 3; i++) {
    p.out[i] = std::min(out[i], kPixels);
    const int32_t reached = (p.out[i] - 1) * stride[i] - padding[i] + dilation[i] * (filter[i] - 1) + 1;
    p.in[i] = std::clamp(reached, 1, in[i]);
  }
  close_gaps({p.n, p.c, p.in[0], p.in[1], p.in[2]}, p.xs);
  close_gaps({p.k, p.c / p.groups, p.filter[0], p.filter[1], p.filter[2]}, p.ws);
  close_gaps({p.n, p.k, p.out[0], p.out[1], p.out[2]}, p.ys);
  p.normalize();
  return p;
}

std::vector<uint64_t> ConvProblem::families() const {
  ConvProblem p = *this;
  p.n = 0;
  for (int i = 0; i < 3; i++) p.in[i] = in[i] > 1, p.out[i] = out[i] > 1;
  for (int64_t* strides : {p.xs, p.ws, p.ys})
    for (int i = 0; i < 5; i++) strides[i] = std::min<int64_t>(strides[i], 2);
  return {hash(p)};
}

uint64_t ConvProblem::neighbourhood() const {
  ConvProblem p = *this;
  p.n = static_cast<int32_t>(coarse(n));
  for (int i = 0; i < 3; i++) p.in[i] = in[i] > 1, p.out[i] = out[i] > 1;
  p.in[0] += static_cast<int32_t>(2 * coarse(in_pixels()));
  p.out[0] += static_cast<int32_t>(2 * coarse(out_pixels()));
  for (int64_t* strides : {p.xs, p.ws, p.ys})
    for (int i = 0; i < 5; i++) strides[i] = coarse_stride(strides[i]);
  return hash(p);
}

std::string key(const GemmProblem& problem) {
  return write(problem);
}
std::string key(const ConvProblem& problem) {
  return write(problem);
}
std::string key(const LaunchProblem& problem) {
  return write(problem);
}

GemmProblem parse_gemm_key(const std::string& key, int device) {
  return read(key, device, GemmProblem{});
}
ConvProblem parse_conv_key(const std::string& key, int device) {
  ConvProblem problem;
  problem.direction = op_of_key(key);
  return read(key, device, problem);
}
LaunchProblem parse_launch_key(const std::string& key, int device) {
  LaunchProblem problem;
  problem.what = op_of_key(key);
  return read(key, device, problem);
}

}  // namespace dlb::solver
