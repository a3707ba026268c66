// From a call's stack to the message for a child, and back.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/stack.h>
#include <c10/core/Storage.h>

#include "kernels/gil_domain.h"
#include "kernels/kernel_failure.h"
#include "kernels/process_domain/domain_child.h"

namespace callboard::kernels {

[[noreturn]] inline void give_up(Error error) { throw KernelFailure(std::move(error)); }

/// All of it throws KernelFailure. The compute stream's thread.
class CallPacker {
 public:
  explicit CallPacker(const DomainHost& host) : host_(host) {}

  /// `storages` gets one for each of the message's, by number, and what was made for it; keep them until the answer.
  /// `lendable` gets what stands for each on its way: on a device itself, or its copy.
  DomainCall pack(const PythonOperator& op, const torch::jit::Stack& stack, std::vector<c10::Storage>& storages,
                  std::vector<c10::Storage>& lendable) const;
  /// Lends `child` what lies in the device's own memory, of `lendable`: what the call names as such becomes leases.
  void lend(DomainChild& child, DomainCall& call, const std::vector<c10::Storage>& lendable) const;
  /// The results of `child` become the stack.
  void unpack(const PythonOperator& op, DomainChild& child, const DomainResult& result,
              const std::vector<c10::Storage>& given, torch::jit::Stack& stack) const;

  // See GilDomain.
  c10::Storage memory_to_write(const c10::Storage& like) const;
  bool writes_in_place(const c10::Storage& storage) const;

 private:
  Result<DomainStorage> pack_storage(const c10::Storage& storage,
                                     const std::vector<const c10::StorageImpl*>& written) const;
  c10::Storage arena_memory(std::size_t bytes) const;
  c10::Storage device_memory(const c10::Storage& like) const;
  std::optional<DomainPlace> place_of(const c10::Storage& storage) const;

  const DomainHost& host_;
};

}  // namespace callboard::kernels
