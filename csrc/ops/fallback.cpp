// Counts, warns about and runs CPU fallbacks.
#include "ops/fallback.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/PhiloxRNGEngine.h>
#include <ATen/native/CPUFallback.h>
#include <torch/library.h>

#include <mutex>
#include <optional>
#include <set>

#include "cl/settings.h"
#include "runtime/generator.h"
#include "runtime/stream.h"

namespace dlb {
namespace {

enum class FallbackMode { kWarn, kSilent, kError };

FallbackMode mode() {
  const std::string text = cl::settings::fallback();
  if (text == "silent") return FallbackMode::kSilent;
  if (text == "error") return FallbackMode::kError;
  TORCH_CHECK(text == "warn" || text.empty(), "DLBACKEND_FALLBACK must be warn, silent or error, not '", text,
              "'");
  return FallbackMode::kWarn;
}

std::mutex g_mutex;
std::map<std::string, uint64_t>& counts() {
  static auto* all = new std::map<std::string, uint64_t>;
  return *all;
}

void count_and_warn(const std::string& name) {
  bool first = false;
  {
    static auto* warned = new std::set<std::string>;
    std::lock_guard<std::mutex> lock(g_mutex);
    counts()[name]++;
    first = warned->insert(name).second;
  }
  if (first && mode() == FallbackMode::kWarn)
    TORCH_WARN("ocl: ", name, " has no kernel for these arguments and runs on the CPU, with copies. ",
               "dlbackend.fallback_report() counts such calls; DLBACKEND_FALLBACK=silent hides this, =error "
               "raises.");
}

// A generator of ours is one of the CPU's there, seeded with what ours draws.
void replace_generators(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  for (size_t i = stack.size() - op.schema().arguments().size(); i < stack.size(); ++i) {
    if (!stack[i].isGenerator() || stack[i].toGenerator().device().type() != kDeviceType) continue;
    auto* generator = stack[i].toGenerator().get<OclGenerator>();
    std::lock_guard<std::mutex> lock(generator->mutex_);
    const auto [seed, offset] = generator->reserve(1);
    at::Philox4_32 draw(seed, 0, offset);
    const uint64_t high = draw();
    stack[i] = at::make_generator<at::CPUGeneratorImpl>(high << 32 | draw());
  }
}

// Ops that take tensors of the CPU beside those of a device: lengths and sizes that the host reads.
bool reads_host_tensors(const std::string& name) {
  for (const char* part : {"ctc_loss", "nested", "_pack_padded_sequence"})
    if (name.find(part) != std::string::npos) return true;
  return name.rfind("aten::", 0) != 0;  // other libraries' ops have their own rules
}

// On the CPU all of them would do; on any other device they would not.
void check_one_device(const std::string& name, const c10::OperatorHandle& op,
                      const torch::jit::Stack& stack) {
  if (reads_host_tensors(name)) return;
  std::optional<c10::Device> device;
  bool host = false;
  auto look = [&](const at::Tensor& t) {
    if (!t.defined()) return;
    if (!t.is_cpu())
      device = t.device();
    else
      host |= t.dim() > 0;
  };
  for (size_t i = stack.size() - op.schema().arguments().size(); i < stack.size(); ++i) {
    if (stack[i].isTensor()) look(stack[i].toTensor());
    if (stack[i].isTensorList())
      for (const at::Tensor& t : stack[i].toTensorVector()) look(t);
  }
  TORCH_CHECK(!device || !host,
              "Expected all tensors to be on the same device, but found at least two devices, ", *device,
              " and cpu! (when checking arguments of ", name, ")");
}

}  // namespace

void cpu_fallback_as(c10::DispatchKey key, const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::string name = c10::toString(op.operator_name());
  TORCH_CHECK_NOT_IMPLEMENTED(mode() != FallbackMode::kError, name,
                              " has no kernel for these arguments on ocl, and ",
                              "DLBACKEND_FALLBACK=error forbids running it on the CPU");
  check_one_device(name, op, *stack);
  replace_generators(op, *stack);
  // A view op must share memory with its input, which a copy on the CPU cannot.
  at::native::cpu_fallback(op, stack, /*error_on_views=*/true, key);
  count_and_warn(name);  // not what the CPU refuses as well: nothing ran there
}

void cpu_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  cpu_fallback_as(c10::DispatchKey::CPU, op, stack);
}

std::map<std::string, uint64_t> fallback_report() {
  std::lock_guard<std::mutex> lock(g_mutex);
  return counts();
}

void reset_fallback_report() {
  std::lock_guard<std::mutex> lock(g_mutex);
  counts().clear();
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&cpu_fallback>());
}

}  // namespace dlb
