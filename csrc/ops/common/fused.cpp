// Reads expressions once, and leads them to the launches of pointwise ops and of reductions.
#include "ops/common/fused.h"

#include <ATen/ExpandUtils.h>
#include <ATen/TensorIterator.h>
#include <ATen/native/ReduceOpsUtils.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "cl/hash.h"
#include "ops/common/pointwise.h"

namespace dlb {
namespace {

bool is_double(const codegen::Expression::Node& node) {
  return codegen::real_type(node.type) == codegen::DType::F64;
}

void read(FusedOp& op, const std::string& text) {
  op.name = "rows_" + cl::hash128(text).hex().substr(0, 12);
  op.text = text;
  op.rows = codegen::parse_rows(text);
  const codegen::Expression& front = op.front();
  if (const codegen::ReduceExpression* reduction = op.reduction()) {
    op.reduce = *reduction->op;
    op.reduce.name = op.name.c_str();
    op.reduce.scalars = static_cast<uint8_t>(front.scalars.size());
    op.reduce.from_text = true;
    op.reduce.expression = reduction;
    op.compute = scalar_type_of(reduction->type);
    op.reduced = reduction->reduced;
    return;
  }
  op.pointwise = {.name = op.name.c_str(),
                  .scalars = static_cast<uint8_t>(front.scalars.size()),
                  .from_text = true,
                  .expression = &front,
                  .takes_float8 = true};
  op.compute = std::any_of(front.nodes.begin(), front.nodes.end(), is_double) ? at::kDouble : at::kFloat;
  op.reduced.resize(front.results.size());
}

void check_counts(const FusedOp& op, const FusedArguments& a) {
  const codegen::Expression& front = op.front();
  TORCH_CHECK_VALUE(front.inputs == a.inputs.size() && front.scalars.size() == a.scalars.size(),
                    "rows: the expression takes ", front.inputs, " inputs and ", front.scalars.size(),
                    " scalars, not ", a.inputs.size(), " and ", a.scalars.size());
  const size_t most = op.reduction() ? codegen::kMaxReduceOperands : codegen::kMaxOperands;
  TORCH_CHECK_VALUE(front.inputs + op.reduced.size() <= most && front.scalars.size() <= codegen::kMaxScalars,
                    "rows: at most ", most, " inputs and results, and ", codegen::kMaxScalars, " scalars");
}

void check_support(const codegen::Expression& expression, const cl::Device& device) {
  for (const codegen::Expression::Node& node : expression.nodes)
    check_device_supports(device, node.type, node.op->name);
}

void launch(const FusedOp& op, const ResultShapes& shapes, const FusedArguments& a, at::TensorList outputs) {
  if (!outputs.empty() && outputs[0].device().type() == kDeviceType) {
    const cl::Device& device = device_of(outputs[0].device().index());
    check_support(op.front(), device);
    if (op.reduction()) check_support(op.reduction()->after, device);
  }
  launch_results({"rows", op.pointwise, op.reduce, op.reduced, op.compute}, shapes, a.inputs, a.scalars,
                 outputs);
}

ResultShapes shapes_of(const FusedOp& op, const FusedArguments& a) {
  check_counts(op, a);
  return {a.inputs, op.reduction() != nullptr, a.dims, a.keepdim};
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
  const ResultShapes shapes = shapes_of(op, a);
  const at::TensorOptions options = result_options(a.inputs);
  c10::SmallVector<codegen::DType, 8> types;
  for (const at::Tensor& input : a.inputs) types.push_back(storage_dtype_of(input.scalar_type(), "rows"));
  std::vector<at::Tensor> outputs;
  for (size_t y = 0; y < op.reduced.size(); ++y) {
    const auto dtype = y < dtypes.size() ? dtypes[y] : scalar_type_of(op.dtype_of(y, types.data()));
    outputs.push_back(at::empty(op.reduced[y] ? shapes.reduced : shapes.whole, options.dtype(dtype)));
  }
  if (options.device().is_meta()) return outputs;
  check_on_device("rows", options.device());
  launch(op, shapes, a, outputs);
  return outputs;
}

void run_fused_out(const FusedOp& op, const FusedArguments& a, at::TensorList outputs) {
  launch(op, shapes_of(op, a), a, outputs);
}

ResultShapes::ResultShapes(at::TensorList inputs, bool reduces, at::OptionalIntArrayRef dims, bool keepdim)
    : whole(inputs[0].sizes()) {
  for (const at::Tensor& input : inputs) whole = at::infer_size_dimvector(whole, input.sizes());
  const auto rank = static_cast<int64_t>(whole.size());
  if (reduces) mask = at::native::make_dim_mask(dims, rank);
  for (int64_t d = 0; d < rank; ++d) {
    if (!mask[static_cast<size_t>(d)])
      reduced.push_back(whole[static_cast<size_t>(d)]);
    else if (keepdim)
      reduced.push_back(1);
  }
}

at::TensorOptions result_options(at::TensorList inputs) {
  at::TensorOptions options = inputs[0].options();
  for (const at::Tensor& input : inputs)
    if (!input.device().is_cpu()) options = input.options();
  return options;
}

void check_on_device(const char* api, c10::Device device) {
  TORCH_CHECK(device.type() == kDeviceType, api, ": expected inputs on ocl, but they are on ", device);
}

void launch_results(const ResultsLaunch& launch, const ResultShapes& shapes, at::TensorList inputs,
                    c10::ArrayRef<c10::Scalar> scalars, at::TensorList outputs) {
  const auto& [api, pointwise, reduce, reduced, compute] = launch;
  TORCH_CHECK_VALUE(outputs.size() == reduced.size(), api, ": ", reduced.size(),
                    " outputs are computed, but ", outputs.size(), " tensors given");
  for (size_t k = 0; k < outputs.size(); ++k) {
    const at::IntArrayRef expected = reduced[k] ? shapes.reduced : shapes.whole;
    TORCH_CHECK(outputs[k].sizes() == expected, api, ": output ", k, " has shape ", outputs[k].sizes(),
                ", but its values have shape ", expected);
    TORCH_CHECK(outputs[k].device() == outputs[0].device(), api, ": outputs are on different devices");
  }
  const c10::DeviceGuard guard(outputs[0].device());
  if (std::none_of(reduced.begin(), reduced.end(), [](bool is_reduced) { return is_reduced; })) {
    at::TensorIteratorConfig config;
    for (const at::Tensor& output : outputs) config.add_output(output);
    for (const at::Tensor& input : inputs) config.add_const_input(input);
    auto iter = config.check_all_same_dtype(false).allow_cpu_scalars(true).resize_outputs(false).build();
    return run_pointwise(pointwise, iter, compute, scalars);
  }
  c10::SmallVector<const at::Tensor*, 8> of_rows, of_elements, taken;
  c10::SmallVector<at::Tensor, 8> broadcast;
  for (size_t k = 0; k < outputs.size(); ++k) (reduced[k] ? of_rows : of_elements).push_back(&outputs[k]);
  broadcast.reserve(inputs.size());
  for (const at::Tensor& input : inputs) {
    TORCH_CHECK(input.device() == outputs[0].device(), api, ": expected all tensors on ", outputs[0].device(),
                ", but an input is on ", input.device());
    broadcast.push_back(input.expand(shapes.whole));
    taken.push_back(&broadcast.back());
  }
  run_reduce({reduce, of_rows, of_elements, taken, shapes.mask, compute, scalars});
}

}  // namespace dlb
