// A fragment made ready: operators resolved, arguments prepared, constants bound. What a run fills in is inside, too,
// since runs of one fragment follow each other on one stream.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kernels/expr_table.h"
#include "kernels/kernel.h"
#include "kernels/memory_forecast.h"
#include "kernels/mutation_guard.h"
#include "kernels/runtime.h"

namespace callboard::kernels {

class GilDomain;

/// Belongs to the compute stream's thread once it is loaded.
struct LoadedFragment {
  struct Input {
    ValueCheck check;
    std::string name;
  };
  struct BoundConstant {
    Slot slot = kNoSlot;
    at::Tensor tensor;
  };
  /// Only at the end of a run that succeeded does `current` become what `after` is then.
  struct BoundState {
    std::string name;
    Slot before = kNoSlot;
    Slot after = kNoSlot;
    at::Tensor current;
  };
  struct Output {
    Slot slot = kNoSlot;
    ValueId value = kNoValue;
    std::string name;
    bool to_client = false;
    std::size_t edges = 0;
  };

  std::vector<std::string> symbol_names;
  std::vector<Input> inputs;
  std::vector<BoundConstant> constants;
  std::vector<std::shared_ptr<MappedFile>> files;  ///< that some of them lie in, each once
  std::vector<BoundState> states;
  std::uint64_t state_version = 0;  ///< runs that changed the state
  KernelTables tables;
  std::vector<std::unique_ptr<Kernel>> kernels;
  std::vector<std::uint32_t> frees_begin;  ///< kernel i is followed by frees[frees_begin[i], frees_begin[i + 1])
  std::vector<Slot> frees;
  std::vector<Output> outputs;
  bool writes = false;      ///< some kernel writes to an argument
  bool python = false;      ///< some kernel is a Python function
  std::size_t overlap = 1;  ///< so many of those may be under way at once

  MemoryForecast forecast;
  bool may_not_fit = false;  ///< with large symbols the forecast exceeds memory_limit: look at each run
  std::uint64_t memory_limit = 0;
  LoadedInfo info;

  // -- of the present run
  // ----------------------------------------------------------------------------------------------
  std::vector<Blob> blobs;
  ExprTable exprs;
  MutationGuard
      guard;  ///< knows the storages that the run was given also where nothing writes: they are not leased out

  /// Empties the blobs: what the run held goes back, leases on inputs end.
  void reset();
  /// The forecast against the limit, with these symbols; kDoesNotFit names the node at the peak.
  Status check_fits(std::span<const std::int64_t> symbols) const;
  Error does_not_fit(const MemoryForecast::Peak& peak) const;
};

/// Constants in a device's own memory, by content: tied weights, and programs with the same weights, share them there
/// as they do on the host. Belongs to the compute stream's thread.
class DeviceConstants {
 public:
  /// `stream` outlives it.
  DeviceConstants(c10::Device device, StreamContext& stream) : device_(device), stream_(stream) {}
  /// Copied there, unless a loaded fragment still has it.
  Result<c10::Storage> place(const ContentHash& hash, const c10::Storage& host);

 private:
  const c10::Device device_;
  StreamContext& stream_;
  std::map<ContentHash, c10::weak_intrusive_ptr<c10::StorageImpl>> known_;
};

/// Everything that keeps the fragment from running is found at once (as causes where there are several), each with
/// node, operator, module and source line. `on_device`: where the device's memory is not the host's. `python`: the
/// domain of Python kernels, if the device has one; it outlives the fragment.
Result<std::unique_ptr<LoadedFragment>> load_fragment(const Fragment& fragment, const DeviceBackend& backend,
                                                      std::uint64_t memory_limit, const ConstantOpener& constants,
                                                      DeviceConstants* on_device = nullptr,
                                                      GilDomain* python = nullptr);

}  // namespace callboard::kernels
