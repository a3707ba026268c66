// A tensor of a client, without LibTorch: description and bytes, owned by whoever made it.
#pragma once

#include <cstddef>
#include <memory>
#include <variant>

#include "messages/tensor_meta.h"

namespace callboard {

/// Shares its memory: copies are cheap. `data` points at the storage's start (meta.storage_offset is applied by the
/// reader). Results live in memory of the device that made them, mapped privately: writing is allowed and changes this
/// process's view only; the lease ends when the last copy of `keep` goes.
struct TensorRef {
  TensorMeta meta;
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;  ///< length of the storage behind `data`
  std::shared_ptr<void> keep;
};

/// What a program takes and gives: None, a tensor, an int, a float, a bool.
using ClientValue = std::variant<std::monostate, TensorRef, std::int64_t, double, bool>;

}  // namespace callboard

namespace callboard::actors {
using callboard::ClientValue;
using callboard::TensorRef;
}  // namespace callboard::actors
