// Builds the table of tensor addresses of each call, and uploads it unless the device still holds one with
// the same content.
#include "ops/common/multi_tensor.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <deque>
#include <memory>
#include <tuple>
#include <unordered_map>

#include "codegen/registry.h"
#include "runtime/graph.h"
#include "runtime/kernel_cache.h"
#include "runtime/transfer.h"

namespace dlb {
namespace {

using codegen::kMaxSegments;
using codegen::kNoAlias;
using codegen::MultiTensorKey;
using codegen::Source;

constexpr uint64_t kRingBytes = 1 << 20;
constexpr uint64_t kCpuGrain = 8192;  // fewer elements do not pay for handing a work-item to another core
constexpr uint64_t kCpuItemsPerUnit = 4;

// Device memory that tables go through. Written and read by one in-order queue, so that old contents may be
// overwritten at any time; what was not yet overwritten is found again by its content.
class TableRing {
 public:
  explicit TableRing(Stream& stream) : stream_(stream) {}
  std::mutex mutex;  // held from placing tables until the launch that reads them is enqueued

  cl_mem buffer() const { return buffer_; }

  // Makes room for pieces of up to this many words; pieces placed since the last call stay valid for four
  // more.
  void reserve(size_t words) {
    if (buffer_ && words * 8 * 4 <= capacity_) return;
    if (buffer_) cl::release_buffer(buffer_);
    capacity_ = std::max(kRingBytes, std::bit_ceil(words * 8 * 4));
    head_ = 0;
    held_.clear();
    order_.clear();
    cl_int status = CL_SUCCESS;
    buffer_ =
        cl::api().clCreateBuffer(stream_.device().context(), CL_MEM_READ_ONLY, capacity_, nullptr, &status);
    cl::check(status, "clCreateBuffer");
  }

  // Uploads a piece and returns the position that it was given; word_of() says where that lies.
  uint64_t place(const void* data, size_t bytes) {
    uint64_t at = (head_ + 63) / 64 * 64;
    if (at % capacity_ + bytes > capacity_) at = (at / capacity_ + 1) * capacity_;
    head_ = at + bytes;
    copy_to_device({buffer_, at % capacity_}, data, bytes, stream_, false);
    return at;
  }
  uint64_t word_of(uint64_t position) const { return position % capacity_ / 8; }

  // The position of a table with this content, if the ring still holds one.
  std::optional<uint64_t> find(const std::vector<uint64_t>& table, uint64_t hash) const {
    const auto it = held_.find(hash);
    if (it == held_.end() || head_ - it->second.position > capacity_ || it->second.table != table)
      return std::nullopt;
    return it->second.position;
  }
  uint64_t place_table(const std::vector<uint64_t>& table, uint64_t hash) {
    const uint64_t position = place(table.data(), table.size() * 8);
    held_[hash] = {position, table};
    order_.emplace_back(position, hash);
    while (head_ - order_.front().first > capacity_) {
      const auto it = held_.find(order_.front().second);
      if (it != held_.end() && it->second.position == order_.front().first) held_.erase(it);
      order_.pop_front();
    }
    return position;
  }

 private:
  struct Held {
    uint64_t position;
    std::vector<uint64_t> table;
  };
  Stream& stream_;
  cl_mem buffer_ = nullptr;
  uint64_t capacity_ = 0, head_ = 0;  // bytes; head_ only grows, its place is modulo the capacity
  std::unordered_map<uint64_t, Held> held_;
  std::deque<std::pair<uint64_t, uint64_t>> order_;  // positions and hashes, oldest first
};

TableRing& ring_of(Stream& stream) {
  static std::mutex mutex;
  static auto* rings = new std::unordered_map<Stream*, std::unique_ptr<TableRing>>;
  std::lock_guard<std::mutex> lock(mutex);
  auto& ring = (*rings)[&stream];
  if (!ring) ring = std::make_unique<TableRing>(stream);
  return *ring;
}

uint64_t hash_of(const std::vector<uint64_t>& words) {
  uint64_t h = words.size();
  for (uint64_t word : words) h = (h ^ word) * 0x9E3779B97F4A7C15ull, h ^= h >> 29;
  return h;
}

// The tensors of one launch, as they are collected.
struct Part {
  std::array<cl_mem, kMaxSegments> segments{};
  size_t segment_count = 0;
  std::vector<uint64_t> start{0}, rows;
  std::vector<uint32_t> tensors;  // their positions in the lists

