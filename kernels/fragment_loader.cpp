// load_fragment(): see loaded_fragment.h.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>

#include "kernels/argument_binding.h"
#include "kernels/dispatcher_kernel.h"
#include "kernels/loaded_fragment.h"
#include "kernels/primitive_kernel.h"
#include "kernels/python_kernel.h"
#include "kernels/tensor_convert.h"
#include "messages/graph_check.h"

namespace callboard::kernels {

namespace {

constexpr std::uintptr_t kConstantAlignment = 64;
constexpr const char* kAllowIt =
    "a Python kernel is named in the cluster file: python: {kernels: [{target: \"module:function\"}]}";

/// One load; its parts end up in the LoadedFragment.
class Loader {
 public:
  Loader(const Fragment& fragment, const DeviceBackend& backend, std::uint64_t memory_limit,
         const ConstantOpener& constants, DeviceConstants* on_device, GilDomain* python)
      : fragment_(fragment),
        backend_(backend),
        constants_(constants),
        on_device_(on_device),
        python_(python),
        loaded_(std::make_unique<LoadedFragment>()) {
    loaded_->memory_limit = memory_limit;
  }

  Result<std::unique_ptr<LoadedFragment>> load() {
    for (const SymbolSpec& symbol : fragment_.symbols) loaded_->symbol_names.push_back(symbol.name);
    number_values();
    bind_inputs();
    make_kernels();
    if (!gaps_.empty()) return fail(all_gaps());
    bind_integers();
    bind_outputs();
    place_frees();
    pack_kernels();
    CALLBOARD_TRY(forecast());
    CALLBOARD_TRY(bind_constants());
    loaded_->info.pure = !loaded_->info.random && fragment_.states.empty() && !effects_;
    return std::move(loaded_);
  }

 private:
  void number(ValueId value) {
    if (value != kNoValue && slots_.try_emplace(value, static_cast<Slot>(values_.size())).second)
      values_.push_back(value);
  }

  void number_values() {
    for (const FragmentInput& input : fragment_.inputs) number(input.value);
    for (const Constant& constant : fragment_.constants) number(constant.value);
    for (const Node& node : fragment_.nodes) {
      for (const NodeOutput& output : node.outputs) {
        for (const ValueId value : output.values) number(value);
      }
    }
    loaded_->blobs = std::vector<Blob>(slots_.size());
  }

  ValueCheck check_of(ValueId value) {
    ValueCheck check;
    if (value == kNoValue) return check;
    check.slot = slots_.at(value);
    check.value = value;
    const auto spec = fragment_.values.find(value);
    if (spec == fragment_.values.end()) return check;
    check.kind = spec->second.kind;
    if (const auto type = scalar_type_of(spec->second.dtype)) check.dtype = *type;
    if (check.kind == ValueKind::kTensor && spec->second.sizes) {
      check.has_sizes = true;
      check.rank = static_cast<std::uint32_t>(spec->second.sizes->size());
      check.sizes = loaded_->exprs.add_sizes(*spec->second.sizes);
      check.sizes_later = std::ranges::any_of(*spec->second.sizes, [](const Expr& size) {
        return std::ranges::any_of(size.terms, [](const Expr::Term& term) { return term.op == ExprOp::kValue; });
      });
    }
    return check;
  }

  void bind_inputs() {
    for (const FragmentInput& input : fragment_.inputs) {
      const auto spec = fragment_.values.find(input.value);
      loaded_->inputs.push_back({check_of(input.value), spec == fragment_.values.end() ? "" : spec->second.name});
    }
  }

  // -- kernels
  // ---------------------------------------------------------------------------------------------------------

  std::shared_ptr<const KernelInfo> info_of(std::size_t index) const {
    const Node& node = fragment_.nodes[index];
    auto info = std::make_shared<KernelInfo>();
    info->op = node.op;
    info->node = index < fragment_.node_ids.size() ? fragment_.node_ids[index] : static_cast<std::int64_t>(index);
    info->name = node.name;
    info->module_path = node.module_path;
    info->source = node.source;
    return info;
  }

  OutputPlan outputs_of(const Node& node) {
    OutputPlan plan;
    for (const NodeOutput& output : node.outputs) {
      plan.steps.push_back({static_cast<std::uint32_t>(plan.targets.size()),
                            static_cast<std::uint32_t>(output.values.size()), output.is_list});
      for (const ValueId value : output.values) plan.targets.push_back(check_of(value));
    }
    return plan;
  }

