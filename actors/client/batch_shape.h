// What requests of a batched program have in common, and how a batch's result is cut into theirs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/client/batch_axis.h"
#include "actors/client/client.h"
#include "actors/client/future_state.h"

namespace callboard::actors {

/// What every request's result needs of its program.
struct BatchShape {
  std::shared_ptr<Program> program;
  BatchAxis axis;
  bool pure = false;
};

/// One request's part of its batch. Holds no member, whose outcome it becomes.
struct BatchPart {
  std::int64_t start = 0;  ///< first row
  std::int64_t rows = 0;
  std::int64_t batch_rows = 0;
  std::vector<std::optional<std::int64_t>> known;  ///< outputs that the request's sizes alone say
};

/// Requests whose keys are equal may share a batch. Tensors are contiguous.
std::string batch_key(const BatchShape& shape, const std::vector<ClientValue>& inputs);

/// The part's own outputs; a failure is everybody's. kOutputMismatch where an output has not the batch's rows.
FutureValue cut_result(const BatchShape& shape, const BatchPart& part, const FutureValue& whole);

}  // namespace callboard::actors
