// Capturing and replaying graphs, and torch.accelerator.Graph over them.
#include "runtime/graph.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <map>
#include <tuple>
#include <utility>

#include "cl/log.h"

#if __has_include(<ATen/core/GraphImplInterface.h>)
#include <ATen/core/GraphImplInterface.h>
#define DLB_GRAPH_INTERFACE
#endif

namespace dlb {
namespace {

// The captures that go on.
struct Captures {
  std::mutex mutex;
  std::map<uint64_t, Graph*> by_id;
  uint64_t last = 0;
};
Captures& all_captures() {
  static auto* captures = new Captures;
  return *captures;
}

uint64_t key_of(c10::MempoolId_t pool) {
  return pool.first ? 2 * pool.first : 2 * pool.second + 1;
}

c10::DeviceIndex device_of_stream(const Stream& stream) {
  return static_cast<c10::DeviceIndex>(stream.device().index);
}

}  // namespace

c10::MempoolId_t new_pool_id(bool captured) {
  static std::atomic<c10::CaptureId_t> last{0};
  const c10::CaptureId_t id = ++last;
  return captured ? c10::MempoolId_t{id, 0} : c10::MempoolId_t{0, id};
}

Graph::~Graph() {
  reset();
}

void Graph::begin(c10::MempoolId_t pool) {
  TORCH_CHECK(!captures() && !done_,
              "This OclGraph instance already owns a captured graph. To capture a new graph, create a new "
              "instance.");
  Stream& stream = current_stream();
  TORCH_CHECK(
      stream.id() != 0,
      "ocl graphs must be captured on a non-default stream. (However, after capture, it's ok to replay "
      "them on the default stream.)");
  TORCH_CHECK(!stream.graph(), "the current stream is captured into another graph already");
  stream_ = &stream;
  pool_ = pool == c10::MempoolId_t{0, 0} ? new_pool_id(true) : pool;
  pool_key_ = key_of(pool_);
  keep_pool(device_of_stream(stream), pool_key_);
  tape_ = std::make_unique<cl::Tape>(stream.device(), stream.error_buffer_for_replay());
  {
    std::lock_guard<std::mutex> lock(all_captures().mutex);
    capture_id_ = ++all_captures().last;
    all_captures().by_id[capture_id_] = this;
  }
  for (const Source& source : sources_) source.generator.get<OclGenerator>()->note_capture(1);
  streams_.push_back(&stream);
  stream.capture_into(this, tape_.get());
}

void Graph::release_streams() {
  {
    std::lock_guard<std::mutex> lock(all_captures().mutex);
    all_captures().by_id.erase(capture_id_);  // no stream joins from now on
  }
  capture_id_ = 0;
  for (Stream* stream : streams_) stream->capture_into(nullptr, nullptr);
  streams_.clear();
  for (const Source& source : sources_) source.generator.get<OclGenerator>()->note_capture(-1);
}

void Graph::end() {
  TORCH_CHECK(captures(), "capture_end() without capture_begin()");
  TORCH_CHECK(&current_stream(device_of_stream(*stream_)) == stream_,
              "Capture must end on the same stream it began on.");
  release_streams();
  if (!refused_.empty()) {
    const std::string refused = std::exchange(refused_, {});
    reset();
    TORCH_CHECK(false, "the capture holds no graph, because something in it was refused: ", refused);
  }
  done_ = true;
}

void Graph::reserve_numbers() {
  for (Source& source : sources_) {
    auto* generator = source.generator.get<OclGenerator>();
    std::lock_guard<std::mutex> lock(generator->mutex_);
    std::tie(source.words[0], source.words[1]) = generator->reserve(source.count);
  }
  for (const Number& number : numbers_) *number.number = number.word.value + *number.word.source;
}

void Graph::replay() {
  TORCH_CHECK(done_, "Called OclGraph.replay() without a preceding successful capture.");
  Stream& stream = current_stream(device_of_stream(*stream_));
  if (Graph* const other = stream.graph()) other->refuse("a graph's replay()");
  std::lock_guard<std::mutex> lock(mutex_);
  reserve_numbers();
  const cl_mem errors = tape_->reports_errors() ? stream.error_buffer_for_replay() : nullptr;
  tape_->replay(stream.use(), errors);
  last_replay_ = &stream;
}

void Graph::reset() {
  if (captures()) release_streams();
  // What is kept for the device must not be freed under the last replay. Its errors stay for the next
  // synchronising call.
  if (last_replay_ && !kept_.empty() && !last_replay_->graph() && !cl::in_bad_fork()) try {
      last_replay_->wait();
    } catch (const std::exception& error) {
      cl::log(1, std::string("waiting for a graph's last replay failed: ") + error.what());
    }
  last_replay_ = nullptr;
  tape_.reset();
  kept_.clear();
  numbers_.clear();
  sources_.clear();
  done_ = false;
  refused_.clear();
  if (pool_key_ != 0) give_up_pool(device_of_stream(*stream_), std::exchange(pool_key_, 0));
}

c10::MempoolId_t Graph::pool() const {
  TORCH_CHECK(captures() || done_, "Called OclGraph.pool() without a preceding successful capture.");
  return pool_;
}

std::string Graph::describe() const {
  TORCH_CHECK(done_, "Called OclGraph.debug_dump() without a preceding successful capture.");
  return tape_->describe();
}

void Graph::refuse(const std::string& what) {
  const std::string message = "operation not permitted when stream is capturing: " + what +
                              ". Nothing runs while a graph is captured, and a replay repeats kernels and "
                              "copies only. Do it before the capture or behind replay(). Copies from and to "
                              "the host can be captured where the tensor there is pinned and "
                              "non_blocking=True.";
  if (refused_.empty()) refused_ = message;
  TORCH_CHECK(false, message);
}

Graph::Source& Graph::source_of(const at::Generator& generator) {
  for (Source& source : sources_)
    if (source.generator == generator) return source;
  if (captures()) generator.get<OclGenerator>()->note_capture(1);
  return sources_.emplace_back(Source{generator, std::make_unique<uint64_t[]>(2), 0});
}

void Graph::register_generator(const at::Generator& generator) {
  TORCH_CHECK(generator.defined() && generator.device().type() == kDeviceType,
              "Expected a 'ocl' device type for generator");
  std::lock_guard<std::mutex> lock(mutex_);
  source_of(generator);
}

PhiloxDraw Graph::draw(const at::Generator& generator, uint64_t count) {
  std::lock_guard<std::mutex> lock(mutex_);
  Source& source = source_of(generator);
  const uint64_t first = std::exchange(source.count, source.count + count);
  return {{0, &source.words[0]}, {first, &source.words[1]}};
}

void Graph::set_in_replays(uint64_t* number, cl::LiveWord word) {
  std::lock_guard<std::mutex> lock(mutex_);
  numbers_.push_back({number, word});
}

void Graph::keep(std::shared_ptr<const void> object) {
  std::lock_guard<std::mutex> lock(mutex_);
  kept_.push_back(std::move(object));
}

void Graph::join(uint64_t capture_id, Stream& stream) {
  std::lock_guard<std::mutex> lock(all_captures().mutex);
  const auto found = all_captures().by_id.find(capture_id);
  if (found == all_captures().by_id.end() || stream.graph() == found->second) return;
  Graph& graph = *found->second;
  TORCH_CHECK(!stream.graph(), "a stream that is captured into one graph cannot wait for work of another");
  TORCH_CHECK(&stream.device() == &graph.stream_->device(),
              "a graph holds work of one device: ", stream.unwrap().device(),
              " cannot wait for work that is captured on ", graph.stream_->unwrap().device());
  graph.streams_.push_back(&stream);
  stream.capture_into(&graph, graph.tape_.get());
}

#ifdef DLB_GRAPH_INTERFACE
namespace {

// torch.accelerator.Graph. All capture modes are alike: a capture concerns its streams alone.
struct GraphImpl final : at::GraphImplInterface {
  explicit GraphImpl(const at::GraphImplArgs&) {}
  void capture_begin(c10::MempoolId_t pool, at::GraphCaptureMode) override { graph_.begin(pool); }
  void capture_end() override { graph_.end(); }
  void instantiate() override {}
  void replay() override { graph_.replay(); }
  void reset() override { graph_.reset(); }
  c10::MempoolId_t pool() const override { return graph_.pool(); }
  void enable_debug_mode() override {}
  void debug_dump(const std::string& path) override { std::ofstream(path) << graph_.describe(); }

 private:
  Graph graph_;
};

[[maybe_unused]] const bool g_graphs_registered = [] {
  // The device's name as c10::DeviceTypeName() gives it in capitals once the backend is renamed.
  at::GraphImplRegistry()->Register("OCL", [](const at::GraphImplArgs& args) {
    return std::unique_ptr<at::GraphImplInterface>(std::make_unique<GraphImpl>(args));
  });
  return true;
}();

}  // namespace
#endif

}  // namespace dlb