  void make_kernels() {
    const BindingScope scope{fragment_, slots_, loaded_->exprs, backend_.device()};
    for (std::size_t i = 0; i < fragment_.nodes.size(); ++i) {
      const Node& node = fragment_.nodes[i];
      std::shared_ptr<const KernelInfo> info = info_of(i);
      OutputPlan outputs = outputs_of(node);
      auto prepared = make_kernel(node, info, std::move(outputs), scope);
      if (!prepared) {
        gaps_.push_back(gap(std::move(prepared).error(), *info));
        continue;
      }
      effects_ = effects_ || prepared->traits.effects;
      loaded_->info.random = loaded_->info.random || prepared->traits.random;
      loaded_->writes = loaded_->writes || prepared->kernel->arguments().writes;
      note_aliases(node, prepared->traits);
      loaded_->kernels.push_back(std::move(prepared->kernel));
    }
  }

  Result<PreparedKernel> make_kernel(const Node& node, const std::shared_ptr<const KernelInfo>& info,
                                     OutputPlan outputs, const BindingScope& scope) {
    if (is_primitive(node.op)) return make_primitive_kernel(node, info, std::move(outputs), scope);
    if (const PythonOperator* op = find_python_operator(python_, node.op)) {
      loaded_->overlap = loaded_->python ? python_->parallel() : 1;  // from the second one on
      loaded_->python = true;
      return make_python_kernel(node, info, std::move(outputs), scope, *python_, *op);
    }
    // The dispatcher may know it all the same, since importing the module registered it there: that way it would run
    // without being allowed to, and past the domain's guards.
    if (std::string why = python_ == nullptr ? "" : python_->why_not(node.op); !why.empty()) {
      return fail(ErrorCode::kUnknownOperator, std::move(why), kAllowIt);
    }
    auto made = make_dispatcher_kernel(node, info, std::move(outputs), scope, backend_);
    if (!made && made.error().code == ErrorCode::kUnknownOperator && !node.op.starts_with("aten::")) {
      Error error = std::move(made).error();
      error.hint += std::string(error.hint.empty() ? "" : " ") + kAllowIt;
      return fail(std::move(error));
    }
    return made;
  }

  void note_aliases(const Node& node, const OperatorTraits& traits) {
    for (const auto& [position, base] : traits.aliases) {
      for (const ValueId view : node.outputs[position].values) {
        if (view != kNoValue) shared_.emplace_back(values_[base], view);
      }
    }
  }

  static Error gap(Error error, const KernelInfo& info) {
    error.op = info.op;
    error.node = info.node;
    std::string where = "node " + std::to_string(info.node);
    if (!info.name.empty()) where += " ('" + info.name + "')";
    error.message = where + ", " + info.op + ": " + error.message;
    if (!info.module_path.empty()) error.detail = "module: " + info.module_path;
    if (!info.source.empty()) error.detail += (error.detail.empty() ? "source: " : "\nsource: ") + info.source;
    return error;
  }

  Error all_gaps() {
    if (gaps_.size() == 1) return std::move(gaps_.front());
    // Missing operators say most about a device; the class of the whole is theirs if there are any.
    const auto unknown = std::ranges::find(gaps_, ErrorCode::kUnknownOperator, &Error::code);
    const Error& first = unknown == gaps_.end() ? gaps_.front() : *unknown;
    Error all(
        first.code,
        std::to_string(gaps_.size()) + " nodes of the fragment cannot run on this device, the first: " + first.message,
        first.hint);
    all.op = first.op;
    all.node = first.node;
    const std::size_t kept = std::min(gaps_.size(), limits::kErrorCausesMax);
    all.causes.assign(std::make_move_iterator(gaps_.begin()),
                      std::make_move_iterator(gaps_.begin() + static_cast<std::ptrdiff_t>(kept)));
    return all;
  }

  void bind_integers() {
    std::set<ValueId> read(loaded_->exprs.integers_read().begin(), loaded_->exprs.integers_read().end());
    for (const auto& kernel : loaded_->kernels) {
      for (const ValueCheck& target : kernel->outputs().targets) {
        if (target.slot == kNoSlot || !read.contains(target.value)) continue;
        kernel->tell_expressions(target.value);
        told_.insert(target.value);
      }
    }
    for (LoadedFragment::Input& input : loaded_->inputs) {
      if (!read.contains(input.check.value)) continue;
      input.check.read_by_exprs = true;
      told_.insert(input.check.value);
    }
    for (const ValueId value : read) {
      if (!told_.contains(value)) loaded_->exprs.set_unknown(value);
    }
  }

