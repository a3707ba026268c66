#include "kernels/process_domain/domain_server.h"

#include <fcntl.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <nlohmann/json.hpp>

#include "kernels/gil_domain.h"
#include "kernels/helper_memory.h"
#include "kernels/kernel.h"
#include "kernels/memory/segment_map.h"
#include "kernels/process_domain/child_arena.h"
#include "kernels/process_domain/domain_board.h"
#include "kernels/process_domain/domain_line.h"
#include "kernels/process_domain/domain_values.h"
#include "kernels/runtime.h"
#include "messages/base/log.h"
#include "messages/inline_limit.h"

namespace callboard::kernels {

namespace {

constexpr std::uint64_t kPage = 4096;

/// Of one call: the deadline that came with it, and the device's word on the board.
class BoardSignal final : public StopSignal {
 public:
  BoardSignal(const DomainBoard& board, const DomainCall& call)
      : board_(board),
        call_(call.call),
        deadline_(call.time_left_ns < 0 ? kNever : after(Clock::now(), std::chrono::nanoseconds(call.time_left_ns))) {}
  std::optional<Error> stop_reason() const override {
    if (board_.stop_call.load(std::memory_order_acquire) == call_) {
      return Error(ErrorCode::kCancelled, "the device has stopped the call");  // it knows why
    }
    if (deadline_ != kNever && Clock::now() >= deadline_) {
      return Error(ErrorCode::kDeadlineExceeded, "the request's deadline passed in the GIL domain");
    }
    return std::nullopt;
  }
  TimePoint deadline() const override { return deadline_; }

 private:
  const DomainBoard& board_;
  const std::uint64_t call_;
  const TimePoint deadline_;
};

/// Where the arguments of one call lie. What Python keeps of them after the call parts from the device's memory. The
/// mappings themselves go when the device has its answer: forgetting what was written to them takes a while.
class Borrowed {
 public:
  Borrowed(ChildArena& arena, SegmentMap& segments, DeviceGuest* guest)
      : arena_(arena), segments_(segments), guest_(guest) {}
  void clear() {
    written_.clear();
    read_.clear();
  }

  Result<c10::Storage> open(const DomainStorage& storage) {
    if (const auto* bytes = std::get_if<InlineBytes>(&storage)) return storage_of_bytes(bytes->bytes);
    const auto* lent = std::get_if<CudaIpcBlock>(&storage);
    const auto* named = std::get_if<DomainPlace>(&storage);  // else: decode_domain_message() has seen to it
    if (lent != nullptr || named->device) {
      if (guest_ == nullptr) return fail(ErrorCode::kMalformed, "an argument lies on a device that is not here");
      // What Python keeps of a lent one keeps the lease.
      return lent != nullptr ? guest_->open(*lent) : Result<c10::Storage>(guest_->empty());
    }
    const DomainPlace& place = *named;
    if (place.writable) {
      CALLBOARD_ASSIGN(auto written, arena_.open_written(place));
      written_.push_back(written);
      std::byte* data = written->data();
      return storage_over(data, place.bytes, std::move(written));
    }
    CALLBOARD_ASSIGN(auto block, segments_.open(ArenaBlock{place.owner, place.segment, place.offset, place.bytes, 0}));
    read_.push_back(block);
    std::byte* data = block->data();
    return storage_over(data, place.bytes, std::move(block));
  }

  /// When the call's own references are gone.
  void part() {
    for (const auto& kept : written_) {
      if (kept.use_count() > 1) kept->part();
    }
    for (const auto& kept : read_) {
      if (kept.use_count() == 1) continue;
      // A write makes a page of the private mapping this process's own.
      auto* data = reinterpret_cast<volatile std::byte*>(kept->data());
      for (std::uint64_t at = 0; at < kept->bytes(); at += kPage) data[at] = data[at];
      data[kept->bytes() - 1] = data[kept->bytes() - 1];
    }
  }

