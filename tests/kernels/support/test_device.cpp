#include "tests/kernels/support/test_device.h"

#include <unistd.h>

#include <cstring>
#include <map>
#include <stdexcept>
#include <utility>

#include <ATen/ops/empty.h>

#include "kernels/own_operators.h"
#include "kernels/tensor_convert.h"
#include "kernels/tensor_import.h"

namespace callboard::testing {

using namespace kernels;

namespace {

constexpr std::chrono::seconds kPatience{20};

struct OpenSegments {
  std::mutex mutex;
  std::map<std::pair<ActorId, SegmentId>, std::pair<UniqueFd, std::uint64_t>> fds;
};

OpenSegments& open_segments() {
  static auto* instance = new OpenSegments;
  return *instance;
}

Arena* make_arena(const ActorId& owner) {
  ArenaOptions options;
  options.owner = owner;
  options.memory_limit = 1u << 30;
  SegmentObserver observer;
  observer.added = [owner](SegmentId id, UniqueFd fd, std::uint64_t bytes) -> Status {
    std::lock_guard lock(open_segments().mutex);
    open_segments().fds[{owner, id}] = {std::move(fd), bytes};
    return {};
  };
  observer.dropped = [owner](SegmentId id) {
    std::lock_guard lock(open_segments().mutex);
    open_segments().fds.erase({owner, id});
  };
  auto arena = Arena::create(options, std::move(observer));
  if (!arena) throw std::runtime_error(arena.error().to_string());
  return *arena;
}

Result<OpenedSegment> open_segment(const ActorId& owner, SegmentId segment) {
  std::lock_guard lock(open_segments().mutex);
  const auto found = open_segments().fds.find({owner, segment});
  if (found == open_segments().fds.end()) return fail(ErrorCode::kTensorLost, "no such segment");
  return OpenedSegment{UniqueFd(::dup(found->second.first.get())), found->second.second};
}

std::map<ContentHash, at::Tensor>& constants() {
  static auto* instance = new std::map<ContentHash, at::Tensor>;
  return *instance;
}

}  // namespace

Status load_callboard_operators() { return load_own_operators(CALLBOARD_PLUGIN_DIR); }

TestMemory& test_memory() {
  static auto* memory = [] {
    auto* made = new TestMemory;
    made->arena = make_arena(kSelf);
    made->peer = make_arena(kPeer);
    install_arena_allocator(made->arena);
    made->segments = SegmentMap::create(open_segment, [made](const ActorId& owner, LeaseId lease) {
      (owner == kSelf ? made->arena : made->peer)->release(lease);
    });
    return made;
  }();
  return *memory;
}

WireValue to_wire(const at::Tensor& tensor) {
  TensorHandle handle;
  handle.meta = meta_of(tensor).value();
  handle.meta.storage_offset = 0;
  const std::uint64_t extent = handle.meta.extent_bytes().value();
  const void* data = extent == 0 ? nullptr : tensor.const_data_ptr();
  if (extent <= limits::kInlineBytesMax) {
    handle.data = InlineBytes{std::string(static_cast<const char*>(data), extent)};
    return handle;
  }
  Arena* peer = test_memory().peer;
  void* block = peer->allocate(extent).value();
  std::memcpy(block, data, extent);
  handle.data = peer->lease(block, kSelf).value();
  peer->deallocate(block);
  return handle;
}

at::Tensor from_wire(const WireValue& value) {
  const auto& handle = std::get<TensorHandle>(value);
  OwnBlocks nobody(test_memory().arena, ActorId{"reader", 1});
  const TensorImporter importer(nobody, test_memory().segments.get());
  auto imported = importer.import(handle);
  if (!imported) throw std::runtime_error(imported.error().to_string());
  const at::Tensor view = imported->toTensor();
  return view.clone();
}

bool identical(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const at::Tensor left = a.resolve_conj().resolve_neg().contiguous();
  const at::Tensor right = b.resolve_conj().resolve_neg().contiguous();
  return left.numel() == 0 || std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0;
}

ContentHash add_constant(const at::Tensor& whole_storage) {
  const ContentHash hash = ContentHash::of(whole_storage.storage().data(), whole_storage.storage().nbytes());
  constants().emplace(hash, whole_storage);
  return hash;
}

ValueId add_constant(FragmentMaker& maker, const at::Tensor& tensor) {
  return maker.constant(add_constant(tensor), tensor.storage().nbytes(), meta_of(tensor).value());
}

std::string constant_bytes(const ContentHash& hash) {
  const c10::Storage& storage = constants().at(hash).storage();
  return std::string(static_cast<const char*>(storage.data()), storage.nbytes());
}

void Signal::set() {
  std::lock_guard lock(mutex_);
  set_ = true;
  changed_.notify_all();
}

bool Signal::wait() {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kPatience, [this] { return set_; });
}

