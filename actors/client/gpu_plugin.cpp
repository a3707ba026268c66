#include "actors/client/gpu_plugin.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>

#include "messages/base/own_program.h"

namespace callboard::actors {
namespace {

Error cannot_use_plugin(const std::string& file, const std::string& why, std::string hint) {
  return Error(ErrorCode::kEnvironment, "the plug-in for results on GPUs cannot be used: " + file + ": " + why,
               std::move(hint));
}

}  // namespace

Result<const kernels::cuda::ClientPlugin*> load_gpu_plugin(const std::string& folder) {
  static std::mutex mutex;
  static std::map<std::string, const kernels::cuda::ClientPlugin*> loaded;
  const std::string file = (folder.empty() ? own_program_folder() : folder) + "/callboard_cuda_client.so";
  std::lock_guard lock(mutex);
  if (const auto found = loaded.find(file); found != loaded.end()) return found->second;
  if (::access(file.c_str(), R_OK) != 0) {
    return fail(cannot_use_plugin(file, std::strerror(errno),
                                  "this installation was built without it: build where nvcc is found, with "
                                  "-DCALLBOARD_CUDA=ON"));
  }
  void* handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = ::dlerror();
    return fail(cannot_use_plugin(file, why == nullptr ? "dlopen failed" : why,
                                  "the CUDA runtime of torch must be where it was when this was built"));
  }
  const auto* plugin = static_cast<const kernels::cuda::ClientPlugin*>(::dlsym(handle, "callboard_client_plugin"));
  if (plugin == nullptr) {
    return fail(cannot_use_plugin(file, "it exports no callboard_client_plugin", "it is no plug-in of Callboard"));
  }
  if (plugin->build == nullptr || plugin->build != kernels::cuda::kClientPluginBuild) {
    return fail(cannot_use_plugin(file, "it is of another build of Callboard than this client",
                                  "build and install both together"));
  }
  loaded.emplace(file, plugin);
  return plugin;
}

}  // namespace callboard::actors