 private:
  ChildArena& arena_;
  SegmentMap& segments_;
  DeviceGuest* const guest_;
  std::vector<std::shared_ptr<ChildArena::Written>> written_;
  std::vector<std::shared_ptr<MappedBlock>> read_;
};

class Server {
 public:
  explicit Server(MappedBoard board) : line_(DomainSocket(UniqueFd(kDomainSocketFd))), board_(std::move(board)) {}

  int run() {
    auto first = line_.next();
    auto* start = first ? std::get_if<DomainStart>(&first->message) : nullptr;
    if (start == nullptr) return 1;  // whoever started it has changed his mind
    if (Status started = this->start(*start); !started) {
      log::error("domain_not_started", started.error().to_string());
      static_cast<void>(line_.answer(DomainFailed{std::move(started).error()}));
      return 1;
    }
    board_->step.set({});
    if (!line_.answer(ready())) return 1;
    for (;;) {
      auto received = line_.next();
      auto* call = received ? std::get_if<DomainCall>(&received->message) : nullptr;
      if (call == nullptr) return received ? 1 : 0;
      DomainResult result = serve(*call);
      Status answered = line_.answer(result);
      if (!answered && answered.error().code == ErrorCode::kTooLarge) {
        take_back(result);
        result.error = std::move(answered).error();
        answered = line_.answer(result);
      }
      if (!answered || spent_) return 1;
      borrowed_->clear();
      arena_->trim_segments();
    }
  }

 private:
  Status start(const DomainStart& start) {
    log::start(start.device.to_string() + ".py" + std::to_string(start.number), log::Level::kInfo);
    arena_ = new ChildArena(line_, start.device);  // storages are freed until the process ends
    install_arena_allocator(arena_);
    segments_ = SegmentMap::create(
        [this](const ActorId& owner, SegmentId segment) { return open_segment(owner, segment); }, {});
    if (start.kind != "cpu") CALLBOARD_TRY(open_device(start));
    borrowed_.emplace(*arena_, *segments_, guest_.get());
    at::set_num_threads(static_cast<int>(start.threads));
    PythonOptions python;
    python.executable = start.executable;
    python.path = start.path;
    for (const DomainKernel& kernel : start.kernels) {
      python.kernels.push_back({kernel.target, kernel.schema, kernel.random, kernel.warm_up});
    }
    python.board = &board_->gil;
    python.crash_fd = kDomainWordsFd;
    python.step = [this](std::string_view step) { board_->step.set(step); };
    CALLBOARD_ASSIGN(domain_, make_gil_domain(python, guest_ ? guest_->device() : c10::Device(c10::DeviceType::CPU)));
    return domain_->warm_up(static_cast<int>(start.threads));
  }

  /// With a first piece of the device's memory, so that a system that does not share it is told now and not by calls.
  Status open_device(const DomainStart& start) {
    board_->step.set("opening the device's memory");
    GuestOptions options;
    options.self = start.device;
    options.uuid = start.uuid;
    options.ask = [this](std::uint64_t bytes) { return ask_for_segment(bytes); };
    CALLBOARD_ASSIGN(guest_, make_guest(start.kind, options));
    guest_->enter();
    Status shared = guest_->check();
    if (shared) return {};
    Error error = std::move(shared).error();
    error.message = "a GIL domain's process cannot use the device's memory: " + error.message;
    if (error.hint.empty()) error.hint = "give the device python: inline";
    return fail(std::move(error));
  }

  Result<CudaIpcBlock> ask_for_segment(std::uint64_t bytes) {
    CALLBOARD_ASSIGN(DomainSocket::Received received, line_.ask(DomainAllocate{bytes, {}, true}));
    auto* granted = std::get_if<DomainGranted>(&received.message);
    if (granted == nullptr) return fail(ErrorCode::kUnexpectedMessage, "the device answers another question");
    if (granted->error) return fail(std::move(*granted->error));
    if (!granted->segment) return fail(ErrorCode::kMalformed, "the device grants memory of another kind");
    return std::move(*granted->segment);
  }

