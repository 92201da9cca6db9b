// Jacobi's methods on GPUs: in one launch where a work-group's local memory takes a matrix, else by blocks of
// columns. A round of blocks finds the rotations of all pairs and applies them; a sweep has as many rounds as
// bring each block together with each other.
#include "ops/linalg/jacobi.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/real.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <bit>
#include <cmath>
#include <limits>

namespace dlb::linalg {
namespace {

constexpr int64_t kEdge = params::JACOBI_EDGE, kBlock = kEdge / 2, kGroup = params::LINALG_GROUP;
// Sweeps over all pairs of blocks, and those within a pair each time that it is met.
constexpr int kMostSweeps = 30, kInnerSweeps = 2;
// Local memory that kernels declare beside what their `room` takes.
constexpr int64_t kDeclaredBytes = 4096;

int64_t power_above(int64_t n) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(n)));
}
int64_t even(int64_t n) {
  return n + n % 2;
}
int64_t padded(int64_t n) {
  return (n + kEdge - 1) / kEdge * kEdge;
}

template <class... Args>
void launch(const Place& place, const char* file, const char* name, const cl::Range& range,
            const Args&... args) {
  place.kernel(file, name).launch_with(place.stream.queue(), range, [&](auto& arguments) {
    (add_argument(arguments, args), ...);
  });
}

// The distance of columns of m rows in local memory by which `lanes` rows of neighbouring columns lie in
// different banks, of which there are 32 of four bytes.
int64_t column_distance(int64_t m, int64_t lanes, int64_t element) {
  const int64_t elements = 128 / element;
  return lanes >= elements ? m : (m - lanes + elements - 1) / elements * elements + lanes;
}

double epsilon_of(const Tensor& tensor) {
  return at::toRealValueType(tensor.scalar_type()) == at::kDouble ? std::numeric_limits<double>::epsilon()
                                                                  : std::numeric_limits<float>::epsilon();
}

bool has_room(const Tensor& like, int64_t bytes) {
  return bytes + kDeclaredBytes <= static_cast<int64_t>(device_of(like.device().index()).local_mem);
}

// How eigh_small runs for n columns: with no more work-items than have a column.
struct EighShape {
  int64_t lanes, ld, group, bytes;

  EighShape(int64_t n, int64_t element)
      : lanes(power_above(even(n) / 2)),
        ld(column_distance(even(n), lanes, element)),
        group(
            std::clamp<int64_t>(n * n / 8, std::min<int64_t>(32, lanes * power_above(even(n)) / 2), kGroup)),
        bytes(2 * ld * even(n) * element) {
    group = power_above(group);
  }
};

// How svd_small runs for m x n.
struct SvdShape {
  int64_t lanes, ldw, ldv, group, bytes;

  SvdShape(int64_t m, int64_t n, bool vectors, int64_t element) {
    const int64_t pairs = power_above(even(n) / 2);
    lanes = std::max<int64_t>(8, 32 / pairs), group = lanes * pairs;
    ldw = column_distance(m, lanes, element), ldv = vectors ? column_distance(n, lanes, element) : 0;
    bytes = (even(n) * (ldw + ldv) + 3 * group) * element;
  }
};

// One sweep after another over the pairs of `blocks` blocks, each round by find(round) and apply(round).
// `moved`: what find() sets where it rotates. The host waits once a sweep. Returns whether the last sweep did
// not rotate.
template <class Find, class Apply>
bool sweep_blocks(int64_t blocks, const Tensor& moved, Find&& find, Apply&& apply) {
  for (int sweep = 0; sweep < kMostSweeps; ++sweep) {
    moved.zero_();
    for (int64_t round = 0; round < blocks - 1; ++round) find(round), apply(round);
    if (moved.item<int>() == 0) return true;
  }
  return false;
}

// The tensors that the rounds of blocks write, for a batch of matrices with n columns.
struct Rounds {
  Place place;
  int64_t batch, blocks;
  Tensor factors, active, moved;

