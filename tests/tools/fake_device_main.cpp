// Stands in for callboard-device where LibTorch is not built: joins the cluster, beats, and knows no operator. What
// else it does is told by CALLBOARD_FAKE_DEVICE: "exit" fails at once, "crash" does by a signal, "hang"
// never says a word.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include <unistd.h>

#include "actors/core/loop.h"
#include "actors/core/transport.h"
#include "config/cluster_config.h"
#include "messages/protocol.h"

namespace callboard {
namespace {

struct Flags {
  std::string run_dir;
  std::string name;
  std::string config;
  Incarnation incarnation = 1;
};

Flags parse(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view key = argv[i];
    if (key == "--run-dir") flags.run_dir = argv[i + 1];
    if (key == "--name") flags.name = argv[i + 1];
    if (key == "--config") flags.config = argv[i + 1];
    if (key == "--incarnation") flags.incarnation = std::strtoull(argv[i + 1], nullptr, 10);
  }
  return flags;
}

class FakeDevice {
 public:
  int run(const Flags& flags) {
    const auto config = config::load_cluster(flags.config);
    const auto endpoint = actors::ipc_endpoint(flags.run_dir + "/coordinator.sock");
    if (!config || !endpoint) return 2;
    interval_ = config->heartbeat.interval;
    actors::Line::Options options;
    options.hello.role = Role::kDevice;
    options.hello.who = {flags.name, flags.incarnation};
    options.hello.cluster = config->name;
    options.hello.build = "fake";
    options.hello.pid = getpid();
    options.hello.description = R"({"kind": "cpu"})";
    options.endpoint = *endpoint;
    actors::Line::Events events;
    events.welcome = [this](const Welcome&) { beat(); };
    events.message = [](const Message&) {};
    events.lost = [this](const Error&) { loop_->stop(); };
    auto line = actors::Line::connect(*loop_, *messenger_, std::move(options), std::move(events));
    if (!line) return 1;
    line_ = std::move(*line);
    loop_->run();
    return 0;
  }

 private:
  void beat() {
    Beat message;
    message.count = ++beats_;
    static_cast<void>(line_->send_once(message));
    loop_->in(interval_, [this] { beat(); });
  }

  std::unique_ptr<actors::Loop> loop_ = actors::Loop::create();
  std::unique_ptr<actors::Messenger> messenger_ = actors::Messenger::create();
  std::unique_ptr<actors::Line> line_;
  config::Millis interval_{500};
  std::uint64_t beats_ = 0;
};

}  // namespace
}  // namespace callboard

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--version") {
    std::puts("fake");
    return 0;
  }
  const char* mode = std::getenv("CALLBOARD_FAKE_DEVICE");
  const std::string_view wanted = mode == nullptr ? "" : mode;
  if (wanted == "exit") {
    std::fputs("the fake device was told to fail\n", stderr);
    return 3;
  }
  if (wanted == "crash") {
    std::fputs("the fake device was told to crash\n", stderr);
    ::raise(SIGSEGV);
  }
  if (wanted == "hang") {
    while (true) pause();
  }
  return callboard::FakeDevice().run(callboard::parse(argc, argv));
}
