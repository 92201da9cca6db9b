// The device's part of PyTorch's two profilers. torch.profiler collects through Kineto: each command of a
// stream becomes a device activity with the times of its OpenCL event, linked to the host activity that
// enqueued it and to the op. torch.autograd.profiler without Kineto records timed events around each op.
#include "runtime/profiler.h"

#include <c10/util/ApproximateClock.h>
#include <c10/util/Exception.h>
#include <torch/csrc/profiler/stubs/base.h>

#include "runtime/allocator.h"
#include "runtime/event.h"
#include "runtime/stream.h"

#if __has_include(<kineto/libkineto.h>)
#define DLB_KINETO 1
#ifndef FMT_HEADER_ONLY
#define FMT_HEADER_ONLY
#endif
#define KINETO_NAMESPACE libkineto
#include <kineto/libkineto.h>
#include <kineto/output_base.h>
#endif

namespace dlb {
namespace {

struct Stubs final : torch::profiler::impl::ProfilerStubs {
  using Recorded = torch::profiler::impl::ProfilerVoidEventStub;
  void record(c10::DeviceIndex* device, Recorded* event, int64_t* cpu_ns) const override {
    auto made = std::make_shared<Event>(true);
    made->record(current_stream());
    if (device) *device = current_device();
    if (cpu_ns) *cpu_ns = c10::getTime();
    *event = std::move(made);
  }
  // Microseconds.
  float elapsed(const Recorded* from, const Recorded* to) const override {
    const auto event = [](const Recorded* recorded) { return static_cast<const Event*>(recorded->get()); };
    return static_cast<float>(event(from)->elapsed_ms(*event(to)) * 1e3);
  }
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}
  bool enabled() const override { return true; }
  void onEachDevice(std::function<void(int)> op) const override {
    const c10::DeviceIndex current = current_device();
    for (int device = 0; device < cl::device_count(); ++device) {
      set_current_device(static_cast<c10::DeviceIndex>(device));
      op(device);
    }
    set_current_device(current);
  }
  void synchronize() const override { synchronize_device(current_device()); }
};

#ifdef DLB_KINETO

using libkineto::ActivityType;
using Activity = libkineto::GenericTraceActivity;

// Numbers of the ops that a thread is in, innermost last. Kineto pushes and pops only while it collects, so
// the numbers that a former session left are dropped.
struct OpStack {
  uint64_t session = 0;
  std::vector<uint64_t> ops;
};

thread_local OpStack t_ops;
std::atomic<uint64_t> g_session{0};

// Converts from the device's clock to the host's, which may run at another rate.
int64_t to_host(uint64_t device_ns, const Stream::Log& log) {
  const auto since = [&](uint64_t ns) {
    return static_cast<double>(static_cast<int64_t>(ns - log.start.device));
  };
  const double span = since(log.end.device);
  const double rate = span > 0 ? static_cast<double>(log.end.host - log.start.host) / span : 1;
  return log.start.host + static_cast<int64_t>(since(device_ns) * rate);
}

struct KindNames {
  ActivityType device;
  const char* host;
};

KindNames names_of(cl::CommandKind kind) {
  switch (kind) {
    case cl::CommandKind::kKernel:
      return {ActivityType::CONCURRENT_KERNEL, "clEnqueueNDRangeKernel"};
    case cl::CommandKind::kLibrary:
      return {ActivityType::CONCURRENT_KERNEL, "CLBlast"};
    case cl::CommandKind::kWrite:
      return {ActivityType::GPU_MEMCPY, "clEnqueueWriteBuffer"};
    case cl::CommandKind::kRead:
      return {ActivityType::GPU_MEMCPY, "clEnqueueReadBuffer"};
    case cl::CommandKind::kCopy:
      break;
  }
  return {ActivityType::GPU_MEMCPY, "clEnqueueCopyBuffer"};
}

// PyTorch refuses a trace in which two launches have the same id. Those of CUDA, where the program uses it
// beside, count up from 1.
constexpr uint32_t kFirstFlow = 1u << 31;

// Before torch 2.13 it had a constructor, with another order of arguments.
template <class Info>
Info resource_info(int64_t device, int64_t stream, const std::string& name) {
  if constexpr (std::is_aggregate_v<Info>)
    return Info{.id = stream, .sortIndex = stream, .deviceId = device, .name = name};
  else
    return Info(device, stream, stream, name);
}

class Session final : public libkineto::IActivityProfilerSession {
 public:
  ~Session() override {
    if (collecting_) stop();
  }

  void start() override {
    try {
      if (!start_logs()) return fail("another profiler collects already");
      collecting_ = true;
      g_session++;
      status_ = libkineto::TraceStatus::RECORDING;
    } catch (const std::exception& error) {
      stop_logs();
      fail(error.what());
    }
  }

  void stop() override {
    if (!std::exchange(collecting_, false)) return;
    logs_ = stop_logs();
    status_ = libkineto::TraceStatus::PROCESSING;
  }

  std::vector<std::string> errors() override { return errors_; }

  void processTrace(libkineto::ActivityLogger& logger) override {
    processTrace(
        logger, [](int32_t) { return nullptr; }, 0, 0);
  }

