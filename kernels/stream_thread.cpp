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
  wake_if_idle();
  return result;
}

/// Sequentially consistent with serve(): either this sees that the thread idles, or the thread sees what was pushed.
void StreamThread::wake_if_idle() {
  if (idle_.load() && thread_.get_id() != std::this_thread::get_id()) options_.wake();
}

PushResult StreamThread::fence(std::shared_ptr<HostEvent> event) {
  const PushResult result = queue_.try_push(Command{RecordFence{std::move(event)}});
  wake_if_idle();
  return result;
}

void StreamThread::stop() {
  queue_.close();
  wake_if_idle();
  if (!thread_.joinable()) return;
  CALLBOARD_CHECK(thread_.get_id() != std::this_thread::get_id(), "a stream cannot wait for itself");
  thread_.join();
}

void StreamThread::serve() {
  const std::function<bool()> has_work = [this] { return queue_.size() > 0 || queue_.closed(); };
  for (;;) {
    std::optional<Command> command = queue_.try_pop();
    if (!command && options_.idle && !queue_.closed()) {
      idle_.store(true);
      const bool waited = has_work() || options_.idle(has_work);
      idle_.store(false);
      if (waited) continue;
    }
    if (!command) command = queue_.pop_until(kNever);
    if (!command) return;
    execute(*command);
  }
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
