#include "messages/domain_messages.h"

#include <algorithm>
#include <array>

#include "messages/codec_values.h"

namespace callboard {
namespace codec {

CALLBOARD_FIELDS(DomainPlace, &DomainPlace::owner, &DomainPlace::segment, &DomainPlace::offset, &DomainPlace::bytes,
                 &DomainPlace::writable, &DomainPlace::device);
CALLBOARD_FIELDS(DomainGiven, &DomainGiven::storage);
CALLBOARD_FIELDS(DomainTensor, &DomainTensor::storage, &DomainTensor::meta, &DomainTensor::conjugated,
                 &DomainTensor::negated, &DomainTensor::requires_grad);
CALLBOARD_FIELDS(DomainTensorIndex, &DomainTensorIndex::tensor);
CALLBOARD_FIELDS(DomainTensorList, &DomainTensorList::tensors);
CALLBOARD_FIELDS(DomainDevice, &DomainDevice::name);
CALLBOARD_FIELDS(DomainKernel, &DomainKernel::target, &DomainKernel::schema, &DomainKernel::random,
                 &DomainKernel::warm_up);
CALLBOARD_FIELDS(DomainStart, &DomainStart::device, &DomainStart::number, &DomainStart::threads,
                 &DomainStart::executable, &DomainStart::path, &DomainStart::kernels, &DomainStart::kind,
                 &DomainStart::uuid);
CALLBOARD_FIELDS(DomainCall, &DomainCall::call, &DomainCall::op, &DomainCall::arguments, &DomainCall::tensors,
                 &DomainCall::storages, &DomainCall::time_left_ns, Binary<&DomainCall::order>{}, &DomainCall::let_go);
CALLBOARD_FIELDS(DomainGranted, &DomainGranted::error, &DomainGranted::place, &DomainGranted::segment);
CALLBOARD_FIELDS(DomainOpened, &DomainOpened::error, &DomainOpened::bytes, &DomainOpened::may_shrink);
CALLBOARD_FIELDS(DomainOperator, &DomainOperator::op, &DomainOperator::target, &DomainOperator::schema,
                 &DomainOperator::random);
CALLBOARD_FIELDS(DomainReady, &DomainReady::operators, &DomainReady::declared, &DomainReady::report);
CALLBOARD_FIELDS(DomainFailed, &DomainFailed::error);
CALLBOARD_FIELDS(DomainResult, &DomainResult::call, &DomainResult::error, &DomainResult::results,
                 &DomainResult::tensors, &DomainResult::storages, &DomainResult::undeclared, &DomainResult::freed,
                 Binary<&DomainResult::done>{}, &DomainResult::released);
CALLBOARD_FIELDS(DomainAllocate, &DomainAllocate::bytes, &DomainAllocate::freed, &DomainAllocate::device);
CALLBOARD_FIELDS(DomainOpen, &DomainOpen::owner, &DomainOpen::segment, &DomainOpen::writable);

}  // namespace codec

namespace {

constexpr std::string_view kWhat = "a GIL domain's message";

Status bad(const std::string& why) { return fail(ErrorCode::kMalformed, std::string(kWhat) + ": " + why); }

/// nullopt: only whoever knows what the call was given can tell.
std::optional<std::uint64_t> bytes_of(const DomainStorage& storage) {
  if (const auto* bytes = std::get_if<InlineBytes>(&storage)) return bytes->bytes.size();
  if (const auto* place = std::get_if<DomainPlace>(&storage)) return place->bytes;
  if (const auto* lent = std::get_if<CudaIpcBlock>(&storage)) return lent->bytes;
  return std::nullopt;
}

bool names_tensor(std::int64_t tensor, std::size_t count) {
  return tensor < 0 || static_cast<std::uint64_t>(tensor) < count;
}

Status check(const std::vector<DomainValue>& values, const std::vector<DomainTensor>& tensors,
             const std::vector<DomainStorage>& storages) {
  for (const DomainTensor& tensor : tensors) {
    if (tensor.storage >= storages.size()) return bad("a tensor names a storage that is not there");
    CALLBOARD_ASSIGN(const std::uint64_t extent, tensor.meta.extent_bytes());
    const auto bytes = bytes_of(storages[tensor.storage]);
    if (bytes && extent > *bytes) {
      return bad("the tensor " + tensor.meta.to_string() + " reaches beyond its storage of " + std::to_string(*bytes) +
                 " bytes");
    }
  }
  for (const DomainValue& value : values) {
    const auto* one = std::get_if<DomainTensorIndex>(&value);
    const auto* list = std::get_if<DomainTensorList>(&value);
    const bool known = one != nullptr ? names_tensor(one->tensor, tensors.size())
                                      : list == nullptr || std::ranges::all_of(list->tensors, [&](std::int64_t tensor) {
                                          return names_tensor(tensor, tensors.size());
                                        });
    if (!known) return bad("a value names a tensor that is not there");
  }
  return {};
}

Status check(const DomainMessage& message) {
  if (const auto* call = std::get_if<DomainCall>(&message)) {
    for (const DomainStorage& storage : call->storages) {
      if (std::holds_alternative<DomainGiven>(storage)) return bad("a call is given nothing yet that it could name");
    }
    return check(call->arguments, call->tensors, call->storages);
  }
  const auto* result = std::get_if<DomainResult>(&message);
  if (result == nullptr) return {};
  for (const DomainStorage& storage : result->storages) {
    if (std::holds_alternative<CudaIpcBlock>(storage)) return bad("a child lends nothing");
  }
  return check(result->results, result->tensors, result->storages);
}

}  // namespace

std::string_view domain_message_name(const DomainMessage& message) {
  constexpr std::array<std::string_view, std::variant_size_v<DomainMessage>> kNames = {
      "start", "call", "granted", "opened", "ready", "failed", "result", "allocate", "open"};
  return kNames[message.index()];
}

Result<std::string> encode_domain_message(const DomainMessage& message) {
  codec::Writer writer;
  codec::write(writer, message);
  CALLBOARD_TRY(writer.check_limits());
  return writer.take();
}

Result<DomainMessage> decode_domain_message(std::string_view bytes) {
  codec::Reader reader(bytes, kWhat);
  DomainMessage message;
  if (!codec::read(reader, message) || !reader.finish()) return fail(reader.error());
  CALLBOARD_TRY(check(message));
  return message;
}

}  // namespace callboard
