// From what a caller gives to what travels: checks, inline copies, shared memory.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "actors/client/client_memory.h"
#include "messages/tensor_ref.h"
#include "messages/graph.h"
#include "messages/graph_check.h"

namespace callboard::actors {

struct PackedInputs {
  std::vector<WireValue> values;  ///< one per ProgramInput
  std::vector<std::int64_t> symbols;
  std::vector<std::shared_ptr<void>> holds;  ///< until InputsFree (CS-2)
};

/// Bytes of one request that may travel inside its message; what comes after goes to the arena, however small.
constexpr std::size_t kInlineBytesPerRequestMax = 4u << 20;

/// What the program says of each of its inputs, under the input's name. Made once for each program.
std::vector<ValueSpec> input_specs(const ProgramGraph& graph);

/// What bind_symbols() wants to know of them.
std::vector<InputDescription> describe_inputs(std::span<const ClientValue> inputs);

/// Bytes that pack_inputs() would put into the arena, each memory once: nothing for what lies there or travels inline.
/// A lower bound where so many small tensors come that some do not travel inline.
std::uint64_t shared_bytes(std::span<const ClientValue> inputs, const ClientMemory& memory);

/// Runs in the caller's thread. kBadInput names the input: count, kind, dtype, rank, sizes, symbols, memory that the
/// tensor reaches beyond. kOutOfMemory where the arena has no room.
Result<PackedInputs> pack_inputs(const ProgramGraph& graph, std::span<const ValueSpec> specs,
                                 std::span<const ClientValue> inputs, ClientMemory& memory);

}  // namespace callboard::actors