  DomainReady ready() const {
    DomainReady ready;
    for (const PythonOperator& op : domain_->operators()) {
      ready.operators.push_back({op.op, op.target, c10::toString(op.schema), op.random});
    }
    auto report = nlohmann::json::parse(domain_->describe(), nullptr, false);
    if (report.is_object()) {
      const nlohmann::json declared = report.value("declared", nlohmann::json::object());
      for (const auto& [op, target] : declared.items()) ready.declared[op] = target.get<std::string>();
      for (const char* counted :
           {"gil", "operators", "declared", "held_blocks", "held_bytes", "copied_results", "copied_result_bytes"}) {
        report.erase(counted);
      }
    }
    ready.report = report.dump();
    return ready;
  }

  Result<OpenedSegment> open_segment(const ActorId& owner, SegmentId segment) {
    CALLBOARD_ASSIGN(DomainSocket::Received received, line_.ask(DomainOpen{owner, segment, false}));
    auto* opened = std::get_if<DomainOpened>(&received.message);
    if (opened == nullptr) return fail(ErrorCode::kUnexpectedMessage, "the device answers another question");
    if (opened->error) return fail(std::move(*opened->error));
    return OpenedSegment{std::move(received.fd), opened->bytes, opened->may_shrink};
  }

  DomainResult serve(const DomainCall& call) {
    board_->begun.store(call.call, std::memory_order_release);
    DomainResult result;
    result.call = call.call;
    given_.clear();
    try {
      Status done = guest_ ? guest_->begin_call(call.order, call.let_go) : Status();
      if (done) done = execute(call, *borrowed_, result);
      if (!done) result.error = std::move(done).error();
    } catch (...) {
      result.error = error_of_exception();
    }
    borrowed_->part();
    result.freed = arena_->take_freed();
    if (result.error) take_back(result);
    if (guest_) end_on_device(result);
    return result;
  }

  /// A fault of a kernel is this process's: the device's own context has none, and is not to hear of it as of its own.
  void end_on_device(DomainResult& result) {
    Result<DeviceAnswer> answer = guest_->end_call();
    if (answer) {
      result.done = std::move(answer->done);
      result.released = std::move(answer->released);
      if (result.error && result.error->code == ErrorCode::kDeviceFailed) result.error->code = ErrorCode::kPythonFailed;
      return;
    }
    spent_ = true;
    take_back(result);
    Error error(ErrorCode::kPythonFailed, "the work of a Python kernel failed on the device: " + answer.error().message,
                "a new process takes its place");
    if (result.error) error.causes.push_back(std::move(*result.error));
    result.error = std::move(error);
  }

  /// It fails after all: what was given to the device is to be freed.
  void take_back(DomainResult& result) {
    result.results.clear();
    result.tensors.clear();
    result.storages.clear();
    std::vector<DomainPlace> on_device;
    for (DomainPlace& place : given_) (place.device ? on_device : result.freed).push_back(std::move(place));
    if (guest_ && !on_device.empty()) guest_->take_back(on_device);
    given_.clear();
  }

  Status execute(const DomainCall& call, Borrowed& borrowed, DomainResult& result) {
    if (call.op >= domain_->operators().size()) return fail(ErrorCode::kMalformed, "there is no such operator");
    const PythonOperator& op = domain_->operators()[call.op];
    if (call.arguments.size() != op.schema.arguments().size()) {
      return fail(ErrorCode::kMalformed, "the call has not as many arguments as " + op.op);
    }
    std::vector<c10::Storage> given;
    for (const DomainStorage& storage : call.storages) {
      CALLBOARD_ASSIGN(c10::Storage opened, borrowed.open(storage));
      given.push_back(std::move(opened));
    }
    torch::jit::Stack stack;
    const DomainUnpacker unpacker(given, call.tensors);
    for (std::size_t i = 0; i < call.arguments.size(); ++i) {
      CALLBOARD_ASSIGN(c10::IValue value, unpacker.value(call.arguments[i], op.schema.arguments()[i]));
      stack.push_back(std::move(value));
    }
    std::vector<GilDomain::Undeclared> undeclared;
    const BoardSignal stop(*board_, call);
    try {
      domain_->call(op, stack, undeclared, &stop);
    } catch (...) {
      for (const auto& what : undeclared) result.undeclared.push_back(static_cast<std::uint32_t>(what.argument));
      throw;
    }
    for (const auto& what : undeclared) result.undeclared.push_back(static_cast<std::uint32_t>(what.argument));
    if (!undeclared.empty()) return {};
    return pack(stack, given, result);
  }

