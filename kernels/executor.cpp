#include "kernels/executor.h"

#include <optional>
#include <utility>

#include "kernels/pending_kernels.h"

namespace callboard::kernels {

namespace {

/// What a run owes to nobody any more: every blob without a value says why.
void poison_rest(LoadedFragment& fragment, const std::shared_ptr<const Error>& error) {
  for (Blob& blob : fragment.blobs) {
    if (blob.state() == Blob::State::kPending) blob.poison(error);
  }
}

}  // namespace

void RunControl::cancel(const Error& reason) {
  std::lock_guard lock(mutex_);
  if (cancelled_.load(std::memory_order_relaxed)) return;
  reason_ = reason;
  cancelled_.store(true, std::memory_order_release);
}

std::optional<Error> RunControl::stop_reason() const {
  if (cancelled()) {
    std::lock_guard lock(mutex_);
    return reason_;
  }
  if (deadline_ != kNever && Clock::now() >= deadline_) {
    return Error(ErrorCode::kDeadlineExceeded, "the request's deadline passed on the device");
  }
  return std::nullopt;
}

std::shared_ptr<const Error> Executor::run(LoadedFragment& fragment, Order order) {
  std::shared_ptr<const Error> error;
  if (Status begun = begin(fragment, order); !begun) {
    error = std::make_shared<const Error>(std::move(begun).error());
  } else {
    error = run_kernels(fragment, order);
  }
  if (error) poison_rest(fragment, error);
  return error;
}

Status Executor::begin(LoadedFragment& fragment, Order& order) {
  fragment.guard.begin();
  for (Blob& blob : fragment.blobs) blob.expect();
  if (order.symbols.size() != fragment.symbol_names.size()) {
    return fail(ErrorCode::kBadInput, "the run has " + std::to_string(order.symbols.size()) +
                                          " symbols, the fragment " + std::to_string(fragment.symbol_names.size()));
  }
  if (order.inputs.size() != fragment.inputs.size()) {
    return fail(ErrorCode::kBadInput, "the run has " + std::to_string(order.inputs.size()) + " inputs, the fragment " +
                                          std::to_string(fragment.inputs.size()));
  }
  CALLBOARD_TRY(fragment.exprs.begin(order.symbols));
  CALLBOARD_TRY(fragment.check_fits(order.symbols));
  const auto give = [&](Slot slot, c10::IValue&& value, bool lasting) {
    if (value.isTensor()) fragment.guard.protect(value.toTensor(), lasting);
    fragment.blobs[slot].set(std::move(value));
  };
  for (std::size_t i = 0; i < order.inputs.size(); ++i) {
    const ValueCheck& check = fragment.inputs[i].check;
    if (check.read_by_exprs && order.inputs[i].isInt())
      fragment.exprs.set_integer(check.value, order.inputs[i].toInt());
  }
  for (std::size_t i = 0; i < order.inputs.size(); ++i) {
    const ValueCheck& check = fragment.inputs[i].check;
    if (check_outputs_) {
      if (auto text = mismatch(check, order.inputs[i], fragment.exprs, device_)) {
        return fail(ErrorCode::kBadInput,
                    "input " + std::to_string(i) + " '" + fragment.inputs[i].name + "': " + *text);
      }
    }
    give(check.slot, std::move(order.inputs[i]), false);
  }
  for (const auto& constant : fragment.constants) give(constant.slot, c10::IValue(constant.tensor), true);
  for (const auto& state : fragment.states) give(state.before, c10::IValue(state.current), true);
  return {};
}

std::shared_ptr<const Error> Executor::run_kernels(LoadedFragment& fragment, const Order& order) {
  KernelFrame frame;
  frame.blobs = fragment.blobs;
  frame.exprs = &fragment.exprs;
  frame.stream = &stream_;
  // A kernel of an earlier run may have left another stream current, with its error or by throwing.
  if (!stream_.is_current()) stream_.enter();
  frame.device = device_;
  frame.hooks = order.hooks;
  frame.guard = &fragment.guard;
  frame.check_outputs = check_outputs_;
  frame.run = order.run;
  frame.stop = order.control;
  frame.stack = &stack_;

  // Hooks time one kernel after the other.
  std::optional<PendingKernels> pending;
  if (fragment.overlap > 1 && order.hooks.empty()) frame.pending = &pending.emplace(fragment.overlap);
  auto error = run_each(fragment, order, frame);
  if (frame.pending == nullptr) return error;
  if (!error) return pending->finish_all(frame);
  pending->abandon_all(frame, Error(ErrorCode::kCancelled, "another kernel of the run has failed"));
  return error;
}

std::shared_ptr<const Error> Executor::run_each(LoadedFragment& fragment, const Order& order, KernelFrame& frame) {
  const std::uint32_t* free_at = fragment.frees_begin.data();
  const std::size_t count = fragment.kernels.size();
  for (std::size_t i = 0; i < count; ++i) {
    if (order.control->cancelled() || i % kClockEvery == 0) [[unlikely]] {
      if (auto reason = order.control->stop_reason()) {
        reason->detail += (reason->detail.empty() ? "" : "\n") + std::string("stopped before node ") +
                          std::to_string(fragment.kernels[i]->info().node);
        return std::make_shared<const Error>(std::move(*reason));
      }
    }
    if (i + 1 < count) fragment.kernels[i + 1]->prefetch_plan();
    if (i + 2 < count) fragment.kernels[i + 2]->prefetch_object();
    if (frame.pending != nullptr) [[unlikely]] {
      if (auto error = frame.pending->before(*fragment.kernels[i], frame)) return error;
    }
    if (auto error = fragment.kernels[i]->run(frame)) [[unlikely]]
      return error;
    for (std::uint32_t k = free_at[i]; k < free_at[i + 1]; ++k) fragment.blobs[fragment.frees[k]].drop();
  }
  return nullptr;
}

}  // namespace callboard::kernels
