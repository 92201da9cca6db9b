// Tables of roots of unity on the device, computed in float64 once per device, stream and length.
#pragma once
#include <c10/core/Allocator.h>

#include <memory>
#include <vector>

#include "cl/buffer.h"
#include "runtime/stream.h"
#include "solver/trial.h"

namespace dlb::fft {

// The contents of a table, all as pairs of real and imaginary part.
enum class TableKind : uint8_t {
  kRoots,     // exp(-2 pi i j / a) for 0 <= j < b
  kTwiddles,  // for each pass of the radices b of a transform of length a, see twiddles_of()
  kSteps,  // powers of exp(-2 pi i / a): 1 << b low ones, the high ones; c: columns of a tile, 0 for none; d:
           // numbers of a column
  kChirp,  // exp(-pi i j^2 / a) for 0 <= j < a
  kSpectrum  // the transform of length b of the chirp's conjugate, as Bluestein's algorithm multiplies by it
};

struct TableKey {
  TableKind kind = TableKind::kRoots;
  bool is_double = false;
  int64_t a = 0, b = 0, c = 0, d = 0;
  bool operator==(const TableKey&) const = default;
};

// A table on the device. Offsets of `buffer` are in real numbers. Trials run beside the program's streams, so
// that their tables are not the caching allocator's.
struct Table {
  c10::DataPtr memory;
  std::unique_ptr<solver::ScratchBuffer> scratch;
  Buffer buffer;
};

// The table, made and uploaded at the first call for the stream. Keep what is returned until all that uses it
// is enqueued. The tables of all streams together are bounded; the least recently used are given up.
std::shared_ptr<const Table> table_of(const TableKey& key, Stream& stream);

// The radices of a transform's passes, four bits each and the first lowest; 0 where n has a prime factor
// above 13 or would need more passes than there are places.
uint64_t radices_of(int64_t n);
int passes_of(uint64_t radices);

}  // namespace dlb::fft