  Status pack(const torch::jit::Stack& stack, const std::vector<c10::Storage>& given, DomainResult& result) {
    DomainPacker packer([&](const c10::Storage& storage) -> Result<DomainStorage> {
      for (std::size_t i = 0; i < given.size(); ++i) {
        if (given[i].unsafeGetStorageImpl() == storage.unsafeGetStorageImpl()) {
          return DomainStorage(DomainGiven{static_cast<std::uint32_t>(i)});
        }
      }
      return pack_own(storage);
    });
    for (const c10::IValue& value : stack) {
      CALLBOARD_ASSIGN(DomainValue packed, packer.value(value));
      result.results.push_back(std::move(packed));
    }
    result.tensors = std::move(packer.tensors);
    result.storages = std::move(packer.storages);
    return {};
  }

  Result<DomainStorage> pack_own(const c10::Storage& storage) {
    if (!storage.device().is_cpu()) return pack_on_device(storage);
    const std::uint64_t bytes = storage.nbytes();
    const auto* data = static_cast<const char*>(storage.data());
    if (bytes <= inline_bytes_max()) return DomainStorage(InlineBytes{std::string(data, bytes)});
    if (auto place = arena_->give(data, bytes)) return note_given(std::move(*place));
    // Allocated while the device did not listen.
    CALLBOARD_ASSIGN(void* const block, arena_->allocate(bytes));
    std::memcpy(block, data, bytes);
    auto place = arena_->give(block, bytes);
    arena_->deallocate(block);
    if (place) return note_given(std::move(*place));
    return fail(ErrorCode::kOutOfMemory,
                "the device grants no memory for a result of " + std::to_string(bytes) + " bytes");
  }

  Result<DomainStorage> pack_on_device(const c10::Storage& storage) {
    if (!guest_ || storage.device() != guest_->device()) {
      return fail(ErrorCode::kOutputMismatch, "a result lies on " + storage.device().str());
    }
    if (storage.nbytes() == 0) return DomainStorage(DomainPlace{{}, 0, 0, 0, false, true});
    CALLBOARD_ASSIGN(DomainPlace place, guest_->give(storage));
    return note_given(std::move(place));
  }

  DomainStorage note_given(DomainPlace place) {
    given_.push_back(place);
    return DomainStorage(std::move(place));
  }

  DomainLine line_;
  const MappedBoard board_;
  ChildArena* arena_ = nullptr;
  std::unique_ptr<SegmentMap> segments_;
  std::unique_ptr<DeviceGuest> guest_;  // nullptr for a CPU
  std::optional<Borrowed> borrowed_;
  std::unique_ptr<GilDomain> domain_;
  bool spent_ = false;              // the device's context here has failed
  std::vector<DomainPlace> given_;  // of the call under way: the device's, unless the call fails after all
};

}  // namespace

int serve_gil_domain() {
  // They are ours, not those of what Python code starts.
  for (const int fd : {kDomainSocketFd, kDomainBoardFd, kDomainWordsFd}) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  auto board = MappedBoard::open(kDomainBoardFd);
  if (!board) return 1;
  return Server(std::move(*board)).run();
}

}  // namespace callboard::kernels
