#include "tests/simulation/memory.h"

#include <cstring>

namespace callboard::simulation {
namespace {

constexpr std::uint64_t kBlock = 4096;

const ArenaBlock* block_of(const WireValue& value) {
  const auto* handle = std::get_if<TensorHandle>(&value);
  return handle == nullptr ? nullptr : std::get_if<ArenaBlock>(&handle->data);
}

}  // namespace

Content mix(Content seed, Content value) {
  Content x = seed ^ (value + 0x9e3779b97f4a7c15ull + (seed << 6) + (seed >> 2));
  x ^= x >> 31;
  x *= 0xbf58476d1ce4e5b9ull;
  return x ^ (x >> 29);
}

Content content_of(const std::string& text) {
  Content hash = 0xcbf29ce484222325ull;
  for (char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return hash;
}

WireValue Memory::block(const ActorId& owner, std::uint64_t number, LeaseId lease) {
  return TensorHandle{TensorMeta::contiguous(DType::kInt64, {1}), ArenaBlock{owner, 1, number * kBlock, kBlock, lease}};
}

WireValue Memory::small(Content content) {
  std::string bytes(sizeof(content), '\0');
  std::memcpy(bytes.data(), &content, sizeof(content));
  return TensorHandle{TensorMeta::contiguous(DType::kInt64, {1}), InlineBytes{std::move(bytes)}};
}

WireValue Memory::lend(const ActorId& owner, const ActorId& holder, Content content) {
  const LeaseId lease = next_++;
  if (gone_holders_[owner].count(holder) == 0) leases_[owner][lease] = holder;
  contents_[{owner, lease}] = content;
  return block(owner, lease, lease);
}

void Memory::release(const ActorId& owner, LeaseId lease) {
  const auto of_owner = leases_.find(owner);
  if (of_owner != leases_.end()) of_owner->second.erase(lease);
}

void Memory::holder_gone(const ActorId& owner, const ActorId& holder) {
  gone_holders_[owner].insert(holder);
  const auto of_owner = leases_.find(owner);
  if (of_owner == leases_.end()) return;
  std::erase_if(of_owner->second, [&](const auto& entry) { return entry.second == holder; });
}

void Memory::owner_gone(const ActorId& owner) {
  leases_.erase(owner);
  gone_.insert(owner);
}

std::size_t Memory::leases(const ActorId& owner) const {
  const auto of_owner = leases_.find(owner);
  return of_owner == leases_.end() ? 0 : of_owner->second.size();
}

std::string Memory::leases_text(const ActorId& owner) const {
  std::string text;
  if (leases(owner) == 0) return text;
  for (const auto& [lease, holder] : leases_.at(owner)) {
    text += " " + std::to_string(lease) + " held by " + holder.to_string();
  }
  return text;
}

WireValue Memory::input(const ActorId& client, Content content) {
  const std::uint64_t number = next_++;
  inputs_[client].insert(number);
  contents_[{client, number}] = content;
  return block(client, number, 0);
}

void Memory::free_input(const ActorId& client, const WireValue& value) {
  const ArenaBlock* block = block_of(value);
  if (block != nullptr && block->owner == client) inputs_[client].erase(block->offset / kBlock);
}

std::size_t Memory::inputs(const ActorId& client) const {
  const auto found = inputs_.find(client);
  return found == inputs_.end() ? 0 : found->second.size();
}

Content Memory::read(const ActorId& who, const WireValue& value) {
  if (const auto* handle = std::get_if<TensorHandle>(&value)) {
    if (const auto* bytes = std::get_if<InlineBytes>(&handle->data)) {
      Content content = 0;
      std::memcpy(&content, bytes->bytes.data(), sizeof(content));
      return content;
    }
  }
  const ArenaBlock* block = block_of(value);
  if (block == nullptr) {
    world_.violation(who.to_string() + " got something that is no tensor");
    return 0;
  }
  const std::uint64_t number = block->offset / kBlock;
  const bool lent = block->lease != 0 ? leases_[block->owner].count(block->lease) != 0
                                      : inputs_[block->owner].count(number) != 0;
  if (!lent && gone_.count(block->owner) == 0) {
    world_.violation(
        who.to_string() + " reads block " + std::to_string(number) + " of " + block->owner.to_string() +
        (block->lease != 0 ? ", whose lease has ended" : ", which the client has taken back (CO-6, CS-2)"));
  }
  return contents_[{block->owner, number}];
}

}  // namespace callboard::simulation
