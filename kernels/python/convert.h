// Tensors and values to Python and back, without a copy and without letting Python near a Blob's own tensor.
//
// LibTorch takes the GIL by itself whenever a tensor or a storage that has a Python object changes between one and two
// references, on whatever thread. So Python gets a tensor over a storage of its own (the same memory; it holds the
// Blob's storage), and of what comes back only tensors are kept that have no Python object, over storages that have
// none and that Python cannot reach any more. Dropping a tensor that went through here takes no GIL anywhere.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/StorageImpl.h>

#include "kernels/gil_ledger.h"
#include "kernels/python/py_ref.h"
#include "messages/base/error.h"

namespace callboard::kernels {

/// Of the interpreter in this process; lives as long as the process.
ConversionCounts& conversion_counts();

/// Which storages ATen allocates on a device: those alone may leave Python without a copy. One for each domain.
class KnownMemory {
 public:
  /// Allocates a small and a large block and gives them back.
  explicit KnownMemory(c10::Device device);
  bool knows(const c10::Storage& storage) const;

 private:
  std::vector<c10::DeleterFnPtr> deleters_;
};

/// A tensor of the same memory, sizes, strides, conj and neg bits over a storage of its own. An ordinary tensor (no
/// inference tensor) with a version of its own, which is 0; requires grad as `tensor` does. Outside InferenceMode, any
/// thread. kUnsupported for a tensor without strides (sparse).
Result<at::Tensor> alias_for_python(const at::Tensor& tensor);
/// Counts what was written to it through any tensor that shares its version.
bool was_written(const at::Tensor& alias);

/// A new torch.Tensor for `alias`; None where it is undefined. The GIL is held. nullptr with an exception set.
PyRef to_object(const at::Tensor& alias);
PyRef to_object(at::Tensor&& alias);
/// The tensor of a torch.Tensor as it is, for a look; valid as long as the object. The GIL is held.
const at::Tensor& tensor_of(const PyRef& object);

/// The tensor of a torch.Tensor, without its Python object; over a Blob's own storage where Python was given that.
/// kOutputMismatch, naming what it is instead: None, a list, a dict, a number, anything else; a subclass with a Python
/// dispatch of its own; sparse. The GIL is held, InferenceMode off.
Result<at::Tensor> to_tensor(PyObject* object);
/// Of one tensor, a tuple or a list. kOutputMismatch for another count than `count` (where one is given), for lists
/// within, and as above, with the position.
Result<std::vector<at::Tensor>> to_tensor_array(PyObject* object, std::optional<std::size_t> count);

/// What kind of value an argument or a result is; fixed while loading.
enum class PythonValue : std::uint8_t { kPlain, kTensor, kTensorList, kDtype, kLayout, kMemoryFormat };

/// kUnsupported, naming the argument and its type: generators, streams, dicts and other types of TorchScript.
Result<PythonValue> python_value_of(const c10::Argument& argument);
/// A number, text, None, device, dtype or list of such; not a tensor. nullptr with an exception set.
PyRef plain_to_object(const c10::IValue& value, PythonValue as);

/// The results of a call onto the stack, one for each return of the schema. kOutputMismatch.
Status push_results(PyObject* result, const c10::FunctionSchema& schema, torch::jit::Stack& stack);

/// A storage that a call was given, and Python's own one over it.
struct LentOut {
  std::size_t argument;  ///< of the schema
  const c10::StorageImpl* original;
  c10::weak_intrusive_ptr<c10::StorageImpl> lent;
};

/// kOutputMismatch for a result that is an argument or looks into one, or into another result, where the schema does
/// not say so (Tensor(a) at both): loader and planner go by the schema. torch.library holds eager calls to the same.
/// `results`: one for each return, in memory of their own or over the originals of `lent`.
Status check_sharing(std::span<const c10::IValue> results, const c10::FunctionSchema& schema,
                     std::span<const LentOut> lent);

/// Once everything that Python made in the call is gone, the GIL still held: results whose memory Python can still
/// reach (it would write to what others read), or that ATen did not allocate, are copied. A result over what the call
/// was given is over a blob's own storage, and stays.
void own_results(torch::jit::Stack& stack, const KnownMemory& memory, std::span<const LentOut> lent);

}  // namespace callboard::kernels
