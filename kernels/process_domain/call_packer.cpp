#include "kernels/process_domain/call_packer.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

#include <ATen/ops/empty.h>

#include "kernels/process_domain/domain_values.h"
#include "messages/inline_limit.h"

namespace callboard::kernels {

namespace {

/// On the thread's current stream, where that is what copies.
void copy_storage(const c10::Storage& to, const c10::Storage& from) {
  const auto whole = [](const c10::Storage& storage) {
    at::Tensor bytes = at::empty({0}, at::TensorOptions().dtype(at::kByte).device(storage.device()));
    return bytes.set_(storage, 0, {static_cast<std::int64_t>(storage.nbytes())}, {1});
  };
  whole(to).copy_(whole(from));
}

}  // namespace

std::optional<DomainPlace> CallPacker::place_of(const c10::Storage& storage) const {
  const void* data = storage.data();
  const std::uint64_t bytes = storage.nbytes();
  if (const auto own = host_.arena->find(data)) {
    const auto inside =
        static_cast<std::uint64_t>(static_cast<const std::byte*>(data) - static_cast<const std::byte*>(own->block));
    if (bytes > own->block_bytes - inside) return std::nullopt;
    return DomainPlace{host_.device, own->segment, own->block_offset + inside, bytes, false};
  }
  if (const auto lent = host_.segments == nullptr ? std::nullopt : host_.segments->find(data)) {
    return DomainPlace{lent->owner, lent->segment, lent->offset, bytes, false};
  }
  if (host_.processes.find_constant) {
    if (const auto constant = host_.processes.find_constant(data)) {
      return DomainPlace{kConstants, constant->segment, constant->offset, bytes, false};
    }
  }
  return std::nullopt;
}

bool CallPacker::writes_in_place(const c10::Storage& storage) const {
  if (!storage.device().is_cpu()) return host_.memory.exchange != nullptr && host_.memory.exchange->lends(storage);
  const auto own = host_.arena->find(storage.data());
  return own && own->zone == Zone::kHelpers;
}

c10::Storage CallPacker::memory_to_write(const c10::Storage& like) const {
  return like.device().is_cpu() ? arena_memory(like.nbytes()) : device_memory(like);
}

/// In a run what LibTorch allocates on the stream can be lent. Throws c10::OutOfMemoryError.
c10::Storage CallPacker::device_memory(const c10::Storage& like) const {
  const auto options = at::TensorOptions().dtype(at::kByte).device(like.device());
  c10::Storage fresh = at::empty({static_cast<std::int64_t>(like.nbytes())}, options).storage();
  if (fresh.nbytes() == 0 || writes_in_place(fresh)) return fresh;
  give_up(Error(ErrorCode::kUnsupported,
                "a tensor on " + like.device().str() + " cannot be shared with a GIL domain in a process",
                "give the device python: inline"));
}

c10::Storage CallPacker::arena_memory(std::size_t bytes) const {
  auto block = host_.arena->allocate_for_helpers(std::max<std::size_t>(bytes, 1));
  if (!block) give_up(std::move(block).error());
  Arena* const arena = host_.arena;
  const std::shared_ptr<void> keep(*block, [arena](void* data) { arena->deallocate(data); });
  return storage_over(static_cast<std::byte*>(*block), bytes, keep);
}

Result<DomainStorage> CallPacker::pack_storage(const c10::Storage& storage,
                                               const std::vector<const c10::StorageImpl*>& written) const {
  const bool writable = std::ranges::find(written, storage.unsafeGetStorageImpl()) != written.end();
  if (!storage.device().is_cpu()) {
    if (storage.nbytes() == 0 || writes_in_place(storage)) {
      return DomainStorage(DomainPlace{host_.device, 0, 0, storage.nbytes(), writable, true});  // see lend()
    }
    return fail(ErrorCode::kUnsupported, "memory of the device that cannot be lent");
  }
  if (storage.nbytes() == 0 || (!writable && storage.nbytes() <= inline_bytes_max())) {
    return DomainStorage(InlineBytes{std::string(static_cast<const char*>(storage.data()), storage.nbytes())});
  }
  if (auto place = place_of(storage)) {
    place->writable = writable;
    return DomainStorage(std::move(*place));
  }
  return fail(ErrorCode::kUnsupported,
              "a tensor of " + std::to_string(storage.nbytes()) +
                  " bytes lies in memory that cannot be shared with a GIL domain in a process",
              "give the device python: inline");
}

DomainCall CallPacker::pack(const PythonOperator& op, const torch::jit::Stack& stack,
                            std::vector<c10::Storage>& storages, std::vector<c10::Storage>& lendable) const {
  const auto& arguments = op.schema.arguments();
  std::vector<const c10::StorageImpl*> written;
  for (std::size_t i = 0; i < stack.size() && i < arguments.size(); ++i) {
    if (arguments[i].alias_info() == nullptr || !arguments[i].alias_info()->isWrite()) continue;
    const auto note = [&](const at::Tensor& tensor) {
      if (tensor.defined() && tensor.has_storage() && writes_in_place(tensor.storage())) {
        written.push_back(tensor.storage().unsafeGetStorageImpl());
      }
    };
    if (stack[i].isTensor()) note(stack[i].toTensor());
    if (stack[i].isTensorList()) std::ranges::for_each(stack[i].toTensorVector(), note);
  }
  std::vector<c10::Storage> made;  // of copies
  DomainPacker packer([&](const c10::Storage& storage) -> Result<DomainStorage> {
    Result<DomainStorage> packed = pack_storage(storage, written);
    if (packed || packed.error().code != ErrorCode::kUnsupported) {
      storages.push_back(storage);
      lendable.push_back(storage);
      return packed;
    }
    // Ordinary memory of this process: what LibTorch or a library has allocated by itself. On a device also what others
    // lent: CUDA cannot pass that on.
    const c10::Storage copy = memory_to_write(storage);
    copy_storage(copy, storage);
    made.push_back(copy);
    storages.push_back(storage);
    lendable.push_back(copy);
    return pack_storage(copy, written);
  });
  DomainCall call;
  call.op = op.function;
  for (std::size_t i = 0; i < stack.size(); ++i) {
    auto value = packer.value(stack[i]);
    if (!value) {
      Error error = std::move(value).error();
      error.message = "argument '" + arguments[i].name() + "' of " + op.target + ": " + error.message;
      give_up(std::move(error));
    }
    call.arguments.push_back(std::move(*value));
  }
  call.tensors = std::move(packer.tensors);
  call.storages = std::move(packer.storages);
  storages.insert(storages.end(), made.begin(), made.end());
  return call;
}

void CallPacker::lend(DomainChild& child, DomainCall& call, const std::vector<c10::Storage>& lendable) const {
  for (std::size_t i = 0; i < call.storages.size(); ++i) {
    const auto* place = std::get_if<DomainPlace>(&call.storages[i]);
    if (place == nullptr || !place->device || place->bytes == 0) continue;
    auto lent = child.lend(lendable[i]);
    if (!lent) give_up(std::move(lent).error());
    call.storages[i] = std::move(*lent);
  }
}

void CallPacker::unpack(const PythonOperator& op, DomainChild& child, const DomainResult& result,
                        const std::vector<c10::Storage>& given, torch::jit::Stack& stack) const {
  std::vector<c10::Storage> storages;
  for (const DomainStorage& storage : result.storages) {
    if (const auto* bytes = std::get_if<InlineBytes>(&storage)) {
      storages.push_back(storage_of_bytes(bytes->bytes));
    } else if (const auto* place = std::get_if<DomainPlace>(&storage);
               place != nullptr && place->device && place->bytes == 0) {
      storages.push_back(at::empty({0}, at::TensorOptions().dtype(at::kByte).device(host_.memory.device)).storage());
    } else if (place != nullptr) {
      auto taken = child.take(*place);
      if (!taken) give_up(std::move(taken).error());
      storages.push_back(std::move(*taken));
    } else {
      const std::uint32_t index = std::get<DomainGiven>(storage).storage;
      if (index >= given.size()) give_up(Error(ErrorCode::kMalformed, "a result names an argument that is not there"));
      storages.push_back(given[index]);
    }
  }
  const DomainUnpacker unpacker(std::move(storages), result.tensors);
  const auto& returns = op.schema.returns();
  if (result.results.size() != returns.size()) {
    give_up(Error(ErrorCode::kMalformed, "the GIL domain's process gives another number of results than " + op.op));
  }
  torch::jit::Stack made;
  for (std::size_t i = 0; i < returns.size(); ++i) {
    auto value = unpacker.value(result.results[i], returns[i]);
    if (!value) give_up(std::move(value).error());
    made.push_back(std::move(*value));
  }
  stack = std::move(made);
}

}  // namespace callboard::kernels
