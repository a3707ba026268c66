// The yardstick of every latency here: one small message there and back between two processes over ZeroMQ's ipc.
//   bench-ping-pong serve ENDPOINT          echoes until its standard input ends
//   bench-ping-pong ping ENDPOINT COUNT     prints {"p50_us": …, "p99_us": …}
#include <poll.h>
#include <zmq.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr int kMessageBytes = 256;
constexpr int kReceiveTimeoutMs = 5'000;

int fail(const char* what) {
  std::fprintf(stderr, "bench-ping-pong: %s: %s\n", what, zmq_strerror(zmq_errno()));
  return 1;
}

int serve(void* context, const char* endpoint) {
  void* socket = zmq_socket(context, ZMQ_ROUTER);
  if (zmq_bind(socket, endpoint) != 0) return fail("bind");
  std::printf("ready\n");
  std::fflush(stdout);
  zmq_pollitem_t items[2] = {{socket, 0, ZMQ_POLLIN, 0}, {nullptr, 0, ZMQ_POLLIN, 0}};
  char identity[256];
  char body[kMessageBytes];
  while (zmq_poll(items, 2, -1) >= 0 && items[1].revents == 0) {
    const int identity_size = zmq_recv(socket, identity, sizeof identity, 0);
    const int size = zmq_recv(socket, body, sizeof body, 0);
    if (identity_size < 0 || size < 0) return fail("receive");
    zmq_send(socket, identity, static_cast<std::size_t>(identity_size), ZMQ_SNDMORE);
    zmq_send(socket, body, static_cast<std::size_t>(size), 0);
  }
  zmq_close(socket);
  return 0;
}

int ping(void* context, const char* endpoint, int count) {
  void* socket = zmq_socket(context, ZMQ_DEALER);
  zmq_setsockopt(socket, ZMQ_RCVTIMEO, &kReceiveTimeoutMs, sizeof kReceiveTimeoutMs);
  const int linger = 0;
  zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
  if (zmq_connect(socket, endpoint) != 0) return fail("connect");
  char body[kMessageBytes] = {};
  std::vector<double> times;
  times.reserve(static_cast<std::size_t>(count));
  const int warm = count / 10;
  for (int i = 0; i < count + warm; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    if (zmq_send(socket, body, sizeof body, 0) < 0) return fail("send");
    if (zmq_recv(socket, body, sizeof body, 0) < 0) return fail("receive");
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    if (i >= warm) times.push_back(took.count());
  }
  zmq_close(socket);
  std::sort(times.begin(), times.end());
  std::printf("{\"p50_us\": %.3f, \"p99_us\": %.3f}\n", times[times.size() / 2], times[times.size() * 99 / 100]);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  void* context = zmq_ctx_new();
  int status = 2;
  if (argc == 3 && std::strcmp(argv[1], "serve") == 0) {
    status = serve(context, argv[2]);
  } else if (argc == 4 && std::strcmp(argv[1], "ping") == 0) {
    status = ping(context, argv[2], std::max(10, std::atoi(argv[3])));
  } else {
    std::fprintf(stderr, "usage: bench-ping-pong serve ENDPOINT | ping ENDPOINT COUNT\n");
  }
  zmq_ctx_term(context);
  return status;
}
