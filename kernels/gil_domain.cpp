#include "kernels/gil_domain.h"

#include <string>
#include <tuple>
#include <utility>

#include "kernels/device_backend.h"
#include "kernels/plugin.h"
#ifndef CALLBOARD_WITHOUT_PROCESSES  // tools/gpu_check has no msgpack, in which they speak
#include "kernels/process_domain/process_domain.h"
#endif
#include "messages/base/log.h"

namespace callboard::kernels {

namespace {

GilDomainFactory& inline_domain_factory() {
  static GilDomainFactory factory;
  return factory;
}

}  // namespace

void register_gil_domain(GilDomainFactory factory) { inline_domain_factory() = std::move(factory); }

Result<std::unique_ptr<GilDomain>> make_gil_domain(const PythonOptions& options, c10::Device device) {
  // A test program has the domain linked into it.
  if (!inline_domain_factory()) CALLBOARD_TRY(load_plugin("python"));
  PythonOptions complete = options;
  // A plug-in has a logger of its own, which nobody has started.
  if (!complete.log) complete.log = log::info;
  return inline_domain_factory()(complete, device);
}

DomainDeviceMemory memory_of(DeviceBackend& backend, StreamContext& stream) {
  if (backend.exchange() == nullptr) return {};
  return {backend.exchange(), &stream, backend.device(), std::string(backend.kind())};
}

Result<std::unique_ptr<GilDomain>> make_gil_domain(const PythonOptions& options, c10::Device device,
                                                   const ActorId& self, int threads, Arena* arena, SegmentMap* segments,
                                                   const DomainDeviceMemory& memory) {
  if (!options.processes) return make_gil_domain(options, device);
#ifdef CALLBOARD_WITHOUT_PROCESSES
  static_cast<void>(std::tuple(self, threads, arena, segments, memory));
  return fail(ErrorCode::kUnsupported, "this build has no GIL domains in processes", "give the device python: inline");
#else
  if (!device.is_cpu() && memory.exchange == nullptr) {
    return fail(
        ErrorCode::kUnsupported,
        "the memory of " + self.to_string() + " on " + device.str() + " cannot be shared with a GIL domain's process",
        "give the device python: inline");
  }
  return make_process_domain(options, self, threads, arena, segments, memory);
#endif
}

}  // namespace callboard::kernels