  // Returns the segment's number, or kMaxSegments when there is no room for one more.
  size_t segment(cl_mem mem) {
    for (size_t i = 0; i < segment_count; ++i)
      if (segments[i] == mem) return i;
    if (segment_count == kMaxSegments) return kMaxSegments;
    segments[segment_count] = mem;
    return segment_count++;
  }
  // The last word is not for the device: it tells tables apart that differ in element sizes or in what is
  // written.
  std::vector<uint64_t> table(const TensorLists& lists) const {
    std::vector<uint64_t> words = start;
    words.insert(words.end(), rows.begin(), rows.end());
    uint64_t signature = 0;
    for (const auto& list : lists.lists)
      signature = signature << 6 | list.tensors[0].itemsize() << 1 | uint64_t{list.written};
    words.push_back(signature);
    return words;
  }
};

const at::Tensor& tensor_at(const TensorLists::List& list, size_t i) {
  return list.tensors[list.tensors.size() == 1 ? 0 : i];
}

// Adds tensor i of all lists to the part; false, leaving it as it was, when it needs too many segments.
bool add_tensor(Part& part, const TensorLists& lists, size_t i, uint64_t count, uint64_t units) {
  const size_t segments = part.segment_count, rows = part.rows.size();
  part.rows.push_back(count);
  for (const auto& list : lists.lists) {
    const at::Tensor& tensor = tensor_at(list, i);
    const MemRef ref = mem_of(tensor);
    const size_t segment = part.segment(ref.mem);
    if (segment == kMaxSegments) {
      part.segment_count = segments;
      part.rows.resize(rows);
      return false;
    }
    part.rows.push_back(uint64_t{segment} << 56 | ref.offset / tensor.itemsize());
  }
  part.start.push_back(part.start.back() + units);
  part.tensors.push_back(static_cast<uint32_t>(i));
  return true;
}

// Each tensor goes to the first part that has room for its segments, so that few parts come of lists whose
// tensors lie in other segments in turn: gradients are made in the opposite order of parameters.
std::vector<Part> make_parts(const TensorLists& lists, bool by_chunk) {
  std::vector<Part> parts;
  const at::TensorList first = lists.lists[0].tensors;
  for (size_t i = 0; i < first.size(); ++i) {
    const auto count = static_cast<uint64_t>(first[i].numel());
    if (count == 0) continue;
    const uint64_t units = by_chunk ? (count + codegen::kMultiChunk - 1) / codegen::kMultiChunk : count;
    const auto has_room = [&](Part& part) { return add_tensor(part, lists, i, count, units); };
    if (std::find_if(parts.begin(), parts.end(), has_room) == parts.end())
      TORCH_INTERNAL_ASSERT(has_room(parts.emplace_back()));
  }
  return parts;
}

// Whether written memory overlaps memory of another tensor index, or overlaps inexactly at the same one. Of
// all parts together, which are launched in another order than that of the tensors.
bool overlaps(const std::vector<Part>& parts, const TensorLists& lists) {
  struct Span {
    cl_mem mem;
    uint64_t begin, end;
    uint32_t tensor;
    bool written;
  };
  std::vector<Span> spans;
  spans.reserve(lists.lists[0].tensors.size() * lists.lists.size());
  for (const Part& part : parts) {
    const uint64_t* row = part.rows.data();
    for (uint32_t tensor : part.tensors) {
      const uint64_t count = *row++;
      for (const auto& list : lists.lists) {
        const uint64_t place = *row++, bytes = tensor_at(list, tensor).itemsize();
        const uint64_t begin = (place & ((uint64_t{1} << 56) - 1)) * bytes;
        spans.push_back({part.segments[place >> 56], begin, begin + (list.single ? 1 : count) * bytes, tensor,
                         list.written});
      }
    }
  }
  std::sort(spans.begin(), spans.end(),
            [](const Span& a, const Span& b) { return std::tie(a.mem, a.begin) < std::tie(b.mem, b.begin); });
  uint64_t written_end = 0, any_end = 0;
  const Span* last = nullptr;  // the span of this buffer that reaches furthest
  for (const Span& span : spans) {
    if (last && last->mem != span.mem) last = nullptr, written_end = any_end = 0;
    const bool exact =
        last && last->begin == span.begin && last->end == span.end && last->tensor == span.tensor;
    if (!exact && (span.begin < written_end || (span.written && span.begin < any_end))) return true;
    if (span.written) written_end = std::max(written_end, span.end);
    if (span.end >= any_end) {
      any_end = span.end;
      last = &span;
    }
  }
  return false;
}

// A part's table as the ring knows it.
struct Ready {
  std::vector<uint64_t> table;
  uint64_t hash;
};

// The tables of the parts. Where there are several, each table ends with a word that is a hash of all of
// them, which the device does not read: a table that is found in the ring was then checked together with the
// same others.
std::vector<Ready> tables_of(const std::vector<Part>& parts, const TensorLists& lists) {
  std::vector<Ready> ready;
  std::vector<uint64_t> all;
  for (const Part& part : parts) {
    Ready& r = ready.emplace_back(Ready{part.table(lists), 0});
    all.push_back(r.hash = hash_of(r.table));
    for (cl_mem segment : part.segments) all.push_back(reinterpret_cast<uintptr_t>(segment));
  }
  if (parts.size() == 1) return ready;
  for (Ready& r : ready) {
    r.table.push_back(hash_of(all));
    r.hash = hash_of(r.table);
  }
  return ready;
}

}  // namespace

uint64_t multi_tensor_share(const cl::Device& device, uint64_t total) {
  const uint64_t items = std::clamp<uint64_t>(total / kCpuGrain, 1, device.compute_units * kCpuItemsPerUnit);
  return ((total + items - 1) / items + 63) / 64 * 64;
}

namespace {

// What a part's launch is given but for where its table and values lie.
TableLaunch launch_of(const Part& part, const Stream& stream) {
  const bool by_chunk = stream.device().cls == cl::DeviceClass::kGpu;
  TableLaunch to;
  to.segments = part.segments;
  std::fill(to.segments.begin() + static_cast<std::ptrdiff_t>(part.segment_count), to.segments.end(),
            part.segments[0]);
  to.params = {part.start.back(), 0, 0, 0, static_cast<uint32_t>(part.tensors.size()), 0};
  to.params.per_item = by_chunk ? 1 : multi_tensor_share(stream.device(), part.start.back());
  to.start = &part.start;
  return to;
}

// The per-tensor values of a part, list after list, as bytes.
std::vector<unsigned char> values_of(const Part& part, const std::vector<ScalarArg>& values, size_t tensors,
                                     size_t value_lists) {
  std::vector<unsigned char> bytes;
  for (size_t list = 0; list < value_lists; ++list)
    for (uint32_t tensor : part.tensors) {
      const ScalarArg& value = values[list * tensors + tensor];
      const auto* from = reinterpret_cast<const unsigned char*>(&value);
      bytes.insert(bytes.end(), from, from + value.size);
    }
  return bytes;
}

// Of a graph that is captured: each launch has its table and values in memory of the graph's own.
bool capture_tables(const std::vector<Part>& parts, const TensorLists& lists, Stream& stream,
                    const std::vector<ScalarArg>& values, size_t value_lists,
                    const std::function<void(TableLaunch&)>& launch) {
  if (overlaps(parts, lists)) return false;
  Graph& graph = *stream.graph();
  for (const Part& part : parts) {
    TableLaunch to = launch_of(part, stream);
    std::vector<uint64_t> words = part.table(lists);
    if (value_lists > 0) {
      const auto bytes = values_of(part, values, lists.lists[0].tensors.size(), value_lists);
      to.params.lists = words.size();
      words.resize(words.size() + (bytes.size() + 7) / 8);
      std::memcpy(words.data() + to.params.lists, bytes.data(), bytes.size());
    }
    const cl::Tape::Place place = graph.hold(words.data(), words.size() * 8);
    to.ring = place.mem;
    to.params.table = place.offset / 8;
    to.params.lists += to.params.table;
    launch(to);
  }
  return true;
}

}  // namespace

bool for_each_table(const TensorLists& lists, Stream& stream, const std::vector<ScalarArg>& values,
                    size_t value_lists, const std::function<void(TableLaunch&)>& launch) {
  const bool by_chunk = stream.device().cls == cl::DeviceClass::kGpu;
  const std::vector<Part> parts = make_parts(lists, by_chunk);
  if (stream.graph()) [[unlikely]]
    return capture_tables(parts, lists, stream, values, value_lists, launch);
  const size_t tensors = lists.lists[0].tensors.size();
  TableRing& ring = ring_of(stream);
  std::lock_guard<std::mutex> lock(ring.mutex);

  const std::vector<Ready> ready = tables_of(parts, lists);
  size_t most = 0;
  for (size_t i = 0; i < parts.size(); ++i)
    most = std::max({most, ready[i].table.size(), parts[i].tensors.size() * value_lists * 2});
  ring.reserve(most);
  // Lists whose tables are held were looked at when those were placed.
  const auto is_held = [&](const Ready& r) { return ring.find(r.table, r.hash).has_value(); };
  if (!std::all_of(ready.begin(), ready.end(), is_held) && overlaps(parts, lists)) return false;

  for (size_t i = 0; i < parts.size(); ++i) {
    TableLaunch to = launch_of(parts[i], stream);
    if (value_lists > 0) {
      const auto bytes = values_of(parts[i], values, tensors, value_lists);
      to.params.lists = ring.word_of(ring.place(bytes.data(), bytes.size()));
    }
    const auto held = ring.find(ready[i].table, ready[i].hash);
    to.params.table = ring.word_of(held ? *held : ring.place_table(ready[i].table, ready[i].hash));
    to.ring = ring.buffer();
    launch(to);
  }
  return true;
}

namespace {

cl::Kernel& kernel_for(const MultiTensorKey& key, cl::Device& device) {
  return KernelCache<MultiTensorKey>::get(device, key, [&]() -> cl::Kernel& {
    codegen::check_is_row(*key.op);
    return cl::get_kernel(device, codegen::multi_tensor_source(key), "",
                          std::string("dlb_multi_") + key.op->name);
  });
}

}  // namespace

MultiTensor::MultiTensor(const codegen::PointwiseOp& op, c10::ScalarType compute, const char* setup,
                         const char* after) {
  key_.op = &op;
  key_.setup = setup;
  key_.after = after;
  key_.compute = codegen::compute_type(dtype_of(compute, op.name));
}

void MultiTensor::operand(codegen::DType type, Source source, uint8_t alias) {
  const size_t at = key_.operands();
  TORCH_INTERNAL_ASSERT(at < codegen::kMaxMultiOperands, key_.op->name);
  key_.types[at] = type;
  key_.source[at] = source;
  key_.alias[at] = alias;
}

void MultiTensor::add_list(at::TensorList list, Source source, bool written) {
  operand(dtype_of(list[0].scalar_type(), key_.op->name), source);
  lists_.lists.push_back({list, source == Source::Single, written});
}

MultiTensor& MultiTensor::output(at::TensorList list) {
  add_list(list, Source::List, true);
  key_.outputs++;
  return *this;
}
MultiTensor& MultiTensor::input(at::TensorList list) {
  add_list(list, Source::List, false);
  key_.inputs++;
  return *this;
}
MultiTensor& MultiTensor::input_in_place(uint8_t output) {
  operand(key_.types[output], Source::List, output);
  key_.inputs++;
  return *this;
}
MultiTensor& MultiTensor::single(at::TensorList list) {
  add_list(list, Source::Single, false);
  key_.inputs++;
  return *this;
}
MultiTensor& MultiTensor::single_or_value(const at::Tensor& t) {
  return t.device().is_cpu() ? value(cpu_scalar(t)) : single(t);
}
MultiTensor& MultiTensor::value(const c10::Scalar& value, c10::ScalarType type) {
  operand(key_.compute, Source::Value);
  arguments_.push_back(scalar_arg(rounded_to(value, type), key_.compute));
  key_.inputs++;
  return *this;
}
void MultiTensor::add_values(c10::ArrayRef<c10::Scalar> list, c10::ScalarType type) {
  for (const c10::Scalar& value : list) values_.push_back(scalar_arg(rounded_to(value, type), key_.compute));
  value_lists_++;
}
MultiTensor& MultiTensor::values(c10::ArrayRef<c10::Scalar> list, c10::ScalarType type) {
  operand(key_.compute, Source::ValueList);
  add_values(list, type);
  key_.inputs++;
  return *this;
}
MultiTensor& MultiTensor::scalar(const c10::Scalar& value) {
  arguments_.push_back(scalar_arg(value, key_.compute));
  scalars_++;
  return *this;
}
MultiTensor& MultiTensor::scalars(c10::ArrayRef<c10::Scalar> list) {
  key_.scalar_lists = static_cast<uint16_t>(key_.scalar_lists | 1u << scalars_++);
  add_values(list, c10::ScalarType::Undefined);
  return *this;
}

bool MultiTensor::run() {
  TORCH_INTERNAL_ASSERT(scalars_ == key_.op->scalars, key_.op->name);
  Stream& stream = current_stream(lists_.lists[0].tensors[0].device().index());
  cl::Device& device = stream.device();
  key_.cls = device.cls;
  check_device_supports(device, key_.compute, key_.op->name);
  for (size_t i = 0; i < key_.operands(); ++i) check_device_supports(device, key_.types[i], key_.op->name);
  // Before a table is uploaded, which waits for the launches before it, and so for their programs: this one
  // is built with those.
  cl::Kernel& kernel = kernel_for(key_, device);
  return for_each_table(lists_, stream, values_, value_lists_, [&](TableLaunch& table) {
    const bool cpu = key_.cls == cl::DeviceClass::kCpu;
    const uint64_t groups = (table.params.total + table.params.per_item - 1) / table.params.per_item;
    const cl::Range range = cl::Range::linear(groups, cpu ? 1 : codegen::kMultiGroup);
    kernel.launch_with(stream.queue(), range, [&](cl::Kernel::Arguments& arguments) {
      table.add_to(arguments);
      for (const ScalarArg& argument : arguments_) arguments.add_bytes(&argument, argument.size);
    });
  });
}

}  // namespace dlb