  void bind_outputs() {
    for (const FragmentOutput& output : fragment_.outputs) {
      const auto spec = fragment_.values.find(output.value);
      loaded_->outputs.push_back({slots_.at(output.value), output.value,
                                  spec == fragment_.values.end() ? "" : spec->second.name, output.to_client,
                                  output.edges.size()});
    }
  }

  /// Goes by our own count of readers: a wrong list from outside must not make a kernel read an empty blob.
  void place_frees() {
    frees_ = compute_frees(fragment_);
    frees_.resize(fragment_.nodes.size());
    for (std::size_t i = 0; i < fragment_.nodes.size(); ++i) {
      loaded_->frees_begin.push_back(static_cast<std::uint32_t>(loaded_->frees.size()));
      for (const ValueId value : frees_[i]) {
        const Slot slot = slots_.at(value);
        if (made_by(i, value) && !told_.contains(value)) {
          // What an exporter believes of it may be wrong without harm: aten::_unique2's is, for what is not asked for.
          loaded_->kernels[i]->forget_output(value);
          continue;
        }
        if (!move_last_use(*loaded_->kernels[i], slot)) loaded_->frees.push_back(slot);
      }
    }
    loaded_->frees_begin.push_back(static_cast<std::uint32_t>(loaded_->frees.size()));
  }

  void pack_kernels() {
    std::size_t steps = 0;
    std::size_t output_steps = 0;
    std::size_t targets = 0;
    for (const auto& kernel : loaded_->kernels) {
      steps += kernel->arguments().steps.size();
      output_steps += kernel->outputs().steps.size();
      targets += kernel->outputs().targets.size();
    }
    loaded_->tables.steps.reserve(steps);
    loaded_->tables.output_steps.reserve(output_steps);
    loaded_->tables.targets.reserve(targets);
    for (const auto& kernel : loaded_->kernels) kernel->pack(loaded_->tables);
  }

  bool made_by(std::size_t node, ValueId value) const {
    return std::ranges::any_of(fragment_.nodes[node].outputs, [value](const NodeOutput& output) {
      return std::ranges::find(output.values, value) != output.values.end();
    });
  }

  /// A value that ends with its only use by this kernel is moved to the stack: no counting up and down again.
  static bool move_last_use(Kernel& kernel, Slot slot) {
    const ArgumentPlan& plan = kernel.arguments();
    if (std::ranges::find(plan.list, slot) != plan.list.end()) return false;
    std::size_t found = plan.steps.size();
    for (std::size_t i = 0; i < plan.steps.size(); ++i) {
      using From = ArgumentStep::From;
      const From from = plan.steps[i].from;
      const bool blob =
          from == From::kBlob || from == From::kBlobAsTensor || from == From::kBlobAsFloat || from == From::kBlobAsInt;
      if (!blob || plan.steps[i].first != slot) continue;
      if (found != plan.steps.size() || from != From::kBlob) return false;
      found = i;
    }
    if (found == plan.steps.size()) return false;
    kernel.move_on_last_use(found);
    return true;
  }

  Status forecast() {
    loaded_->forecast = MemoryForecast(fragment_, frees_, shared_);
    const auto largest = loaded_->forecast.largest();
    loaded_->info.peak_bytes = largest ? largest->bytes : 0;
    if (loaded_->memory_limit == 0) return {};
    const MemoryForecast::Peak smallest = loaded_->forecast.smallest();
    if (smallest.bytes > loaded_->memory_limit) return fail(loaded_->does_not_fit(smallest));
    loaded_->may_not_fit = !largest || largest->bytes > loaded_->memory_limit;
    return {};
  }

  // -- constants
  // -------------------------------------------------------------------------------------------------------

  Result<c10::Storage> open_storage(const Constant& constant) {
    const auto known = storages_.find(constant.storage);
    if (known != storages_.end()) return known->second;
    c10::Storage storage;
    if (constant.storage_bytes == 0) {
      storage = at::empty({0}, at::TensorOptions().dtype(at::kByte).device(backend_.device())).storage();
    } else {
      CALLBOARD_ASSIGN(ConstantStorage opened, constants_(constant.storage, constant.storage_bytes));
      if (opened.data == nullptr || opened.bytes < constant.storage_bytes) {
        return fail(ErrorCode::kConstantMissing, "constant '" + constant.name + "' has " +
                                                     std::to_string(opened.bytes) + " bytes, the program declares " +
                                                     std::to_string(constant.storage_bytes));
      }
      const auto bytes = static_cast<std::int64_t>(constant.storage_bytes);
      at::Tensor whole = at::from_blob(
          opened.data, {bytes}, [keep = opened.keep](void*) mutable { keep.reset(); }, at::kByte);
      const bool aligned = reinterpret_cast<std::uintptr_t>(opened.data) % kConstantAlignment == 0;
      if (on_device_ != nullptr) {
        CALLBOARD_ASSIGN(storage, on_device_->place(constant.storage, whole.storage()));
      } else {
        storage = aligned ? whole.storage() : whole.clone().storage();
      }
      if (opened.file) {
        // A copy is right for good, if the file was what it should be while it was read.
        if (on_device_ != nullptr || !aligned) {
          CALLBOARD_TRY(opened.file->check());
        } else if (std::ranges::find(loaded_->files, opened.file) == loaded_->files.end()) {
          loaded_->files.push_back(opened.file);
        }
      }
    }
    loaded_->info.constant_bytes += constant.storage_bytes;
    storages_.emplace(constant.storage, storage);
    return storage;
  }

