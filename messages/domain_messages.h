// What a device and the child process of one of its GIL domains say to each other, over a socket pair that nobody else
// has. The device speaks first, once (DomainStart) and then for each call; until the child has given its last answer
// (DomainReady, DomainFailed, DomainResult) it may ask for memory, and the device answers each question at once.
// Tensors go by what they lie in: every storage of a call once, so that views of one storage stay views of one storage.
#pragma once

#include <complex>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "messages/base/error.h"
#include "messages/base/ids.h"
#include "messages/tensor_handle.h"
#include "messages/tensor_meta.h"

namespace callboard {

/// A part of a segment that both map. The child asks for the segment's descriptor when it meets one for the first time.
struct DomainPlace {
  ActorId owner;  ///< the device, or whoever lent it the block; "constants" for those
  SegmentId segment = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  bool writable = false;  ///< the child writes there, for all to see; else a write of its own stays with it
  bool device = false;    ///< `segment` is a slab of the device's own memory; of 0 bytes: nothing, on the device
};

/// In an answer: a storage that the call was given.
struct DomainGiven {
  std::uint32_t storage = 0;
};

/// A CudaIpcBlock is lent by the device until the child gives its lease back; a result in the device's own memory is a
/// DomainPlace in what the child was granted there.
using DomainStorage = std::variant<InlineBytes, DomainPlace, DomainGiven, CudaIpcBlock>;

struct DomainTensor {
  std::uint32_t storage = 0;  ///< which of the message's storages
  TensorMeta meta;            ///< its offset counts from the storage's start
  bool conjugated = false;
  bool negated = false;
  bool requires_grad = false;
};

/// The tensor of that number in the message; negative: none.
struct DomainTensorIndex {
  std::int64_t tensor = -1;
};
struct DomainTensorList {
  std::vector<std::int64_t> tensors;
};
struct DomainDevice {
  std::string name;  ///< "cpu", "cuda:0"
};

/// An argument or a result. dtype, layout and memory format are integers, as in a c10::IValue of the same LibTorch.
using DomainValue =
    std::variant<std::monostate, DomainTensorIndex, DomainTensorList, std::int64_t, double, bool, std::string,
                 std::complex<double>, DomainDevice, std::vector<std::int64_t>, std::vector<double>, std::vector<bool>,
                 std::vector<std::string>, std::vector<std::complex<double>>>;

struct DomainKernel {
  std::string target;
  std::string schema;
  bool random = false;
  std::string warm_up;
};

// -- device → child ------------------------------------------------------------------------------------------------
struct DomainStart {
  ActorId device;
  std::uint32_t number = 0;  ///< of the child, from 1, for its log
  std::uint32_t threads = 1;
  std::string executable;
  std::vector<std::string> path;
  std::vector<DomainKernel> kernels;
  std::string kind = "cpu";  ///< of the device; others than "cpu" have memory of their own
  std::string uuid = {};     ///< which one it is, for those
};
struct DomainCall {
  std::uint64_t call = 0;  ///< number within the child, from 1
  std::uint32_t op = 0;    ///< which of DomainReady's operators
  std::vector<DomainValue> arguments;
  std::vector<DomainTensor> tensors;
  std::vector<DomainStorage> storages;
  std::int64_t time_left_ns = -1;        ///< until its deadline; negative: none
  std::string order = {};                ///< raw handle of an event of the device's, behind which the call runs
  std::vector<DomainPlace> let_go = {};  ///< results in the device's own memory that it does not need any more
};
/// Memory to write to: the answer to DomainAllocate. A block that the child has not seen yet.
struct DomainGranted {
  std::optional<Error> error;
  DomainPlace place;
  std::optional<CudaIpcBlock> segment = {};  ///< instead, where the device's own memory was asked for
};
/// The answer to DomainOpen; the descriptor rides along.
struct DomainOpened {
  std::optional<Error> error;
  std::uint64_t bytes = 0;
  bool may_shrink = false;
};

// -- child → device ------------------------------------------------------------------------------------------------
struct DomainOperator {
  std::string op;
  std::string target;
  std::string schema;
  bool random = false;
};
struct DomainReady {
  std::vector<DomainOperator> operators;
  std::map<std::string, std::string> declared;  ///< operator → target of decorated functions that are not on the list
  std::string report;                           ///< JSON object: executable, prefix, python, torch
};
struct DomainFailed {
  Error error;
};
struct DomainResult {
  std::uint64_t call = 0;
  std::optional<Error> error;  ///< then the rest is empty, but for `undeclared` and `freed`
  std::vector<DomainValue> results;
  std::vector<DomainTensor> tensors;
  std::vector<DomainStorage> storages;
  std::vector<std::uint32_t> undeclared;  ///< arguments that were written to without the schema saying so
  std::vector<DomainPlace> freed;         ///< granted blocks that the child is done with
  std::string done = {};               ///< raw handle of an event behind the call's work on the device, which is done
  std::vector<LeaseId> released = {};  ///< on the device's own memory, of this call or earlier ones
};
struct DomainAllocate {
  std::uint64_t bytes = 0;
  std::vector<DomainPlace> freed;  ///< granted blocks that the child is done with, to be used again
  bool device = false;             ///< of the device's own memory
};
/// A segment's descriptor: to write to (only the helpers' zone of the device's own) or to read.
struct DomainOpen {
  ActorId owner;
  SegmentId segment = 0;
  bool writable = false;
};

using DomainMessage = std::variant<DomainStart, DomainCall, DomainGranted, DomainOpened, DomainReady, DomainFailed,
                                   DomainResult, DomainAllocate, DomainOpen>;
/// "call", "result", …; for errors.
std::string_view domain_message_name(const DomainMessage& message);

/// kTooLarge with what a reader would refuse.
Result<std::string> encode_domain_message(const DomainMessage& message);
/// Total and bounded like decode_packet(): a validated, owned value or an Error. Every tensor lies inside its storage
/// where the message says how large that is, and every number of a tensor or storage exists.
Result<DomainMessage> decode_domain_message(std::string_view bytes);

}  // namespace callboard
