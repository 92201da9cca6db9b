// Sorting and selecting in the rows of integer keys on CPUs: launches of kernels/sort/cpu_rows.cl.
#pragma once
#include <ATen/ops/empty.h>

#include <algorithm>

#include "kernels/sort/params.h"
#include "ops/index/compact.h"
#include "runtime/fetch_kernel.h"
#include "runtime/tensor.h"

namespace dlb {

// How a dtype's keys are made.
struct KeyForm {
  at::ScalarType bits;  // the integer type of the same size, for floats
  int64_t infinity;     // 0: an integer type
  int width;            // bits that keys differ in, the sign included
  bool wide;            // 64-bit keys
};

// Sorts the rows of contiguous keys [rows, n]. Result: int32 places [rows, n].
class RowSorter {
 public:
  RowSorter(const at::Tensor& keys, const KeyForm& form)
      : keys_(keys),
        form_(form),
        stream_(current_stream(keys.device().index())),
        rows_(static_cast<uint32_t>(keys.size(0))),
        n_(static_cast<uint32_t>(keys.size(1))) {}

  at::Tensor sort() {
    allocate();
    const uint32_t units = stream_.device().compute_units;
    if (rows_ >= units || n_ < 16384)
      whole_rows();
    else
      by_digits(std::max(4096u, (n_ + 2 * units - 1) / (2 * units)));
    return places_;
  }

  // Places of the k smallest of each row [rows, k]. The keys are overwritten.
  at::Tensor select(uint32_t k) {
    constexpr uint32_t kFew = 64;  // more are not kept sorted by insertion
    return k <= kFew ? select_few(k) : select_sorted(k);
  }

 private:
  struct Bias {
    const RowSorter* sorter;
  };

  // Allocates the tensors that sorting whole rows needs beside the keys.
  void allocate() {
    places_ = like(at::kInt, n_);
    other_keys_ = like(keys_.scalar_type(), n_);
    other_places_ = like(at::kInt, n_);
  }

  at::Tensor select_sorted(uint32_t k) {
    allocate();
    const at::Tensor order = like(at::kInt, n_), best = like(at::kInt, k);
    const uint32_t per_item = rows_per_item();
    launch("dlb_select_sorted", cl::Range::linear((rows_ + per_item - 1) / per_item, 1), keys_, places_,
           order, other_keys_, other_places_, best, rows_, n_, k, per_item, Bias{this},
           static_cast<uint32_t>(form_.width));
    return best;
  }

  at::Tensor select_few(uint32_t k) {
    const at::Tensor best = like(keys_.scalar_type(), k);
    places_ = like(at::kInt, k);
    const uint32_t per_item = rows_per_item();
    launch("dlb_select_rows", cl::Range::linear((rows_ + per_item - 1) / per_item, 1), keys_, best, places_,
           rows_, n_, k, per_item, Bias{this});
    return places_;
  }

  at::Tensor like(at::ScalarType type, int64_t columns) const {
    return at::empty({keys_.size(0), columns}, keys_.options().dtype(type));
  }
  uint32_t rows_per_item() const {
    const uint32_t most = stream_.device().compute_units * 4;
    const uint32_t worth = std::max(1u, 4096 / std::max(1u, n_));
    return std::max(worth, (rows_ + most - 1) / most);
  }

  void add(cl::Kernel::Arguments& arguments, const at::Tensor& tensor) const {
    const Buffer buffer = buffer_of(tensor);
    arguments.add(buffer.mem);
    arguments.add(buffer.offset);
  }
  void add(cl::Kernel::Arguments& arguments, Bias) const {
    const uint64_t bias = uint64_t{1} << (form_.width - 1);
    if (form_.wide)
      arguments.add(bias);
    else
      arguments.add(static_cast<uint32_t>(bias));
  }
  template <class T>
  void add(cl::Kernel::Arguments& arguments, const T& value) const {
    arguments.add(value);
  }
  // Tensors are passed as buffer and offset.
  template <class... Args>
  void launch(const char* name, const cl::Range& range, const Args&... args) {
    fetch_kernel(stream_.device(), "sort/cpu_rows.cl", name, codegen::DType::U8, {},
                 form_.wide ? "-DK=ulong" : "-DK=uint")
        .launch_with(stream_.queue(), range,
                     [&](cl::Kernel::Arguments& arguments) { (add(arguments, args), ...); });
  }

  void whole_rows() {
    const uint32_t per_item = rows_per_item();
    launch("dlb_sort_rows", cl::Range::linear((rows_ + per_item - 1) / per_item, 1), keys_, places_,
           other_keys_, other_places_, rows_, n_, per_item, Bias{this}, static_cast<uint32_t>(form_.width));
  }

  void by_digits(uint32_t per_chunk) {
    constexpr int digit_bits = params::SORT_CPU_DIGIT_BITS;
    const uint32_t chunks = (n_ + per_chunk - 1) / per_chunk;
    const at::Tensor counts = at::empty({rows_, (int64_t{chunks} << digit_bits) + 1}, places_.options());
    const cl::Range range = cl::Range::linear(size_t{rows_} * chunks, 1);
    int32_t first = 1;
    for (int shift = 0; shift < form_.width; shift += digit_bits, first = 0) {
      const auto s = static_cast<uint32_t>(shift);
      launch("dlb_radix_count", range, keys_, rows_, n_, chunks, per_chunk, Bias{this}, s, counts);
      exclusive_scan(counts);
      launch("dlb_radix_move", range, keys_, places_, other_keys_, other_places_, rows_, n_, chunks,
             per_chunk, Bias{this}, s, counts, first);
      std::swap(keys_, other_keys_);
      std::swap(places_, other_places_);
    }
  }

  at::Tensor keys_, places_, other_keys_, other_places_;
  const KeyForm form_;
  Stream& stream_;
  const uint32_t rows_, n_;
};

}  // namespace dlb
