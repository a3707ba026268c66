#include "kernels/memory/lease_table.h"

#include <algorithm>

namespace callboard::kernels {

LeaseTable::Grant LeaseTable::grant(const ActorId& holder, std::uintptr_t block, std::uint64_t bytes, TimePoint now) {
  const LeaseId lease = ++last_;
  if (gone_.contains(holder)) return {lease, false};
  const auto entry = holders_.try_emplace(holder).first;
  entry->second.insert(lease);
  leases_.emplace(lease, Lease{&entry->first, block, bytes, now});
  return {lease, true};
}

std::optional<std::uintptr_t> LeaseTable::release(LeaseId lease) {
  const auto found = leases_.find(lease);
  if (found == leases_.end()) return std::nullopt;
  const std::uintptr_t block = found->second.block;
  const auto holder = holders_.find(*found->second.holder);
  leases_.erase(found);
  holder->second.erase(lease);
  if (holder->second.empty()) holders_.erase(holder);
  return block;
}

std::vector<std::uintptr_t> LeaseTable::holder_gone(const ActorId& holder) {
  if (gone_.insert(holder).second) {
    gone_order_.push_back(holder);
    if (gone_order_.size() > kGoneRemembered) {
      gone_.erase(gone_order_.front());
      gone_order_.pop_front();
    }
  }
  std::vector<std::uintptr_t> blocks;
  const auto found = holders_.find(holder);
  if (found == holders_.end()) return blocks;
  blocks.reserve(found->second.size());
  for (const LeaseId lease : found->second) {
    const auto entry = leases_.find(lease);
    blocks.push_back(entry->second.block);
    leases_.erase(entry);
  }
  holders_.erase(found);
  return blocks;
}

std::vector<LeaseInfo> LeaseTable::list() const {
  std::vector<LeaseInfo> infos;
  infos.reserve(leases_.size());
  for (const auto& [id, lease] : leases_) infos.push_back({id, *lease.holder, lease.bytes, lease.since});
  std::sort(infos.begin(), infos.end(), [](const LeaseInfo& a, const LeaseInfo& b) { return a.lease < b.lease; });
  return infos;
}

}  // namespace callboard::kernels
