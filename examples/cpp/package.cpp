// Runs a model that AOTInductor compiled for the device, without Python.
//
//   package MODEL.pt2 [ROWS COLUMNS]
//
// prints the sums of the model's results for a tensor of ones, 4 by 8 unless a size is given.
#include <dlbackend/dlbackend.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/torch.h>

#include <cstdlib>
#include <iostream>

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "package MODEL.pt2 [ROWS COLUMNS]\n";
    return 2;
  }
  dlb::init();
  const torch::NoGradGuard no_gradients;
  torch::inductor::AOTIModelPackageLoader model(argv[1]);
  const int64_t rows = argc > 2 ? std::atoll(argv[2]) : 4, columns = argc > 3 ? std::atoll(argv[3]) : 8;
  const torch::Tensor ones = torch::ones({rows, columns}, torch::Device("ocl:0"));
  for (const torch::Tensor& result : model.run({ones}))
    std::cout << result.sizes() << " sum " << result.cpu().sum().item<double>() << "\n";
}
