// Data-parallel replicas: one program on several devices, seen as one program.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "actors/client/batch_axis.h"
#include "actors/client/client.h"

namespace callboard::actors {

struct ReplicaOptions {
  /// Each request is divided along the batch over all replicas. Otherwise each goes as a whole to the replica with the
  /// fewest requests on their way, and the program needs no batch dimension.
  bool scatter = true;
  BatchDim dim;
};

/// Programs of the same graph, each on devices of its own, as one. graph() is theirs, plan() has all their fragments,
/// id() is of all of them together.
///
/// Refused here: kBadArgument for no replica or different graphs; kUnsupported for a program with state, since replicas
/// would drift apart, and, with scatter, for one without a batch dimension (see find_batch_axis).
///
/// Scatter. The rows of a request go in order to the replicas, as evenly as possible (7 rows on 3: 3, 2, 2); with fewer
/// rows than replicas, or than so many shares of the symbol's lower bound, fewer replicas take part, those with the
/// fewest requests on their way. Inputs are views of the caller's tensors, copied once into the message or the arena as
/// every request's are. Outputs are gathered in the replicas' order, contiguous, with one copy, on the thread that asks
/// for the result first, into memory of this process alone: not the arena, since a result that is an argument of the
/// next call may be written to while that runs. A request of one part is that replica's own, without a copy.
///
/// Room. Each part waits for its own as every request does (SubmitOptions), within the one deadline; where one is
/// refused the earlier ones are cancelled.
///
/// Errors. The first part that fails ends the request with its error, which names replica and device, and cancels the
/// other parts. A replica that lost its device is left out for a second as long as another one is there.
///
/// Any thread may submit. May outlive the client: requests are kCancelled then.
Result<std::shared_ptr<Program>> make_replicated(std::vector<std::shared_ptr<Program>> replicas,
                                                 const ReplicaOptions& options);

/// Loads the graph once for each placement, in order, and joins them; nothing is loaded if the options do not fit it.
/// The host keeps its constants once. An error names the replica.
Result<std::shared_ptr<Program>> load_replicas(Client& client, const ProgramGraph& graph,
                                               std::span<const ConstantBytes> constants,
                                               std::span<const Placement> placements, const ReplicaOptions& options,
                                               std::optional<Duration> deadline = {});

}  // namespace callboard::actors
