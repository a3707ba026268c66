#include "kernels/device_backend.h"

#include <map>
#include <mutex>
#include <utility>

#include "kernels/cpu_backend.h"

namespace callboard::kernels {

namespace {

struct Registry {
  std::mutex mutex;
  std::map<std::string, BackendFactory, std::less<>> factories;  // guarded by mutex
};

Registry& registry() {
  static auto* instance = new Registry{
      {},
      {{"cpu", [](const BackendOptions&) { return make_cpu_backend(); }}}};  // never destroyed: plug-ins stay open, too
  return *instance;
}

}  // namespace

std::string_view stream_kind_name(StreamKind kind) { return kind == StreamKind::kCompute ? "compute" : "communicate"; }

bool register_backend(std::string kind, BackendFactory factory) {
  Registry& known = registry();
  std::lock_guard lock(known.mutex);
  return known.factories.emplace(std::move(kind), std::move(factory)).second;
}

Result<std::unique_ptr<DeviceBackend>> make_backend(std::string_view kind, const BackendOptions& options) {
  Registry& known = registry();
  BackendFactory factory;
  {
    std::lock_guard lock(known.mutex);
    const auto found = known.factories.find(kind);
    if (found == known.factories.end()) {
      std::string kinds;
      for (const auto& [name, unused] : known.factories) kinds += (kinds.empty() ? "" : ", ") + name;
      return fail(ErrorCode::kUnsupported, "no device backend of kind '" + std::string(kind) + "' is loaded",
                  "kinds here: " + kinds);
    }
    factory = found->second;
  }
  return factory(options);
}

}  // namespace callboard::kernels
