#include "actors/client/batch_shape.h"

#include <utility>

#include "actors/client/tensor_parts.h"
#include "messages/inline_limit.h"

namespace callboard::actors {
namespace {

Result<TensorRef> cut(const TensorRef& whole, std::size_t dim, const BatchPart& part, const std::string& output) {
  if (dim >= whole.meta.sizes.size() || whole.meta.sizes[dim] != part.batch_rows) {
    return fail(ErrorCode::kOutputMismatch, "output '" + output + "' is " + whole.meta.to_string() + ", a batch of " +
                                                std::to_string(part.batch_rows) +
                                                " rows must have as many at dimension " + std::to_string(dim));
  }
  TensorRef slice = tensor_slice(whole, dim, part.start, part.rows);
  // A small view would keep the whole batch's memory, and one whose rows overlap would share it with a neighbour.
  // On a GPU it is a view all the same: nothing here could copy it.
  const bool large = tensor_bytes(slice.meta) > inline_bytes_max() || slice.device;
  if (large && elements_are_disjoint(whole.meta)) return slice;
  return tensor_copy(slice, allocate_private);
}

void append_raw(std::string& key, const void* data, std::size_t size) {
  key.append(static_cast<const char*>(data), size);
}

struct KeyPart {
  std::string& key;
  std::optional<std::size_t> batch_dim;

  void operator()(std::monostate) const {}
  void operator()(const TensorRef& tensor) const {
    append_raw(key, &tensor.meta.dtype, sizeof tensor.meta.dtype);
    const std::size_t rank = tensor.meta.sizes.size();
    append_raw(key, &rank, sizeof rank);
    for (std::size_t dim = 0; dim < rank; ++dim) {
      if (batch_dim != dim) append_raw(key, &tensor.meta.sizes[dim], sizeof tensor.meta.sizes[dim]);
    }
    // Our copy is contiguous, so that equal tensors have equal bytes.
    if (!batch_dim) key += ContentHash::of(tensor.data, tensor.bytes).bytes();
  }
  template <class T>
  void operator()(const T& number) const {
    append_raw(key, &number, sizeof number);
  }
};

}  // namespace

std::string batch_key(const BatchShape& shape, const std::vector<ClientValue>& inputs) {
  std::string key;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    key += static_cast<char>(inputs[i].index());
    std::visit(KeyPart{key, shape.axis.inputs[i]}, inputs[i]);
  }
  return key;
}

FutureValue cut_result(const BatchShape& shape, const BatchPart& part, const FutureValue& whole) {
  if (!whole || part.rows == part.batch_rows) return whole;
  auto result = std::make_shared<RequestResult>();
  result->state_version = (*whole)->state_version;
  const auto& outputs = shape.program->graph().outputs;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const ClientValue& value = (*whole)->outputs[i];
    const auto* tensor = std::get_if<TensorRef>(&value);
    if (shape.axis.outputs[i] && tensor != nullptr) {
      CALLBOARD_ASSIGN(TensorRef slice, cut(*tensor, *shape.axis.outputs[i], part, outputs[i].name));
      result->outputs.emplace_back(std::move(slice));
    } else if (part.known[i]) {
      result->outputs.emplace_back(*part.known[i]);
    } else {
      result->outputs.push_back(value);
    }
  }
  return result;
}

}  // namespace callboard::actors
