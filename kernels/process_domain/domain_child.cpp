#include "kernels/process_domain/domain_child.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "kernels/process_domain/domain_server.h"
#include "messages/base/log.h"
#include "messages/base/plain_text.h"

namespace callboard::kernels {

namespace {

constexpr std::chrono::milliseconds kLookAtChild{20};  // at the deadline, the child's life and its memory
constexpr std::chrono::seconds kSend{10};              // it reads between calls
constexpr std::chrono::seconds kGrace{2};              // to raise what interrupts it
constexpr std::chrono::seconds kEnd{5};                // to be gone after SIGKILL
constexpr std::chrono::milliseconds kStacks{300};      // to write where it hangs
constexpr std::size_t kWordsRead = 64u << 10;          // of what it wrote last
constexpr std::size_t kWordsMax = 4u << 10;            // of that, in an error

bool readable(int fd) {
  pollfd waiting{fd, POLLIN, 0};
  return ::poll(&waiting, 1, 0) > 0;
}

/// Of ordinary memory, as the kernel counts it; 0 where it does not tell.
std::uint64_t resident_bytes(std::int64_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with("RssAnon:")) continue;
    std::istringstream fields(line.substr(8));
    std::uint64_t kib = 0;
    fields >> kib;
    return kib << 10;
  }
  return 0;
}

std::string of_size(std::uint64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

}  // namespace

DomainChild::DomainChild(const DomainHost& host, std::unique_ptr<HelperProcess> process, DomainSocket socket,
                         MappedBoard board, UniqueFd words, std::unique_ptr<DeviceRoom> room, std::uint32_t number)
    : host_(host),
      process_(std::move(process)),
      socket_(std::move(socket)),
      board_(std::move(board)),
      words_(std::move(words)),
      room_(std::move(room)),
      number_(number) {}

DomainChild::~DomainChild() {
  process_->kill();
  if (process_->how_it_ended(after(Clock::now(), kEnd)).empty()) {
    // It may still write there. Better lost than another one's.
    log::error("domain_not_dead", "pid=" + std::to_string(pid()) + " granted=" + std::to_string(granted_.size()));
    static_cast<void>(room_.release());
    return;
  }
  for (const auto& [place, block] : granted_) host_.arena->deallocate(block.data);
}

Result<std::unique_ptr<DomainChild>> DomainChild::spawn(const DomainHost& host, DomainStart start) {
  CALLBOARD_ASSIGN(auto ends, DomainSocket::pair());
  CALLBOARD_ASSIGN(auto board, MappedBoard::create());
  CALLBOARD_ASSIGN(UniqueFd words, create_words());
  std::unique_ptr<DeviceRoom> room;
  if (host.memory.exchange != nullptr) {
    CALLBOARD_ASSIGN(room, host.memory.exchange->make_room(*host.memory.stream));
  }
  CALLBOARD_ASSIGN(std::unique_ptr<HelperProcess> process, host.processes.spawn({{ends.second.fd(), kDomainSocketFd},
                                                                                 {board.second.get(), kDomainBoardFd},
                                                                                 {words.get(), kDomainWordsFd}}));
  const std::uint32_t number = start.number;
  std::unique_ptr<DomainChild> child(new DomainChild(host, std::move(process), std::move(ends.first),
                                                     std::move(board.first), std::move(words), std::move(room),
                                                     number));
  CALLBOARD_TRY(child->socket_.send(std::move(start), after(Clock::now(), kSend)));
  return child;
}

bool DomainChild::alive() const { return !readable(pidfd()); }

