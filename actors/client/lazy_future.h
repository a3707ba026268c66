// A future whose result is put together by whoever asks for it first: gathering and copying belong to the thread that
// wants the result, not to the client's loop thread, which only hears that it can be made.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "actors/client/future_state.h"

namespace callboard::actors {

/// Any thread; waits park. cancel() is the heirs' matter.
class LazyFuture : public Future {
 public:
  /// Runs at most once, without the client's turn; what it holds is dropped when it has run.
  using Make = std::function<FutureValue()>;

  bool is_ready() const override { return outcome_.is_set(); }
  bool wait_for(Duration wait) const override;
  FutureValue get() override;
  void on_ready(std::function<void()> done) override { outcome_.on_set(std::move(done)); }

  /// A failure is known at once. False if the future has its outcome already; then `outcome` goes unused. Callbacks run
  /// on this thread: the caller holds no lock that they take.
  bool set(Result<Make> outcome);
  /// Of a future that is ready: why it failed, or nothing. Makes nothing.
  std::optional<Error> failure() const;

 private:
  struct Outcome {
    std::optional<Error> failure;      // never changes
    std::mutex mutex;                  // held while the result is made: whoever asks meanwhile waits for it
    Make make;                         // guarded by mutex
    std::optional<FutureValue> value;  // guarded by mutex
  };
  OneShot<std::shared_ptr<Outcome>> outcome_;
};

/// Why a future that is ready failed, or nothing; does not make a lazy one's result.
std::optional<Error> failure_of(Future& ready);

}  // namespace callboard::actors
