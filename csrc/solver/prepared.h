// Weights that the program declares constant, in the forms that solvers made of them once. oneDNN calls such
// weights reordered, other libraries prepacked.
#pragma once
#include <c10/core/Storage.h>

#include <memory>
#include <mutex>
#include <vector>

#include "runtime/allocator.h"
#include "runtime/event.h"
#include "solver/op.h"

namespace dlb::solver {

// The forms of the weights in one allocation. They are freed with it. Any thread may use them.
class PreparedWeights {
 public:
  // The forms of a storage's memory. Null when our allocator did not make that memory.
  static std::shared_ptr<PreparedWeights> of(const c10::Storage& storage);

  // `bytes` of memory that hold `form` of the weights at this element offset, as they are since their
  // tensor's `version`; later work of the stream may read it. Where that is missing or older, fill(memory)
  // enqueues it on the stream. Keeps the kMost that were asked for last. Throws c10::OutOfMemoryError.
  template <class Fill>
  MemRef get(uint64_t form, int64_t offset, uint32_t version, uint64_t bytes, Stream& stream, Fill&& fill) {
    std::lock_guard<std::mutex> lock(mutex_);
    Form* found = find(form, offset, version, stream);
    if (found) return resolve(found->memory, found->memory.get());
    Form made = allocate(form, offset, version, bytes, stream);
    const MemRef memory = resolve(made.memory, made.memory.get());
    fill(memory);
    keep(std::move(made), stream);
    return memory;
  }

  static constexpr size_t kMost = 2;  // where sizes change, blockings may

 private:
  struct Form {
    uint64_t form;
    int64_t offset;
    uint32_t version;
    c10::DataPtr memory;
    c10::StreamId stream;
    std::shared_ptr<Event> made;
  };
  Form* find(uint64_t form, int64_t offset, uint32_t version, Stream& stream);
  static Form allocate(uint64_t form, int64_t offset, uint32_t version, uint64_t bytes, Stream& stream);
  void keep(Form made, Stream& stream);

  std::mutex mutex_;
  std::vector<Form> forms_;  // the one asked for last comes last
};

// A call's operands with what the solution has made of constant weights, or makes of them now.
StoredOperands with_prepared(const Problem& problem, const Solution& solution, const Operands& operands,
                             Stream& stream);

}  // namespace dlb::solver
