#include "primitives/fft/tables.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <list>
#include <mutex>

#include "kernels/fft/params.h"
#include "runtime/graph.h"
#include "runtime/transfer.h"

namespace dlb::fft {
namespace {

using Complex = std::complex<double>;
using Values = std::vector<Complex>;

constexpr int kRadixBits = 4;

// exp(-2 pi i j / n), the argument reduced exactly to an eighth of a turn.
Complex root(int64_t j, int64_t n) {
  j %= n;
  if (j < 0) j += n;
  const int64_t eighth = 8 * j / n;
  // the distance to the nearest quarter, in 1 / (4 n) of a turn
  const int64_t quarter = (eighth + 1) / 2;
  const double angle = M_PI / 2 * (static_cast<double>(4 * j - quarter * n) / static_cast<double>(n));
  const double c = std::cos(angle), s = std::sin(angle);
  switch (quarter % 4) {
    case 0:
      return {c, -s};
    case 1:
      return {-s, -c};
    case 2:
      return {-c, s};
    default:
      return {s, c};
  }
}

void add_roots(Values& values, int64_t n, int64_t count) {
  for (int64_t j = 0; j < count; j++) values.push_back(root(j, n));
}

// A pass of radix R that begins with length l multiplies result k of butterfly p by exp(-2 pi i p k / l).
void add_twiddles(Values& values, int64_t n, uint64_t radices) {
  for (int64_t length = n; radices; radices >>= kRadixBits) {
    const int64_t radix = static_cast<int64_t>(radices & 15), m = length / radix;
    for (int64_t p = 0; p < m; p++)
      for (int64_t k = 1; k < radix; k++) values.push_back(root(p * k, length));
    length = m;
  }
}

Complex chirp(int64_t j, int64_t n) {
  return root(static_cast<int64_t>(static_cast<unsigned __int128>(j) * static_cast<uint64_t>(j) % (2 * n)),
              2 * n);
}

// A transform of values[begin], values[begin + step], ... by the smallest prime factors, for lengths without
// large ones.
Values transform(const Values& values, size_t begin, size_t step, size_t n) {
  if (n == 1) return {values[begin]};
  size_t factor = 2;
  while (n % factor) factor++;
  const size_t m = n / factor;
  std::vector<Values> parts;
  for (size_t i = 0; i < factor; i++) parts.push_back(transform(values, begin + i * step, step * factor, m));
  Values result(n), roots(n);
  for (size_t j = 0; j < n; j++) roots[j] = root(static_cast<int64_t>(j), static_cast<int64_t>(n));
  for (size_t k = 0; k < n; k++) {
    Complex sum = parts[0][k % m];
    for (size_t i = 1; i < factor; i++) sum += parts[i][k % m] * roots[i * k % n];
    result[k] = sum;
  }
  return result;
}

void add_spectrum(Values& values, int64_t n, int64_t length) {
  Values filter(static_cast<size_t>(length));
  for (int64_t j = 0; j < n; j++) {
    const Complex value = std::conj(chirp(j, n)) / static_cast<double>(length);
    filter[static_cast<size_t>(j)] = value;
    if (j) filter[static_cast<size_t>(length - j)] = value;
  }
  values = transform(filter, 0, 1, filter.size());
}

// Vectors of real parts and of imaginary parts of the columns' powers stand behind low and high powers.
void add_columns(Values& values, int64_t n, int64_t columns, int64_t numbers) {
  for (int64_t e = 0; e < numbers; e++) {
    std::vector<double> flat;
    for (const bool imaginary : {false, true})
      for (int64_t j = 0; j < columns; j++)
        flat.push_back(imaginary ? root(e * j, n).imag() : root(e * j, n).real());
    for (size_t i = 0; i < flat.size(); i += 2) values.emplace_back(flat[i], flat[i + 1]);
  }
}

Values values_of(const TableKey& key) {
  Values values;
  switch (key.kind) {
    case TableKind::kRoots:
      add_roots(values, key.a, key.b);
      break;
    case TableKind::kTwiddles:
      add_twiddles(values, key.a, static_cast<uint64_t>(key.b));
      break;
    case TableKind::kSteps:
      add_roots(values, key.a, int64_t{1} << key.b);
      for (int64_t j = 0; j <= key.a >> key.b; j++) values.push_back(root(j << key.b, key.a));
      if (key.c) add_columns(values, key.a, key.c, key.d);
      break;
    case TableKind::kChirp:
      for (int64_t j = 0; j < key.a; j++) values.push_back(chirp(j, key.a));
      break;
    case TableKind::kSpectrum:
      add_spectrum(values, key.a, key.b);
      break;
  }
  return values;
}

template <class Real>
std::shared_ptr<const Table> upload(const Values& values, Stream& stream) {
  std::vector<Real> data;
  data.reserve(2 * values.size() + 2);
  for (const Complex& value : values) {
    data.push_back(static_cast<Real>(value.real()));
    data.push_back(static_cast<Real>(value.imag()));
  }
  if (data.empty()) data.resize(2);
  auto table = std::make_shared<Table>();
  const size_t bytes = data.size() * sizeof(Real);
  if (stream.id() == Stream::kInternal) {
    table->scratch = std::make_unique<solver::ScratchBuffer>(stream.device(), bytes);
    table->buffer.mem = table->scratch->mem();
    DLB_CL(clEnqueueWriteBuffer, stream.handle(), table->buffer.mem, CL_TRUE, 0, bytes, data.data(), 0,
           nullptr, nullptr);
    return table;
  }
  table->memory = allocate_beside_graph(bytes, static_cast<c10::DeviceIndex>(stream.device().index));
  const MemRef at = resolve(table->memory, table->memory.get());
  if (stream.graph()) [[unlikely]]
    write_beside_graph(at, data.data(), bytes, stream);
  else
    copy_to_device(at, data.data(), bytes, stream, false);
  table->buffer = {at.mem, static_cast<int64_t>(at.offset / sizeof(Real))};
  return table;
}

struct Entry {
  TableKey key;
  Stream* stream;
  std::shared_ptr<const Table> table;
  size_t bytes;
};

// The most recently used first. A process meets few lengths, so that a list is searched fast enough.
class Tables {
 public:
  std::shared_ptr<const Table> get(const TableKey& key, Stream& stream) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto it = list_.begin(); it != list_.end(); ++it) {
      if (it->stream != &stream || !(it->key == key)) continue;
      list_.splice(list_.begin(), list_, it);
      return it->table;
    }
    const Values values = values_of(key);
    const size_t bytes = values.size() * (key.is_double ? 16 : 8);
    make_room(bytes);
    auto table = key.is_double ? upload<double>(values, stream) : upload<float>(values, stream);
    list_.push_front({key, &stream, table, bytes});
    bytes_ += bytes;
    return table;
  }

