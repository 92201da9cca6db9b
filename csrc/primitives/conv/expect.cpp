// Chooses the problems that are compiled ahead of a network's next convolutions.
#include "primitives/conv/expect.h"

#include <array>
#include <atomic>
#include <vector>

#include "solver/ahead.h"

namespace dlb::solver {
namespace {

// Convolutions that most networks have, each of another program than the others: channels, filter, stride
// and size of an image.
struct Usual {
  int32_t channels, filter, stride, size;
};
constexpr Usual kUsual[] = {{64, 3, 1, 56}, {128, 3, 2, 56}, {256, 1, 1, 14}};

ConvProblem usual_like(const ConvProblem& p, const Usual& usual) {
  const bool channels_last = p.ys[1] == 1;
  ConvProblem q = conv_op(ConvDirection::kForward).make();
  q.dtype = p.dtype, q.device = p.device, q.tf32 = p.tf32;
  q.n = p.n, q.c = q.k = usual.channels;
  for (int i : {1, 2}) {
    q.filter[i] = usual.filter, q.stride[i] = usual.stride, q.padding[i] = usual.filter / 2;
    q.in[i] = usual.size, q.out[i] = usual.size / usual.stride;
  }
  const auto dense = [&](int64_t(&strides)[5], int64_t channels, const int32_t(&sizes)[3]) {
    const int64_t pixels = int64_t{sizes[1]} * sizes[2];
    strides[0] = channels * pixels, strides[1] = channels_last ? 1 : pixels, strides[2] = 0;
    strides[4] = channels_last ? channels : 1, strides[3] = sizes[2] * strides[4];
  };
  dense(q.xs, q.c, q.in), dense(q.ws, q.c, q.filter), dense(q.ys, q.k, q.out);
  return q;
}

}  // namespace

void expect_what_follows(const ConvProblem& p, bool input_grad, bool weight_grad) {
  std::vector<StoredProblem> list;
  const auto add = [&](const ConvProblem& like, ConvDirection direction) {
    ConvProblem q = like.in_direction(direction);
    q.has_bias = 0;
    q.normalize();
    list.emplace_back(q);
  };
  const auto add_gradients = [&](const ConvProblem& q) {
    if (input_grad)
      add(q, q.direction == ConvDirection::kForward ? ConvDirection::kInputGrad : ConvDirection::kForward);
    if (weight_grad) add(q, ConvDirection::kWeightGrad);
  };
  add_gradients(p);
  static std::array<std::atomic<uint64_t>, 2>
      already_expected{};  // a bit for each dtype and layout; without TF32, with
  const uint64_t bit = uint64_t{1} << (2 * static_cast<int>(p.dtype) + (p.ys[1] == 1)) % 64;
  if (p.groups == 1 && p.in[1] > 1 && !(already_expected[p.tf32 != 0].fetch_or(bit) & bit))
    for (const Usual& usual : kUsual) {
      const ConvProblem q = usual_like(p, usual);
      add(q, q.direction);
      if (weight_grad) add(q, ConvDirection::kInputGrad), add(q, ConvDirection::kWeightGrad);
    }
  expect(list);
}

}  // namespace dlb::solver
