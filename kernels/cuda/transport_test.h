// Which way tensors can take from one process to another, proved at start by a number that nobody can guess: not by
// pid, host name or driver version, which are all equal where it does not work (containers, namespaces, MIG, remapped
// devices).
//
//   exporter: offer()          a block with the nonce, leased to the reader
//   reader:   answer_offer()   opens it as it would a result, waits for its event, copies, and says what it read
//   exporter: judge()          compares; from then on its results go to that reader by `path`
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "kernels/cuda/slab_pool.h"
#include "kernels/cuda/slab_reader.h"

namespace callboard::kernels::cuda {

struct TransportVerdict {
  TransportPath path = TransportPath::kHostCopy;
  std::string reason;  ///< for status and doctor; empty where path is the best there can be
};

/// 32 bytes from the system's random numbers.
using Nonce = std::array<char, 32>;

/// What the reader sends back.
struct TransportAnswer {
  TransportPath path = TransportPath::kHostCopy;  ///< that the reader took
  Nonce read{};                                   ///< what it found there
  std::string problem;                            ///< why it found nothing; empty otherwise
};

/// The exporter's half, for one reader. Gives its block back at the end, but not the lease on it: that is the reader's,
/// which may look late, and ends when the reader gives it back or ends. One thread.
class TransportOffer {
 public:
  virtual ~TransportOffer() = default;
  /// Writes a fresh nonce on `stream`, which lives until the offer ends. An error means that nothing can be handed out
  /// at all; kDeviceFailed is the device's.
  static Result<std::unique_ptr<TransportOffer>> make(RuntimeTable& runtime, std::shared_ptr<DeviceHealth> health,
                                                      std::shared_ptr<SlabPool> pool, const ActorId& reader,
                                                      Stream stream);
  virtual const CudaIpcBlock& block() const = 0;
  /// A wrong nonce is kHostCopy, however confident the answer.
  virtual TransportVerdict judge(const TransportAnswer& answer) const = 0;
};

/// The reader's half. Never fails: a problem is an answer too, except a sticky error (kDeviceFailed).
Result<TransportAnswer> answer_offer(RuntimeTable& runtime, DeviceHealth& health, SlabReader& reader,
                                     const CudaIpcBlock& block, Stream stream);

}  // namespace callboard::kernels::cuda
