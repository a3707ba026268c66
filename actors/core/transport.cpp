#include "actors/core/transport.h"

#include <zmq.h>

#include <cerrno>
#include <cstring>

#include "actors/core/ipc_path.h"
#include "actors/core/socket.h"
#include "messages/base/check.h"
#include "messages/frame.h"
#include "messages/limits.h"

namespace callboard::actors {
namespace {

constexpr std::size_t kCopyMax = 4u << 10;  // below it a copy is cheaper than the bookkeeping for none
constexpr int kLingerMs = 100;
constexpr int kHandshakeMs = 5'000;  // a connection that says nothing is closed
constexpr int kReconnectMs = 20;
constexpr int kReconnectMaxMs = 500;

class ZmqMessenger final : public Messenger {
 public:
  explicit ZmqMessenger(int io_threads) : context_(zmq_ctx_new()) {
    CALLBOARD_CHECK(context_ != nullptr, "no memory or descriptor for a ZeroMQ context");
    zmq_ctx_set(context_, ZMQ_IO_THREADS, io_threads);
  }
  ~ZmqMessenger() override {
    while (zmq_ctx_term(context_) != 0 && zmq_errno() == EINTR) {
    }
  }
  ZmqMessenger(const ZmqMessenger&) = delete;
  ZmqMessenger& operator=(const ZmqMessenger&) = delete;
  void* native() override { return context_; }

 private:
  void* context_;
};

}  // namespace

/// One part of a message as ZeroMQ holds it.
class Part {
 public:
  Part() { zmq_msg_init(&message_); }
  explicit Part(std::string_view bytes) {
    CALLBOARD_CHECK(zmq_msg_init_size(&message_, bytes.size()) == 0, "out of memory for a message");
    std::memcpy(zmq_msg_data(&message_), bytes.data(), bytes.size());
  }
  /// Without a copy where that pays: the frame lives until ZeroMQ has sent it.
  explicit Part(const Frame& frame) {
    if (frame->size() <= kCopyMax) {
      CALLBOARD_CHECK(zmq_msg_init_size(&message_, frame->size()) == 0, "out of memory for a message");
      std::memcpy(zmq_msg_data(&message_), frame->data(), frame->size());
      return;
    }
    auto keep = std::make_unique<Frame>(frame);
    const auto release = [](void*, void* hint) { delete static_cast<Frame*>(hint); };  // on ZeroMQ's thread
    // ZeroMQ only reads what it sends.
    void* data = const_cast<char*>(frame->data());
    CALLBOARD_CHECK(zmq_msg_init_data(&message_, data, frame->size(), release, keep.release()) == 0,
                    "out of memory for a message");
  }
  ~Part() { zmq_msg_close(&message_); }
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;

  // zmq_msg_data takes no const pointer.
  std::string_view bytes() { return {static_cast<const char*>(zmq_msg_data(&message_)), zmq_msg_size(&message_)}; }
  bool more() const { return zmq_msg_more(&message_) != 0; }
  /// False where nothing is there now.
  bool receive(void* socket) {
    while (zmq_msg_recv(&message_, socket, ZMQ_DONTWAIT) < 0) {
      if (zmq_errno() != EINTR) return false;
    }
    return true;
  }
  /// False where ZeroMQ does not take it now (full, or nobody there).
  bool send(void* socket, int flags) {
    while (zmq_msg_send(&message_, socket, ZMQ_DONTWAIT | flags) < 0) {
      if (zmq_errno() != EINTR) return false;
    }
    return true;
  }

 private:
  zmq_msg_t message_;
};

struct Socket::Impl {
  void* context = nullptr;
  int high_water = 0;
  void* socket = nullptr;
  bool bound = false;
  Part parts[2];  // routing id (bound only) and frame of the last receive()

