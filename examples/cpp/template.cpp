// Mean and variance of each channel in one pass over the data, with a kernel made from two lines of text.
#include <dlbackend/dlbackend.h>
#include <dlbackend/template.h>
#include <torch/torch.h>

#include <iostream>

int main() {
  dlb::init();
  const torch::Tensor x = torch::randn({16, 32, 28, 28}, torch::Device("ocl:0"));
  const std::vector<torch::Tensor> results =
      dlb::run_template({.expression = "y0 = x0; y1 = x0 * x0;",
                         .outputs = {dlb::Reduction::sum(), dlb::Reduction::sum()},
                         .dims = {0, 2, 3},
                         .finish = "y0 = y0 / n; y1 = y1 / n - y0 * y0;"},
                        {x});
  const torch::Tensor exact = x.cpu().to(torch::kDouble);
  const torch::Tensor mean = exact.mean({0, 2, 3}), variance = exact.var({0, 2, 3}, /*unbiased=*/false);
  const double error = std::max((results[0].cpu() - mean).abs().max().item<double>(),
                                (results[1].cpu() - variance).abs().max().item<double>());
  std::cout << "largest error " << error << "\n";
  return error < 1e-5 ? 0 : 1;
}
