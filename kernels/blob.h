// The box that one kernel fills and others read.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "kernels/host_event.h"
#include "messages/base/check.h"
#include "messages/base/error.h"

namespace callboard::kernels {

/// empty → pending → filled (a tensor, a number or None) or poisoned. Filled exactly once and read only then; drop()
/// ends it. Belongs to one stream: its methods cost no lock and no atomic operation. Another stream reads a SharedBlob.
class Blob {
 public:
  enum class State : std::uint8_t { kEmpty, kPending, kFilled, kPoisoned };

  State state() const { return state_; }
  bool filled() const { return state_ == State::kFilled; }
  bool poisoned() const { return state_ == State::kPoisoned; }

  /// A kernel that will fill it has been queued.
  void expect() {
    CALLBOARD_CHECK(state_ == State::kEmpty, "a blob has one filler");
    state_ = State::kPending;
  }
  void set(c10::IValue&& value) {
    CALLBOARD_CHECK(state_ == State::kPending || state_ == State::kEmpty, "a blob is filled once");
    value_ = std::move(value);
    state_ = State::kFilled;
  }
  void set_tensor(at::Tensor tensor) { set(c10::IValue(std::move(tensor))); }

  /// Also over a value: a hook that runs after the fill can still fail the kernel. The first root error stays.
  void poison(std::shared_ptr<const Error> error) {
    if (state_ == State::kPoisoned) return;
    value_ = c10::IValue();
    error_ = std::move(error);
    state_ = State::kPoisoned;
  }

  const c10::IValue& value() const {
    CALLBOARD_CHECK(state_ == State::kFilled, "a blob is read after it was filled");
    return value_;
  }
  /// The last reader's way: leaves the blob empty.
  c10::IValue take() {
    CALLBOARD_CHECK(state_ == State::kFilled, "a blob is read after it was filled");
    state_ = State::kEmpty;
    return std::move(value_);
  }
  const std::shared_ptr<const Error>& error() const { return error_; }

  /// The same tensor over other memory (copy before a write); only for a filled blob.
  void rebase(at::Tensor tensor) {
    CALLBOARD_CHECK(state_ == State::kFilled, "only a tensor can move to other memory");
    value_ = c10::IValue(std::move(tensor));
  }

  void drop() {
    value_ = c10::IValue();
    if (error_) error_.reset();
    state_ = State::kEmpty;
  }

 private:
  c10::IValue value_;
  std::shared_ptr<const Error> error_;
  State state_ = State::kEmpty;
};

/// A blob that one stream fills and others wait for.
class SharedBlob {
 public:
  /// Filler's side, once.
  void set(c10::IValue value) {
    blob_.set(std::move(value));
    filled_.record();
  }
  void poison(std::shared_ptr<const Error> error) {
    blob_.poison(std::move(error));
    filled_.record();
  }

  /// Readers' side, any thread: the blob, filled or poisoned; nullptr if `deadline` passed first.
  const Blob* wait_until(TimePoint deadline) const { return filled_.wait_until(deadline) ? &blob_ : nullptr; }

 private:
  Blob blob_;
  HostEvent filled_;
};

}  // namespace callboard::kernels
