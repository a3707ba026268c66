// The test of the way between a runtime on a GPU and cuda_peer, as two device actors do it.
#pragma once

#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

#include "tests/kernels/cuda_plugin/handle_text_cuda.h"
#include "tests/kernels/cuda_plugin/peer_process_cuda.h"
#include "tests/kernels/support/test_device.h"

namespace callboard::testing {

/// Who cuda_peer is.
inline const ActorId kCudaPeer{"cuda1", 1};

/// From here on the runtime lends to the peer where this gives another path than kHostCopy. `reader`: whom the runtime
/// takes the peer for.
inline TransportChosen prove_transport(kernels::DeviceRuntime& runtime, PeerProcess& peer,
                                       const ActorId& reader = kCudaPeer) {
  struct Offered {
    Signal there;
    Result<CudaIpcBlock> block = fail(ErrorCode::kInternal, "not offered");
  };
  const auto offered = std::make_shared<Offered>();
  const Status queued = runtime.offer_transport(reader, 1, [offered](Result<CudaIpcBlock> block) {
    offered->block = std::move(block);
    offered->there.set();
  });
  if (!queued || !offered->there.wait()) throw std::runtime_error("no offer was made");
  if (!offered->block) throw std::runtime_error(offered->block.error().to_string());
  const auto bytes = static_cast<std::int64_t>(offered->block->bytes);
  peer.send("test " + to_line(TensorHandle{TensorMeta::contiguous(DType::kUInt8, {bytes}), *offered->block}));
  TransportTested answer{1, TransportPath::kHostCopy, {}, "the peer gave no answer"};
  // The peer's lease may end before it has answered.
  for (int lines = 0; lines < 2; ++lines) {
    std::istringstream line(peer.read());
    std::string word;
    std::string hex;
    int path = 0;
    line >> word;
    if (word != "tested") continue;
    line >> path >> hex;
    answer.path = static_cast<TransportPath>(path);
    answer.read = hex == "-" ? std::string() : from_hex(hex);
    std::getline(line >> std::ws, answer.problem);
  }
  auto chosen = runtime.judge_transport(reader, answer);
  if (!chosen) throw std::runtime_error(chosen.error().to_string());
  return std::move(*chosen);
}

}  // namespace callboard::testing
