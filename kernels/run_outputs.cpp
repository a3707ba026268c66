#include "kernels/run_outputs.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/clone.h>

namespace callboard::kernels {

namespace {

/// A state that is a small view of a huge storage is copied, so that it does not keep all of it.
constexpr std::uint64_t kStateSpreadMax = 4;

bool same_storage(const at::Tensor& a, const at::Tensor& b) {
  return a.has_storage() && b.has_storage() && a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl();
}

}  // namespace

Status take_states(const LoadedFragment& fragment, std::vector<at::Tensor>& states) {
  for (const LoadedFragment::BoundState& state : fragment.states) {
    const Blob& after = fragment.blobs[state.after];
    if (!after.filled() || !after.value().isTensor()) {
      return fail(ErrorCode::kOutputMismatch, "the new value of state '" + state.name + "' is no tensor");
    }
    at::Tensor tensor = after.value().toTensor();
    const bool constant =
        std::ranges::any_of(fragment.constants, [&](const auto& known) { return same_storage(known.tensor, tensor); });
    const bool present =
        std::ranges::any_of(fragment.states, [&](const auto& known) { return same_storage(known.current, tensor); });
    bool copy = fragment.guard.is_protected(tensor) && !constant && !present;
    const std::uint64_t own_bytes = static_cast<std::uint64_t>(tensor.numel()) * tensor.element_size();
    copy = copy || (tensor.has_storage() && tensor.storage().nbytes() / kStateSpreadMax > own_bytes);
    try {
      states.push_back(copy ? at::clone(tensor) : std::move(tensor));
    } catch (const std::exception& thrown) {
      return fail(ErrorCode::kOutOfMemory,
                  "the new value of state '" + state.name + "' cannot be kept: " + thrown.what());
    }
  }
  return {};
}

void collect_outputs(PendingRun& run, const LoadedFragment& fragment, const std::vector<at::Tensor>& states,
                     const OutputReaders& readers) {
  run.files = fragment.files;
  const auto add = [&run](ExportItem item, bool to_client) {
    run.items.push_back(std::move(item));
    run.to_client.push_back(to_client);
  };
  std::size_t edge = 0;
  for (const LoadedFragment::Output& output : fragment.outputs) {
    ExportItem item;
    item.value = fragment.blobs[output.slot].value();
    item.name = output.name;
    if (item.value.isTensor()) {
      const at::Tensor& tensor = item.value.toTensor();
      item.copy = fragment.guard.is_protected(tensor) ||
                  std::ranges::any_of(states, [&](const at::Tensor& state) { return same_storage(state, tensor); });
    }
    const bool left_here = output.to_client && readers.client_reads_device;
    if (left_here) {
      ExportItem client = item;
      client.holders = {run.order.client};
      client.reads_device = {true};
      client.small_inline = false;
      add(std::move(client), true);
    }
    const bool with_client = output.to_client && !left_here;
    if (with_client) item.holders.push_back(run.order.client);
    for (std::size_t i = 0; i < output.edges; ++i, ++edge) {
      item.holders.push_back(edge < run.order.edge_holders.size() ? run.order.edge_holders[edge] : run.order.client);
    }
    if (item.holders.empty()) continue;
    for (std::size_t i = 0; readers.device_reads_device && i < item.holders.size(); ++i) {
      const bool client = with_client && i == 0;
      item.reads_device.push_back(!client && readers.device_reads_device(item.holders[i]));
    }
    add(std::move(item), with_client);
  }
}

Status await_reads_of_others(const RunOrder& order, const ActorId& self, const DeviceExchange& exchange,
                             StreamContext& stream) {
  if (!reads_memory_of_others(order, self)) return {};
  CALLBOARD_TRY(stream.synchronize(order.deadline));
  for (const WireValue& input : order.inputs) {
    if (const CudaIpcBlock* lent = lent_block(input)) CALLBOARD_TRY(exchange.still_there(*lent));
  }
  return {};
}

}  // namespace callboard::kernels