TestDevice::TestDevice(RuntimeOptions options) {
  TestMemory& memory = test_memory();
  options.self = kSelf;
  const ConstantOpener opener = [](const ContentHash& hash, std::uint64_t) -> Result<ConstantStorage> {
    const auto found = constants().find(hash);
    if (found == constants().end()) return fail(ErrorCode::kConstantMissing, "nobody has " + hash.hex());
    const c10::Storage& storage = found->second.storage();
    return ConstantStorage{static_cast<std::byte*>(storage.mutable_data()), storage.nbytes(),
                           std::make_shared<at::Tensor>(found->second)};
  };
  auto made = create_device_runtime(std::move(options), memory.arena, memory.segments.get(), opener);
  if (!made) throw std::runtime_error(made.error().to_string());
  runtime_ = std::move(*made);
}

Result<LoadedInfo> TestDevice::load(const Fragment& fragment) {
  const auto signal = std::make_shared<Signal>();
  const auto info = std::make_shared<Result<LoadedInfo>>();
  const Status queued = runtime_->load(fragment, [signal, info](Result<LoadedInfo> loaded) {
    *info = std::move(loaded);
    signal->set();
  });
  if (!queued) return fail(queued.error());
  if (!signal->wait()) return fail(ErrorCode::kInternal, "the load did not end");
  return *info;
}

RunOrder TestDevice::order(const Fragment& fragment, std::vector<WireValue> inputs, std::vector<std::int64_t> symbols) {
  RunOrder order;
  order.run = 1;
  order.program = fragment.program;
  order.fragment = fragment.index;
  order.inputs = std::move(inputs);
  order.symbols = std::move(symbols);
  order.client = kClient;
  return order;
}

RunResult TestDevice::run(RunOrder order) {
  const auto signal = std::make_shared<Signal>();
  const auto made = std::make_shared<RunResult>();
  const Status queued = runtime_->run(std::move(order), [signal, made](RunResult result) {
    *made = std::move(result);
    signal->set();
  });
  if (!queued || !signal->wait()) {
    RunResult failed;
    failed.error = queued ? Error(ErrorCode::kInternal, "the run did not end") : queued.error();
    return failed;
  }
  return std::move(*made);
}

RunResult TestDevice::run(const Fragment& fragment, std::vector<WireValue> inputs, std::vector<std::int64_t> symbols) {
  if (auto loaded = load(fragment); !loaded) {
    RunResult failed;
    failed.error = loaded.error();
    return failed;
  }
  return run(order(fragment, std::move(inputs), std::move(symbols)));
}

at::Tensor TestDevice::result(const Fragment& fragment, const std::vector<at::Tensor>& inputs,
                              std::vector<std::int64_t> symbols) {
  std::vector<WireValue> wires;
  for (const at::Tensor& input : inputs) wires.push_back(to_wire(input));
  const RunResult made = run(fragment, std::move(wires), std::move(symbols));
  if (made.error) throw std::runtime_error(made.error->to_string());
  return from_wire(made.to_client.at(0));
}

}  // namespace callboard::testing
