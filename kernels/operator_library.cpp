#include "kernels/operator_library.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iterator>
#include <set>
#include <utility>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>
#include <torch/version.h>

#include "kernels/plugin.h"
#include "messages/base/fd.h"
#include "messages/base/log.h"

namespace callboard::kernels {

namespace {

Error not_loadable(ErrorCode code, const std::string& path, const std::string& why, std::string hint) {
  return Error(code, "the operator library " + path + " cannot be loaded: " + why, std::move(hint));
}

/// Which file, and in which state.
struct FileState {
  dev_t device;
  ino_t inode;
  off_t bytes;
  timespec changed;

  explicit FileState(const struct stat& info)
      : device(info.st_dev), inode(info.st_ino), bytes(info.st_size), changed(info.st_mtim) {}
  bool operator==(const FileState& other) const {
    return device == other.device && inode == other.inode && bytes == other.bytes &&
           changed.tv_sec == other.changed.tv_sec && changed.tv_nsec == other.changed.tv_nsec;
  }
};

Result<FileState> state_of(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    return fail(
        not_loadable(ErrorCode::kFileNotFound, path, std::strerror(errno), "correct `operators` in the cluster file"));
  }
  if (!S_ISREG(info.st_mode)) {
    return fail(
        not_loadable(ErrorCode::kFileNotFound, path, "it is not a file", "correct `operators` in the cluster file"));
  }
  return FileState(info);
}

Result<ContentHash> hash_of(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 1 << 16> buffer;
  ContentHasher hasher;
  while (file) {
    const ssize_t got = ::read(file.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) break;
    if (got == 0) return hasher.finish();
    hasher.update(buffer.data(), static_cast<std::size_t>(got));
  }
  return fail(not_loadable(ErrorCode::kFileNotFound, path, std::strerror(errno), "the device must be able to read it"));
}

std::set<std::string> registered_operators() {
  std::set<std::string> names;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    names.insert(name.overload_name.empty() ? name.name : name.name + "." + name.overload_name);
  }
  return names;
}

constexpr const char* kHowToBuild = "build it for torch " TORCH_VERSION ", and name each library once";

std::string opening_path;  // of the library that is being opened, for the handler

/// What a library throws while it registers itself (an operator that is there already) cannot leave the loader, which
/// is C: the process ends, and says with which library.
[[noreturn]] void end_with_library() {
  std::string why = "its start ended the process";
  if (const std::exception_ptr thrown = std::current_exception()) {
    try {
      std::rethrow_exception(thrown);
    } catch (const c10::Error& error) {
      why = error.what_without_backtrace();
    } catch (const std::exception& error) {
      why = error.what();
    } catch (...) {
    }
  }
  log::error("start_failed", not_loadable(ErrorCode::kEnvironment, opening_path, why, kHowToBuild).to_string());
  std::_Exit(1);
}

/// Empty: it is open, for good. Else what the loader says.
std::string open_library(const std::string& path) {
  opening_path = path;
  const std::terminate_handler before = std::set_terminate(end_with_library);
  void* const opened = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  std::set_terminate(before);
  if (opened != nullptr) return {};
  const char* why = ::dlerror();
  return why == nullptr ? "dlopen failed" : why;
}

/// libtorch_python, or a symbol of Python's that it needs.
bool lacks_python(const std::string& why) {
  return why.find("libtorch_python") != std::string::npos || why.find("undefined symbol: Py") != std::string::npos ||
         why.find("undefined symbol: _Py") != std::string::npos;
}

}  // namespace

Result<LoadedLibrary> load_operator_library(const OperatorLibrary& library) {
  CALLBOARD_ASSIGN(const FileState before, state_of(library.path));
  LoadedLibrary loaded{library.path, {}, {}};
  CALLBOARD_ASSIGN(loaded.hash, hash_of(library.path));
  if (!library.hash.empty() && library.hash != loaded.hash) {
    return fail(not_loadable(ErrorCode::kFileChanged, library.path,
                             "its SHA-256 is " + loaded.hash.hex() + ", the cluster file wants " + library.hash.hex(),
                             "put the right file there, or correct operators[].sha256"));
  }
  std::set<std::string> known = registered_operators();
  std::string why = open_library(library.path);
  if (!why.empty() && lacks_python(why)) {
    if (const auto python = load_plugin("python"); !python) {
      return fail(not_loadable(ErrorCode::kEnvironment, library.path, why + "; " + python.error().message,
                               "link it without libtorch_python: -Wl,--as-needed before the libraries"));
    }
    known = registered_operators();  // libtorch_python has brought some
    why = open_library(library.path);
  }
  if (!why.empty()) {
    return fail(not_loadable(ErrorCode::kEnvironment, library.path, why, kHowToBuild));
  }
  CALLBOARD_ASSIGN(const FileState after, state_of(library.path));
  if (!(before == after)) {
    return fail(not_loadable(ErrorCode::kFileChanged, library.path, "it was replaced while it was being loaded",
                             "start again"));
  }
  const std::set<std::string> all = registered_operators();
  std::set_difference(all.begin(), all.end(), known.begin(), known.end(), std::back_inserter(loaded.operators));
  return loaded;
}

Result<std::vector<LoadedLibrary>> load_operator_libraries(const std::vector<OperatorLibrary>& libraries) {
  std::vector<LoadedLibrary> loaded;
  for (const OperatorLibrary& library : libraries) {
    CALLBOARD_ASSIGN(LoadedLibrary one, load_operator_library(library));
    loaded.push_back(std::move(one));
  }
  return loaded;
}

std::string to_json(const std::vector<LoadedLibrary>& libraries) {
  auto list = nlohmann::json::array();
  for (const LoadedLibrary& library : libraries) {
    list.push_back({{"path", library.path}, {"sha256", library.hash.hex()}, {"operators", library.operators}});
  }
  return list.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace callboard::kernels
