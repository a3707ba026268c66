#include "kernels/kernel.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <new>
#include <utility>

#include <ATen/ScalarOps.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>

#include "kernels/pending_kernels.h"
#include "kernels/tensor_convert.h"

namespace callboard::kernels {

namespace {

constexpr std::size_t kDescribedItemsMax = 8;  // of a list, in an error's detail

at::Tensor number_tensor(const c10::IValue& number) {
  at::Tensor tensor = c10::scalar_to_tensor(number.toScalar());
  // Promotes as eager PyTorch promotes a Python number: its kind counts, its width does not.
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

bool is_none(const c10::IValue& value) { return value.isNone() || (value.isTensor() && !value.toTensor().defined()); }

bool has_kind(ValueKind kind, const c10::IValue& value) {
  switch (kind) {
    case ValueKind::kTensor:
      return value.isTensor() && value.toTensor().defined();
    case ValueKind::kInt:
      return value.isInt();
    case ValueKind::kFloat:
      return value.isDouble();
    case ValueKind::kBool:
      return value.isBool();
    case ValueKind::kNone:
      return is_none(value);
  }
  return false;
}

template <class Sizes>
std::string sizes_text(const Sizes& sizes) {
  std::string text = "[";
  for (std::size_t i = 0; i < sizes.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(sizes[i]);
  return text + "]";
}

bool same_sizes(const ValueCheck& check, c10::IntArrayRef sizes, const ExprTable& exprs) {
  if (sizes.size() != check.rank) return false;
  const std::int64_t* expected = exprs.expected(check.sizes);
  if (!check.sizes_later) return std::memcmp(sizes.data(), expected, sizes.size() * sizeof(std::int64_t)) == 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (expected[i] == sizes[i]) continue;
    if (expected[i] != ExprTable::kLater) return false;
    const auto later = exprs.evaluate(exprs.size_index(check.sizes + static_cast<ExprTable::Index>(i)));
    if (!later || (*later && **later != sizes[i])) return false;
  }
  return true;
}

/// The whole check of a tensor without building a text: what each kernel pays.
bool tensor_fits(const ValueCheck& check, const c10::IValue& value, const ExprTable& exprs, c10::Device device) {
  if (!value.isTensor()) return false;
  const c10::TensorImpl* impl = value.unsafeToTensorImpl();
  if (impl == c10::UndefinedTensorImpl::singleton()) return false;
  if (check.dtype != at::ScalarType::Undefined && impl->dtype() != c10::scalarTypeToTypeMeta(check.dtype)) return false;
  if (impl->device() != device) return false;
  return !check.has_sizes || same_sizes(check, impl->sizes(), exprs);
}

std::string expected_text(const ValueCheck& check, const ExprTable& exprs, c10::Device device) {
  std::string text = check.dtype == at::ScalarType::Undefined ? "any dtype" : std::string(c10::toString(check.dtype));
  if (check.dtype != at::ScalarType::Undefined) text = dtype_name(dtype_of(check.dtype).value_or(DType::kUndefined));
  if (check.has_sizes) {
    text += "[";
    for (std::uint32_t i = 0; i < check.rank; ++i) {
      const auto size = exprs.evaluate(exprs.size_index(check.sizes + i));
      text += (i == 0 ? "" : ", ") + (size && *size ? std::to_string(**size) : std::string("?"));
    }
    text += "]";
  }
  return text + " on " + device.str();
}

std::string describe_tensor(const at::Tensor& tensor) {
  if (!tensor.defined()) return "none";
  const auto dtype = dtype_of(tensor.scalar_type());
  std::string text(dtype ? dtype_name(*dtype) : std::string_view(c10::toString(tensor.scalar_type())));
  text += sizes_text(tensor.sizes());
  if (tensor.layout() != at::kStrided) {
    text += " sparse";
  } else if (!tensor.is_contiguous()) {
    text += " strides " + sizes_text(tensor.strides());
  }
  return text + " on " + tensor.device().str();
}

}  // namespace

Error error_of_exception() {
  try {
    throw;
  } catch (const KernelFailure& thrown) {
    return thrown.error();
  } catch (const c10::OutOfMemoryError& thrown) {
    return Error(ErrorCode::kOutOfMemory, "out of memory: " + std::string(thrown.what_without_backtrace()),
                 "smaller inputs, fewer requests at once, or a larger memory_limit");
  } catch (const c10::Error& thrown) {
    const std::string what = thrown.what_without_backtrace();
    const bool memory = what.find("can't allocate memory") != std::string::npos;  // LibTorch's own CPU allocator
    return Error(memory ? ErrorCode::kOutOfMemory : ErrorCode::kKernelFailed, what);
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::kOutOfMemory, "out of memory: the heap refused an allocation");
  } catch (const std::exception& thrown) {
    return Error(ErrorCode::kKernelFailed, thrown.what());
  } catch (...) {
    return Error(ErrorCode::kKernelFailed, "the kernel threw something that is no std::exception");
  }
}

std::string describe(const c10::IValue& value) {
  if (value.isTensor()) return describe_tensor(value.toTensor());
  if (value.isNone()) return "none";
  if (value.isInt()) return std::to_string(value.toInt()) + " (int)";
  if (value.isDouble()) return std::to_string(value.toDouble()) + " (float)";
  if (value.isBool()) return value.toBool() ? "true" : "false";
  if (value.isString()) return "'" + value.toStringRef() + "'";
  if (!value.isList()) return value.tagKind();
  const auto items = value.toListRef();
  std::string text = "[";
  for (std::size_t i = 0; i < items.size() && i < kDescribedItemsMax; ++i) {
    text += (i == 0 ? "" : ", ") + describe(items[i]);
  }
  return text + (items.size() > kDescribedItemsMax ? ", … " + std::to_string(items.size()) + " items]" : "]");
}

std::optional<std::string> mismatch(const ValueCheck& check, const c10::IValue& value, const ExprTable& exprs,
                                    c10::Device device) {
  if (check.kind == ValueKind::kTensor && tensor_fits(check, value, exprs, device)) [[likely]]
    return std::nullopt;
  if (check.kind != ValueKind::kTensor && has_kind(check.kind, value)) return std::nullopt;
  const bool tensors = check.kind == ValueKind::kTensor && has_kind(ValueKind::kTensor, value);
  return "expected " + (tensors ? expected_text(check, exprs, device) : std::string(value_kind_phrase(check.kind))) +
         ", found " + describe(value);
}

Kernel::Kernel(std::shared_ptr<const KernelInfo> info, ArgumentPlan arguments, OutputPlan outputs)
    : info_(std::move(info)),
      arguments_(std::move(arguments)),
      outputs_(std::move(outputs)),
      steps_(arguments_.steps),
      output_steps_(outputs_.steps),
      targets_(outputs_.targets) {}

void Kernel::pack(KernelTables& tables) {
  const auto move_to = [](auto& table, auto& own, auto& span) {
    CALLBOARD_CHECK(table.capacity() - table.size() >= own.size(),
                    "a table that grows would move what kernels look at");
    const std::size_t first = table.size();
    std::ranges::move(own, std::back_inserter(table));
    span = {table.data() + first, own.size()};
    own.clear();
  };
  move_to(tables.steps, arguments_.steps, steps_);
  move_to(tables.output_steps, outputs_.steps, output_steps_);
  move_to(tables.targets, outputs_.targets, targets_);
}

std::shared_ptr<const Error> Kernel::run(KernelFrame& frame) noexcept {
  try {
    std::shared_ptr<const Error> inherited;
    Failure failure = run_steps(frame, inherited);
    if (!failure && !inherited) [[likely]]
      return nullptr;
    if (failure) return fail_outputs(frame, std::move(*failure));
    poison_outputs(frame, inherited);
    return inherited;
  } catch (...) {
    return fail_outputs(frame, error_of_exception());
  }
}

Kernel::Failure Kernel::run_steps(KernelFrame& frame, std::shared_ptr<const Error>& inherited) {
  const KernelCall call{info_, frame.run};
  for (KernelHook* hook : frame.hooks) hook->before(call);  // 1
  if (!frame.stream->is_current()) [[unlikely]] {           // 2
    return Error(ErrorCode::kInternal, "another device stream than the KernelStream's is current before the kernel");
  }
  Stack& stack = *frame.stack;
  stack.clear();
  if (!push_arguments(frame, inherited)) [[unlikely]]
    return std::nullopt;  // 3
  if (frame.pending != nullptr && may_begin()) [[unlikely]] {
    if (auto begun = begin(stack, frame)) {  // 4, elsewhere
      stack.clear();
      frame.pending->add(*this, std::move(begun));
      return std::nullopt;
    }
  }
  compute(stack, frame);  // 4
  return take_results(frame);
}

Kernel::Failure Kernel::take_results(KernelFrame& frame) {
  Stack& stack = *frame.stack;
  if (!frame.stream->is_current()) [[unlikely]] {  // 5
    stack.clear();                                 // results: the error's detail must not take them for inputs
    return Error(ErrorCode::kKernelFailed, "the kernel left another device stream current than the one it was run on",
                 "restore the current stream in the kernel, also where it throws");
  }
  if (Failure failure = check_results(frame)) [[unlikely]] {
    stack.clear();
    return failure;
  }
  fill_blobs(frame);  // 6
  if (frame.hooks.empty()) return std::nullopt;
  return hooks_after(frame);  // 7
}

std::unique_ptr<PendingCompute> Kernel::begin(Stack& /*stack*/, KernelFrame& /*frame*/) { return nullptr; }

std::shared_ptr<const Error> Kernel::finish(PendingCompute& compute, KernelFrame& frame) noexcept {
  try {
    frame.stack->clear();
    compute.finish(*frame.stack, frame);
    Failure failure = take_results(frame);
    return failure ? fail_outputs(frame, std::move(*failure)) : nullptr;
  } catch (...) {
    return fail_outputs(frame, error_of_exception());
  }
}

bool Kernel::stands_alone() const {
  using From = ArgumentStep::From;
  if (has_effects()) return true;
  for (const ArgumentStep& step : steps_) {
    switch (step.from) {
      case From::kExpr:
      case From::kExprAsFloat:
      case From::kExprAsBool:
      case From::kExprAsTensor:
      case From::kIntList:
      case From::kIntListFromBlobs:
        return true;  // its sizes may be made of a pending result
      default:
        if (step.written) return true;
    }
  }
  return false;
}

bool Kernel::reads_output_of(const Kernel& other) const {
  using From = ArgumentStep::From;
  const auto makes = [&](Slot slot) {
    return slot != kNoSlot && std::ranges::any_of(other.targets_, [&](const auto& made) { return made.slot == slot; });
  };
  for (const ArgumentStep& step : steps_) {
    switch (step.from) {
      case From::kBlob:
      case From::kLastUse:
      case From::kBlobAsTensor:
      case From::kBlobAsFloat:
      case From::kBlobAsInt:
        if (makes(step.first)) return true;
        break;
      case From::kTensorList:
      case From::kOptionalTensorList:
        for (std::uint32_t i = 0; i < step.count; ++i) {
          if (makes(arguments_.list[step.first + i])) return true;
        }
        break;
      default:
        break;
    }
  }
  return false;
}

bool Kernel::push_arguments(KernelFrame& frame, std::shared_ptr<const Error>& inherited) {
  using From = ArgumentStep::From;
  Stack& stack = *frame.stack;
  for (const ArgumentStep& step : steps_) {
    switch (step.from) {
      case From::kStatic:
        stack.push_back(step.constant);
        break;
      case From::kStaticCopy:
        stack.emplace_back(step.constant.deepcopy());
        break;
      case From::kBlob:
      case From::kLastUse:
      case From::kBlobAsTensor:
      case From::kBlobAsFloat:
      case From::kBlobAsInt: {
        Blob& blob = frame.blobs[step.first];
        if (blob.poisoned()) [[unlikely]] {
          inherited = blob.error();
          return false;
        }
        if (step.from == From::kLastUse) {
          stack.emplace_back(blob.take());
        } else if (step.from == From::kBlob) {
          stack.push_back(blob.value());
        } else {
          push_converted(frame, step);
        }
        break;
      }
      case From::kExpr:
        stack.emplace_back(expr_value(frame, step.first));
        break;
      case From::kExprAsFloat:
        stack.emplace_back(static_cast<double>(expr_value(frame, step.first)));
        break;
      case From::kExprAsBool:
        stack.emplace_back(expr_value(frame, step.first) != 0);
        break;
      case From::kExprAsTensor:
        stack.emplace_back(number_tensor(expr_value(frame, step.first)));
        break;
      default:
        if (!push_list(frame, step, inherited)) return false;
    }
  }
  if (arguments_.writes) [[unlikely]] {
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      if (steps_[i].written) frame.guard->before_write(stack[i], stack, frame.blobs);
    }
  }
  return true;
}

