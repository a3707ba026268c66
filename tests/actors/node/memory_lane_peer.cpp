// A member of the memory lane in a process of its own, for memory_broker_peers_test.cpp. One command a line on stdin,
// one answer a line on stdout.
#include <fcntl.h>
#include <sys/resource.h>

#include <cstring>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/actors/node/memory_member.h"

namespace callboard::test {
namespace {

struct Peer {
  std::unique_ptr<MemoryMember> member;
  std::vector<std::shared_ptr<kernels::MappedBlock>> blocks;
  std::vector<UniqueFd> fill;
};

std::string connect(Peer& peer, std::istream& in) {
  std::string socket;
  ActorId who;
  in >> socket >> who.name >> who.incarnation;
  auto member = MemoryMember::connect(socket, who);
  if (!member) return "error " + std::string(error_name(member.error().code));
  peer.member = std::move(*member);
  return "ok";
}

/// "allocate <bytes> <fill> <holder> <incarnation>" → "<segment> <offset> <bytes> <lease>"
std::string allocate(Peer& peer, std::istream& in) {
  std::size_t bytes = 0;
  int fill = 0;
  ActorId holder;
  in >> bytes >> fill >> holder.name >> holder.incarnation;
  auto pointer = peer.member->arena->allocate(bytes);
  if (!pointer) return "error " + std::string(error_name(pointer.error().code));
  std::memset(*pointer, fill, bytes);
  const auto block = peer.member->arena->lease(*pointer, holder);
  peer.member->arena->deallocate(*pointer);
  std::ostringstream out;
  out << block->segment << " " << block->offset << " " << block->bytes << " " << block->lease;
  return out.str();
}

/// "open <owner> <incarnation> <segment> <offset> <bytes> <lease>" → slot
std::string open(Peer& peer, std::istream& in) {
  ArenaBlock block;
  in >> block.owner.name >> block.owner.incarnation >> block.segment >> block.offset >> block.bytes >> block.lease;
  auto opened = peer.member->map->open(block);
  if (!opened) return "error " + std::string(error_name(opened.error().code));
  peer.blocks.push_back(*opened);
  return std::to_string(peer.blocks.size() - 1);
}

/// Leaves this process without a free descriptor.
std::string exhaust(Peer& peer) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = 128;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  for (;;) {
    UniqueFd fd(::fcntl(0, F_DUPFD_CLOEXEC, 0));
    if (!fd) return "ok";
    peer.fill.push_back(std::move(fd));
  }
}

int run() {
  Peer peer;
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream in(line);
    std::string command;
    std::size_t slot = 0;
    std::size_t index = 0;
    in >> command;
    std::string answer = "unknown";
    if (command == "connect") {
      answer = connect(peer, in);
    } else if (command == "allocate") {
      answer = allocate(peer, in);
    } else if (command == "open") {
      answer = open(peer, in);
    } else if (command == "read") {
      in >> slot >> index;
      answer = std::to_string(static_cast<int>(peer.blocks.at(slot)->data()[index]));
    } else if (command == "exhaust") {
      answer = exhaust(peer);
    } else if (command == "relax") {
      peer.fill.clear();
      answer = "ok";
    }
    std::cout << answer << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace callboard::test

int main() { return callboard::test::run(); }