 private:
  static constexpr size_t kMostBytes = size_t{256} << 20, kMostTables = 256;

  // Waits for the streams that may still read what is given up, which happens to few programs.
  void make_room(size_t bytes) {
    while (!list_.empty() && (list_.size() >= kMostTables || bytes_ + bytes > kMostBytes)) {
      if (!list_.back().stream->graph()) list_.back().stream->synchronize();
      bytes_ -= list_.back().bytes;
      list_.pop_back();
    }
  }

  std::mutex mutex_;
  std::list<Entry> list_;
  size_t bytes_ = 0;
};

}  // namespace

std::shared_ptr<const Table> table_of(const TableKey& key, Stream& stream) {
  static auto* tables = new Tables;
  std::shared_ptr<const Table> table = tables->get(key, stream);
  if (Graph* const graph = stream.graph()) [[unlikely]]
    graph->keep(table);
  return table;
}

uint64_t radices_of(int64_t n) {
  uint64_t radices = 0;
  int passes = 0;
  // powers of two as eights and fours, of which no single two is left where it can be helped
  int twos = 0;
  while (n % 2 == 0) n /= 2, twos++;
  std::vector<int> list;
  while (twos >= 5 || twos == 3) list.push_back(8), twos -= 3;
  while (twos >= 2) list.push_back(4), twos -= 2;
  if (twos) list.push_back(2);
  for (const int radix : {13, 11, 7, 5, 3})
    while (n % radix == 0) n /= radix, list.push_back(radix);
  if (n != 1 || list.size() > params::FFT_MOST_PASSES) return 0;
  for (const int radix : list) radices |= static_cast<uint64_t>(radix) << (kRadixBits * passes++);
  return radices;
}

int passes_of(uint64_t radices) {
  int passes = 0;
  for (; radices; radices >>= kRadixBits) passes++;
  return passes;
}

}  // namespace dlb::fft
