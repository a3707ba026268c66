// Arguments and results of a call, as a message and as what LibTorch calls with.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>
#include <c10/core/Storage.h>

#include "messages/base/error.h"
#include "messages/domain_messages.h"

namespace callboard::kernels {

/// One side's message in the making: values, the tensors they name, the storages those lie in, each once.
class DomainPacker {
 public:
  /// How a storage travels.
  using PackStorage = std::function<Result<DomainStorage>(const c10::Storage&)>;
  explicit DomainPacker(PackStorage pack) : pack_(std::move(pack)) {}

  /// kUnsupported for values that no schema of a Python kernel has, and for dtypes and layouts that do not travel.
  Result<DomainValue> value(const c10::IValue& value);

  std::vector<DomainTensor> tensors;
  std::vector<DomainStorage> storages;

 private:
  Result<std::int64_t> tensor(const at::Tensor& tensor);
  Result<DomainValue> list(const c10::IValue& value);

  const PackStorage pack_;
  std::vector<const c10::StorageImpl*> packed_;  // by number of the storage
};

/// The other way.
class DomainUnpacker {
 public:
  /// `storages`: one for each of the message's.
  DomainUnpacker(std::vector<c10::Storage> storages, const std::vector<DomainTensor>& tensors)
      : storages_(std::move(storages)), tensors_(tensors) {}

  /// `declared` says of what type lists are. kMalformed for a tensor that reaches beyond its storage.
  Result<c10::IValue> value(const DomainValue& value, const c10::Argument& declared) const;

 private:
  Result<at::Tensor> tensor(std::int64_t index) const;

  const std::vector<c10::Storage> storages_;
  const std::vector<DomainTensor>& tensors_;
};

/// The bytes of a storage, in memory of their own that ATen allocates.
c10::Storage storage_of_bytes(std::string_view bytes);
/// A storage over foreign memory that `keep` keeps.
c10::Storage storage_over(std::byte* data, std::uint64_t bytes, std::shared_ptr<void> keep);

}  // namespace callboard::kernels
