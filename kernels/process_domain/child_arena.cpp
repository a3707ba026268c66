#include "kernels/process_domain/child_arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "messages/base/check.h"

namespace callboard::kernels {

namespace {

constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, Linux 5.14
constexpr std::size_t kSegmentsKept = 16;
constexpr std::uint64_t kWasteShare = 8;  // a kept block may be larger than what is asked for by this share

std::uint64_t page_bytes() {
  static const auto bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}
std::uint64_t round_to_pages(std::uint64_t bytes) { return (bytes + page_bytes() - 1) / page_bytes() * page_bytes(); }

Error cannot_map(std::uint64_t bytes) {
  return Error(ErrorCode::kOutOfMemory,
               "cannot map " + std::to_string(bytes) + " bytes of the device's memory: " + std::strerror(errno));
}

/// Fails where it cannot be: then the first touch of each page does it.
void populate(std::byte* data, std::uint64_t bytes) { ::madvise(data, bytes, kPopulateWrite); }

}  // namespace

ChildArena::Written::Written(ChildArena& arena, std::byte* mapping, std::uint64_t mapped, std::byte* data, UniqueFd fd,
                             std::uint64_t at)
    : arena_(arena), mapping_(mapping), mapped_(mapped), data_(data), fd_(std::move(fd)), at_(at) {
  std::lock_guard lock(arena_.mutex_);
  arena_.written_.insert(this);
}

ChildArena::Written::~Written() {
  {
    std::lock_guard lock(arena_.mutex_);
    arena_.written_.erase(this);
  }
  ::munmap(mapping_, mapped_);
}

bool ChildArena::Written::map_private() noexcept {
  return ::mmap(mapping_, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, fd_.get(),
                static_cast<off_t>(at_)) != MAP_FAILED;
}

void ChildArena::Written::part() noexcept {
  if (!map_private()) return;
  for (std::uint64_t at = 0; at < mapped_; at += page_bytes()) {
    auto* page = reinterpret_cast<volatile std::byte*>(mapping_ + at);
    *page = *page;  // a copy of its own
  }
}

Result<Arena::Descriptor> ChildArena::open_segment(SegmentId id) {
  CALLBOARD_ASSIGN(DomainSocket::Received received, line_.ask(DomainOpen{device_, id, true}));
  auto* opened = std::get_if<DomainOpened>(&received.message);
  if (opened == nullptr) return fail(ErrorCode::kUnexpectedMessage, "the device answers another question");
  if (opened->error) return fail(std::move(*opened->error));
  if (!received.fd || opened->bytes == 0) return fail(ErrorCode::kMalformed, "a segment came without its descriptor");
  return Descriptor{std::move(received.fd), opened->bytes};
}

/// Walking over pages that are there costs a large block a tenth of what computing it does.
void ChildArena::populate_once(Segment& segment, std::uint64_t offset, std::uint64_t bytes) {
  const auto first = segment.present.begin() + static_cast<std::ptrdiff_t>(offset / page_bytes());
  const auto last = first + static_cast<std::ptrdiff_t>(bytes / page_bytes());
  {
    std::lock_guard lock(mutex_);
    if (std::find(first, last, false) == last) return;
    std::fill(first, last, true);
  }
  populate(segment.data + offset, bytes);
}

Result<ChildArena::Segment*> ChildArena::segment(SegmentId id) {
  {
    std::lock_guard lock(mutex_);
    if (const auto known = segments_.find(id); known != segments_.end()) return &known->second;
  }
  CALLBOARD_ASSIGN(Descriptor opened, open_segment(id));
  void* data = ::mmap(nullptr, opened.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, opened.fd.get(), 0);
  if (data == MAP_FAILED) return fail(cannot_map(opened.bytes));
  ::madvise(data, opened.bytes, MADV_DONTDUMP);
  std::lock_guard lock(mutex_);
  const auto [place, fresh] = segments_.try_emplace(id);
  if (fresh) {
    place->second = {std::move(opened.fd), static_cast<std::byte*>(data), opened.bytes,
                     std::vector<bool>(opened.bytes / page_bytes())};
  } else {
    ::munmap(data, opened.bytes);  // another thread was quicker
  }
  return &place->second;
}

/// Where the device has no room, what is kept here for later is in the way.
Result<std::pair<std::byte*, ChildArena::Block>> ChildArena::granted(std::uint64_t bytes) {
  {
    std::lock_guard lock(mutex_);
    ++asking_;
  }
  auto block = ask(bytes);
  if (!block && block.error().code == ErrorCode::kOutOfMemory && give_up_kept()) block = ask(bytes);
  std::lock_guard lock(mutex_);
  --asking_;
  if (block) blocks_[block->first] = block->second;
  return block;
}

bool ChildArena::give_up_kept() {
  std::lock_guard lock(mutex_);
  for (auto& [size, kept] : kept_) freed_.push_back(std::move(kept.second));
  const bool any = !kept_.empty();
  kept_.clear();
  kept_bytes_ = 0;
  return any;
}

Result<std::pair<std::byte*, ChildArena::Block>> ChildArena::ask(std::uint64_t bytes) {
  DomainAllocate question{bytes, take_freed()};
  auto answered = line_.ask(question);
  if (!answered) {
    // Not heard, or never answered: then the device is gone, too.
    std::lock_guard lock(mutex_);
    freed_.insert(freed_.end(), question.freed.begin(), question.freed.end());
    return fail(std::move(answered).error());
  }
  DomainSocket::Received& received = *answered;
  auto* answer = std::get_if<DomainGranted>(&received.message);
  if (answer == nullptr) return fail(ErrorCode::kUnexpectedMessage, "the device answers another question");
  if (answer->error) return fail(std::move(*answer->error));
  const DomainPlace& place = answer->place;
  CALLBOARD_ASSIGN(Segment * segment, this->segment(place.segment));
  const bool whole_pages = place.offset % page_bytes() == 0 && place.bytes % page_bytes() == 0;
  if (!whole_pages || place.bytes < bytes || place.offset > segment->bytes ||
      place.bytes > segment->bytes - place.offset) {
    return fail(ErrorCode::kMalformed, "a granted block does not lie in its segment");
  }
  populate_once(*segment, place.offset, place.bytes);
  return std::pair(segment->data + place.offset, Block{place.bytes, place, false});
}

std::byte* ChildArena::kept_locked(std::uint64_t bytes) {
  const auto fit = kept_.lower_bound(bytes);
  if (fit == kept_.end() || fit->first - bytes > bytes / kWasteShare) return nullptr;
  auto [data, place] = std::move(fit->second);
  kept_bytes_ -= fit->first;
  blocks_[data] = Block{fit->first, std::move(place), false};
  kept_.erase(fit);
  return data;
}

Result<void*> ChildArena::allocate(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  if (bytes > std::numeric_limits<std::size_t>::max() / 4) {
    return fail(ErrorCode::kOutOfMemory, "cannot allocate " + std::to_string(bytes) + " bytes", "is a size negative?");
  }
  const std::uint64_t wanted = round_to_pages(bytes);
  {
    std::lock_guard lock(mutex_);
    if (std::byte* data = kept_locked(wanted)) return data;
  }
  auto block = granted(wanted);
  if (block) return block->first;
  if (block.error().code != ErrorCode::kNotReady) return fail(std::move(block).error());
  void* data = ::mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return fail(cannot_map(wanted));
  std::lock_guard lock(mutex_);
  blocks_[static_cast<std::byte*>(data)] = Block{wanted, std::nullopt, false};
  return data;
}

void ChildArena::deallocate(void* pointer) noexcept {
  if (pointer == nullptr) return;
  auto* const data = static_cast<std::byte*>(pointer);
  Block ended;
  {
    std::lock_guard lock(mutex_);
    const auto found = blocks_.find(data);
    CALLBOARD_CHECK(found != blocks_.end(), "what is deallocated was allocated here");
    ended = std::move(found->second);
    blocks_.erase(found);
    if (ended.given) return;
    if (ended.place) {
      if (ended.bytes > kKeptMax) {
        freed_.push_back(std::move(*ended.place));
        return;
      }
      // The last ones are the likeliest to be wanted again; the largest old ones make room quickest.
      while (kept_bytes_ + ended.bytes > kKeptMax) {
        const auto largest = std::prev(kept_.end());
        kept_bytes_ -= largest->first;
        freed_.push_back(std::move(largest->second.second));
        kept_.erase(largest);
      }
      kept_bytes_ += ended.bytes;
      kept_.emplace(ended.bytes, std::pair(data, std::move(*ended.place)));
      return;
    }
  }
  ::munmap(data, ended.bytes);
}

std::map<const std::byte*, ChildArena::Block>::const_iterator ChildArena::block_locked(const void* pointer) const {
  const auto* at = static_cast<const std::byte*>(pointer);
  auto block = blocks_.upper_bound(at);
  if (block == blocks_.begin()) return blocks_.end();
  --block;
  return at < block->first + block->second.bytes ? block : blocks_.end();
}

std::optional<Arena::Location> ChildArena::find(const void* pointer) const {
  std::lock_guard lock(mutex_);
  const auto block = block_locked(pointer);
  if (block == blocks_.end()) return std::nullopt;
  Location location;
  location.block = const_cast<std::byte*>(block->first);
  location.block_bytes = block->second.bytes;
  location.zone = Zone::kHelpers;
  if (block->second.place) {
    location.segment = block->second.place->segment;
    location.block_offset = block->second.place->offset;
  }
  return location;
}

Result<Arena::Descriptor> ChildArena::descriptor(SegmentId /*segment*/, bool /*writable*/) const {
  return fail(ErrorCode::kUnsupported, "a GIL domain's child has no segments of its own");
}

std::optional<DomainPlace> ChildArena::give(const void* pointer, std::uint64_t bytes) {
  std::lock_guard lock(mutex_);
  const auto block = block_locked(pointer);
  if (block == blocks_.end() || !block->second.place) return std::nullopt;
  const auto inside = static_cast<std::uint64_t>(static_cast<const std::byte*>(pointer) - block->first);
  if (bytes > block->second.bytes - inside) return std::nullopt;
  blocks_[block->first].given = true;
  DomainPlace place = *block->second.place;
  place.offset += inside;
  place.bytes = bytes;
  return place;
}

std::vector<DomainPlace> ChildArena::take_freed() {
  std::lock_guard lock(mutex_);
  return std::exchange(freed_, {});
}

Result<std::shared_ptr<ChildArena::Written>> ChildArena::open_written(const DomainPlace& place) {
  CALLBOARD_ASSIGN(const Segment* known, segment(place.segment));
  const std::uint64_t begin = place.offset / page_bytes() * page_bytes();
  if (place.bytes == 0 || place.offset > known->bytes || place.bytes > known->bytes - place.offset) {
    return fail(ErrorCode::kMalformed, "an argument to write to does not lie in its segment");
  }
  const std::uint64_t mapped = round_to_pages(place.offset + place.bytes) - begin;
  UniqueFd fd(::dup(known->fd.get()));
  void* data =
      ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd.get(), static_cast<off_t>(begin));
  if (!fd || data == MAP_FAILED) return fail(cannot_map(mapped));
  auto* mapping = static_cast<std::byte*>(data);
  populate(mapping, mapped);
  return std::make_shared<Written>(*this, mapping, mapped, mapping + (place.offset - begin), std::move(fd), begin);
}

void ChildArena::trim_segments() {
  std::vector<Segment> unused;  // closed outside the lock
  {
    std::lock_guard lock(mutex_);
    if (asking_ > 0 || segments_.size() <= kSegmentsKept) return;
    std::set<SegmentId> used;
    for (const auto& [data, block] : blocks_) {
      if (block.place) used.insert(block.place->segment);
    }
    for (const auto& [size, kept] : kept_) used.insert(kept.second.segment);
    for (auto segment = segments_.begin(); segment != segments_.end();) {
      if (used.contains(segment->first)) {
        ++segment;
        continue;
      }
      unused.push_back(std::move(segment->second));
      segment = segments_.erase(segment);
    }
  }
  for (const Segment& segment : unused) ::munmap(segment.data, segment.bytes);
}

/// A helper process of Python's must not write where the device reads.
void ChildArena::fork_child() noexcept {
  for (const auto& [id, segment] : segments_) {
    void* mapped = ::mmap(segment.data, segment.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE,
                          segment.fd.get(), 0);
    if (mapped == MAP_FAILED) ::mprotect(segment.data, segment.bytes, PROT_READ);
  }
  for (Written* written : written_) written->map_private();
  mutex_.unlock();
}

}  // namespace callboard::kernels
