#include "kernels/fragment_capture.h"

#include <utility>

#include "kernels/tensor_convert.h"
#include "messages/base/log.h"

namespace callboard::kernels {

namespace {

bool ends_the_run(const Error& error) {
  return error.code == ErrorCode::kCancelled || error.code == ErrorCode::kDeadlineExceeded;
}

std::string reason_of(const Error& error) {
  const std::string where =
      error.op.empty() ? std::string() : "node " + std::to_string(error.node) + " (" + error.op + "): ";
  return where + error.message;
}

bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.device() == b.device() && a.sizes() == b.sizes() &&
         a.strides() == b.strides();
}

}  // namespace

std::string CaptureState::text() const {
  switch (stage_.load(std::memory_order_acquire)) {
    case Stage::kNew:
    case Stage::kWarm:
      return "not tried yet";
    case Stage::kCaptured:
      return "captured, " + std::to_string(replays_.load(std::memory_order_relaxed)) + " replays";
    case Stage::kRefused:
      break;
  }
  std::lock_guard lock(mutex_);
  return "not captured: " + why_not_;
}

void CaptureState::refuse(std::string why) {
  work_.reset();
  inputs_.clear();
  outputs_.clear();
  log::info("fragment_not_captured", why);
  {
    std::lock_guard lock(mutex_);
    why_not_ = std::move(why);
  }
  stage_.store(Stage::kRefused, std::memory_order_release);
}

std::shared_ptr<const Error> FragmentCapture::run(LoadedFragment& fragment, CaptureState& state,
                                                  Executor::Order order) {
  using Stage = CaptureState::Stage;
  const Stage stage = state.stage_.load(std::memory_order_relaxed);
  if (!enabled_ || stage == Stage::kRefused || !order.hooks.empty()) return executor_.run(fragment, std::move(order));
  if (stage == Stage::kNew) {
    if (std::string why = why_not(fragment, order); !why.empty()) {
      state.refuse(std::move(why));
    } else {
      state.stage_.store(Stage::kWarm, std::memory_order_relaxed);
    }
    return executor_.run(fragment, std::move(order));
  }
  if (stage == Stage::kWarm) {
    if (auto error = capture(fragment, state, order)) return error;
    if (state.stage_.load(std::memory_order_relaxed) == Stage::kRefused) {
      return executor_.run(fragment, std::move(order));
    }
  }
  if (!fits(state, order)) return executor_.run(fragment, std::move(order));
  if (auto reason = order.control->stop_reason()) return std::make_shared<const Error>(std::move(*reason));
  Status replayed;
  try {
    replayed = replay(fragment, state, order);
  } catch (const std::exception& thrown) {  // LibTorch's: no memory for the outputs
    replayed = fail(ErrorCode::kOutOfMemory, std::string("out of memory for a replay's outputs: ") + thrown.what());
  }
  if (!replayed) return std::make_shared<const Error>(std::move(replayed).error());
  return nullptr;
}

std::string FragmentCapture::why_not(const LoadedFragment& fragment, const Executor::Order& order) const {
  if (!fragment.symbol_names.empty()) return "its sizes depend on the symbol '" + fragment.symbol_names.front() + "'";
  if (!fragment.states.empty()) return "it has the state '" + fragment.states.front().name + "'";
  if (fragment.python) return "it has a Python kernel, which a replay would not call";
  if (fragment.info.random) return "it draws random numbers";
  if (!fragment.info.pure) return "an operator of it has effects";
  if (fragment.kernels.size() < kKernelsMin) {
    return "it has " + std::to_string(fragment.kernels.size()) + " kernels, which a replay would not make faster";
  }
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < order.inputs.size(); ++i) {
    if (!order.inputs[i].isTensor() || !order.inputs[i].toTensor().defined()) {
      return "its input " + std::to_string(i) +
             (i < fragment.inputs.size() ? " '" + fragment.inputs[i].name + "'" : "") + " is no tensor";
    }
    // Which kernel an operator takes may depend on it, and a copy does not say so.
    if (order.inputs[i].toTensor().requires_grad()) return "its input " + std::to_string(i) + " requires grad";
    bytes += touched_bytes(order.inputs[i].toTensor());
  }
  if (bytes > fragment.kernels.size() * kBytesPerKernel) {
    return "copying its inputs of " + std::to_string(bytes) + " bytes would cost more than launching its " +
           std::to_string(fragment.kernels.size()) + " kernels";
  }
  return {};
}