void Kernel::push_converted(KernelFrame& frame, const ArgumentStep& step) {
  using From = ArgumentStep::From;
  const c10::IValue& value = frame.blobs[step.first].value();
  Stack& stack = *frame.stack;
  if (step.from == From::kBlobAsTensor && !value.isTensor()) {
    stack.emplace_back(number_tensor(value));
  } else if (step.from == From::kBlobAsFloat && value.isInt()) {
    stack.emplace_back(static_cast<double>(value.toInt()));
  } else if (step.from == From::kBlobAsInt && value.isBool()) {
    stack.emplace_back(static_cast<std::int64_t>(value.toBool()));
  } else {
    stack.push_back(value);
  }
}

bool Kernel::push_list(KernelFrame& frame, const ArgumentStep& step, std::shared_ptr<const Error>& inherited) {
  using From = ArgumentStep::From;
  if (step.from == From::kIntList) {
    c10::List<std::int64_t> integers;
    integers.reserve(step.count);
    for (std::uint32_t i = 0; i < step.count; ++i) {
      integers.push_back(expr_value(frame, arguments_.integers[step.first + i]));
    }
    frame.stack->emplace_back(std::move(integers));
    return true;
  }
  const std::span<const Slot> slots(arguments_.list.data() + step.first, step.count);
  for (const Slot slot : slots) {
    if (slot == kNoSlot || !frame.blobs[slot].poisoned()) continue;
    inherited = frame.blobs[slot].error();
    return false;
  }
  if (step.from == From::kTensorList) {
    c10::List<at::Tensor> tensors;
    tensors.reserve(slots.size());
    for (const Slot slot : slots) tensors.push_back(frame.blobs[slot].value().toTensor());
    frame.stack->emplace_back(std::move(tensors));
  } else if (step.from == From::kOptionalTensorList) {
    c10::List<std::optional<at::Tensor>> tensors;
    tensors.reserve(slots.size());
    for (const Slot slot : slots) {
      const bool hole = slot == kNoSlot || frame.blobs[slot].value().isNone();
      tensors.push_back(hole ? std::nullopt : std::optional(frame.blobs[slot].value().toTensor()));
    }
    frame.stack->emplace_back(std::move(tensors));
  } else {
    c10::List<std::int64_t> integers;
    for (const Slot slot : slots) integers.push_back(frame.blobs[slot].value().toInt());
    frame.stack->emplace_back(std::move(integers));
  }
  return true;
}

