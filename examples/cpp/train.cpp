// Trains a small convolutional net with libtorch, without Python: which quarter of a noisy image is bright?
//
//   train [DEVICE]      ocl:0 by default; cpu computes the same
#include <ATen/DeviceAccelerator.h>
#include <dlbackend/dlbackend.h>
#include <torch/torch.h>

#include <chrono>
#include <iostream>

namespace {

constexpr int64_t kImages = 64, kSize = 16, kSteps = 60;

// Images (kImages, 1, kSize, kSize) of noise, with one quarter brighter, and which one: (kImages), 0 to 3.
std::pair<torch::Tensor, torch::Tensor> batch(const torch::Device& device) {
  const torch::Tensor labels = torch::randint(4, {kImages});
  torch::Tensor images = torch::randn({kImages, 1, kSize, kSize});
  for (int64_t i = 0; i < kImages; ++i) {
    const int64_t quarter = labels[i].item<int64_t>(), half = kSize / 2;
    const int64_t row = quarter / 2 * half, column = quarter % 2 * half;
    images[i][0].slice(0, row, row + half).slice(1, column, column + half) += 0.75;
  }
  return {images.to(device), labels.to(device)};
}

torch::nn::Sequential net() {
  namespace nn = torch::nn;
  return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(1, 8, 3).padding(1)), nn::BatchNorm2d(8), nn::ReLU(),
                        nn::MaxPool2d(2), nn::Conv2d(nn::Conv2dOptions(8, 16, 3).padding(1)), nn::ReLU(),
                        nn::AdaptiveAvgPool2d(2), nn::Flatten(), nn::Linear(64, 4));
}

double accuracy(torch::nn::Sequential& model, const torch::Device& device) {
  const torch::NoGradGuard no_gradients;
  model->eval();
  const auto [images, labels] = batch(device);
  return model->forward(images).argmax(1).eq(labels).to(torch::kFloat).mean().item<double>();
}

}  // namespace

int main(int argc, char** argv) {
  dlb::init();
  const torch::Device device(argc > 1 ? argv[1] : "ocl:0");
  torch::manual_seed(0);
  torch::nn::Sequential model = net();
  model->to(device);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  const auto start = std::chrono::steady_clock::now();
  for (int64_t step = 1; step <= kSteps; ++step) {
    const auto [images, labels] = batch(device);
    optimizer.zero_grad();
    const torch::Tensor loss = torch::nn::functional::cross_entropy(model->forward(images), labels);
    loss.backward();
    optimizer.step();
    if (step % 20 == 0) std::cout << "step " << step << "  loss " << loss.item<double>() << "\n";
  }
  if (!device.is_cpu()) at::accelerator::synchronizeDevice(device.index());
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const double right = accuracy(model, device);
  std::cout << "accuracy " << 100 * right << "% after " << seconds.count() << " s on " << device << "\n";
  return right > 0.9 ? 0 : 1;
}
