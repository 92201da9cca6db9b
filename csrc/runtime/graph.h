// Graphs: work of a stream that is captured in place of being run, and then replayed as often as wanted
// without Python or the dispatcher, in the manner of PyTorch's CUDA graphs. See docs/graphs.md.
#pragma once
#include <ATen/core/Generator.h>
#include <c10/core/Allocator.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cl/tape.h"
#include "runtime/allocator.h"
#include "runtime/generator.h"
#include "runtime/stream.h"

namespace dlb {

// A new id of a pool of memory that graphs can share. `captured`: the id is of a capture's own pool.
c10::MempoolId_t new_pool_id(bool captured);

// One capture and its replays. Begin and end belong to one thread; other threads' work on the captured
// streams, as that of autograd's, is captured too. Replays are thread-safe.
class Graph {
 public:
  Graph() = default;
  ~Graph();
  Graph(const Graph&) = delete;

  // From now on the work of the current stream is captured, and memory comes from the pool; {0, 0} stands for
  // a pool of the graph's own. Throws c10::Error on the default stream, and where the stream or the graph
  // captures already or the graph has a capture.
  void begin(c10::MempoolId_t pool);
  // Ends it, on the stream on which it began. Throws c10::Error, and the graph has no capture, where
  // something in it was refused.
  void end();
  // Enqueues what was captured on the current stream of the graph's device. Throws c10::Error without a
  // capture.
  void replay();
  // Forgets the capture, and gives up its memory but for what tensors hold. Ends a capture that goes on.
  void reset();
  // Throws c10::Error without a capture.
  c10::MempoolId_t pool() const;
  // Has each replay draw this generator's numbers; a capture sees to that itself for those it meets.
  void register_generator(const at::Generator& generator);
  bool captures() const { return capture_id_ != 0; }
  bool has_capture() const { return done_; }
  // A line for each command, for people. Throws c10::Error without a capture.
  std::string describe() const;

  // --- For the code whose work is captured.

  // Throws c10::Error for what cannot be part of a graph, and makes the capture invalid. `what` is a noun.
  [[noreturn]] void refuse(const std::string& what);
  // Where launches, copies and transfers go.
  cl::Tape& tape() { return *tape_; }
  // The stream on which the capture began.
  Stream& stream() const { return *stream_; }
  // Tells captures of the process apart; 0 while none goes on.
  uint64_t capture_id() const { return capture_id_; }
  // The pool as the allocator knows it.
  uint64_t pool_key() const { return pool_key_; }
  // What an op draws of the generator, which is reserved anew in each replay.
  PhiloxDraw draw(const at::Generator& generator, uint64_t count);
  // Each replay sets the number to what the word is then, before kernels are enqueued.
  void set_in_replays(uint64_t* number, cl::LiveWord word);
  // The object lives as long as the capture.
  void keep(std::shared_ptr<const void> object);
  // Device memory with these bytes that is the graph's, as long as the capture lives.
  cl::Tape::Place hold(const void* data, size_t bytes) {
    return tape_->hold(data, bytes, stream_->handle_now());
  }

  // Has the stream's work go to that capture too, which a stream does that waits for an event of it. Does
  // nothing where the capture has ended. Throws c10::Error for a stream of another device or capture.
  static void join(uint64_t capture_id, Stream& stream);

 private:
  // A generator, what a replay starts from, and how much it draws.
  struct Source {
    at::Generator generator;
    std::unique_ptr<uint64_t[]> words;  // seed, offset
    uint64_t count = 0;
  };
  struct Number {
    uint64_t* number;
    cl::LiveWord word;
  };
  Source& source_of(const at::Generator& generator);
  void release_streams();
  void reserve_numbers();

  std::mutex mutex_;
  std::unique_ptr<cl::Tape> tape_;
  Stream* stream_ = nullptr;
  std::vector<Stream*> streams_;  // while it captures
  uint64_t capture_id_ = 0, pool_key_ = 0;
  c10::MempoolId_t pool_{0, 0};
  bool done_ = false;
  std::string refused_;
  std::vector<Source> sources_;
  std::vector<Number> numbers_;
  std::vector<std::shared_ptr<const void>> kept_;
  Stream* last_replay_ = nullptr;
};

}  // namespace dlb