std::int64_t Kernel::expr_value(const KernelFrame& frame, ExprTable::Index index) const {
  if (frame.exprs->is_ready(index)) return frame.exprs->ready_value(index);
  auto value = frame.exprs->evaluate(index);
  if (!value) throw KernelFailure(std::move(value).error());
  if (!*value) throw KernelFailure(Error(ErrorCode::kInternal, "a size depends on a value of another fragment"));
  return **value;
}

Kernel::Failure Kernel::check_results(const KernelFrame& frame) const {
  const Stack& stack = *frame.stack;
  if (stack.size() != output_steps_.size()) [[unlikely]] {
    return output_error("returned " + std::to_string(stack.size()) + " values, the fragment declares " +
                        std::to_string(output_steps_.size()));
  }
  if (!frame.check_outputs) return std::nullopt;
  for (std::size_t i = 0; i < stack.size(); ++i) {
    const OutputStep& step = output_steps_[i];
    if (!step.is_list) [[likely]] {
      const ValueCheck& target = targets_[step.first];
      if (target.slot == kNoSlot) continue;
      if (target.kind == ValueKind::kTensor && tensor_fits(target, stack[i], *frame.exprs, frame.device)) continue;
      if (auto text = mismatch(target, stack[i], *frame.exprs, frame.device)) {
        return output_error("output " + std::to_string(i) + ": " + *text);
      }
      continue;
    }
    if (!stack[i].isList())
      return output_error("output " + std::to_string(i) + ": expected a list, found " + describe(stack[i]));
    const auto items = stack[i].toList();
    if (items.size() != step.count) {
      return output_error("output " + std::to_string(i) + ": expected a list of " + std::to_string(step.count) +
                          ", found " + std::to_string(items.size()));
    }
    for (std::uint32_t k = 0; k < step.count; ++k) {
      const ValueCheck& target = targets_[step.first + k];
      if (target.slot == kNoSlot) continue;
      if (auto text = mismatch(target, items.get(k), *frame.exprs, frame.device)) {
        return output_error("output " + std::to_string(i) + " item " + std::to_string(k) + ": " + *text);
      }
    }
  }
  return std::nullopt;
}

