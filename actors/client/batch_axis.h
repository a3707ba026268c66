// Where a program's batch dimension is: found once from its graph, used by batching and by replicas. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "messages/tensor_ref.h"
#include "messages/graph.h"

namespace callboard::actors {

/// What the user declares: dimension `dim` of every tensor input whose size there is a symbol; or, where that names
/// several symbols, the dimensions of the inputs in `inputs` alone.
struct BatchDim {
  std::size_t dim = 0;
  std::map<std::string, std::size_t> inputs;
};

/// Along the axis, row i of the outputs belongs to row i of the inputs and to no other row. Sizes cannot show whether
/// the program's numbers obey this (a softmax over the batch does not): that is the caller's word.
struct BatchAxis {
  std::size_t symbol = 0;
  std::string name;  ///< of the symbol
  std::int64_t min = 0;
  std::int64_t max = 0;
  std::vector<std::optional<std::size_t>> inputs;   ///< dimension of each ProgramInput; nullopt: the same for all rows
  std::vector<std::optional<std::size_t>> outputs;  ///< of each ProgramOutput; nullopt: no value of the program's run
  std::vector<ValueSpec> specs;                     ///< input_specs(graph)
};

/// kUnsupported naming the input or output and what to do: no symbol or several there, a size that depends on the
/// symbol in another form than alone and once, an output without it, a program with state.
Result<BatchAxis> find_batch_axis(const ProgramGraph& graph, const BatchDim& declared);

/// One request, checked against the program as Program::submit does, but for its memory (check_tensor_memory).
struct BoundRequest {
  std::int64_t rows = 0;
  std::vector<std::int64_t> symbols;
  /// One per ProgramOutput: what an ArgSymbol output is for this request, else nullopt.
  std::vector<std::optional<std::int64_t>> known;
};
Result<BoundRequest> bind_request(const ProgramGraph& graph, const BatchAxis& axis,
                                  std::span<const ClientValue> inputs);

}  // namespace callboard::actors
