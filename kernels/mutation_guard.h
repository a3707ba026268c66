// Keeps what a run was given (inputs, constants, state) as it was, whatever its operators write to.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/core/Storage.h>

#include "kernels/blob.h"

namespace callboard::kernels {

/// Copy before the first write. The storages that a run was given are protected; before an operator writes to one of
/// them, it is copied once and every tensor of the run that looks into it (views made earlier, too) moves to the copy.
/// So the run sees its own writes as eager PyTorch would, and nobody else does. Exact, since it goes by the storage
/// that a tensor really has and not by what a schema says about views. Belongs to one run at a time.
class MutationGuard {
 public:
  void begin() { protected_.clear(); }
  /// `lasting`: it is there after the run, too (a constant, a state).
  void protect(const at::Tensor& tensor, bool lasting = false);
  bool is_protected(const at::Tensor& tensor) const;

  /// The tensor's whole storage is copied to `fresh`, which is as large, and every tensor of the run that looks into it
  /// moves there.
  static void move_to(const c10::Storage& fresh, const at::Tensor& tensor, torch::jit::Stack& stack,
                      std::span<Blob> blobs);

  /// `argument` is about to be written to: a tensor or a list of tensors, on `stack`.
  void before_write(c10::IValue& argument, torch::jit::Stack& stack, std::span<Blob> blobs);

  /// Somebody wrote to it without asking. What ends with the run is the run's own harm; what lasts is damaged for good.
  void note_undeclared_write(const at::Tensor& tensor);
  bool damaged() const { return damaged_; }

 private:
  struct Protected {
    /// Weak: data go back when the run drops them, but the address is not used again while it stands here.
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    bool lasting = false;
  };
  std::vector<Protected> protected_;
  bool damaged_ = false;
};

}  // namespace callboard::kernels