  void processTrace(libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback linked,
                    int64_t begin, int64_t) override {
    buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
    buffer_->span.name = "ocl";
    buffer_->gpuOpCount = 0;
    for (const StreamLog& stream : logs_) {
      logger.handleDeviceInfo(device_info(stream.device), begin);
      for (const cl::CommandRecord& command : stream.log.commands) add(stream, command, linked);
    }
    for (const auto& activity : buffer_->activities) logger.handleActivity(*activity);
  }

  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override {
    if (logs_.empty()) return nullptr;
    return std::make_unique<libkineto::DeviceInfo>(device_info(logs_.front().device));
  }

  std::vector<libkineto::ResourceInfo> getResourceInfos() override {
    std::vector<libkineto::ResourceInfo> infos;
    for (const StreamLog& log : logs_)
      infos.push_back(resource_info<libkineto::ResourceInfo>(
          log.device, log.stream,
          log.stream == 0 ? "default stream" : "stream " + std::to_string(log.stream)));
    return infos;
  }

  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override { return std::move(buffer_); }

  void pushCorrelationId(uint64_t id) override {
    const uint64_t session = g_session.load(std::memory_order_relaxed);
    if (t_ops.session != session) t_ops = {session, {}};
    t_ops.ops.push_back(id);
    cl::command_context().op = id;
  }
  void popCorrelationId() override {
    if (t_ops.ops.empty() || t_ops.session != g_session.load(std::memory_order_relaxed)) return;
    t_ops.ops.pop_back();
    cl::command_context().op = t_ops.ops.empty() ? 0 : t_ops.ops.back();
  }

 private:
  void fail(const std::string& error) {
    errors_.push_back(error);
    status_ = libkineto::TraceStatus::ERROR;
    TORCH_WARN("ocl is missing from the profile: ", error);
  }

  static libkineto::DeviceInfo device_info(c10::DeviceIndex index) {
    const std::string name = "ocl:" + std::to_string(index);
    return {index, index + libkineto::kExceedMaxPid, name, name + " " + device_of(index).name};
  }

  uint32_t correlation() const { return kFirstFlow + commands_; }

  Activity& append(ActivityType type, const std::string& name) {
    buffer_->emplace_activity(buffer_->span, type, name);
    Activity& activity = *buffer_->activities.back();
    activity.id = static_cast<int32_t>(commands_);
    activity.flow.id = correlation();
    activity.flow.type = libkineto::kLinkAsyncCpuGpu;
    return activity;
  }

  void add(const StreamLog& stream, const cl::CommandRecord& command,
           const libkineto::getLinkedActivityCallback& linked) {
    ++commands_;
    const KindNames names = names_of(command.kind);
    const libkineto::ITraceActivity* op = command.op ? linked(static_cast<int32_t>(command.op)) : nullptr;

    Activity& host = append(ActivityType::PRIVATEUSE1_RUNTIME, names.host);
    host.device = libkineto::processId();
    host.resource = host.threadId = command.thread;
    host.startTime = command.enqueue_start;
    host.endTime = command.enqueue_end;
    host.flow.start = true;
    host.linked = op;
    host.addMetadata("correlation", correlation());

    const std::string solver = command.solver ? " [" + std::string(command.solver) + "]" : "";
    Activity& device = append(names.device, command.name + solver);
    device.device = stream.device;
    device.resource = static_cast<int32_t>(stream.stream);
    device.startTime = to_host(command.start, stream.log);
    device.endTime = to_host(command.end, stream.log);
    device.linked = op;
    device.addMetadata("correlation", correlation());
    device.addMetadata("device", stream.device);
    device.addMetadata("stream", stream.stream);
    if (command.solver) device.addMetadataQuoted("solver", command.solver);
    if (command.bytes) device.addMetadata("bytes", command.bytes);
    if (command.kind == cl::CommandKind::kKernel) {
      device.addMetadata("global size", sizes(command.range.global));
      device.addMetadata("local size", sizes(command.range.local));
    }
  }

  static std::string sizes(const size_t (&values)[3]) {
    return "[" + std::to_string(values[0]) + ", " + std::to_string(values[1]) + ", " +
           std::to_string(values[2]) + "]";
  }

  bool collecting_ = false;
  uint32_t commands_ = 0;
  std::vector<StreamLog> logs_;
  std::vector<std::string> errors_;
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_;
};

// PyTorch makes one when it profiles for the first time, whatever it profiles.
struct Profiler final : libkineto::IActivityProfiler {
  Profiler() { start_memory_reports(); }
  const std::string& name() const override { return name_; }
  const std::set<ActivityType>& availableActivities() const override { return types_; }
  // Returns null, so that there is no session, for a profile of the host alone.
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(const std::set<ActivityType>& types,
                                                                 const libkineto::Config&) override {
    if (!types.count(ActivityType::CONCURRENT_KERNEL) || cl::in_bad_fork()) return nullptr;
    return std::make_unique<Session>();
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(int64_t, int64_t,
                                                                 const std::set<ActivityType>& types,
                                                                 const libkineto::Config& config) override {
    return configure(types, config);
  }

 private:
  const std::string name_ = "ocl";
  const std::set<ActivityType> types_{ActivityType::CONCURRENT_KERNEL, ActivityType::GPU_MEMCPY,
                                      ActivityType::PRIVATEUSE1_RUNTIME};
};

#endif  // DLB_KINETO

}  // namespace

void register_profiler() {
  torch::profiler::impl::registerPrivateUse1Methods(new Stubs);
#ifdef DLB_KINETO
  libkineto::api().registerProfilerFactory([] { return std::make_unique<Profiler>(); });
#else
  start_memory_reports();
#endif
}

}  // namespace dlb
