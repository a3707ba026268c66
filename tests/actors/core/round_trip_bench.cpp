// What Hub and Line add to a bare ZeroMQ round trip: a small message over ipc between two processes, there and back.
// Rounds alternate, so that a busy machine troubles both alike. Not a test.
#include <zmq.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "actors/core/loop.h"
#include "actors/core/process.h"
#include "actors/core/transport.h"
#include "messages/codec.h"
#include "tests/actors/core/temp_dir.h"

namespace callboard::actors {
namespace {

constexpr int kWarmUp = 2'000;
constexpr int kRoundTrips = 10'000;
constexpr int kRounds = 5;
const ActorId kClient{"bench", 1};

Message question() { return Operation{1, "echo", "a small message"}; }

int serve_hub(const std::string& endpoint) {
  auto loop = Loop::create();
  auto messenger = Messenger::create();
  std::unique_ptr<Hub> hub;
  Hub::Options options;
  options.self = {"coordinator", 1};
  options.endpoint = endpoint;
  options.cluster = "bench";
  Hub::Events events;
  events.message = [&](const ActorId& from, const Message& message) { (void)hub->send(from, message); };
  events.lost = [&](const ActorId&, const Error&) { loop->stop(); };
  auto bound = Hub::bind(*loop, *messenger, std::move(options), std::move(events));
  if (!bound) return 1;
  hub = std::move(*bound);
  loop->run();
  hub.reset();
  return 0;
}

int serve_raw(const std::string& endpoint) {
  void* context = zmq_ctx_new();
  void* router = zmq_socket(context, ZMQ_ROUTER);
  if (zmq_bind(router, endpoint.c_str()) != 0) return 1;
  while (true) {
    zmq_msg_t address;
    zmq_msg_t body;
    zmq_msg_init(&address);
    zmq_msg_init(&body);
    zmq_msg_recv(&address, router, 0);
    zmq_msg_recv(&body, router, 0);
    const bool end = zmq_msg_size(&body) == 0;
    zmq_msg_send(&address, router, ZMQ_SNDMORE);
    zmq_msg_send(&body, router, 0);
    if (end) break;
  }
  zmq_close(router);
  zmq_ctx_term(context);
  return 0;
}

std::vector<double> ask_line(const std::string& endpoint) {
  auto loop = Loop::create();
  auto messenger = Messenger::create();
  std::unique_ptr<Line> line;
  std::vector<double> micros;
  int count = 0;
  TimePoint sent;
  const auto ask = [&] {
    sent = Clock::now();
    (void)line->send(question());
  };
  Line::Options options;
  options.hello.who = kClient;
  options.hello.cluster = "bench";
  options.endpoint = endpoint;
  Line::Events events;
  events.welcome = [&](const Welcome&) { ask(); };
  events.message = [&](const Message&) {
    if (++count > kWarmUp) micros.push_back(std::chrono::duration<double, std::micro>(Clock::now() - sent).count());
    if (count == kWarmUp + kRoundTrips) return loop->stop();
    ask();
  };
  auto connected = Line::connect(*loop, *messenger, std::move(options), std::move(events));
  if (!connected) return {};
  line = std::move(*connected);
  loop->run();
  line.reset();
  return micros;
}

std::vector<double> ask_raw(const std::string& endpoint) {
  const auto frame = encode_packet(Envelope{1, kClient, 1, 1}, question());
  void* context = zmq_ctx_new();
  void* dealer = zmq_socket(context, ZMQ_DEALER);
  zmq_connect(dealer, endpoint.c_str());
  std::vector<double> micros;
  std::vector<char> answer(4'096);
  for (int i = 0; i < kWarmUp + kRoundTrips; ++i) {
    const TimePoint sent = Clock::now();
    zmq_send(dealer, frame->data(), frame->size(), 0);
    zmq_recv(dealer, answer.data(), answer.size(), 0);
    if (i >= kWarmUp) micros.push_back(std::chrono::duration<double, std::micro>(Clock::now() - sent).count());
  }
  zmq_send(dealer, "", 0, 0);
  zmq_recv(dealer, answer.data(), answer.size(), 0);
  zmq_close(dealer);
  zmq_ctx_term(context);
  return micros;
}

double quantile(std::vector<double>& values, double q) {
  if (values.empty()) return -1;
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1))];
}

int measure() {
  double best[2] = {1e9, 1e9};
  for (int round = 0; round < kRounds; ++round) {
    for (const bool raw : {true, false}) {
      test::TempDir dir;
      const std::string endpoint = "ipc://" + dir.file("s");
      SpawnOptions options;
      options.program = "/proc/self/exe";
      options.arguments = {raw ? "raw" : "hub", endpoint};
      options.environment = environment_with({});
      auto server = Process::spawn(options);
      if (!server) return 1;
      std::vector<double> micros = raw ? ask_raw(endpoint) : ask_line(endpoint);
      const double p50 = quantile(micros, 0.5);
      std::printf("%-9s p50 %6.1f us  p99 %6.1f us\n", raw ? "bare zmq" : "hub+line", p50, quantile(micros, 0.99));
      best[raw ? 0 : 1] = std::min(best[raw ? 0 : 1], p50);
      server->reap_until(after(Clock::now(), std::chrono::seconds(5)));
    }
  }
  std::printf("best p50: bare %.1f us, hub+line %.1f us, ratio %.2f\n", best[0], best[1], best[1] / best[0]);
  return 0;
}

}  // namespace
}  // namespace callboard::actors

int main(int argc, char** argv) {
  const std::string role = argc > 2 ? argv[1] : "";
  if (role == "hub") return callboard::actors::serve_hub(argv[2]);
  if (role == "raw") return callboard::actors::serve_raw(argv[2]);
  return callboard::actors::measure();
}
