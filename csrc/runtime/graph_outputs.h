// What a graph's replays return, as tensors that nobody need copy before the next replay.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

namespace dlb {

// The results of a captured function. Each replay writes them to the same memory, of which renew() gives
// tensors. Not thread-safe.
class GraphOutputs {
 public:
  // The tensors that the function returned while it was captured, on ocl or the CPU.
  explicit GraphOutputs(const std::vector<at::Tensor>& captured);

  // Tensors in the memory that the next replay writes, which is to follow on the current stream. Where
  // tensors of an earlier call are still in use, these get memory of their own first, with their values.
  std::vector<at::Tensor> renew();

 private:
  struct Memory {
    c10::Storage captured;
    std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> given;  // by the last call
  };
  struct Output {
    at::Tensor captured;
    size_t memory;  // index
  };
  std::vector<Memory> memory_;
  std::vector<Output> outputs_;
};

}  // namespace dlb
