#include "actors/node/status_stream.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include <nlohmann/json.hpp>

#include "actors/core/process.h"

namespace callboard::actors {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kWaitingMax = 256u << 10;
constexpr int kFinishWaitMs = 200;

const char* kind_name(NodeEvent::Kind kind) {
  switch (kind) {
    case NodeEvent::Kind::kStarted:
      return "started";
    case NodeEvent::Kind::kActorStarted:
      return "actor_started";
    case NodeEvent::Kind::kActorExited:
      return "actor_exited";
    case NodeEvent::Kind::kStopping:
      return "stopping";
    case NodeEvent::Kind::kFailed:
      return "failed";
    case NodeEvent::Kind::kStopped:
      return "stopped";
  }
  return "unknown";
}

Json to_json(const Error& error) {
  Json json{{"code", static_cast<int>(error.code)}, {"name", error_name(error.code)}, {"message", error.message}};
  if (!error.hint.empty()) json["hint"] = error.hint;
  if (!error.detail.empty()) json["detail"] = error.detail;
  return json;
}

ProcessExit process_exit(const ActorExited& exit) { return {exit.signalled, exit.code, exit.core_dumped}; }

std::string cause(const ActorExited& exit) {
  return exit.pid == 0 ? "could not be started" : process_exit(exit).to_string();
}

}  // namespace

std::string exit_text(const ActorExited& exit) { return exit.who.to_string() + ": " + cause(exit); }

std::string to_json_line(const NodeEvent& event) {
  Json json{{"event", kind_name(event.kind)}};
  if (event.kind == NodeEvent::Kind::kActorExited) {
    json["name"] = event.exit.who.name;
    json["incarnation"] = event.exit.who.incarnation;
    json["pid"] = event.exit.pid;
    json["cause"] = cause(event.exit);
    json["signalled"] = event.exit.signalled;
    json["code"] = event.exit.code;
    json["by_itself"] = process_exit(event.exit).by_itself();
    json["stopped_by_us"] = event.exit.stopped_by_us;
    json["restart_in_ms"] = event.exit.restart_in_ms;
    json["log_tail"] = event.exit.log_tail;
  } else if (event.kind == NodeEvent::Kind::kActorStarted) {
    json["name"] = event.who.name;
    json["incarnation"] = event.who.incarnation;
    json["pid"] = event.pid;
  } else if (event.kind == NodeEvent::Kind::kStarted) {
    json["pid"] = event.pid;
    json["run_dir"] = event.run_dir;
  }
  if (!event.text.empty()) json["text"] = event.text;
  if (event.error) json["error"] = to_json(*event.error);
  if (!event.logs.empty()) json["logs"] = event.logs;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

StatusStream::StatusStream(UniqueFd fd) : fd_(std::move(fd)) {
  if (!fd_) return;
  ::fcntl(fd_.get(), F_SETFD, FD_CLOEXEC);
  ::fcntl(fd_.get(), F_SETFL, ::fcntl(fd_.get(), F_GETFL) | O_NONBLOCK);
}

void StatusStream::write(const NodeEvent& event) {
  if (!fd_) return;
  std::string line = to_json_line(event) + "\n";
  if (waiting_.size() + line.size() <= kWaitingMax) waiting_ += line;
  flush();
}

void StatusStream::flush() {
  while (fd_ && !waiting_.empty()) {
    const auto written = ::write(fd_.get(), waiting_.data(), waiting_.size());
    if (written > 0) {
      waiting_.erase(0, static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      if (errno != EAGAIN) fd_.reset();  // nobody reads any more
      return;
    }
  }
}

void StatusStream::finish() {
  flush();
  if (fd_ && !waiting_.empty()) {
    pollfd entry{fd_.get(), POLLOUT, 0};
    if (::poll(&entry, 1, kFinishWaitMs) > 0) flush();
  }
  fd_.reset();
}

}  // namespace callboard::actors
