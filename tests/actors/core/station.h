// A loop with its thread, and Hubs and Lines on it whose events a test can wait for.
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "actors/core/loop.h"
#include "actors/core/transport.h"
#include "messages/base/bounded_queue.h"

namespace callboard::test {

constexpr std::chrono::seconds kPatience{20};  // a bound for waits that should be short, on a loaded machine too

/// Runs a loop on a thread of its own. What belongs to the loop is made, used and destroyed inside call().
class Station {
 public:
  Station() : loop_(actors::Loop::create()), thread_([this] { loop_->run(); }) {}
  ~Station() { end(); }
  Station(const Station&) = delete;
  Station& operator=(const Station&) = delete;

  actors::Loop& loop() { return *loop_; }

  template <class F>
  auto call(F function) {
    using R = std::invoke_result_t<F>;
    auto task = std::make_shared<std::packaged_task<R()>>(std::move(function));
    auto future = task->get_future();
    loop_->post([task] { (*task)(); });
    if constexpr (std::is_void_v<R>) {
      future.get();
    } else {
      return future.get();
    }
  }

  void end() {
    loop_->stop();
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::unique_ptr<actors::Loop> loop_;
  std::thread thread_;
};

/// Said once, on any thread. Who hears it may end at once: what is shared outlives the saying.
class Signal {
 public:
  void set() const {
    const auto keep = promise_;
    keep->set_value();
  }
  bool comes() const { return future_.wait_for(kPatience) == std::future_status::ready; }

 private:
  std::shared_ptr<std::promise<void>> promise_ = std::make_shared<std::promise<void>>();
  std::shared_future<void> future_ = promise_->get_future().share();
};

/// Keeps a loop's thread in a task until it is released, like SIGSTOP: nothing of the loop is read or written.
class Busy {
 public:
  explicit Busy(actors::Loop& loop) {
    Signal begun;
    loop.post([begun, end = end_] {
      begun.set();
      (void)end.comes();
    });
    (void)begun.comes();
  }
  ~Busy() { release(); }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;
  void release() {
    if (!std::exchange(released_, true)) end_.set();
  }

 private:
  Signal end_;
  bool released_ = false;
};

struct Seen {
  enum class Kind { kHello, kWelcome, kMessage, kLost };
  Kind kind = Kind::kMessage;
  ActorId who;
  std::optional<Message> message;
  std::optional<Error> error;
};

class Events {
 public:
  void put(Seen seen) { (void)queue_.try_push(std::move(seen)); }
  std::optional<Seen> next(Duration wait = kPatience) { return queue_.pop_until(after(Clock::now(), wait)); }
  /// The next event of this kind; others are dropped.
  std::optional<Seen> next_of(Seen::Kind kind) {
    const TimePoint deadline = after(Clock::now(), kPatience);
    while (auto seen = queue_.pop_until(deadline)) {
      if (seen->kind == kind) return seen;
    }
    return std::nullopt;
  }
  std::size_t size() const { return queue_.size(); }

 private:
  BoundedQueue<Seen> queue_{100'000};
};

class HubStation {
 public:
  explicit HubStation(actors::Hub::Options options) : options_(std::move(options)) {}
  ~HubStation() { close(); }
  HubStation(const HubStation&) = delete;
  HubStation& operator=(const HubStation&) = delete;

  Status open() {
    return station_.call([this]() -> Status {
      actors::Hub::Events events;
      events.hello = [this](const Hello& hello) -> Status {
        events_.put({Seen::Kind::kHello, hello.who, Message(hello), {}});
        return admit ? admit(hello) : Status();
      };
      events.message = [this](const ActorId& from, Message message) {
        if (on_message) on_message(*hub_, from, message);
        events_.put({Seen::Kind::kMessage, from, std::move(message), {}});
      };
      events.lost = [this](const ActorId& peer, const Error& why) { events_.put({Seen::Kind::kLost, peer, {}, why}); };
      CALLBOARD_ASSIGN(hub_, actors::Hub::bind(station_.loop(), *messenger_, options_, std::move(events)));
      return {};
    });
  }
  void close() {
    station_.call([this] { hub_.reset(); });
  }
  Status send(const ActorId& to, const Message& message) {
    return station_.call([&] { return hub_->send(to, message); });
  }
  void forget(const ActorId& who) {
    station_.call([&] { hub_->forget(who); });
  }
  actors::Hub::Counters counters() {
    return station_.call([&] { return hub_->counters(); });
  }
  Events& events() { return events_; }
  Station& station() { return station_; }
  actors::Hub& hub() { return *hub_; }

  std::function<Status(const Hello&)> admit;                                     // set before open()
  std::function<void(actors::Hub&, const ActorId&, const Message&)> on_message;  // set before open()

 private:
  actors::Hub::Options options_;
  Events events_;
  std::unique_ptr<actors::Messenger> messenger_ = actors::Messenger::create();
  Station station_;
  std::unique_ptr<actors::Hub> hub_;
};

class LineStation {
 public:
  explicit LineStation(actors::Line::Options options) : options_(std::move(options)) {}
  ~LineStation() { close(); }
  LineStation(const LineStation&) = delete;
  LineStation& operator=(const LineStation&) = delete;

  Status open() {
    return station_.call([this]() -> Status {
      actors::Line::Events events;
      events.welcome = [this](const Welcome& welcome) {
        events_.put({Seen::Kind::kWelcome, welcome.coordinator, Message(welcome), {}});
      };
      events.message = [this](Message message) {
        if (on_message) on_message(*line_, message);
        events_.put({Seen::Kind::kMessage, {}, std::move(message), {}});
      };
      events.lost = [this](const Error& why) { events_.put({Seen::Kind::kLost, {}, {}, why}); };
      CALLBOARD_ASSIGN(line_, actors::Line::connect(station_.loop(), *messenger_, options_, std::move(events)));
      return {};
    });
  }
  void close() {
    station_.call([this] { line_.reset(); });
  }
  Status send(const Message& message) {
    return station_.call([&] { return line_->send(message); });
  }
  bool direct() {
    return station_.call([this] { return line_->direct(); });
  }
  Events& events() { return events_; }
  Station& station() { return station_; }

  std::function<void(actors::Line&, const Message&)> on_message;  // set before open()

 private:
  actors::Line::Options options_;
  Events events_;
  std::unique_ptr<actors::Messenger> messenger_ = actors::Messenger::create();
  Station station_;
  std::unique_ptr<actors::Line> line_;
};

inline actors::Hub::Options hub_options(const std::string& endpoint, bool direct = true) {
  actors::Hub::Options options;
  options.self = {"coordinator", 1};
  options.epoch = 5;
  options.endpoint = endpoint;
  options.cluster = "test";
  options.direct = direct;
  return options;
}

inline actors::Line::Options line_options(const std::string& endpoint, const ActorId& who, bool direct = true) {
  actors::Line::Options options;
  options.hello.role = Role::kDevice;
  options.hello.who = who;
  options.hello.cluster = "test";
  options.hello.pid = 1'000 + static_cast<std::int64_t>(who.incarnation);
  options.endpoint = endpoint;
  options.direct = direct;
  return options;
}

inline Message numbered(std::uint64_t number) { return Operation{number, "count", ""}; }

}  // namespace callboard::test
