#include "tools/callboard/node_child.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

namespace callboard::cli {
namespace {

constexpr std::size_t kPartialMax = 1u << 20;  // of one line; an exit report with its log tail has at most 10 KiB

tl::unexpected<Error> resource_error(const char* what) {
  return fail(ErrorCode::kResourceExhausted,
              std::string("no ") + what + " for the node actor: " + std::strerror(errno));
}

/// The effective configuration, as a file that has no name.
Result<UniqueFd> config_file(const config::ClusterConfig& config) {
  UniqueFd file(memfd_create("callboard-config", MFD_CLOEXEC));
  if (!file) return resource_error("memory file");
  const std::string text = config::to_yaml(config);
  if (write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) return resource_error("space");
  return file;
}

struct Pipe {
  UniqueFd read;
  UniqueFd write;
};
Result<Pipe> make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return resource_error("pipe");
  return Pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

}  // namespace

Result<NodeChild> NodeChild::start(const config::ClusterConfig& config, const Programs& programs, bool detached) {
  constexpr int kConfigFd = 3, kStatusFd = 4, kLifelineFd = 5;
  CALLBOARD_ASSIGN(const UniqueFd file, config_file(config));
  CALLBOARD_ASSIGN(Pipe status, make_pipe());
  CALLBOARD_ASSIGN(Pipe lifeline, make_pipe());
  actors::SpawnOptions options;
  options.program = programs.callboard;
  options.arguments = {"node",
                       "--config",
                       "/dev/fd/" + std::to_string(kConfigFd),
                       "--status-fd",
                       std::to_string(kStatusFd),
                       "--device-binary",
                       programs.device,
                       "--own-log",
                       "--devices-checked"};
  options.fds = {{file.get(), kConfigFd}, {status.write.get(), kStatusFd}};
  if (!detached) {
    options.arguments.insert(options.arguments.end(), {"--lifeline-fd", std::to_string(kLifelineFd)});
    options.fds.emplace_back(lifeline.read.get(), kLifelineFd);
  }
  options.environment = actors::environment_with({});
  options.log_file = "/dev/null";  // until it has a log directory; what goes wrong before comes over the status pipe
  options.new_session = detached;
  // Not SIGKILL when we end: the lifeline makes it stop in order.
  options.die_with_parent = false;
  CALLBOARD_ASSIGN(actors::Process process, actors::Process::spawn(options));
  NodeChild child(std::move(process));
  if (!detached) child.lifeline_ = std::move(lifeline.write);
  child.status_ = std::move(status.read);
  if (fcntl(child.status_.get(), F_SETFL, O_NONBLOCK) != 0) return resource_error("pipe");
  return child;
}

std::vector<nlohmann::json> NodeChild::read_events() {
  std::vector<nlohmann::json> events;
  char buffer[16 << 10];
  while (status_) {
    const ssize_t got = read(status_.get(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) break;
    if (got <= 0) {
      status_.reset();
      break;
    }
    partial_.append(buffer, static_cast<std::size_t>(got));
    std::size_t start = 0;
    for (std::size_t end = partial_.find('\n'); end != std::string::npos; end = partial_.find('\n', start)) {
      nlohmann::json event = nlohmann::json::parse(partial_.begin() + static_cast<std::ptrdiff_t>(start),
                                                   partial_.begin() + static_cast<std::ptrdiff_t>(end), nullptr, false);
      if (event.is_object()) events.push_back(std::move(event));
      start = end + 1;
    }
    partial_.erase(0, start);
    if (partial_.size() > kPartialMax) partial_.clear();
  }
  return events;
}

}  // namespace callboard::cli
