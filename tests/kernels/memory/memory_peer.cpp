// The other process of the tests in this folder: reads segments of its parent, or owns an arena that its parent reads.
// One command a line on stdin, one answer a line on stdout. Segments are reached through /proc/<pid>/fd.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/memory/arena.h"
#include "kernels/memory/segment_map.h"

namespace callboard::kernels {
namespace {

struct Reader {
  std::string fd_path;
  std::vector<LeaseId> released;
  std::unique_ptr<SegmentMap> map = SegmentMap::create(
      [this](const ActorId&, SegmentId) -> Result<OpenedSegment> {
        UniqueFd fd(::open(fd_path.c_str(), O_RDONLY | O_CLOEXEC));
        if (!fd) return fail(ErrorCode::kTensorLost, "no " + fd_path);
        return OpenedSegment{std::move(fd), 0};
      },
      [this](const ActorId&, LeaseId lease) { released.push_back(lease); });
  std::vector<std::shared_ptr<MappedBlock>> blocks;
};

struct Owner {
  int fd = -1;
  Arena* arena = nullptr;
};

std::string open_block(Reader& reader, std::istream& in) {
  ArenaBlock block{{"owner", 1}, 0, 0, 0, 0};
  in >> reader.fd_path >> block.segment >> block.offset >> block.bytes >> block.lease;
  auto opened = reader.map->open(block);
  if (!opened) return "error " + std::string(error_name(opened.error().code));
  reader.blocks.push_back(*opened);
  return std::to_string(reader.blocks.size() - 1);
}

std::string allocate(Owner& owner, std::istream& in) {
  std::size_t bytes = 0;
  int fill = 0;
  in >> bytes >> fill;
  if (!owner.arena) {
    SegmentObserver observer;
    observer.added = [&owner](SegmentId, UniqueFd fd, std::uint64_t) -> Status {
      owner.fd = fd.release();
      return {};
    };
    auto created = Arena::create({.owner = {"owner", 1}}, observer);
    if (!created) return "error";
    owner.arena = *created;
  }
  auto pointer = owner.arena->allocate(bytes);
  if (!pointer) return "error " + pointer.error().message;
  std::memset(*pointer, fill, bytes);
  const auto block = owner.arena->lease(*pointer, {"reader", 1});
  std::ostringstream out;
  out << "/proc/" << ::getpid() << "/fd/" << owner.fd << " " << block->segment << " " << block->offset << " "
      << block->bytes << " " << block->lease;
  return out.str();
}

/// What a reader must not be able to do to the parent's segment; names what it could do.
std::string attack(std::istream& in) {
  std::string path;
  in >> path;
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return "cannot open";
  constexpr std::size_t kBytes = 4096;
  if (::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0) != MAP_FAILED) return "shared mapping";
  if (::pwrite(fd.get(), "x", 1, 0) >= 0) return "pwrite";
  if (::ftruncate(fd.get(), 0) == 0) return "truncate";
  if (::fallocate(fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kBytes) == 0) return "punch";
  if (::geteuid() != 0 && ::open(path.c_str(), O_RDWR | O_CLOEXEC) >= 0) return "reopen";
  return "refused";
}

int run() {
  Reader reader;
  Owner owner;
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream in(line);
    std::string command;
    std::size_t slot = 0;
    std::size_t index = 0;
    int value = 0;
    in >> command;
    std::string answer = "unknown";
    if (command == "open") {
      answer = open_block(reader, in);
    } else if (command == "read") {
      in >> slot >> index;
      answer = std::to_string(static_cast<int>(reader.blocks.at(slot)->data()[index]));
    } else if (command == "write") {
      in >> slot >> index >> value;
      reader.blocks.at(slot)->data()[index] = static_cast<std::byte>(value);
      answer = "ok";
    } else if (command == "drop") {
      in >> slot;
      reader.blocks.at(slot).reset();
      answer = reader.released.empty() ? "none" : std::to_string(reader.released.back());
    } else if (command == "allocate") {
      answer = allocate(owner, in);
    } else if (command == "attack") {
      answer = attack(in);
    }
    std::cout << answer << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace callboard::kernels

int main() { return callboard::kernels::run(); }
