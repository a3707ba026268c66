// Where ATen in a GIL domain's child allocates: in blocks that the device grants, so that a result lies where the
// device wants it before it exists.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "kernels/memory/arena.h"
#include "kernels/process_domain/domain_line.h"

namespace callboard::kernels {

/// A granted block that is freed here is kept for the next allocation of its size, up to 64 MiB of them; the device
/// hears of the others with the next answer. While the device does not listen (a thread of Python's own, between calls)
/// blocks are ordinary memory of this process, and a result in one is copied. It lends nothing: leases are the
/// device's.
class ChildArena final : public Arena {
 public:
  ChildArena(DomainLine& line, ActorId device) : line_(line), device_(std::move(device)) {}

  Result<void*> allocate(std::size_t bytes) override;
  Result<void*> allocate_for_helpers(std::size_t bytes) override { return allocate(bytes); }
  void deallocate(void* pointer) noexcept override;
  std::optional<Location> find(const void* pointer) const override;
  Result<Descriptor> descriptor(SegmentId segment, bool writable) const override;
  std::optional<ArenaBlock> lease(const void*, const ActorId&) override { return std::nullopt; }
  bool release(LeaseId) noexcept override { return false; }
  std::size_t holder_gone(const ActorId&) noexcept override { return 0; }
  void trim() override {}
  void trim_unused() override {}
  ArenaStats stats() const override { return {}; }
  std::vector<LeaseInfo> leases() const override { return {}; }
  void fork_prepare() noexcept override { mutex_.lock(); }
  void fork_parent() noexcept override { mutex_.unlock(); }
  void fork_child() noexcept override;

  /// The granted block around `pointer` is the device's from now on; nullopt if it is none. The place begins at
  /// `pointer`.
  std::optional<DomainPlace> give(const void* pointer, std::uint64_t bytes);
  /// For DomainResult::freed; once.
  std::vector<DomainPlace> take_freed();
  /// Between calls: unmaps segments that nothing lies in, beyond a few. The device may have closed them.
  void trim_segments();

  /// An argument that is written to: a mapping of its own, where all see what is written.
  class Written {
   public:
    Written(ChildArena& arena, std::byte* mapping, std::uint64_t mapped, std::byte* data, UniqueFd fd,
            std::uint64_t at);
    ~Written();
    Written(const Written&) = delete;
    Written& operator=(const Written&) = delete;
    std::byte* data() const { return data_; }
    /// After the call, where Python has kept it: what is written from now on stays here, and so does what it held.
    void part() noexcept;

   private:
    friend class ChildArena;
    bool map_private() noexcept;
    ChildArena& arena_;
    std::byte* const mapping_;
    const std::uint64_t mapped_;
    std::byte* const data_;
    const UniqueFd fd_;
    const std::uint64_t at_;  // offset of the mapping in its segment
  };
  Result<std::shared_ptr<Written>> open_written(const DomainPlace& place);

 private:
  struct Segment {
    UniqueFd fd;
    std::byte* data = nullptr;
    std::uint64_t bytes = 0;
    std::vector<bool>
        present;  ///< by page: mapped here once. Where the device has given it back since, a touch maps it
  };
  struct Block {
    std::uint64_t bytes = 0;
    std::optional<DomainPlace> place;  ///< nothing: ordinary memory
    bool given = false;
  };
  Result<std::pair<std::byte*, Block>> granted(std::uint64_t bytes);
  Result<std::pair<std::byte*, Block>> ask(std::uint64_t bytes);
  bool give_up_kept();
  Result<Segment*> segment(SegmentId id);
  void populate_once(Segment& segment, std::uint64_t offset, std::uint64_t bytes);
  Result<Descriptor> open_segment(SegmentId id);
  std::byte* kept_locked(std::uint64_t bytes);
  std::map<const std::byte*, Block>::const_iterator block_locked(const void* pointer) const;

  static constexpr std::uint64_t kKeptMax = 64u << 20;

  DomainLine& line_;
  const ActorId device_;
  mutable std::mutex mutex_;  // all below; held across no question to the device
  std::map<SegmentId, Segment> segments_;
  std::map<const std::byte*, Block> blocks_;                               // that are out
  std::multimap<std::uint64_t, std::pair<std::byte*, DomainPlace>> kept_;  // by size
  std::uint64_t kept_bytes_ = 0;
  std::vector<DomainPlace> freed_;
  std::set<Written*> written_;
  std::size_t asking_ = 0;  // threads that may be about to use a segment without a block in it
};

}  // namespace callboard::kernels