  Status bind_constants() {
    for (const Constant& constant : fragment_.constants) {
      CALLBOARD_ASSIGN(const std::uint64_t extent, constant.meta.extent_bytes());
      if (extent > constant.storage_bytes) {
        return fail(ErrorCode::kBadGraph, "constant '" + constant.name + "' (" + constant.meta.to_string() +
                                              ") reaches beyond its storage of " +
                                              std::to_string(constant.storage_bytes) + " bytes");
      }
      auto storage = open_storage(constant);
      if (!storage) {
        Error error = std::move(storage).error();
        error.message = "constant '" + constant.name + "': " + error.message;
        return fail(std::move(error));
      }
      // An ordinary tensor, though this is a stream's thread: of an inference tensor's views nobody knows any more that
      // it requires grad, and that is what matmul goes by.
      const c10::InferenceMode ordinary(!constant.requires_grad);
      CALLBOARD_ASSIGN(at::Tensor tensor, view_storage(*storage, constant.meta));
      if (constant.requires_grad) tensor.requires_grad_();
      loaded_->constants.push_back({slots_.at(constant.value), std::move(tensor)});
    }
    for (const State& state : fragment_.states) {
      loaded_->states.push_back(
          {state.name, slots_.at(state.before), slots_.at(state.after), loaded_->constants[state.initial].tensor});
    }
    // A state's slot holds what the last run left there, not the constant that it began with.
    std::erase_if(loaded_->constants, [this](const LoadedFragment::BoundConstant& constant) {
      return std::ranges::any_of(loaded_->states, [&](const auto& state) { return state.before == constant.slot; });
    });
    return {};
  }

  const Fragment& fragment_;
  const DeviceBackend& backend_;
  const ConstantOpener& constants_;
  DeviceConstants* const on_device_;
  GilDomain* const python_;
  std::unique_ptr<LoadedFragment> loaded_;
  std::map<ValueId, Slot> slots_;
  std::vector<ValueId> values_;                   // by slot
  std::map<ContentHash, c10::Storage> storages_;  // by content: tied weights are one memory
  std::vector<std::pair<ValueId, ValueId>> shared_;
  std::vector<std::vector<ValueId>> frees_;
  std::set<ValueId> told_;
  std::vector<Error> gaps_;
  bool effects_ = false;
};

}  // namespace

Result<c10::Storage> DeviceConstants::place(const ContentHash& hash, const c10::Storage& host) {
  std::erase_if(known_, [](const auto& entry) { return entry.second.expired(); });
  if (const auto found = known_.find(hash); found != known_.end()) {
    if (auto storage = found->second.lock()) return c10::Storage(std::move(storage));
  }
  const at::Tensor whole =
      at::empty({static_cast<std::int64_t>(host.nbytes())}, at::TensorOptions().dtype(at::kByte).device(device_));
  CALLBOARD_TRY(stream_.copy(whole.mutable_data_ptr(), host.data(), host.nbytes()));
  known_.insert_or_assign(hash, whole.storage().getWeakStorageImpl());
  return whole.storage();
}

Result<std::unique_ptr<LoadedFragment>> load_fragment(const Fragment& fragment, const DeviceBackend& backend,
                                                      std::uint64_t memory_limit, const ConstantOpener& constants,
                                                      DeviceConstants* on_device, GilDomain* python) {
  CALLBOARD_TRY(check_fragment(fragment));
  try {
    return Loader(fragment, backend, memory_limit, constants, on_device, python).load();
  } catch (const std::exception& thrown) {  // LibTorch's, from preparing an argument or a constant
    if (Error error = error_of_exception(); error.code == ErrorCode::kOutOfMemory) return fail(std::move(error));
    return fail(ErrorCode::kBadGraph, "the fragment cannot be prepared: " + std::string(thrown.what()));
  }
}

}  // namespace callboard::kernels