std::shared_ptr<const Error> FragmentCapture::capture(LoadedFragment& fragment, CaptureState& state,
                                                      const Executor::Order& order) {
  std::shared_ptr<const Error> failed;
  const auto work = [&]() -> Status {
    Executor::Order captured = order;
    captured.inputs.clear();
    for (const at::Tensor& input : state.inputs_) captured.inputs.emplace_back(input);
    failed = executor_.run(fragment, std::move(captured));
    if (failed) return fail(*failed);
    for (const LoadedFragment::Output& output : fragment.outputs) {
      const c10::IValue& value = fragment.blobs[output.slot].value();
      if (value.isTensor() && value.toTensor().requires_grad()) {
        return fail(ErrorCode::kUnsupported, "its output '" + output.name + "' requires grad");
      }
      state.outputs_.push_back(value);
    }
    return {};
  };
  Result<std::unique_ptr<CapturedWork>> captured = fail(ErrorCode::kInternal, "nothing was captured");
  try {
    for (const c10::IValue& input : order.inputs) {
      auto own = copy_span(input.toTensor(), stream_);
      if (!own) {
        state.refuse(reason_of(own.error()));
        return nullptr;
      }
      state.inputs_.push_back(std::move(*own));
    }
    captured = stream_.capture(work);
  } catch (const std::exception& thrown) {  // LibTorch's: no memory for the inputs
    captured = fail(ErrorCode::kOutOfMemory, thrown.what());
  }
  fragment.reset();
  if (captured) {
    state.work_ = std::move(*captured);
    state.stage_.store(CaptureState::Stage::kCaptured, std::memory_order_release);
    return nullptr;
  }
  if (ends_the_run(captured.error())) {
    state.inputs_.clear();
    state.outputs_.clear();
    return std::make_shared<const Error>(std::move(captured).error());
  }
  // The kernel's own error, where one failed, says more than the end of the capture that follows from it.
  state.refuse(reason_of(failed ? *failed : captured.error()));
  return nullptr;
}

bool FragmentCapture::fits(const CaptureState& state, const Executor::Order& order) {
  if (order.inputs.size() != state.inputs_.size()) return false;
  for (std::size_t i = 0; i < order.inputs.size(); ++i) {
    const c10::IValue& input = order.inputs[i];
    if (!input.isTensor() || !input.toTensor().defined()) return false;
    if (!same_layout(input.toTensor(), state.inputs_[i])) return false;
  }
  return true;
}

Status FragmentCapture::replay(LoadedFragment& fragment, CaptureState& state, const Executor::Order& order) {
  for (std::size_t i = 0; i < order.inputs.size(); ++i) {
    const at::Tensor& from = order.inputs[i].toTensor();
    const std::uint64_t bytes = touched_bytes(from);
    if (bytes > 0) CALLBOARD_TRY(stream_.copy(state.inputs_[i].mutable_data_ptr(), from.const_data_ptr(), bytes));
  }
  CALLBOARD_TRY(state.work_->replay());
  state.replays_.fetch_add(1, std::memory_order_relaxed);
  for (std::size_t i = 0; i < fragment.outputs.size(); ++i) {
    Blob& blob = fragment.blobs[fragment.outputs[i].slot];
    if (blob.filled()) continue;  // the same value is given out twice
    const c10::IValue& value = state.outputs_[i];
    if (!value.isTensor() || !value.toTensor().defined()) {
      blob.set(c10::IValue(value));
      continue;
    }
    // Out of the captured work's memory, which the next replay writes.
    CALLBOARD_ASSIGN(at::Tensor copy, copy_span(value.toTensor(), stream_));
    blob.set_tensor(std::move(copy));
  }
  return {};
}

}  // namespace callboard::kernels
