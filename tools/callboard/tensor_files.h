// Tensors from and to files: .npy (versions 1 and 2) and safetensors. What is read may be hostile: every number is
// checked before it is used, and nothing is allocated that the file does not hold.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "messages/tensor_ref.h"
#include "messages/base/error.h"

namespace callboard::cli {

/// Maps the file; the tensor's memory is that mapping (private: writes stay in this process). Fortran order becomes
/// strides. Little endian only; kUnsupported names dtypes that have no counterpart, kMalformed and kTruncated the
/// fault.
Result<actors::TensorRef> read_npy(const std::string& path);
/// kUnsupported for dtypes that NumPy lacks (bfloat16, float8…). The tensor may have any strides.
Status write_npy(const std::string& path, const actors::TensorRef& tensor);

using NamedTensors = std::vector<std::pair<std::string, actors::TensorRef>>;
Result<NamedTensors> read_safetensors(const std::string& path);
Status write_safetensors(const std::string& path, const NamedTensors& tensors);

/// By the file's first bytes, not by its name.
bool is_npy(const std::string& path);

/// The same tensor with contiguous strides and offset 0; itself if it has them.
Result<actors::TensorRef> contiguous(const actors::TensorRef& tensor);
/// A tensor of no dimensions.
actors::TensorRef scalar_tensor(std::int64_t value);
actors::TensorRef scalar_tensor(double value);
actors::TensorRef scalar_tensor(bool value);

/// "1, 2.5, nan, …": the first elements, for people.
std::string first_elements(const actors::TensorRef& tensor, std::size_t count);

}  // namespace callboard::cli