  void set(int option, int value) { zmq_setsockopt(socket, option, &value, sizeof value); }
  Status open(int type, const std::string& endpoint);
};

Socket::Socket(Messenger& messenger, int high_water) : impl_(std::make_unique<Impl>()) {
  impl_->context = messenger.native();
  impl_->high_water = high_water;
}

Socket::~Socket() {
  if (impl_->socket != nullptr) zmq_close(impl_->socket);
}

Status Socket::Impl::open(int type, const std::string& endpoint) {
  CALLBOARD_CHECK(socket == nullptr, "a socket is opened once");
  socket = zmq_socket(context, type);
  if (socket == nullptr) {
    return fail(ErrorCode::kResourceExhausted, "no socket for '" + endpoint + "': " + zmq_strerror(zmq_errno()),
                "check the limit of open files (ulimit -n)");
  }
  // The backstop; our own senders check the size before.
  const std::int64_t size_max = static_cast<std::int64_t>(limits::kMessageBytesMax + kFrameHeaderBytes);
  zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &size_max, sizeof size_max);
  set(ZMQ_LINGER, kLingerMs);
  set(ZMQ_SNDHWM, high_water);
  set(ZMQ_RCVHWM, limits::kSocketQueueMax);
  set(ZMQ_HANDSHAKE_IVL, kHandshakeMs);
  return {};
}

Status Socket::bind(const std::string& endpoint) {
  const std::string path = ipc_path_of(endpoint);
  if (!path.empty()) CALLBOARD_TRY(prepare_ipc_path(path));
  CALLBOARD_TRY(impl_->open(ZMQ_ROUTER, endpoint));
  impl_->bound = true;
  // A full or absent peer is an error, not a silent loss; an identity in use is not taken over.
  impl_->set(ZMQ_ROUTER_MANDATORY, 1);
  impl_->set(ZMQ_ROUTER_HANDOVER, 0);
  if (zmq_bind(impl_->socket, endpoint.c_str()) != 0) {
    const int number = zmq_errno();
    const ErrorCode code = number == EADDRINUSE ? ErrorCode::kAddressInUse
                           : number == EACCES   ? ErrorCode::kPermission
                                                : ErrorCode::kEnvironment;
    return fail(code, "'" + endpoint + "' cannot be bound: " + zmq_strerror(number));
  }
  return path.empty() ? Status() : protect_ipc_path(path);
}

Status Socket::connect(const std::string& endpoint, const std::string& routing_id) {
  if (const std::string path = ipc_path_of(endpoint); !path.empty()) CALLBOARD_TRY(ipc_endpoint(path));
  CALLBOARD_TRY(impl_->open(ZMQ_DEALER, endpoint));
  zmq_setsockopt(impl_->socket, ZMQ_ROUTING_ID, routing_id.data(), routing_id.size());
  // Not ZMQ_IMMEDIATE: with it a connection that ends takes along what it had brought and nobody had read yet, a
  // refusal or a goodbye above all.
  impl_->set(ZMQ_RECONNECT_IVL, kReconnectMs);
  impl_->set(ZMQ_RECONNECT_IVL_MAX, kReconnectMaxMs);
  if (zmq_connect(impl_->socket, endpoint.c_str()) == 0) return {};
  return fail(ErrorCode::kEnvironment, "'" + endpoint + "' cannot be connected to: " + zmq_strerror(zmq_errno()));
}

void* Socket::native() const { return impl_->socket; }

Socket::Got Socket::receive() {
  Part* parts = impl_->parts + (impl_->bound ? 0 : 1);
  const std::size_t wanted = impl_->bound ? 2 : 1;
  if (!parts[0].receive(impl_->socket)) return Got::kNothing;
  std::size_t have = 1;
  bool more = parts[0].more();
  for (; more && have < wanted; ++have) {
    parts[have].receive(impl_->socket);
    more = parts[have].more();
  }
  if (!more && have == wanted) return Got::kFrame;
  for (Part rest; more; more = rest.more()) rest.receive(impl_->socket);
  return Got::kMalformed;
}

std::string_view Socket::routing() const { return impl_->parts[0].bytes(); }
std::string_view Socket::frame() const { return impl_->parts[1].bytes(); }

bool Socket::put(const Frame& frame) { return Part(frame).send(impl_->socket, 0); }

bool Socket::put_to(std::string_view routing, const Frame& frame) {
  Part address(routing);
  if (!address.send(impl_->socket, ZMQ_SNDMORE)) return false;
  Part(frame).send(impl_->socket, 0);  // once the address was taken, so is this (or the connection ends: a resend)
  return true;
}

std::unique_ptr<Messenger> Messenger::create(int io_threads) { return std::make_unique<ZmqMessenger>(io_threads); }

}  // namespace callboard::actors
