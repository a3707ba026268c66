// Plug-ins: parts of the device actor that link libraries which not every device may load.
#pragma once

#include <string>
#include <string_view>

#include "kernels/device_backend.h"
#include "kernels/gil_domain.h"
#include "kernels/helper_memory.h"
#include "messages/base/error.h"

namespace callboard::kernels {

/// What the process offers to a plug-in. Both are built together (checked before anything else is read), so C++ types
/// may cross.
struct PluginHost {
  bool (*register_backend)(std::string kind, BackendFactory factory) = nullptr;
  void (*register_gil_domain)(GilDomainFactory factory) = nullptr;
  void (*register_guest)(std::string kind, GuestFactory factory) = nullptr;
};

/// What `callboard_plugin_NAME`, the one symbol that a plug-in exports, points to.
struct PluginEntry {
  const char* build = nullptr;  ///< plugin_build() of the sources that it was made of
  const char* torch = nullptr;  ///< version of the LibTorch that it was compiled with
  Status (*start)(const PluginHost& host) = nullptr;
  Result<std::string> (*probe)() = nullptr;  ///< see probe_devices() in runtime.h; nullptr: it brings no devices
};

/// Changes with every change of what crosses between a plug-in and its process.
constexpr std::string_view kPluginBuild = "callboard-plugin-3";

/// Kinds of devices that come by a plug-in of their name. Any other kind is built in, or there is none of it.
inline bool comes_by_plugin(std::string_view kind) { return kind == "cuda"; }

/// Opens callboard_NAME.so in `folder` (empty: beside this program), for good: RTLD_NOW, since a missing library must
/// be told now, and RTLD_GLOBAL, since operators and exceptions of both sides must meet. Opening it twice does nothing.
/// kEnvironment, naming the file and what is missing: not built, a library that it needs, another build, another torch.
/// Any thread, one at a time.
Result<const PluginEntry*> load_plugin(std::string_view name, const std::string& folder = {});

}  // namespace callboard::kernels
