// Shared memory as the simulation sees it: each block has one content, is lent under leases and may be read only while
// it is lent. Knows nothing of bytes.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "messages/protocol.h"
#include "tests/simulation/world.h"

namespace callboard::simulation {

using Content = std::uint64_t;

Content mix(Content seed, Content value);
Content content_of(const std::string& text);

class Memory {
 public:
  explicit Memory(World& world) : world_(world) {}

  // -- results, under leases
  WireValue lend(const ActorId& owner, const ActorId& holder, Content content);
  void release(const ActorId& owner, LeaseId lease);
  void holder_gone(const ActorId& owner, const ActorId& holder);
  /// Its process ended: nobody counts its leases any more, but what was lent stays readable.
  void owner_gone(const ActorId& owner);
  std::size_t leases(const ActorId& owner) const;
  std::string leases_text(const ActorId& owner) const;

  // -- inputs of clients, without leases
  WireValue input(const ActorId& client, Content content);
  void free_input(const ActorId& client, const WireValue& value);
  std::size_t inputs(const ActorId& client) const;

  static WireValue small(Content content);
  /// The content, after checking that `who` may read it now.
  Content read(const ActorId& who, const WireValue& value);

 private:
  static WireValue block(const ActorId& owner, std::uint64_t number, LeaseId lease);

  World& world_;
  std::map<ActorId, std::map<LeaseId, ActorId>> leases_;  // by owner: lease -> holder
  std::map<ActorId, std::set<std::uint64_t>> inputs_;      // blocks of each client that are in use
  std::map<std::pair<ActorId, std::uint64_t>, Content> contents_;  // owner and block; a lease's block has its number
  std::map<ActorId, std::set<ActorId>>
      gone_holders_;  // by owner: a lease for one of these ends at once, as in the arena
  std::set<ActorId> gone_;
  std::uint64_t next_ = 1;
};

}  // namespace callboard::simulation
