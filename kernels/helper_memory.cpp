#include "kernels/helper_memory.h"

#include <map>
#include <utility>

#include "kernels/plugin.h"

namespace callboard::kernels {

namespace {

/// Plug-ins are opened before there is a second thread, and stay.
std::map<std::string, GuestFactory>& guest_factories() {
  static auto* factories = new std::map<std::string, GuestFactory>;
  return *factories;
}

}  // namespace

void register_guest(std::string kind, GuestFactory factory) {
  guest_factories().insert_or_assign(std::move(kind), std::move(factory));
}

Result<std::unique_ptr<DeviceGuest>> make_guest(const std::string& kind, const GuestOptions& options) {
  if (comes_by_plugin(kind) && !guest_factories().contains(kind)) CALLBOARD_TRY(load_plugin(kind));
  const auto found = guest_factories().find(kind);
  if (found == guest_factories().end()) {
    return fail(ErrorCode::kUnsupported,
                "devices of kind '" + kind + "' share no memory with processes of a GIL domain",
                "give the device python: inline");
  }
  return found->second(options);
}

}  // namespace callboard::kernels