void Kernel::fill_blobs(KernelFrame& frame) {
  Stack& stack = *frame.stack;
  for (std::size_t i = 0; i < stack.size(); ++i) {
    const OutputStep& step = output_steps_[i];
    if (!step.is_list) [[likely]] {
      fill_one(frame, targets_[step.first], std::move(stack[i]));
      continue;
    }
    if (!stack[i].isList() || stack[i].toList().size() != step.count) {
      stack.clear();
      throw KernelFailure(output_error("output " + std::to_string(i) + " is no list of the declared length"));
    }
    const auto items = stack[i].toList();
    for (std::uint32_t k = 0; k < step.count; ++k) fill_one(frame, targets_[step.first + k], c10::IValue(items.get(k)));
  }
  stack.clear();
}

void Kernel::fill_one(KernelFrame& frame, const ValueCheck& target, c10::IValue&& value) {
  if (target.slot == kNoSlot) return;
  if (target.read_by_exprs) {
    if (!value.isInt() && !value.isBool()) {
      Error error = output_error("a size is computed from it, so it must be an int; found " + describe(value));
      frame.stack->clear();
      throw KernelFailure(std::move(error));
    }
    frame.exprs->set_integer(target.value, value.isInt() ? value.toInt() : value.toBool());
  }
  if (value.isTensor() && !value.toTensor().defined()) value = c10::IValue();
  frame.blobs[target.slot].set(std::move(value));
}