  Rounds(const Tensor& w, const char* op)
      : place(w, op),
        batch(w.size(0)),
        blocks(w.size(2) / kBlock),
        factors(empty_column_major(batch * blocks / 2, kEdge, kEdge, w.options())),
        active(at::empty({batch * blocks / 2, 1, 1}, w.options().dtype(at::kInt))),
        moved(at::empty({1, 1, 1}, active.options())) {}

  template <class... Args>
  void find(const char* file, const char* kernel, const Args&... args) const {
    launch(place, file, kernel, cl::Range::linear(batch * blocks / 2, kGroup), args...);
  }
  void apply(const Tensor& x, int64_t round, bool both) const {
    const auto rows = static_cast<size_t>(both ? blocks / 2 : x.size(1) / kEdge);
    const cl::Range range{3,
                          {rows * kGroup, static_cast<size_t>(blocks / 2), static_cast<size_t>(batch)},
                          {static_cast<size_t>(kGroup), 1, 1}};
    launch(place, "linalg/jacobi_apply.cl", "apply_pairs", range, x, factors, active, blocks, round,
           static_cast<int>(both));
  }
};

// Powers of two that bring the largest element of each matrix to between 1 and 2, [batch, 1, 1]. info becomes
// `code` where that is not finite.
Tensor scale_of(const Tensor& a, const Tensor& info, int64_t code) {
  const Tensor parts = a.is_complex() ? at::view_as_real(a).flatten(2) : a;
  const Tensor most = parts.abs().amax({1, 2}, true);
  info.copy_(most.isfinite().logical_not().to(at::kInt).mul(code));
  const double limit = most.scalar_type() == at::kDouble ? 1000 : 100;  // MOST_EXPONENT of the kernels
  return most.log2().floor().clamp(-limit, limit).neg().exp2();
}

// A copy of a, scaled, with rows and columns of zeros up to multiples of kEdge.
Tensor padded_copy(const Tensor& a, const Tensor& scale) {
  const Tensor copy = empty_column_major(a.size(0), padded(a.size(1)), padded(a.size(2)), a.options());
  copy.zero_();
  copy.narrow(1, 0, a.size(1)).narrow(2, 0, a.size(2)).copy_(a.mul(scale));
  return copy;
}

Tensor identities(int64_t batch, int64_t n, const at::TensorOptions& options) {
  const Tensor result = empty_column_major(batch, n, n, options);
  result.zero_();
  result.diagonal(0, 1, 2).fill_(1);
  return result;
}

// Columns of x [batch, rows or more, .] in the order of `places` [batch, n].
Tensor ordered(const Tensor& x, int64_t rows, const Tensor& places) {
  return x.narrow(1, 0, rows).gather(2, places.unsqueeze(1).expand({-1, rows, -1}));
}

void mark_unfinished(const Tensor& info, int64_t n) {
  info.masked_fill_(info.eq(0), n);
}

void eigh_by_blocks(const Tensor& z, const Tensor& values, const Tensor& info, bool upper, bool compute) {
  const int64_t n = z.size(1);
  const Tensor half = upper ? z.triu(1) : z.tril(-1), whole = half.add(half.mH());
  whole.diagonal(0, 1, 2).copy_(at::real(z).diagonal(0, 1, 2));
  const Tensor scale = scale_of(whole, info, n), a = padded_copy(whole, scale);
  const Tensor vectors = compute ? identities(a.size(0), a.size(1), a.options()) : Tensor();
  const Tensor least =
      at::linalg_vector_norm(a, 2, at::IntArrayRef{1, 2}, true).mul(epsilon_of(z) / static_cast<double>(n));
  const Rounds rounds(a, "linalg.eigh");
  const bool done = sweep_blocks(
      rounds.blocks, rounds.moved,
      [&](int64_t round) {
        rounds.find("linalg/eigh_jacobi.cl", "eigh_pairs", a, rounds.factors, least, rounds.active,
                    rounds.moved, rounds.blocks, round, kInnerSweeps);
      },
      [&](int64_t round) {
        rounds.apply(a, round, true);
        if (compute) rounds.apply(vectors, round, false);
      });
  if (!done) mark_unfinished(info, n);
  const auto [sorted, places] = at::real(a.diagonal(0, 1, 2)).narrow(1, 0, n).sort(1);
  values.copy_(sorted.unsqueeze(2).div(scale));
  if (compute) z.copy_(ordered(vectors, n, places));
}

