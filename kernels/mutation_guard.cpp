#include "kernels/mutation_guard.h"

#include <algorithm>
#include <utility>

#include <ATen/core/List.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/set.h>

namespace callboard::kernels {

namespace {

const c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

at::Tensor view_of(const at::Tensor& tensor, const c10::Storage& storage) {
  at::Tensor moved = at::empty({0}, tensor.options());
  moved.set_(storage, tensor.storage_offset(), tensor.sizes(), tensor.strides());
  if (tensor.is_conj()) moved._set_conj(true);
  if (tensor.is_neg()) moved._set_neg(true);
  return moved;
}

/// All bytes of a storage as a tensor, on the device of `like`.
at::Tensor whole_of(const at::Tensor& like, const c10::Storage& storage) {
  at::Tensor whole = at::empty({0}, like.options().dtype(at::kByte));
  return whole.set_(storage, 0, {static_cast<std::int64_t>(storage.nbytes())}, {1});
}

c10::Storage fresh_storage_for(const at::Tensor& tensor) {
  const auto bytes = static_cast<std::int64_t>(tensor.storage().nbytes());
  return at::empty({bytes}, tensor.options().dtype(at::kByte)).storage();
}

/// Calls `change` with each tensor of a value, itself or inside a list, and stores what it returns.
template <class Change>
void change_tensors(c10::IValue& value, const Change& change) {
  if (value.isTensor()) {
    if (auto changed = change(value.toTensor()); changed.defined()) value = c10::IValue(std::move(changed));
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> tensors = value.toTensorList();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (auto changed = change(tensors.get(i)); changed.defined()) tensors.set(i, std::move(changed));
    }
  }
}

}  // namespace

void MutationGuard::protect(const at::Tensor& tensor, bool lasting) {
  if (storage_of(tensor) != nullptr) protected_.push_back({tensor.storage().getWeakStorageImpl(), lasting});
}

bool MutationGuard::is_protected(const at::Tensor& tensor) const {
  const c10::StorageImpl* storage = storage_of(tensor);
  return storage != nullptr && std::ranges::any_of(protected_, [storage](const auto& known) {
           return known.storage._unsafe_get_target() == storage;
         });
}

void MutationGuard::note_undeclared_write(const at::Tensor& tensor) {
  const c10::StorageImpl* storage = storage_of(tensor);
  damaged_ = damaged_ || std::ranges::any_of(protected_, [storage](const Protected& known) {
               return known.lasting && known.storage._unsafe_get_target() == storage;
             });
}

void MutationGuard::before_write(c10::IValue& argument, torch::jit::Stack& stack, std::span<Blob> blobs) {
  if (argument.isTensor()) {
    const at::Tensor tensor = argument.toTensor();
    if (is_protected(tensor)) move_to(fresh_storage_for(tensor), tensor, stack, blobs);
  } else if (argument.isTensorList()) {
    const std::vector<at::Tensor> tensors = argument.toTensorVector();
    for (const at::Tensor& tensor : tensors) {
      if (is_protected(tensor)) move_to(fresh_storage_for(tensor), tensor, stack, blobs);
    }
  }
}

void MutationGuard::move_to(const c10::Storage& fresh, const at::Tensor& tensor, torch::jit::Stack& stack,
                            std::span<Blob> blobs) {
  const at::Tensor kept = tensor;  // it may be one of those that move
  const c10::Storage& old = kept.storage();
  whole_of(kept, fresh).copy_(whole_of(kept, old));
  const c10::StorageImpl* from = old.unsafeGetStorageImpl();
  const auto move = [&](const at::Tensor& seen) {
    return storage_of(seen) == from ? view_of(seen, fresh) : at::Tensor();
  };
  for (c10::IValue& argument : stack) change_tensors(argument, move);
  for (Blob& blob : blobs) {
    if (!blob.filled() || !blob.value().isTensor()) continue;
    if (at::Tensor moved = move(blob.value().toTensor()); moved.defined()) blob.rebase(std::move(moved));
  }
}

}  // namespace callboard::kernels
