#include "kernels/plugin.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>

#include <torch/version.h>

#include "kernels/runtime.h"
#include "messages/base/own_program.h"

namespace callboard::kernels {

namespace {

Error not_usable(std::string_view name, const std::string& file, const std::string& why, std::string hint) {
  return Error(ErrorCode::kEnvironment, "the plug-in '" + std::string(name) + "' cannot be used: " + file + ": " + why,
               std::move(hint));
}

}  // namespace

Result<std::string> probe_devices(const std::string& kind) {
  if (!comes_by_plugin(kind)) return fail(ErrorCode::kUnsupported, "no plug-in brings devices of kind '" + kind + "'");
  CALLBOARD_ASSIGN(const PluginEntry* entry, load_plugin(kind));
  return entry->probe();
}

Result<const PluginEntry*> load_plugin(std::string_view name, const std::string& folder) {
  static std::map<std::string, const PluginEntry*, std::less<>> loaded;
  if (const auto found = loaded.find(name); found != loaded.end()) return found->second;
  const std::string file = (folder.empty() ? own_program_folder() : folder) + "/callboard_" + std::string(name) + ".so";
  if (::access(file.c_str(), R_OK) != 0) {
    return fail(not_usable(name, file, std::strerror(errno),
                           std::string("this installation was built without it: build ") +
                               (name == "python" ? "where libpython and its headers are, with -DCALLBOARD_PYTHON=ON"
                                                 : "where nvcc is found, with -DCALLBOARD_CUDA=ON")));
  }
  void* handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr) {
    const char* why = ::dlerror();
    return fail(not_usable(name, file, why == nullptr ? "dlopen failed" : why,
                           "the libraries of torch " TORCH_VERSION " must be where they were when this was built"));
  }
  const std::string symbol = "callboard_plugin_" + std::string(name);
  const auto* entry = static_cast<const PluginEntry*>(::dlsym(handle, symbol.c_str()));
  if (entry == nullptr) return fail(not_usable(name, file, "it exports no " + symbol, "it is no plug-in of Callboard"));
  if (entry->build == nullptr || entry->build != kPluginBuild) {
    return fail(not_usable(name, file, "it is of another build of Callboard than this program",
                           "build and install both together"));
  }
  if (std::strcmp(entry->torch, TORCH_VERSION) != 0) {
    return fail(not_usable(
        name, file,
        std::string("it was compiled with torch ") + entry->torch + ", this program with torch " TORCH_VERSION,
        "build and install both together"));
  }
  const PluginHost host{&register_backend, &register_gil_domain, &register_guest};
  CALLBOARD_TRY(entry->start(host));
  loaded.emplace(name, entry);
  return entry;
}

}  // namespace callboard::kernels
