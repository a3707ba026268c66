#include "kernels/cuda/slab_book.h"

#include <algorithm>
#include <utility>

#include "messages/base/check.h"

namespace callboard::kernels::cuda {

namespace {

// As in the arena: a small block keeps a slab that was made for one large block from being given back.
constexpr std::uint64_t kDedicatedShare = 8;

}  // namespace

// -- slabs -----------------------------------------------------------------------------------------------------------

void SlabBook::add(std::unique_ptr<Slab> slab) {
  stats.reserved_bytes += slab->bytes();
  const auto place = std::upper_bound(slabs.begin(), slabs.end(), slab->base,
                                      [](const std::byte* at, const auto& other) { return at < other->base; });
  slabs.insert(place, std::move(slab));
}

std::vector<std::unique_ptr<Slab>> SlabBook::take_empty(std::uint64_t spare_bytes) {
  std::vector<std::unique_ptr<Slab>> taken;
  std::vector<std::unique_ptr<Slab>> left;
  for (auto& slab : slabs) {
    const bool unused = slab->extents.empty() && slab->readings.empty();
    const bool spare = unused && slab->bytes() <= spare_bytes;
    if (spare) spare_bytes -= slab->bytes();
    (unused && !spare ? taken : left).push_back(std::move(slab));
  }
  slabs.swap(left);
  for (const auto& slab : taken) stats.reserved_bytes -= slab->bytes();
  return taken;
}

// -- blocks ----------------------------------------------------------------------------------------------------------

std::optional<SlabBook::Found> SlabBook::find(const void* pointer) const {
  const auto* at = static_cast<const std::byte*>(pointer);
  auto place = std::upper_bound(slabs.begin(), slabs.end(), at,
                                [](const std::byte* wanted, const auto& slab) { return wanted < slab->base; });
  if (place == slabs.begin()) return std::nullopt;
  Slab* slab = (--place)->get();
  if (!slab->holds(at)) return std::nullopt;
  const std::uint64_t unit = static_cast<std::uint64_t>(at - slab->base) / kSlabUnit;
  auto block = slab->blocks.upper_bound(unit);
  if (block == slab->blocks.begin()) return std::nullopt;
  --block;
  if (unit >= block->first + block->second.units || !block->second.allocated) return std::nullopt;
  return Found{slab, block};
}

void* SlabBook::add_block(Slab& slab, Extent extent) {
  slab.blocks.emplace(extent.first, SlabBlock{extent.pages});
  return slab.at(extent.first);
}

void* SlabBook::take_free(std::uint64_t units) {
  for (const bool any_slab : {false, true}) {
    Slab* best = nullptr;
    std::uint64_t best_run = 0;
    for (const auto& slab : slabs) {
      if (!any_slab && slab->dedicated && units * kDedicatedShare < slab->extents.pages()) continue;
      const std::uint64_t run = slab->extents.fit(units, false);
      if (run != 0 && (best == nullptr || run < best_run)) {
        best_run = run;
        best = slab.get();
      }
    }
    if (best == nullptr) continue;
    const Extent extent = best->extents.allocate(units)->extent;
    stats.in_use_bytes += extent.pages * kSlabUnit;
    stats.peak_bytes = std::max(stats.peak_bytes, stats.in_use_bytes);
    return add_block(*best, extent);
  }
  return nullptr;
}

void* SlabBook::take_retired(std::uint64_t units, Stream stream, std::vector<StreamMark>& unused) {
  Retired* best = nullptr;
  for (Retired& block : retired) {
    if (block.stream != stream || block.extent.pages < units) continue;
    if (best == nullptr || block.extent.pages < best->extent.pages) best = &block;
  }
  if (best == nullptr) return nullptr;
  Slab& slab = *best->slab;
  const Extent taken{best->extent.first, units};
  if (best->extent.pages == units) {
    unused.push_back(best->done);
    *best = retired.back();
    retired.pop_back();
  } else {
    best->extent = {best->extent.first + units, best->extent.pages - units};
  }
  return add_block(slab, taken);
}

std::optional<Retired> SlabBook::end_block(const Found& found, Stream stream) {
  SlabBlock& block = found.block->second;
  block.allocated = false;
  block.stream = stream;
  if (block.leases > 0) return std::nullopt;
  const Retired retiring{found.slab, {found.block->first, block.units}, stream, {}};
  found.slab->blocks.erase(found.block);
  return retiring;
}

void SlabBook::free(const Retired& block) {
  block.slab->extents.release(block.extent, false);
  stats.in_use_bytes -= block.extent.pages * kSlabUnit;
}

// -- leases ----------------------------------------------------------------------------------------------------------

void SlabBook::begin_lease(const Found& found) {
  ++found.block->second.leases;
  ++stats.leases;
}

void SlabBook::end_lease(Slab& slab, std::uint64_t block, Loose& loose) {
  const auto found = slab.blocks.find(block);
  CALLBOARD_CHECK(found != slab.blocks.end() && found->second.leases > 0, "a leased block is not given back");
  --stats.leases;
  if (--found->second.leases > 0 || found->second.allocated) return;
  loose.retiring.push_back({&slab, {block, found->second.units}, found->second.stream, {}});
  slab.blocks.erase(found);
}

SlabBook::Granted SlabBook::grant(std::unique_ptr<LeaseRecord>& record) {
  const auto number = [this](const LeaseRecord& made) {
    return leases_.grant(made.holder, reinterpret_cast<std::uintptr_t>(&made), made.bytes, Clock::now());
  };
  const LeaseTable::Grant given = number(*record);
  if (!given.live) return {given.lease, 0};
  Slab& slab = *record->slab;
  SlabReading& reading = slab.readings[record->holder];
  if (reading.mapping == 0) {
    auto open = std::make_unique<LeaseRecord>();
    open->slab = &slab;
    open->holder = record->holder;
    open->lease = reading.mapping = number(*open).lease;
    records.emplace(reading.mapping, std::move(open));
    ++stats.mappings;
  }
  ++reading.leases;
  stats.leased_bytes += record->bytes;
  record->lease = given.lease;
  records.emplace(given.lease, std::move(record));
  return {given.lease, reading.mapping};
}

const LeaseRecord* SlabBook::block_lease(LeaseId lease) const {
  const auto found = records.find(lease);
  return found != records.end() && found->second->block ? found->second.get() : nullptr;
}

/// Of the book only; the lease has been taken from the table.
void SlabBook::end_record(LeaseRecord& record, Loose& loose, std::vector<ExportEvent>& events) {
  Slab& slab = *record.slab;
  const auto reading = slab.readings.find(record.holder);
  CALLBOARD_CHECK(reading != slab.readings.end(), "who holds a lease on a slab has something of it");
  if (record.block) {
    stats.leased_bytes -= record.bytes;
    loose.keeps.push_back(std::move(record.keep));
    events.push_back(record.event);  // SP-4: whoever held the lease has waited for it, or is gone
    end_lease(slab, *record.block, loose);
    --reading->second.leases;
  } else {
    --stats.mappings;
    reading->second.mapping = 0;
    reading->second.keeps_open = false;
  }
  if (reading->second.leases == 0 && reading->second.mapping == 0) slab.readings.erase(reading);
  records.erase(record.lease);
}

/// SP-3: the reader gave back all that it could have opened, and opened nothing that it keeps.
void SlabBook::end_mapping(Slab& slab, const ActorId& reader) {
  const auto reading = slab.readings.find(reader);
  if (reading == slab.readings.end() || reading->second.leases > 0 || reading->second.keeps_open) return;
  // Nobody knows this number but from handles that are over.
  const LeaseId mapping = reading->second.mapping;
  leases_.release(mapping);
  records.erase(mapping);
  --stats.mappings;
  slab.readings.erase(reading);
}

bool SlabBook::release(LeaseId lease, Loose& loose, std::vector<ExportEvent>& events) {
  const std::optional<std::uintptr_t> found = leases_.release(lease & ~kKeepsSlabOpen);
  if (!found) return false;
  auto& record = *reinterpret_cast<LeaseRecord*>(*found);
  Slab& slab = *record.slab;
  const ActorId reader = record.holder;
  if ((lease & kKeepsSlabOpen) != 0 && record.block) {
    SlabReading& reading = slab.readings.at(reader);
    // Without a mapping it has closed the slab since it said so.
    reading.keeps_open = reading.mapping != 0;
  }
  end_record(record, loose, events);
  end_mapping(slab, reader);
  return true;
}

std::size_t SlabBook::holder_gone(const ActorId& holder, Loose& loose, std::vector<ExportEvent>& events) {
  // Mappings are among them.
  const std::vector<std::uintptr_t> ended = leases_.holder_gone(holder);
  for (const std::uintptr_t record : ended) end_record(*reinterpret_cast<LeaseRecord*>(record), loose, events);
  return ended.size();
}

std::vector<LeaseInfo> SlabBook::block_leases() const {
  std::vector<LeaseInfo> infos = leases_.list();
  std::erase_if(infos, [this](const LeaseInfo& info) { return block_lease(info.lease) == nullptr; });
  return infos;
}

}  // namespace callboard::kernels::cuda
