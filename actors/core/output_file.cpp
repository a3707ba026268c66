#include "actors/core/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

namespace callboard::actors {
namespace {

constexpr std::uint64_t kWriteMax = 1u << 30;  // write() takes at most 2 GiB at once

const char* kind_of_file(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  if (S_ISFIFO(mode)) return "a pipe";
  return S_ISSOCK(mode) ? "a socket" : "no regular file";
}

tl::unexpected<Error> no_target(const std::string& path, const std::string& why) {
  return fail(ErrorCode::kBadInput, "'" + path + "' cannot be written: it is " + why,
              "name a file, new or to be replaced");
}

Status check_folder(const std::string& path, const std::string& folder) {
  struct stat info = {};
  if (::stat(folder.c_str(), &info) != 0) {
    const int why = errno;
    return fail(why == ENOENT ? ErrorCode::kFileNotFound : ErrorCode::kPermission,
                "'" + path + "' cannot be written: its folder '" + folder + "': " + std::strerror(why),
                "make the folder, or name another one");
  }
  if (!S_ISDIR(info.st_mode)) {
    return fail(ErrorCode::kBadInput, "'" + path + "' cannot be written: '" + folder + "' is not a folder",
                "name a file in a folder");
  }
  if (::access(folder.c_str(), W_OK | X_OK) != 0) {
    return fail(ErrorCode::kPermission,
                "'" + path + "' cannot be written: its folder '" + folder + "': " + std::strerror(errno),
                "name a file in a folder of your own");
  }
  return {};
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

/// The file that a rename has to replace: where links lead.
Result<std::string> output_target(const std::string& path) {
  if (path.empty()) return fail(ErrorCode::kBadInput, "the path of the file to write is empty", "name a file");
  if (path.find('\0') != std::string::npos) {
    return fail(ErrorCode::kBadInput,
                "the path of the file to write has a NUL byte in it, behind '" + path.substr(0, path.find('\0')) + "'",
                "no file can be named so");
  }
  struct stat info = {};
  if (::lstat(path.c_str(), &info) != 0) {
    if (path.back() == '/') return no_target(path, "the name of a folder");
    CALLBOARD_TRY(check_folder(path, folder_of(path)));
    return path;
  }
  std::string target = path;
  if (S_ISLNK(info.st_mode)) {
    const std::unique_ptr<char, decltype(&std::free)> real(::realpath(path.c_str(), nullptr), &std::free);
    if (::stat(path.c_str(), &info) != 0) return no_target(path, "a link to something that is not there");
    // What a link of /proc leads to (/dev/stdout, a pipe) need not have a path; it is refused below then.
    if (real) target = real.get();
  }
  if (!S_ISREG(info.st_mode)) return no_target(path, kind_of_file(info.st_mode));
  CALLBOARD_TRY(check_folder(path, folder_of(target)));
  return target;
}

}  // namespace

Status check_output_file(const std::string& path) {
  CALLBOARD_TRY(output_target(path));
  return {};
}

bool is_same_file(const std::string& one, const std::string& other) {
  struct stat a = {};
  struct stat b = {};
  return ::stat(one.c_str(), &a) == 0 && ::stat(other.c_str(), &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

Result<OutputFile> OutputFile::create(const std::string& path) {
  // Of this process: several threads may write to one path.
  static std::atomic<std::uint64_t> count{0};
  OutputFile file;
  file.path_ = path;
  CALLBOARD_ASSIGN(file.target_, output_target(path));
  const std::string temporary = file.target_ + ".tmp." + std::to_string(::getpid()) + "." + std::to_string(++count);
  // What an ended process of our number has left there, nobody writes any more.
  ::unlink(temporary.c_str());
  file.fd_.reset(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!file.fd_) {
    const int why = errno;
    return fail(why == EACCES || why == EPERM || why == EROFS ? ErrorCode::kPermission : ErrorCode::kEnvironment,
                "'" + path + "' cannot be written: " + temporary + ": " + std::strerror(why),
                "check the space and the permissions of its folder");
  }
  file.temporary_ = temporary;
  return file;
}

OutputFile::~OutputFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

Status OutputFile::write(const void* data, std::uint64_t bytes) {
  const auto* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(fd_.get(), from, std::min(bytes, kWriteMax));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      const int error = written < 0 ? errno : ENOSPC;
      return fail(ErrorCode::kResourceExhausted, "cannot write " + path_ + ": " + std::strerror(error),
                  "check the space and the permissions of its folder");
    }
    from += written;
    bytes -= static_cast<std::uint64_t>(written);
  }
  return {};
}

Status OutputFile::finish() {
  fd_.reset();
  // What is there now may be another thing than at the start.
  CALLBOARD_ASSIGN(const std::string target, output_target(path_));
  if (target != target_ || ::rename(temporary_.c_str(), target_.c_str()) != 0) {
    return fail(ErrorCode::kEnvironment,
                "'" + path_ + "' cannot be put in its place: " +
                    (target != target_ ? "it leads to another file now, '" + target + "'" : std::strerror(errno)),
                "write it again");
  }
  temporary_.clear();
  return {};
}

}  // namespace callboard::actors
