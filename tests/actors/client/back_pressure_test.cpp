// submit() where there is no room: it waits, in line, and every way out of the wait.
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "tests/actors/client/client_fixture.h"

namespace callboard::actors {
namespace {

using namespace std::chrono_literals;

FakeCluster::Options with_room_for(std::size_t requests) {
  FakeCluster::Options fake;
  fake.requests_per_client = requests;
  return fake;
}

/// Set once, awaited by another thread.
class Flag {
 public:
  void set() {
    std::lock_guard lock(mutex_);
    set_ = true;
    came_.notify_all();
  }
  bool await() {
    std::unique_lock lock(mutex_);
    return came_.wait_for(lock, kPatience, [&] { return set_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable came_;
  bool set_ = false;
};

/// A submit() on a thread of its own that has begun to wait when the constructor returns.
class Waiting {
 public:
  Waiting(Program& program, std::vector<ClientValue> inputs, std::optional<Duration> deadline = {}) {
    thread_ = std::thread([this, &program, inputs = std::move(inputs), deadline] {
      SubmitOptions options{.deadline = deadline};
      options.interrupted = [this] {
        began_.set();  // asked only while it waits
        return interrupted_.load();
      };
      outcome_.emplace(program.submit(inputs, options));
    });
    REQUIRE(began_.await());
  }
  ~Waiting() { join(); }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  void interrupt() { interrupted_ = true; }
  Result<std::shared_ptr<Future>>& join() {
    if (thread_.joinable()) thread_.join();
    return *outcome_;
  }

 private:
  Flag began_;
  std::atomic<bool> interrupted_{false};
  std::optional<Result<std::shared_ptr<Future>>> outcome_;
  std::thread thread_;
};

std::vector<ClientValue> inputs_of(Connected& c) { return {tensor(c.values, {2, 4}), std::int64_t{1}}; }

constexpr std::size_t kLargeRows = 512u << 10 >> 4;  // x of so many rows has half a MiB

constexpr std::uint64_t kMemory = (1u << 20) + (64u << 10);  // of two such x, each with what aligns it

/// Too large to travel inline.
std::vector<ClientValue> large_inputs(std::vector<float>& values, std::size_t rows = kLargeRows) {
  values.assign(rows * 4, 1.0f);
  return {tensor(values, {static_cast<std::int64_t>(rows), 4}), std::int64_t{1}};
}

void end_one(Connected& c) {
  const Submit sent = c.cluster.await<Submit>();
  c.cluster.send(c.cluster.client(), ok(sent.request, small(1)));
}

}  // namespace

TEST_CASE("submit() waits for a place and goes when one is free", "[back_pressure]") {
  Connected c(with_room_for(2));
  const auto first = c.submit();
  const auto second = c.submit();
  Waiting third(*c.program, inputs_of(c));
  end_one(c);
  REQUIRE(third.join());
  REQUIRE(first->get());
  end_one(c);
  end_one(c);
  REQUIRE((*third.join())->get());
  REQUIRE(second->get());
}

TEST_CASE("one thread that only submits drives the loop itself and never has too many in flight", "[back_pressure]") {
  // The oldest is answered when there are three: a fourth would show.
  std::deque<RequestSeq> open;
  std::atomic<std::size_t> most{0};
  Connected c(with_room_for(3));
  c.cluster.on_message([&](FakeCluster& cluster, const ActorId& from, const Message& message) {
    const auto* submit = std::get_if<Submit>(&message);
    if (submit == nullptr) return false;
    open.push_back(submit->request);
    most = std::max(most.load(), open.size());
    if (open.size() == 3) {
      cluster.send(from, ok(open.front(), small(1)));
      open.pop_front();
    }
    return true;
  });
  std::vector<std::shared_ptr<Future>> futures;
  for (int i = 0; i < 500; ++i) futures.push_back(c.submit());
  for (std::size_t i = 0; i + 3 <= futures.size(); ++i) REQUIRE(futures[i]->get());
  CHECK(most == 3);
  c.client.reset();
}

TEST_CASE("many threads and a slow consumer: bounded, in each thread's order, and everybody is served",
          "[back_pressure]") {
  constexpr int kThreads = 8;
  constexpr int kEach = 200;
  std::deque<std::pair<RequestSeq, std::int64_t>> open;
  std::map<std::int64_t, std::int64_t> last;  // number, by thread
  std::size_t most = 0;
  int out_of_order = 0;
  Connected c(with_room_for(4));
  c.cluster.on_message([&](FakeCluster& cluster, const ActorId& from, const Message& message) {
    const auto* submit = std::get_if<Submit>(&message);
    if (submit == nullptr) return false;
    const auto number = std::get<std::int64_t>(submit->inputs.at(1));
    const auto [at, is_first] = last.try_emplace(number / kEach, number);
    if (!is_first && std::exchange(at->second, number) != number - 1) ++out_of_order;
    open.emplace_back(submit->request, number);
    most = std::max(most, open.size());
    if (open.size() == 4) {
      cluster.send(from, ok(open.front().first, small(static_cast<float>(open.front().second))));
      open.pop_front();
    }
    return true;
  });
  std::atomic<int> wrong{0};
  std::vector<std::vector<std::shared_ptr<Future>>> futures(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        const ClientValue inputs[] = {tensor(c.values, {2, 4}), std::int64_t{t * kEach + i}};
        auto future = c.program->submit(inputs);
        if (!future) {
          ++wrong;
          return;
        }
        futures[static_cast<std::size_t>(t)].push_back(std::move(*future));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
  c.client.reset();  // what the fake coordinator has not answered ends as cancelled
  int answered = 0;
  for (int t = 0; t < kThreads; ++t) {
    for (int i = 0; i < kEach; ++i) {
      const auto value = futures[static_cast<std::size_t>(t)][static_cast<std::size_t>(i)]->get();
      if (!value) continue;
      ++answered;
      CHECK(first_element(std::get<TensorRef>((*value)->outputs.at(0))) == static_cast<float>(t * kEach + i));
    }
  }
  CHECK(answered >= kThreads * kEach - 4);
  c.cluster.on_message({});  // the handler's thread is done with the counters
  CHECK(most <= 4);
  CHECK(out_of_order == 0);
}

TEST_CASE("without room by the deadline the error says what was full and how full", "[back_pressure]") {
  Connected c(with_room_for(1));
  const auto first = c.submit();
  const auto late = c.program->submit(inputs_of(c), {.deadline = 5ms});
  REQUIRE_FALSE(late);
  CHECK(late.error().code == ErrorCode::kDeadlineExceeded);
  CHECK(late.error().message.find("1 requests in flight, of 1 that limits.requests_per_client allows") !=
        std::string::npos);
  CHECK_FALSE(late.error().hint.empty());
  REQUIRE(late.error().causes.size() == 1);
  CHECK(late.error().causes[0].code == ErrorCode::kOverloaded);
  const auto refused = c.program->submit(inputs_of(c), {.wait = false});
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::kOverloaded);
}

TEST_CASE("a wait for room can be interrupted", "[back_pressure]") {
  Connected c(with_room_for(1));
  const auto first = c.submit();
  Waiting second(*c.program, inputs_of(c));
  second.interrupt();
  CHECK(second.join().error().code == ErrorCode::kCancelled);
  end_one(c);
  REQUIRE(first->get());
  REQUIRE(c.submit());  // its place in line is gone
}

TEST_CASE("closing the client ends the waits for room", "[back_pressure]") {
  Connected c(with_room_for(1));
  const auto first = c.submit();
  Waiting second(*c.program, inputs_of(c));
  Waiting third(*c.program, inputs_of(c));
  c.client.reset();
  for (Waiting* waiting : {&second, &third}) {
    auto& outcome = waiting->join();
    CHECK((outcome ? code_of((*outcome)->get()) : outcome.error().code) == ErrorCode::kCancelled);
  }
  CHECK(code_of(first->get()) == ErrorCode::kCancelled);
}

TEST_CASE("the loss of the coordinator ends the waits for room with its error", "[back_pressure]") {
  Victim coordinator;
  FakeCluster::Options fake = with_room_for(1);
  fake.coordinator_pid = coordinator.pid;
  Connected c(fake);
  const auto first = c.submit();
  Waiting second(*c.program, inputs_of(c));
  Waiting third(*c.program, inputs_of(c));
  coordinator.kill();
  for (Waiting* waiting : {&second, &third}) {
    auto& outcome = waiting->join();
    CHECK((outcome ? code_of((*outcome)->get()) : outcome.error().code) == ErrorCode::kCoordinatorLost);
  }
  CHECK(code_of(first->get()) == ErrorCode::kCoordinatorLost);
}

TEST_CASE("a callback's request without room is refused, not waited for", "[back_pressure]") {
  Connected c(with_room_for(1));
  const auto first = c.submit();
  Flag called;
  std::optional<Error> refusal;
  first->on_ready([&] {
    // The place of the request that ends is free once its callbacks have run.
    if (const auto second = c.program->submit(inputs_of(c)); !second) refusal = second.error();
    called.set();
  });
  end_one(c);
  REQUIRE(called.await());
  REQUIRE(refusal);
  CHECK(refusal->code == ErrorCode::kOverloaded);
  CHECK(refusal->message.find("a call from a callback does not wait") != std::string::npos);
}

TEST_CASE("submit() waits for memory that requests in flight hold", "[back_pressure]") {
  Connected c({}, kMemory);
  std::vector<float> values;
  const std::vector<ClientValue> inputs = large_inputs(values);
  const auto first = c.program->submit(inputs);
  const auto second = c.program->submit(inputs);
  REQUIRE(first);
  REQUIRE(second);
  const auto refused = c.program->submit(inputs, {.wait = false});
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::kOutOfMemory);
  const auto late = c.program->submit(inputs, {.deadline = 5ms});
  REQUIRE_FALSE(late);
  CHECK(late.error().code == ErrorCode::kDeadlineExceeded);
  CHECK(late.error().message.find("2 requests are in flight") != std::string::npos);
  CHECK(late.error().message.find("limit: memory_limit") != std::string::npos);
  Waiting third(*c.program, inputs);
  const Submit sent = c.cluster.await<Submit>();
  Outcome reading = ok(sent.request, small(1));
  reading.quiesced = false;
  c.cluster.send(c.cluster.client(), reading);
  REQUIRE((*first)->get());
  c.cluster.send(c.cluster.client(), Quiesced{sent.request});  // only now the memory is free
  REQUIRE(third.join());
}

TEST_CASE("memory that no request will give back is not waited for", "[back_pressure]") {
  Connected c({}, kMemory);
  std::vector<float> values;
  SECTION("inputs larger than the whole limit") {
    const auto first = c.submit();  // in flight, but of no use
    const auto never = c.program->submit(large_inputs(values, 3 * kLargeRows));
    REQUIRE_FALSE(never);
    CHECK(never.error().code == ErrorCode::kOutOfMemory);
    CHECK(never.error().message.find("they never fit") != std::string::npos);
  }
  SECTION("memory of the caller's own") {
    const auto mine = c.client->allocate(TensorMeta::contiguous(DType::kFloat32, {200'000}));
    REQUIRE(mine);
    const auto never = c.program->submit(large_inputs(values));
    REQUIRE_FALSE(never);
    CHECK(never.error().code == ErrorCode::kOutOfMemory);
    CHECK(never.error().message.find("no request is in flight") != std::string::npos);
  }
}

TEST_CASE("memory that its owner lets go of makes room, too", "[back_pressure]") {
  Connected c({}, kMemory);
  std::vector<float> values;
  auto mine = c.client->allocate(TensorMeta::contiguous(DType::kFloat32, {200'000}));
  REQUIRE(mine);
  const auto small_one = c.submit();  // in flight: its end could make room
  Waiting large(*c.program, large_inputs(values));
  mine = fail(ErrorCode::kCancelled, "let go of");
  REQUIRE(large.join());
}

}  // namespace callboard::actors
