#include "actors/client/mapped_origin.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <utility>

namespace callboard::actors {

void MappedOrigins::read_maps() {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  while (std::getline(maps, line)) {
    Region region;
    unsigned device_major = 0;
    unsigned device_minor = 0;
    char permissions[5] = {};
    int path_at = 0;
    const int fields =
        std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %4s %" SCNx64 " %x:%x %" SCNu64 " %n", &region.start,
                    &region.end, permissions, &region.offset, &device_major, &device_minor, &region.inode, &path_at);
    if (fields != 7 || region.inode == 0 || permissions[0] != 'r') continue;
    region.path = line.substr(std::min(static_cast<std::size_t>(path_at), line.size()));
    if (region.path.empty() || region.path.front() != '/') continue;
    region.device = makedev(device_major, device_minor);
    regions_.push_back(std::move(region));
  }
}

std::shared_ptr<const WeightsFile> MappedOrigins::open_file(const Region& region) {
  const auto [known, added] = files_.try_emplace(region.path);
  if (!added) return known->second;
  // Non-blocking: something else, a pipe say, may lie at that path by now.
  UniqueFd fd(::open(region.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info = {};
  if (!fd || ::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) return nullptr;
  if (info.st_dev != region.device || info.st_ino != region.inode) return nullptr;
  known->second = std::make_shared<const WeightsFile>(WeightsFile{std::move(fd), region.path});
  return known->second;
}

std::optional<MappedOrigins::Origin> MappedOrigins::find(const void* data, std::uint64_t bytes) {
  if (!read_) read_maps();
  read_ = true;
  const auto start = reinterpret_cast<std::uintptr_t>(data);
  const auto after = std::ranges::upper_bound(regions_, start, {}, &Region::start);
  if (after == regions_.begin()) return std::nullopt;
  const Region& region = *std::prev(after);
  if (start >= region.end || bytes > region.end - start) return std::nullopt;
  std::shared_ptr<const WeightsFile> file = open_file(region);
  if (!file) return std::nullopt;
  return Origin{std::move(file), region.offset + (start - region.start)};
}

}  // namespace callboard::actors
