// Files that are written whole: beside their place first and then renamed there, so that no reader sees half of one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "messages/base/error.h"
#include "messages/base/fd.h"

namespace callboard::actors {

/// May OutputFile write there? kBadInput where the path names no file, or something that exists and is no regular file:
/// a rename would put a file in the place of a device, a pipe or a folder. kFileNotFound and kPermission tell what is
/// wrong with its folder. Makes nothing; asked before the work whose results go there.
Status check_output_file(const std::string& path);

/// Do both name one existing file, by whatever path or link?
bool is_same_file(const std::string& one, const std::string& other);

/// Not thread-safe; any number of them may write to one path, the last finish() wins. Links are followed.
class OutputFile {
 public:
  /// check_output_file(), and what the system says when the file beside it is made.
  static Result<OutputFile> create(const std::string& path);
  /// Without finish() nothing is left and `path` is what it was.
  ~OutputFile();
  OutputFile(OutputFile&& other) noexcept
      : path_(std::move(other.path_)),
        target_(std::move(other.target_)),
        temporary_(std::exchange(other.temporary_, {})),
        fd_(std::move(other.fd_)) {}
  OutputFile& operator=(OutputFile&& other) = delete;
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  /// kResourceExhausted with the system's reason.
  Status write(const void* data, std::uint64_t bytes);
  Status write(std::string_view text) { return write(text.data(), text.size()); }
  /// Puts it in its place. Once.
  Status finish();

 private:
  OutputFile() = default;

  std::string path_;       // as it was given, for messages
  std::string target_;     // where that leads
  std::string temporary_;  // empty once it is in its place
  UniqueFd fd_;
};

}  // namespace callboard::actors
