#include "actors/client/lazy_future.h"

#include <utility>

namespace callboard::actors {

bool LazyFuture::wait_for(Duration wait) const {
  if (outcome_.is_set()) return true;
  return outcome_.wait_until(after(Clock::now(), wait));
}

FutureValue LazyFuture::get() {
  outcome_.wait_until(kNever);
  const std::shared_ptr<Outcome> outcome = outcome_.value();
  if (outcome->failure) return fail(*outcome->failure);
  std::lock_guard lock(outcome->mutex);
  if (!outcome->value) {
    outcome->value = outcome->make();
    outcome->make = nullptr;
  }
  return *outcome->value;
}

bool LazyFuture::set(Result<Make> outcome) {
  auto made = std::make_shared<Outcome>();
  if (outcome) {
    made->make = std::move(*outcome);
  } else {
    made->failure = std::move(outcome).error();
  }
  return outcome_.set(std::move(made));
}

std::optional<Error> LazyFuture::failure() const { return outcome_.value()->failure; }

std::optional<Error> failure_of(Future& ready) {
  if (const auto* lazy = dynamic_cast<const LazyFuture*>(&ready)) return lazy->failure();
  const FutureValue value = ready.get();
  if (value) return std::nullopt;
  return value.error();
}

}  // namespace callboard::actors