void svd_by_blocks(const Tensor& w, const Tensor& s, const Tensor& v, const Tensor& info,
                   const Tensor& lacking) {
  const int64_t n = w.size(2);
  const Tensor scale = scale_of(w, info, -4), a = padded_copy(w, scale);
  const Tensor right = v.defined() ? identities(a.size(0), a.size(2), a.options()) : Tensor();
  const Rounds rounds(a, "linalg.svd");
  const bool done = sweep_blocks(
      rounds.blocks, rounds.moved,
      [&](int64_t round) {
        rounds.find("linalg/svd_jacobi.cl", "svd_pairs", a, rounds.factors, rounds.active, rounds.moved,
                    a.size(1), rounds.blocks, round, kInnerSweeps);
      },
      [&](int64_t round) {
        rounds.apply(a, round, false);
        if (v.defined()) rounds.apply(right, round, false);
      });
  if (!done) mark_unfinished(info, n);
  const Tensor norms = at::linalg_vector_norm(a, 2, at::IntArrayRef{1}).narrow(1, 0, n);
  const auto [sorted, places] = norms.sort(1, true);
  s.copy_(sorted.unsqueeze(2).div(scale));
  if (!v.defined()) return;
  // The bound that the kernel has as LEAST_SQUARE.
  const Tensor zero = sorted.le(std::ldexp(epsilon_of(w), -10)).unsqueeze(1);
  w.copy_(
      at::where(zero, at::zeros({}, w.options()), ordered(a, w.size(1), places).div(sorted.unsqueeze(1))));
  v.copy_(ordered(right, n, places));
  lacking.copy_(zero.any(2, true));
}

// Columns of zeros become what completes an orthonormal basis of the columns before them.
void complete(const Tensor& u, const Tensor& lacking) {
  if (!lacking.any().item<bool>()) return;
  const Tensor zero = (u.is_complex() ? at::view_as_real(u).abs().amax(3) : u.abs()).amax({1}, true).eq(0);
  u.copy_(at::where(zero, std::get<0>(at::linalg_qr(u, "reduced")), u));
}

}  // namespace

void eigh_by_jacobi(const Tensor& z, const Tensor& values, const Tensor& info, bool upper, bool compute) {
  const int64_t n = z.size(1);
  const EighShape shape(n, z.element_size());
  if (n > params::JACOBI_MOST || !has_room(z, shape.bytes))
    return eigh_by_blocks(z, values, info, upper, compute);
  launch(Place(z, "linalg.eigh"), "linalg/eigh_jacobi.cl", "eigh_small",
         cl::Range::linear(z.size(0), shape.group), z, values, info, n, static_cast<int>(upper),
         static_cast<int>(compute), shape.ld, shape.lanes, cl::Local{static_cast<size_t>(shape.bytes)});
}

bool svd_fits(const Tensor& like, int64_t m, int64_t n, bool vectors) {
  return n <= params::JACOBI_MOST && has_room(like, SvdShape(m, n, vectors, like.element_size()).bytes);
}

void svd_by_jacobi(const Tensor& w, const Tensor& s, const Tensor& v, const Tensor& info) {
  const int64_t m = w.size(1), n = w.size(2);
  const Tensor lacking = at::zeros({w.size(0), 1, 1}, info.options());
  if (svd_fits(w, m, n, v.defined())) {
    const SvdShape shape(m, n, v.defined(), w.element_size());
    launch(Place(w, "linalg.svd"), "linalg/svd_jacobi.cl", "svd_small",
           cl::Range::linear(w.size(0), shape.group), w, v.defined() ? v : w, s, info, lacking, m, n,
           static_cast<int>(v.defined()), shape.ldw, shape.ldv, shape.lanes,
           cl::Local{static_cast<size_t>(shape.bytes)});
  } else {
    svd_by_blocks(w, s, v, info, lacking);
  }
  if (v.defined()) complete(w, lacking);
}

}  // namespace dlb::linalg
