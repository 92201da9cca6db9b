// Reads expressions once, and leads them to the launches of pointwise ops and of reductions.
#include "ops/common/fused.h"

#include <ATen/ExpandUtils.h>
#include <ATen/TensorIterator.h>
#include <ATen/native/ReduceOpsUtils.h>
#include <ATen/ops/empty.h>

#include <mutex>
#include <unordered_map>

#include "cl/hash.h"
#include "ops/common/pointwise.h"

namespace dlb {
namespace {

void read(FusedOp& op, const std::string& text) {
  op.name = "rows_" + cl::hash128(text).hex().substr(0, 12);
  op.reduces = codegen::has_reduction(text);
  if (op.reduces) {
    op.reduction = codegen::parse_reduction(text);
    op.reduce = *op.reduction.op;
    op.reduce.name = op.name.c_str();
    op.reduce.scalars = static_cast<uint8_t>(op.reduction.before.scalars);
    op.reduce.from_text = true;
    op.reduce.expression = &op.reduction;
    return;
  }
  op.expression = codegen::parse_expression(text);
  op.pointwise = {.name = op.name.c_str(),
                  .scalars = static_cast<uint8_t>(op.expression.scalars),
                  .from_text = true,
                  .expression = &op.expression,
                  .takes_float8 = true};
}

void check_counts(const FusedOp& op, const FusedArguments& a) {
  const codegen::Expression& front = op.front();
  TORCH_CHECK_VALUE(front.inputs == a.inputs.size() && front.scalars == a.scalars.size(),
                    "rows: the expression takes ", front.inputs, " inputs and ", front.scalars,
                    " scalars, not ", a.inputs.size(), " and ", a.scalars.size());
  const size_t most = op.reduces ? codegen::kMaxReduceOperands : codegen::kMaxOperands;
  TORCH_CHECK_VALUE(front.inputs + op.results() <= most && front.scalars <= codegen::kMaxScalars,
                    "rows: at most ", most, " inputs and results, and ", codegen::kMaxScalars, " scalars");
}

// The shapes of results: of the broadcast inputs, and without the dimensions that are reduced.
struct Shapes {
  at::DimVector whole, reduced;
  DimMask mask;

  Shapes(const FusedOp& op, const FusedArguments& a) : whole(a.inputs[0].sizes()) {
    for (const at::Tensor& input : a.inputs) whole = at::infer_size_dimvector(whole, input.sizes());
    const auto rank = static_cast<int64_t>(whole.size());
    if (op.reduces) mask = at::native::make_dim_mask(a.dims, rank);
    for (int64_t d = 0; d < rank; ++d) {
      if (!mask[static_cast<size_t>(d)])
        reduced.push_back(whole[static_cast<size_t>(d)]);
      else if (a.keepdim)
        reduced.push_back(1);
    }
  }
};

void check_support(const codegen::Expression& expression, const cl::Device& device) {
  for (const codegen::Expression::Node& node : expression.nodes)
    check_device_supports(device, node.type, node.op->name);
}

void launch(const FusedOp& op, const Shapes& shapes, const FusedArguments& a, at::TensorList outputs) {
  TORCH_CHECK_VALUE(outputs.size() == op.results(), "rows: ", op.results(), " results are computed, but ",
                    outputs.size(), " tensors given");
  for (size_t y = 0; y < outputs.size(); ++y) {
    const at::IntArrayRef expected = op.is_reduced(y) ? shapes.reduced : shapes.whole;
    TORCH_CHECK(outputs[y].sizes() == expected, "rows: result ", y, " has shape ", outputs[y].sizes(),
                ", but its values have shape ", expected);
    TORCH_CHECK(outputs[y].device() == outputs[0].device(), "rows: results are on different devices");
  }
  const c10::DeviceGuard guard(outputs[0].device());
  const cl::Device& device = device_of(outputs[0].device().index());
  check_support(op.front(), device);
  if (!op.reduces) {
    at::TensorIteratorConfig config;
    for (const at::Tensor& output : outputs) config.add_output(output);
    for (const at::Tensor& input : a.inputs) config.add_const_input(input);
    auto iter = config.check_all_same_dtype(false).allow_cpu_scalars(true).resize_outputs(false).build();
    return run_pointwise(op.pointwise, iter, scalar_type_of(op.expression.scalar_type()), a.scalars);
  }
  check_support(op.reduction.after, device);
  run_reduction(
      op.reduce, outputs, [&](size_t y) { return op.is_reduced(y); }, a.inputs, shapes.whole, shapes.mask,
      scalar_type_of(op.reduction.type), a.scalars);
}

}  // namespace

const FusedOp& fused_op_of(const std::string& text) {
  static std::mutex mutex;
  static auto* all = new std::unordered_map<std::string, std::unique_ptr<FusedOp>>;
  std::lock_guard<std::mutex> lock(mutex);
  if (const auto it = all->find(text); it != all->end()) return *it->second;
  auto made = std::make_unique<FusedOp>();
  try {
    read(*made, text);
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK_VALUE(false, error.what());
  }
  return *((*all)[text] = std::move(made));
}

const FusedOp& FusedRows::of(c10::ScalarType type) const {
  const codegen::DType dtype = dtype_of(type, "rows");
  auto& op = ops_[static_cast<size_t>(dtype)];
  if (const FusedOp* known = op.load(std::memory_order_acquire)) return *known;
  std::string text = text_;
  for (size_t at = 0; (at = text.find(".T", at)) != std::string::npos;)
    text.replace(at, 2, std::string(".") + codegen::name_of(dtype));
  const FusedOp& made = fused_op_of(text);
  op.store(&made, std::memory_order_release);
  return made;
}

std::vector<at::Tensor> run_fused(const FusedOp& op, const FusedArguments& a,
                                  c10::ArrayRef<c10::ScalarType> dtypes) {
  check_counts(op, a);
  const Shapes shapes(op, a);
  at::TensorOptions options = a.inputs[0].options();
  c10::SmallVector<codegen::DType, 8> types;
  for (const at::Tensor& input : a.inputs) {
    if (!input.device().is_cpu()) options = input.options();
    types.push_back(storage_dtype_of(input.scalar_type(), "rows"));
  }
  std::vector<at::Tensor> outputs;
  for (size_t y = 0; y < op.results(); ++y) {
    const auto dtype = y < dtypes.size() ? dtypes[y] : scalar_type_of(op.dtype_of(y, types.data()));
    outputs.push_back(at::empty(op.is_reduced(y) ? shapes.reduced : shapes.whole, options.dtype(dtype)));
  }
  if (options.device().is_meta()) return outputs;
  TORCH_CHECK(options.device().type() == kDeviceType, "rows: expected inputs on ocl, but they are on ",
              options.device());
  launch(op, shapes, a, outputs);
  return outputs;
}

void run_fused_out(const FusedOp& op, const FusedArguments& a, at::TensorList outputs) {
  check_counts(op, a);
  launch(op, Shapes(op, a), a, outputs);
}

}  // namespace dlb
