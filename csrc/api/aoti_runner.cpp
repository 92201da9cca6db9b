// Runs packages that AOTInductor compiled for ocl: torch::inductor::AOTIModelPackageLoader and
// torch._inductor.aoti_load_package() find the runner by the name of the device.
#include <torch/csrc/inductor/aoti_runner/model_container_runner.h>

namespace dlb {
namespace {

using torch::inductor::AOTIModelContainerRunner;

// A model runs on its device's current stream.
class PackageRunner : public AOTIModelContainerRunner {
 public:
  PackageRunner(const std::string& library, size_t models, const std::string& device,
                const std::string& folder, bool single_threaded)
      : AOTIModelContainerRunner(library, models, device, folder, single_threaded) {}

 protected:
  std::vector<at::Tensor> run_impl(std::vector<AtenTensorHandle>& inputs, void* stream) override {
    TORCH_CHECK(stream == nullptr, "streams of ocl have no handle: make the stream the current one");
    return AOTIModelContainerRunner::run_impl(inputs, stream);
  }
};

std::unique_ptr<AOTIModelContainerRunner> new_runner(const std::string& library, size_t models,
                                                     const std::string& device, const std::string& folder,
                                                     const bool single_threaded) {
  return std::make_unique<PackageRunner>(library, models, device, folder, single_threaded);
}

const torch::inductor::RegisterAOTIModelRunner registered("ocl", new_runner);

}  // namespace
}  // namespace dlb