Result<DomainReady> DomainChild::await_ready(TimePoint deadline, const std::atomic<bool>* closing) {
  std::string step;
  for (;;) {
    if (closing != nullptr && closing->load()) return fail(ErrorCode::kActorUnavailable, "the GIL domain is ending");
    auto received = socket_.receive(std::min(after(Clock::now(), kLookAtChild), deadline));
    tell_step(step);
    if (!received || (!*received && !alive())) {
      Error ended(ErrorCode::kStartFailed,
                  "the process of the GIL domain ended before it was ready" + while_doing() + ": " +
                      process_->how_it_ended(after(Clock::now(), kEnd)),
                  "the device's log has what it wrote");
      ended.detail = last_words();
      return fail(std::move(ended));
    }
    if (!*received) {
      if (Clock::now() < deadline) continue;
      write_stacks();
      Error late(ErrorCode::kStartFailed, "the process of the GIL domain was not ready in time" + while_doing(),
                 "raise python.start_timeout in the cluster file");
      late.detail = last_words();
      return fail(std::move(late));
    }
    DomainMessage& message = (*received)->message;
    if (auto* ready = std::get_if<DomainReady>(&message)) return std::move(*ready);
    if (auto* failed = std::get_if<DomainFailed>(&message)) return fail(std::move(failed->error));
    CALLBOARD_ASSIGN(const bool question, serve(message));
    if (!question) return fail(ErrorCode::kUnexpectedMessage, "a GIL domain's child says what it cannot say yet");
  }
}

void DomainChild::tell_step(std::string& last) const {
  std::string now = board_->step.get();
  if (now == last || now.empty()) return;
  last = std::move(now);
  if (host_.step) host_.step(last + " in process " + std::to_string(number_) + " of the GIL domain");
}

std::string DomainChild::while_doing() const {
  const std::string step = board_->step.get();
  return step.empty() ? std::string() : ", while " + step;
}

void DomainChild::begin(DomainCall call, const std::string& target, const StopSignal* stop) {
  now_ = {};
  now_.number = call.call = ++calls_;
  now_.what = "the Python kernel " + target;
  now_.stop = stop;
  now_.watchdog = after(Clock::now(), host_.processes.watchdog);
  Status sent = put_in_order(call);
  const bool in_order = sent.has_value();
  if (in_order) sent = socket_.send(std::move(call), after(Clock::now(), kSend));
  if (sent) return;
  if (in_order && sent.error().code != ErrorCode::kTooLarge) {
    now_.outcome = end_by(std::move(sent).error());
    return;
  }
  DomainResult refused;  // nothing was sent
  refused.call = now_.number;
  refused.error = std::move(sent).error();
  now_.outcome = Outcome{std::move(refused), {}, true};
}

Status DomainChild::put_in_order(DomainCall& call) {
  if (!room_) return {};
  CALLBOARD_ASSIGN(call.order, room_->begin_call());
  call.let_go = room_->take_let_go();
  return {};
}

std::optional<DomainChild::Outcome> DomainChild::step(TimePoint until) {
  if (now_.outcome) return std::exchange(now_.outcome, std::nullopt);
  auto received = socket_.receive(now_.dead ? Clock::now() : std::min(after(Clock::now(), kLookAtChild), until));
  if (!received) return end_by(std::move(received).error());
  return *received ? take((*received)->message) : look();
}

std::optional<DomainChild::Outcome> DomainChild::take(DomainMessage& message) {
  auto* result = std::get_if<DomainResult>(&message);
  if (result != nullptr && result->call == now_.number) {
    if (result->error && now_.stopped) {
      now_.stopped->detail = result->error->detail;
      result->error = std::move(now_.stopped);
    }
    return Outcome{std::move(*result), {}, true};
  }
  const Result<bool> question = serve(message);
  if (question && *question) return std::nullopt;
  if (question) return end(Error(ErrorCode::kUnexpectedMessage, now_.what + ": its process answers another call"));
  return end_by(question.error());
}

/// A socket that is closed says nothing that how the process ended does not say better.
DomainChild::Outcome DomainChild::end_by(Error error) {
  if (error.code == ErrorCode::kPeerLost) return end(std::move(now_.stopped));
  error.message = now_.what + ": " + error.message;
  return end(std::move(error));
}

/// While nothing comes.
std::optional<DomainChild::Outcome> DomainChild::look() {
  if (!alive()) {
    // Once more: it may have answered in its last moment. A helper of its own may keep the socket open.
    if (now_.dead) return end(std::move(now_.stopped));
    now_.dead = true;
    return std::nullopt;
  }
  if (auto large = too_large()) return end(std::move(large));
  if (now_.stopped) {
    if (Clock::now() < now_.kill_at) return std::nullopt;
    write_stacks();
    return end(std::move(now_.stopped));
  }
  if (auto reason = reason_to_stop()) abandon(std::move(*reason));
  return std::nullopt;
}

