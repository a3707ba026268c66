// Dynamic batching: requests that come at about the same time run as one, along the program's batch dimension.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "actors/client/batch_axis.h"
#include "actors/client/client.h"
#include "actors/client/tensor_parts.h"
#include "messages/limits.h"

namespace callboard::actors {

struct BatchingOptions {
  std::int64_t max_batch = 32;                        ///< rows of one batch, at least 1
  Duration max_delay = std::chrono::milliseconds(2);  ///< of the first request of a batch, before it leaves
  BatchDim dim;
  std::size_t max_queued = limits::kRequestsPerClientMax;  ///< requests without an outcome; one more waits
};

class BatchedProgram : public Program {
 public:
  /// Ends what waits as kCancelled, and with it every later request. What has left goes on. Idempotent, any thread, but
  /// not in a callback.
  virtual void close() = 0;
};

/// A program whose requests are gathered: those with the same dtypes, the same sizes outside the batch and the same
/// values of what does not carry it form one batch, which leaves when it has max_batch rows (on the thread of the
/// request that fills it) or max_delay after its first request. `program` may be any Program, replicas too.
///
/// Refused here, before anything runs: kUnsupported for a program without one batch dimension or with state (see
/// find_batch_axis), or one whose symbol does not allow 1 to max_batch; kBadArgument for options out of range.
///
/// Requests. submit() checks each by itself, as the program does, and copies its inputs: they are the caller's again
/// when it returns. A request of more rows than max_batch, or of none, runs alone, at once and without waiting, if the
/// program allows its size. Its numbers are those of the program at the batch's size, which for some kernels differ in
/// the last bits from those at its own.
///
/// Room. A request that would be more than max_queued waits in submit() as SubmitOptions say, first in, first out. A
/// batch that is full while the program has no room for it is sent by the batching thread once there is; submit() does
/// not wait for that. What is not sent is bounded by max_queued.
///
/// Results. Outputs up to limits::kInlineBytesMax are copies of the request's own; larger ones are views of the batch's
/// result, which stays in the device's memory as long as one of them does. No two requests share an element: where an
/// output's rows overlap (an expanded tensor), they are copied, too. The slice is cut on the thread that asks first.
///
/// Ends. A request that is cancelled or expires ends at once: before its batch leaves it is taken out, afterwards the
/// batch goes on without it, and is cancelled only with the last one. The batch's own deadline is the latest of its
/// requests'. If the batch fails with an error of a request (kBadInput, kKernelFailed, kOutOfMemory, …) and every
/// fragment is pure, its requests run again one by one, so that only the guilty one fails; otherwise all get the error,
/// which says so. Any other error (a lost device) is everybody's.
///
/// Threads. submit() and futures may be used from any thread; on_ready callbacks also run on the batching thread. That
/// thread, one per batched program, owns the timing: it parks until the next batch is due or a request expires, and
/// never runs a request. The last reference to the program must not go in a callback, as the end joins the thread. It
/// ends what still waits as kCancelled, as close() does; what has left goes on. It may outlive the client: requests are
/// kCancelled then, those that wait when their batch would leave.
Result<std::shared_ptr<BatchedProgram>> make_batched(AllocateTensor allocate, std::shared_ptr<Program> program,
                                                     BatchingOptions options);
inline Result<std::shared_ptr<BatchedProgram>> make_batched(Client& client, std::shared_ptr<Program> program,
                                                            BatchingOptions options) {
  return make_batched(client.allocator(), std::move(program), std::move(options));
}

}  // namespace callboard::actors
