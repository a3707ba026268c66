#include "actors/client/input_pack.h"

#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "actors/client/tensor_parts.h"
#include "messages/alignment.h"
#include "messages/inline_limit.h"

namespace callboard::actors {
namespace {

/// The bytes of a tensor that its elements can touch: from its first element to the end of its last.
struct Touched {
  std::uint64_t start = 0;
  std::uint64_t bytes = 0;
};

struct Describe {
  InputDescription operator()(std::monostate) const { return {ValueKind::kNone, {}, 0}; }
  InputDescription operator()(const TensorRef& tensor) const { return {ValueKind::kTensor, tensor.meta, 0}; }
  InputDescription operator()(std::int64_t value) const { return {ValueKind::kInt, {}, value}; }
  InputDescription operator()(double) const { return {ValueKind::kFloat, {}, 0}; }
  InputDescription operator()(bool value) const { return {ValueKind::kBool, {}, value ? 1 : 0}; }
};

/// Everything but a tensor travels as it is.
struct PlainValue {
  WireValue operator()(const TensorRef&) const { return std::monostate(); }
  template <class T>
  WireValue operator()(const T& value) const {
    return value;
  }
};

Status check_count(const ProgramGraph& graph, std::size_t given) {
  const std::size_t wanted = graph.inputs.size();
  if (given == wanted) return {};
  std::string message = "program '" + graph.name + "' takes " + std::to_string(wanted) + " inputs, " +
                        std::to_string(given) + (given == 1 ? " was given" : " were given");
  if (given < wanted) message += "; the first that is missing is '" + graph.inputs[given].name + "'";
  return fail(ErrorCode::kBadInput, std::move(message));
}

Result<Touched> touched(const std::string& name, const TensorRef& tensor) {
  CALLBOARD_ASSIGN(const std::uint64_t extent, check_tensor_memory(name, tensor));
  if (extent == 0) return Touched{};
  const std::uint64_t start = static_cast<std::uint64_t>(tensor.meta.storage_offset) * dtype_size(tensor.meta.dtype);
  return Touched{start, extent - start};
}

class Packer {
 public:
  Packer(ClientMemory& memory, PackedInputs& packed) : memory_(memory), packed_(packed) {}

  Result<TensorHandle> pack(const std::string& name, const TensorRef& tensor) {
    CALLBOARD_ASSIGN(const Touched part, touched(name, tensor));
    TensorHandle handle;
    handle.meta = tensor.meta;
    if (part.bytes <= inline_bytes_max() && inline_bytes_ + part.bytes <= kInlineBytesPerRequestMax) {
      inline_bytes_ += part.bytes;
      InlineBytes bytes;
      const std::byte* from = tensor.data + part.start;
      const std::size_t offset = part.bytes > 0 ? offset_like(from, dtype_size(handle.meta.dtype)) : 0;
      if (part.bytes > 0) {
        bytes.bytes.resize(offset);
        bytes.bytes.append(reinterpret_cast<const char*>(from), part.bytes);
      }
      handle.meta.storage_offset = static_cast<std::int64_t>(offset / dtype_size(handle.meta.dtype));
      handle.data = std::move(bytes);
      return handle;
    }
    if (auto block = memory_.find(tensor.data)) {
      if (part.start + part.bytes > block->bytes) {
        return fail(ErrorCode::kBadInput, "input '" + name + "', " + tensor.meta.to_string() +
                                              ": its elements reach to byte " +
                                              std::to_string(part.start + part.bytes) + ", its shared memory has " +
                                              std::to_string(block->bytes));
      }
      packed_.holds.push_back(tensor.keep);
      handle.data = std::move(*block);
      return handle;
    }
    const std::byte* from = tensor.data + part.start;
    const std::size_t offset = offset_like(from, dtype_size(handle.meta.dtype));
    handle.meta.storage_offset = static_cast<std::int64_t>(offset / dtype_size(handle.meta.dtype));
    auto copied = copy(from, part.bytes, offset);
    if (!copied) {
      Error error = std::move(copied).error();
      error.message =
          "input '" + name + "', " + tensor.meta.to_string() + ", cannot be put into shared memory: " + error.message;
      return fail(std::move(error));
    }
    handle.data = std::move(*copied);
    return handle;
  }

 private:
  struct Copy {
    const std::byte* from;
    std::uint64_t bytes;
    ArenaBlock block;
  };

  Result<ArenaBlock> copy(const std::byte* from, std::uint64_t bytes, std::size_t offset) {
    // The same memory given twice is copied once.
    for (const auto& earlier : copies_) {
      if (earlier.from == from && earlier.bytes == bytes) return earlier.block;
    }
    CALLBOARD_ASSIGN(std::shared_ptr<void> to, memory_.allocate(offset + bytes));
    std::memcpy(static_cast<std::byte*>(to.get()) + offset, from, bytes);
    auto block = memory_.find(to.get());
    if (!block) return fail(ErrorCode::kInternal, "the arena does not know the block that it gave");
    packed_.holds.push_back(std::move(to));
    copies_.push_back({from, bytes, *block});
    return std::move(*block);
  }

  ClientMemory& memory_;
  PackedInputs& packed_;
  std::size_t inline_bytes_ = 0;
  std::vector<Copy> copies_;
};

}  // namespace

std::vector<ValueSpec> input_specs(const ProgramGraph& graph) {
  std::vector<ValueSpec> specs;
  for (const auto& input : graph.inputs) {
    specs.push_back(graph.values[input.value]);
    specs.back().name = input.name;
  }
  return specs;
}

std::vector<InputDescription> describe_inputs(std::span<const ClientValue> inputs) {
  std::vector<InputDescription> descriptions;
  descriptions.reserve(inputs.size());
  for (const auto& input : inputs) descriptions.push_back(std::visit(Describe{}, input));
  return descriptions;
}

std::uint64_t shared_bytes(std::span<const ClientValue> inputs, const ClientMemory& memory) {
  std::uint64_t total = 0;
  std::set<std::pair<const std::byte*, std::uint64_t>> counted;
  for (const auto& input : inputs) {
    const auto* tensor = std::get_if<TensorRef>(&input);
    if (tensor == nullptr) continue;
    const auto part = touched({}, *tensor);
    if (!part || part->bytes <= limits::kInlineBytesMax || memory.find(tensor->data)) continue;
    if (counted.emplace(tensor->data + part->start, part->bytes).second) total += part->bytes;
  }
  return total;
}

Result<PackedInputs> pack_inputs(const ProgramGraph& graph, std::span<const ValueSpec> specs,
                                 std::span<const ClientValue> inputs, ClientMemory& memory) {
  CALLBOARD_TRY(check_count(graph, inputs.size()));
  PackedInputs packed;
  CALLBOARD_ASSIGN(packed.symbols, bind_symbols(graph.symbols, specs, describe_inputs(inputs)));
  packed.values.reserve(inputs.size());
  Packer packer(memory, packed);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (const auto* tensor = std::get_if<TensorRef>(&inputs[i])) {
      CALLBOARD_ASSIGN(TensorHandle handle, packer.pack(specs[i].name, *tensor));
      packed.values.emplace_back(std::move(handle));
    } else {
      packed.values.push_back(std::visit(PlainValue{}, inputs[i]));
    }
  }
  return packed;
}

}  // namespace callboard::actors