void DomainChild::abandon(Error reason) {
  if (now_.stopped || now_.outcome) return;
  now_.stopped = std::move(reason);
  board_->stop_call.store(now_.number, std::memory_order_release);
  now_.kill_at = after(Clock::now(), kGrace);
}

std::optional<Error> DomainChild::reason_to_stop() const {
  if (now_.stop != nullptr) {
    if (auto reason = now_.stop->stop_reason()) return reason;
  }
  if (Clock::now() < now_.watchdog) return std::nullopt;
  const std::chrono::duration<double> allowed = host_.processes.watchdog;
  std::ostringstream seconds;
  seconds << allowed.count();
  return Error(ErrorCode::kDeadlineExceeded,
               now_.what + " ran longer than python.watchdog allows (" + seconds.str() + " s)",
               "raise python.watchdog in the cluster file if it may take that long");
}

std::optional<Error> DomainChild::too_large() const {
  const std::uint64_t limit = host_.processes.memory_limit;
  if (limit == 0) return std::nullopt;
  const std::uint64_t bytes = resident_bytes(pid());
  if (bytes <= limit) return std::nullopt;
  return Error(
      ErrorCode::kOutOfMemory,
      now_.what + ": its process has " + of_size(bytes) + " of memory, python.memory_limit is " + of_size(limit),
      "raise python.memory_limit in the cluster file, or let the kernel keep less");
}

/// The child is of no use any more. `why`: nothing says that it ended by itself.
DomainChild::Outcome DomainChild::end(std::optional<Error> why) {
  std::string how = process_->how_it_ended(why ? Clock::now() : after(Clock::now(), kLookAtChild));
  const bool by_itself = !how.empty();
  if (!by_itself) {
    process_->kill();
    how = process_->how_it_ended(after(Clock::now(), kEnd));
  }
  Outcome outcome;
  outcome.begun = board_->begun.load(std::memory_order_acquire) == calls_;
  if (why) {
    outcome.error = std::move(*why);
    if (!by_itself) outcome.error.message += "; it did not stop, and its process was replaced";
  } else {
    outcome.error = Error(ErrorCode::kPythonFailed, now_.what + " ended the process of its GIL domain: " + how,
                          "a new process takes its place; nothing else on the device is touched");
  }
  if (outcome.error.detail.empty()) outcome.error.detail = last_words();
  log::warning("domain_ended", "pid=" + std::to_string(pid()) + " how=\"" + how + "\" in=\"" + now_.what + "\"");
  return outcome;
}

/// Python's faulthandler writes them without the GIL.
void DomainChild::write_stacks() {
  const off_t before = ::lseek(words_.get(), 0, SEEK_END);
  ::kill(static_cast<pid_t>(pid()), SIGUSR1);
  const TimePoint until = after(Clock::now(), kStacks);
  while (alive() && Clock::now() < until) {
    pollfd waiting{pidfd(), POLLIN, 0};
    ::poll(&waiting, 1, 10);
    if (::lseek(words_.get(), 0, SEEK_END) > before) break;
  }
  pollfd rest{pidfd(), POLLIN, 0};
  ::poll(&rest, 1, 10);
}

std::string DomainChild::last_words() const {
  std::string text(kWordsRead, '\0');
  const ssize_t got = ::pread(words_.get(), text.data(), text.size(), 0);
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return plain_text(text, kWordsMax);
}

// -- memory ----------------------------------------------------------------------------------------------------------

Result<bool> DomainChild::serve(const DomainMessage& message) {
  if (const auto* allocate = std::get_if<DomainAllocate>(&message)) {
    free(allocate->freed);
    CALLBOARD_TRY(allocate->device ? grant_of_device(allocate->bytes) : grant(allocate->bytes));
    return true;
  }
  if (const auto* question = std::get_if<DomainOpen>(&message)) {
    CALLBOARD_TRY(open(*question));
    return true;
  }
  return false;
}

