// A node actor with a coordinator and devices that do nothing but what a test tells them. One program in three roles:
//   fake_cluster node NAME DEVICES GRACE_MS RESTARTS_MAX    run_node(); status stream on 5, lifeline on 6
//   fake_cluster coordinator …   as the node actor starts it: a Hub that hands on orders and tells what was reported
//   fake_cluster --name …        as the node actor starts it: writes its name to the pipe $FAKE_READY, then waits for
//                                SIGTERM; $FAKE_<name> says what else
#include <dirent.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "actors/core/loop.h"
#include "actors/core/transport.h"
#include "actors/node/node_actor.h"

namespace callboard::actors {
namespace {

using Arguments = std::vector<std::string>;

std::string option(const Arguments& arguments, const std::string& name) {
  for (std::size_t i = 0; i + 1 < arguments.size(); ++i) {
    if (arguments[i] == name) return arguments[i + 1];
  }
  return {};
}

std::string environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? "" : value;
}

int node(const Arguments& arguments) {
  NodeOptions options;
  options.config.name = arguments.at(1);
  for (int i = 0; i < std::stoi(arguments.at(2)); ++i) {
    config::DeviceConfig device;
    device.name = "cpu" + std::to_string(i);
    device.index = static_cast<std::uint32_t>(i);
    options.config.devices.push_back(device);
  }
  options.config.limits.stop_grace = config::Millis(std::stoi(arguments.at(3)));
  options.config.restart.max = static_cast<std::uint32_t>(std::stoi(arguments.at(4)));
  options.config.restart.backoff_min = config::Millis(10);
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const std::string coordinator = environment("FAKE_COORDINATOR_BINARY");
  const std::string device = environment("FAKE_DEVICE_BINARY");
  options.binary_callboard = coordinator.empty() ? self : coordinator;
  options.binary_device = device.empty() ? self : device;
  options.version = "0.0.0-test";
  options.status_fd = 5;
  options.lifeline_fd = 6;
  return run_node(std::move(options));
}

std::string report_line(const Message& message) {
  if (const auto* started = std::get_if<ActorStarted>(&message)) return "started " + started->who.to_string() + "\n";
  if (const auto* exited = std::get_if<ActorExited>(&message)) {
    return "exited " + exited->who.to_string() + " " + std::to_string(exited->code) + "\n";
  }
  return std::string(message_name(message)) + "\n";
}

Loop* the_loop = nullptr;

int coordinator(const Arguments& arguments) {
  auto loop = Loop::create();
  auto messenger = Messenger::create();
  std::unique_ptr<Hub> hub;
  the_loop = loop.get();
  ::signal(SIGTERM, [](int) { the_loop->stop(); });
  const std::string run_dir = option(arguments, "--run-dir");
  const ActorId node_id{"node", 1};
  std::string reports;
  Hub::Options options;
  options.epoch = std::stoull(option(arguments, "--epoch"));
  options.self = {"coordinator", options.epoch};
  options.endpoint = "ipc://" + run_dir + "/coordinator.sock";
  options.cluster = std::filesystem::path(run_dir).filename();
  Hub::Events events;
  events.message = [&](const ActorId& from, const Message& message) {
    if (from == node_id) {
      reports += report_line(message);
      return;
    }
    const auto* operation = std::get_if<Operation>(&message);
    if (operation == nullptr) return;
    if (operation->name == "reports") (void)hub->send(from, OperationResult{operation->request, {}, reports});
    if (operation->name == "shutdown") (void)hub->send(node_id, ShutDown{"a test asked for it"});
    if (operation->name == "restart") (void)hub->send(node_id, StopActor{{operation->arguments, 0}, false, true});
  };
  auto bound = Hub::bind(*loop, *messenger, std::move(options), std::move(events));
  if (!bound) {
    std::cerr << bound.error().to_string() << std::endl;
    return 1;
  }
  hub = std::move(*bound);
  loop->run();
  hub.reset();
  return 0;
}

std::string open_descriptors() {
  std::string text;
  DIR* listing = ::opendir("/proc/self/fd");
  const std::string own = std::to_string(::dirfd(listing));
  while (const dirent* entry = ::readdir(listing)) {
    if (entry->d_name[0] != '.' && own != entry->d_name) text += std::string(" ") + entry->d_name;
  }
  ::closedir(listing);
  return text;
}

int device(const Arguments& arguments) {
  const std::string name = option(arguments, "--name");
  const std::string behaviour = environment("FAKE_" + name);
  sigset_t term;
  ::sigemptyset(&term);
  ::sigaddset(&term, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &term, nullptr);
  std::cerr << "fds:" << open_descriptors() << std::endl;
  if (behaviour == "fail") {
    std::cerr << "this device has a reason" << std::endl;
    return 3;
  }
  // For a helper that leaves its group, that one speaks: when it has left.
  const bool helper = behaviour == "orphan" && ::fork() == 0;
  if (helper) ::setsid();
  if (helper) std::cerr << "orphan " << ::getpid() << std::endl;
  if (helper || behaviour != "orphan") std::ofstream(environment("FAKE_READY")) << name << std::endl;
  while (helper) ::pause();
  int received = 0;
  do {
    ::sigwait(&term, &received);
    if (behaviour == "stubborn") std::cerr << "no" << std::endl;
  } while (behaviour == "stubborn");
  return 0;
}

}  // namespace
}  // namespace callboard::actors

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.empty()) return 2;
  if (arguments[0] == "node") return callboard::actors::node(arguments);
  if (arguments[0] == "coordinator") return callboard::actors::coordinator(arguments);
  return callboard::actors::device(arguments);
}
