// Every bound of the project with its reason. A bound that the cluster file can change has its default here.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace callboard::limits {

// -- messages: a peer must not make us reserve more than it sent ------------------------------------------------------
constexpr std::size_t kMessageBytesMax = 16u << 20;   // larger data travel as handles, not in messages
constexpr std::size_t kDecodeDepthMax = 32;           // our deepest message (an Error in an Error) needs 14
constexpr std::size_t kDecodeElementsMax = 1u << 20;  // elements of all arrays and maps of one message together
constexpr std::size_t kStringBytesMax = 1u << 20;
constexpr std::size_t kErrorCausesMax = 64;
constexpr std::size_t kErrorDepthMax = 4;
constexpr std::size_t kErrorTextBytesMax =
    64u << 10;  // of each text of an Error; the sender cuts, so that it always arrives

// -- tensors ----------------------------------------------------------------------------------------------------------
constexpr std::size_t kTensorRankMax = 64;          // what ATen itself can index
constexpr std::size_t kInlineBytesMax = 32u << 10;  // above it a tensor goes by handle; measured by inline_threshold
constexpr std::size_t kAlignment = 64;  // of memory that ATen allocates. A copy starts as far off it as its original:
                                        // MKL rounds by alignment, and results are to be equal to the last bit

// -- programs
// -----------------------------------------------------------------------------------------------------------
constexpr std::size_t kNodesMax = 100'000;  // the largest exported model known to us has about 20,000
constexpr std::size_t kValuesMax = 400'000;
constexpr std::size_t kArgumentsMax = 4'096;  // of one node; aten::cat of many tensors
constexpr std::size_t kSymbolsMax = 256;
constexpr std::size_t kExprTermsMax = 256;  // of one symbol expression
constexpr std::size_t kProgramsMax = 256;   // loaded in one cluster

// -- requests
// -----------------------------------------------------------------------------------------------------------
constexpr std::size_t kClientsMax = 256;
constexpr std::size_t kRequestsPerClientMax = 1'024;  // accepted and not finished; more is kOverloaded
constexpr std::size_t kRunsPerDeviceMax = 1'024;      // runs a device holds (waiting for edges, queued or running)
constexpr std::uint64_t kEdgeBytes = 1u << 30;        // kept on a device for other devices, where nothing else is said
constexpr std::size_t kStreamQueueMax = 1'024;        // commands queued on one KernelStream
constexpr std::chrono::milliseconds kRequestDeadline{120'000};  // where the caller gives none
constexpr std::chrono::milliseconds kRequestDeadlineMax{86'400'000};

// -- links
// ----------------------------------------------------------------------------------------------------------------
constexpr std::size_t kLinkWindowMax = 4'096;            // sent and not acknowledged; then the sender waits
constexpr std::size_t kLinkWindowBytesMax = 256u << 20;  // likewise, in bytes; a single larger message still goes alone
constexpr std::size_t kLinkReorderMax = 64;              // held for a missing predecessor
constexpr std::chrono::milliseconds kLinkResendAfter{1'000};  // doubled after each resend: 1, 2, 4, 8, 16, 32 s
constexpr std::uint32_t kLinkResendsMax = 5;                  // then the peer counts as lost, 63 s after the first try
constexpr std::chrono::milliseconds kLinkAckDelay{20};  // an acknowledgement waits so long for a message to ride on
constexpr std::uint32_t kLinkAckEvery = 64;             // or for so many messages received

constexpr int kSocketQueueMax = 4'096;  // frames that ZeroMQ holds for one peer: a whole window, without a retry
constexpr std::size_t kHubPeersRememberedMax =
    4'096;  // names whose last incarnation is known; old ones are forgotten first

// -- liveness
// -----------------------------------------------------------------------------------------------------------
constexpr std::chrono::milliseconds kBeatInterval{500};
constexpr std::chrono::milliseconds kDeadAfter{3'000};  // a local peer without a beat
constexpr std::chrono::milliseconds kStartTimeout{60'000};
constexpr std::chrono::milliseconds kStopGrace{5'000};  // between SIGTERM and SIGKILL

static_assert(kDeadAfter >= 3 * kBeatInterval, "a single late beat must not kill an actor");
static_assert(kInlineBytesMax * 64 <= kMessageBytesMax, "a request with dozens of small tensors must fit a message");

}  // namespace callboard::limits