Status DomainChild::grant(std::uint64_t bytes) {
  DomainGranted answer;
  auto block = host_.arena->allocate_for_helpers(std::max<std::uint64_t>(bytes, 1));
  const auto where = block ? host_.arena->find(*block) : std::nullopt;
  if (!block) {
    answer.error = std::move(block).error();
  } else if (!where) {
    answer.error = Error(ErrorCode::kInternal, "a fresh block is not where it is");
  } else {
    granted_[{where->segment, where->block_offset}] = {static_cast<std::byte*>(*block), where->block_bytes};
    answer.place = {host_.device, where->segment, where->block_offset, where->block_bytes, true};
  }
  return socket_.send(std::move(answer), after(Clock::now(), kSend));
}

Status DomainChild::grant_of_device(std::uint64_t bytes) {
  if (!room_) return fail(ErrorCode::kMalformed, "a GIL domain's child asks for memory that the device does not have");
  DomainGranted answer;
  if (auto segment = room_->grant(bytes)) {
    answer.segment = std::move(*segment);
  } else {
    answer.error = std::move(segment).error();
  }
  return socket_.send(std::move(answer), after(Clock::now(), kSend));
}

Result<CudaIpcBlock> DomainChild::lend(const c10::Storage& storage) {
  if (!room_) return fail(ErrorCode::kInternal, "this device has no memory of its own to lend");
  return room_->lend(storage);
}

Status DomainChild::end_call(const DomainResult& result) {
  return room_ ? room_->end_call({result.done, result.released}) : Status();
}

Result<OpenedSegment> DomainChild::descriptor(const DomainOpen& question) const {
  if (question.owner == host_.device) {
    CALLBOARD_ASSIGN(Arena::Descriptor own, host_.arena->descriptor(question.segment, question.writable));
    return OpenedSegment{std::move(own.fd), own.bytes};
  }
  if (question.writable) return fail(ErrorCode::kPermission, "only the device's own memory can be written to");
  if (question.owner == kConstants && host_.processes.open_constant) {
    return host_.processes.open_constant(question.segment);
  }
  if (host_.processes.open_segment) return host_.processes.open_segment(question.owner, question.segment);
  return fail(ErrorCode::kTensorLost, "there is no memory of " + question.owner.to_string() + " here");
}

Status DomainChild::open(const DomainOpen& question) {
  DomainOpened answer;
  UniqueFd fd;
  if (auto opened = descriptor(question)) {
    answer.bytes = opened->bytes;
    answer.may_shrink = opened->may_shrink;
    fd = std::move(opened->fd);
  } else {
    answer.error = std::move(opened).error();
  }
  return socket_.send(std::move(answer), after(Clock::now(), kSend), fd.get());
}

std::map<DomainChild::Block, DomainChild::Granted>::iterator DomainChild::block_of(const DomainPlace& place) {
  if (place.owner != host_.device || place.device) return granted_.end();
  auto block = granted_.upper_bound({place.segment, place.offset});
  if (block == granted_.begin()) return granted_.end();
  --block;
  const std::uint64_t inside = place.offset - block->first.second;
  const bool fits = block->first.first == place.segment && inside <= block->second.bytes &&
                    place.bytes <= block->second.bytes - inside;
  return fits ? block : granted_.end();
}

Result<c10::Storage> DomainChild::take(const DomainPlace& place) {
  if (place.device && room_) return room_->take(place);
  const auto block = block_of(place);
  if (block == granted_.end()) return fail(ErrorCode::kMalformed, "a result lies where nothing was granted");
  struct Owned {
    Arena* arena;
    std::byte* block;
  };
  std::byte* data = block->second.data + (place.offset - block->first.second);
  auto* owned = new Owned{host_.arena, block->second.data};
  granted_.erase(block);
  c10::DataPtr pointer(
      data, owned,
      [](void* context) {
        const auto* ending = static_cast<Owned*>(context);
        ending->arena->deallocate(ending->block);
        delete ending;
      },
      c10::Device(c10::DeviceType::CPU));
  return c10::Storage(c10::Storage::use_byte_size_t(), place.bytes, std::move(pointer), nullptr, /*resizable=*/false);
}

void DomainChild::free(const std::vector<DomainPlace>& places) {
  for (const DomainPlace& place : places) {
    const auto block = block_of(place);
    if (block == granted_.end()) continue;
    host_.arena->deallocate(block->second.data);
    granted_.erase(block);
  }
}

}  // namespace callboard::kernels