Kernel::Failure Kernel::hooks_after(KernelFrame& frame) {
  c10::SmallVector<const Blob*, 4> filled;
  for (const ValueCheck& target : targets_) {
    if (target.slot != kNoSlot) filled.push_back(&frame.blobs[target.slot]);
  }
  for (KernelHook* hook : frame.hooks) {
    if (auto error = hook->after(KernelCall{info_, frame.run}, {filled.data(), filled.size()})) return error;
  }
  return std::nullopt;
}

Error Kernel::output_error(const std::string& what) const {
  return Error(ErrorCode::kOutputMismatch, "node " + std::to_string(info_->node) + " (" + info_->op + "), " + what,
               "the program was exported for other inputs or with another version of the operator");
}

std::shared_ptr<const Error> Kernel::fail_outputs(KernelFrame& frame, Error error) {
  error.op = info_->op;
  error.node = info_->node;
  const std::string call = describe_call(frame);
  error.detail = error.detail.empty() ? call : call + "\n" + error.detail;
  auto root = std::make_shared<const Error>(std::move(error));
  poison_outputs(frame, root);
  for (KernelHook* hook : frame.hooks) hook->failed(KernelCall{info_, frame.run}, *root);
  return root;
}

void Kernel::poison_outputs(KernelFrame& frame, const std::shared_ptr<const Error>& error) {
  frame.stack->clear();
  for (const ValueCheck& target : targets_) {
    if (target.slot != kNoSlot) frame.blobs[target.slot].poison(error);
  }
}

/// From the blobs: the list that was made of them may have been moved out of the stack.
std::string Kernel::describe_list(const KernelFrame& frame, const ArgumentStep& step) const {
  const std::span<const Slot> slots(arguments_.list.data() + step.first, step.count);
  std::string text = "[";
  for (std::size_t i = 0; i < slots.size() && i < kDescribedItemsMax; ++i) {
    text += i == 0 ? "" : ", ";
    if (slots[i] == kNoSlot) {
      text += "none";
    } else {
      text += frame.blobs[slots[i]].filled() ? describe(frame.blobs[slots[i]].value()) : "(not there)";
    }
  }
  return text + (slots.size() > kDescribedItemsMax ? ", … " + std::to_string(slots.size()) + " items]" : "]");
}

std::string Kernel::describe_call(const KernelFrame& frame) const {
  using From = ArgumentStep::From;
  std::string text = "inputs:";
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const ArgumentStep& step = steps_[i];
    const bool blob = step.from == From::kBlob || step.from == From::kBlobAsTensor || step.from == From::kBlobAsFloat ||
                      step.from == From::kBlobAsInt;
    text += (i == 0 ? " " : ", ") + arguments_.names[i] + " = ";
    if (blob && frame.blobs[step.first].filled()) {
      text += describe(frame.blobs[step.first].value());
    } else if (step.from == From::kStatic) {
      text += describe(step.constant);
    } else if (step.from == From::kTensorList || step.from == From::kOptionalTensorList) {
      text += describe_list(frame, step);
    } else if (step.from == From::kExpr || step.from == From::kExprAsTensor) {
      text += std::to_string(expr_value(frame, step.first)) + " (int)";
    } else {
      // What was moved or made for the call is still on the stack unless the operator took it off itself.
      text += i < frame.stack->size() ? describe((*frame.stack)[i]) : "(consumed)";
    }
  }
  if (!info_->module_path.empty()) text += "\nmodule: " + info_->module_path;
  if (!info_->source.empty()) text += "\nsource: " + info_->source;
  return text;
}

}  // namespace callboard::kernels
