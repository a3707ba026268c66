// Memory of this process that maps a file: which file, and where in it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/client/client.h"

namespace callboard::actors {

/// The map of this process as it is at the first question. One thread.
///
/// It says what was mapped and not what is there now: private pages may have been written to, the file may have been
/// changed. Who uses an answer compares content.
class MappedOrigins {
 public:
  struct Origin {
    std::shared_ptr<const WeightsFile> file;  ///< open for reading; the same object for the same file
    std::uint64_t offset = 0;
  };
  /// nullopt unless all of it lies in one mapping of a regular file that can still be opened at its path.
  std::optional<Origin> find(const void* data, std::uint64_t bytes);

 private:
  struct Region {
    std::uintptr_t start = 0;
    std::uintptr_t end = 0;
    std::uint64_t offset = 0;
    std::uint64_t device = 0;
    std::uint64_t inode = 0;
    std::string path;
  };
  void read_maps();
  std::shared_ptr<const WeightsFile> open_file(const Region& region);

  bool read_ = false;
  std::vector<Region> regions_;                                      // of files, by address
  std::map<std::string, std::shared_ptr<const WeightsFile>> files_;  // by path; nullptr: not to be had
};

}  // namespace callboard::actors
