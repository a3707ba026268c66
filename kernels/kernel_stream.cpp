#include "kernels/kernel_stream.h"

#include <utility>

#include <c10/core/InferenceMode.h>

#include "messages/base/log.h"

namespace callboard::kernels {

Result<std::unique_ptr<KernelStream>> KernelStream::create(DeviceBackend& backend, StreamKind kind, int threads,
                                                           IdleWaiting waiting) {
  std::unique_ptr<KernelStream> stream(new KernelStream);
  stream->kind_ = kind;
  CALLBOARD_ASSIGN(stream->context_, backend.make_stream(kind));

  StreamThread::Options options;
  options.name = "stream/" + std::string(stream_kind_name(kind));
  options.around = [&backend, kind, threads, context = stream->context_.get()](const std::function<void()>& serve) {
    const c10::InferenceMode inference;
    if (kind == StreamKind::kCompute && threads > 0) backend.set_intra_op_threads(threads);
    const CurrentStreamGuard guard(*context);
    serve();
  };
  options.on_exception = [name = options.name](std::string_view what) {
    log::error("stream_command_threw", "stream=" + name + " what=" + std::string(what));
  };
  options.idle = std::move(waiting.idle);
  options.wake = std::move(waiting.wake);
  stream->thread_ = std::make_unique<StreamThread>(std::move(options));
  return stream;
}

}  // namespace callboard::kernels
