#include "kernels/stream_thread.h"

#include <pthread.h>

#include <exception>
#include <utility>

#include "messages/base/check.h"

namespace callboard::kernels {

namespace {
constexpr std::size_t kThreadNameMax = 15;  // Linux: 16 bytes with the terminator
}  // namespace

StreamThread::StreamThread(Options options) : options_(std::move(options)), queue_(options_.capacity) {
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), options_.name.substr(0, kThreadNameMax).c_str());
    if (options_.around) {
      options_.around([this] { serve(); });
    } else {
      serve();
    }
  });
}

StreamThread::~StreamThread() { stop(); }

PushResult StreamThread::post(Work&& work) {
  Command command{RunWork{std::move(work)}};
  const PushResult result = queue_.try_push(std::move(command));
  if (result != PushResult::kPushed) work = std::move(std::get<RunWork>(command).work);
  return result;
}

PushResult StreamThread::fence(std::shared_ptr<HostEvent> event) {
  return queue_.try_push(Command{RecordFence{std::move(event)}});
}

void StreamThread::stop() {
  queue_.close();
  if (!thread_.joinable()) return;
  CALLBOARD_CHECK(thread_.get_id() != std::this_thread::get_id(), "a stream cannot wait for itself");
  thread_.join();
}

void StreamThread::serve() {
  while (std::optional<Command> command = queue_.pop_until(kNever)) execute(*command);
}

void StreamThread::execute(Command& command) noexcept {
  if (auto* fence = std::get_if<RecordFence>(&command)) {
    fence->event->record();
    return;
  }
  std::string what;
  try {
    // The closure dies inside the try block: what it holds may throw or log, too.
    const Work work = std::move(std::get<RunWork>(command).work);
    work();
    return;
  } catch (const std::exception& error) {
    what = error.what();
  } catch (...) {
    what = "an exception that is no std::exception";
  }
  if (options_.on_exception) options_.on_exception(what);
}

}  // namespace callboard::kernels
