#include "actors/core/ipc_path.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>

#include "actors/core/transport.h"
#include "messages/base/fd.h"

namespace callboard::actors {
namespace {

constexpr std::string_view kPrefix = "ipc://";
constexpr std::size_t kPathMax = sizeof(sockaddr_un::sun_path) - 1;

Status check_directory(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  const std::string dir = slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  struct stat info = {};
  if (::stat(dir.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    return fail(ErrorCode::kEnvironment, "there is no directory '" + dir + "' for the socket '" + path + "'");
  }
  if (info.st_uid != ::geteuid() || (info.st_mode & 022) != 0) {
    return fail(ErrorCode::kPermission,
                "others may write to '" + dir + "', so the socket '" + path + "' would not be safe",
                "use a directory of your own with mode 0700");
  }
  return {};
}

/// Somebody accepts connections there. A full backlog counts: it is not refused.
bool is_served(const std::string& path) {
  const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  if (!fd) return true;  // not known: better refuse than steal
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return true;
  return errno != ECONNREFUSED && errno != ENOENT;
}

}  // namespace

Result<std::string> ipc_endpoint(const std::string& path) {
  if (path.empty() || path.size() > kPathMax) {
    return fail(ErrorCode::kConfigOutOfRange,
                "the socket path '" + path + "' has " + std::to_string(path.size()) + " bytes; at most " +
                    std::to_string(kPathMax) + " are possible",
                "set CALLBOARD_RUN_DIR to a shorter directory");
  }
  return std::string(kPrefix) + path;
}

std::string ipc_path_of(const std::string& endpoint) {
  return endpoint.starts_with(kPrefix) ? endpoint.substr(kPrefix.size()) : std::string();
}

Status prepare_ipc_path(const std::string& path) {
  CALLBOARD_TRY(ipc_endpoint(path));
  CALLBOARD_TRY(check_directory(path));
  struct stat info = {};
  if (::lstat(path.c_str(), &info) != 0) return {};
  if (!S_ISSOCK(info.st_mode)) {
    return fail(ErrorCode::kAddressInUse, "'" + path + "' exists and is not a socket", "remove it");
  }
  if (is_served(path)) {
    return fail(ErrorCode::kAddressInUse, "'" + path + "' is served by a live process", "end it, or use another path");
  }
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
    return fail(ErrorCode::kPermission, "the stale socket '" + path + "' cannot be removed: " + ::strerror(errno));
  }
  return {};
}

Status protect_ipc_path(const std::string& path) {
  if (::chmod(path.c_str(), 0600) == 0) return {};
  return fail(ErrorCode::kPermission, "the mode of '" + path + "' cannot be set: " + ::strerror(errno));
}

}  // namespace callboard::actors
