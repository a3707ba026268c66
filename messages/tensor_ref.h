// A tensor of a client, without LibTorch: description and bytes, owned by whoever made it.
#pragma once

#include <cstddef>
#include <memory>
#include <variant>

#include "messages/base/error.h"
#include "messages/tensor_meta.h"

namespace callboard {

/// Where a result lies that was left on a GPU, as a client has it. Thread-safe.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  virtual int ordinal() const = 0;  ///< of the GPU, as CUDA numbers them in this process
  /// What `stream` (a cudaStream_t of that GPU) is given from here on runs after whoever wrote the memory, and the
  /// lease outlasts it. kTensorLost (its maker has ended), kDeviceFailed.
  virtual Status use_on(void* stream) = 0;
  /// After the last read is done, before anything made of it is shown: kTensorLost if its maker has ended meanwhile,
  /// since then what was read may have been anything; kDeviceFailed.
  virtual Status check() const = 0;
};

/// Shares its memory: copies are cheap. `data` points at the storage's start (meta.storage_offset is applied by the
/// reader). Results live in memory of the device that made them, mapped privately: writing is allowed and changes this
/// process's view only; the lease ends when the last copy of `keep` goes. With `device` it is the address of a GPU's
/// memory, which the host cannot touch: before a stream reads it, it is told by use_on(). Nobody may write there, since
/// others read the same bytes. The lease ends when what these streams had been given by the end of `keep` is done.
struct TensorRef {
  TensorMeta meta;
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;  ///< length of the storage behind `data`
  std::shared_ptr<void> keep;
  std::shared_ptr<DeviceMemory> device = nullptr;  ///< none: ordinary memory
};

/// What a program takes and gives: None, a tensor, an int, a float, a bool.
using ClientValue = std::variant<std::monostate, TensorRef, std::int64_t, double, bool>;

}  // namespace callboard

namespace callboard::actors {
using callboard::ClientValue;
using callboard::TensorRef;
}  // namespace callboard::actors
