// The socket of a direct lane by itself; direct_lane_hub_test.cpp has Hub and Line around it.
#include "actors/core/direct_lane.h"

#include <sys/socket.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "messages/base/bounded_queue.h"
#include "tests/actors/core/lane_ends.h"
#include "tests/actors/core/station.h"
#include "tests/support/test.h"

namespace callboard::actors {
namespace {

using test::frame_of;
using test::RawEnd;

Frame as_frame(std::string frame) { return std::make_shared<const std::string>(std::move(frame)); }

/// One end is a lane on a loop of its own, the other the test's.
struct LaneScene {
  explicit LaneScene(std::size_t frame_max = limits::kMessageBytesMax) {
    int fds[2] = {-1, -1};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    other = std::make_unique<RawEnd>(UniqueFd(fds[0]));
    station.call([&] {
      DirectLane::Events events;
      events.frame = [this](std::string_view frame) {
        (void)frames.try_push(std::string(frame));
        if (on_frame) on_frame();
      };
      events.ended = [this](const std::string& why) {
        (void)ends.try_push(std::string(why));
        if (on_ended) on_ended();
      };
      lane = std::make_unique<DirectLane>(station.loop(), UniqueFd(fds[1]), std::move(events), frame_max);
    });
  }
  ~LaneScene() {
    station.call([this] { lane.reset(); });
  }
  bool put(const std::string& frame) {
    return station.call([&] { return lane->put(as_frame(frame)); });
  }
  std::string next() { return frames.pop_until(after(Clock::now(), test::kPatience)).value_or(""); }
  std::string end() { return ends.pop_until(after(Clock::now(), test::kPatience)).value_or(""); }
  bool ended() {
    return station.call([this] { return !lane || lane->ended(); });
  }

  std::function<void()> on_frame;  // set within station.call()
  std::function<void()> on_ended;
  BoundedQueue<std::string> frames{10'000};
  BoundedQueue<std::string> ends{10};
  std::unique_ptr<RawEnd> other;
  std::unique_ptr<DirectLane> lane;
  test::Station station;  // last: its thread ends first
};

TEST_CASE("frames come out whole, however their bytes come in") {
  LaneScene scene;
  const std::vector<std::string> frames = {frame_of("one"), frame_of(""), frame_of(std::string(100, 'x'))};
  SECTION("one by one") {
    for (const std::string& frame : frames) {
      for (const char byte : frame) REQUIRE(scene.other->say(std::string_view(&byte, 1)));
    }
  }
  SECTION("all at once") { REQUIRE(scene.other->say(frames[0] + frames[1] + frames[2])); }
  SECTION("one and a half, and the rest") {
    const std::string all = frames[0] + frames[1] + frames[2];
    REQUIRE(scene.other->say(all.substr(0, frames[0].size() + 11)));
    CHECK(scene.next() == frames[0]);
    scene.put(frames[0]);  // the other way meanwhile
    CHECK(scene.other->hear() == frames[0]);
    REQUIRE(scene.other->say(all.substr(frames[0].size() + 11)));
    CHECK(scene.next() == frames[1]);
    CHECK(scene.next() == frames[2]);
    return;
  }
  for (const std::string& frame : frames) CHECK(scene.next() == frame);
  CHECK(scene.frames.size() == 0);
}

TEST_CASE("a long stream cut at random arrives as it was") {
  LaneScene scene;
  std::mt19937_64 random(5);
  std::vector<std::string> frames;
  std::string all;
  for (int i = 0; i < 400; ++i) {
    frames.push_back(frame_of(std::string(random() % (i % 40 == 0 ? 300'000 : 500), static_cast<char>('a' + i % 26))));
    all += frames.back();
  }
  std::string_view rest = all;
  while (!rest.empty()) {
    const std::size_t part = std::min<std::size_t>(rest.size(), 1 + random() % 70'000);
    REQUIRE(scene.other->say(rest.substr(0, part)));
    rest.remove_prefix(part);
  }
  bool same = true;
  for (const std::string& frame : frames) same = same && scene.next() == frame;
  CHECK(same);
}

TEST_CASE("the largest frame arrives in both directions, and small ones behind it") {
  LaneScene scene;
  const std::string large = frame_of(std::string(limits::kMessageBytesMax - kFrameHeaderBytes, 'x'));
  const std::string small = frame_of("small");
  REQUIRE(scene.other->say(large + small));
  CHECK(scene.next() == large);
  CHECK(scene.next() == small);
  REQUIRE(scene.put(large));
  REQUIRE(scene.put(small));
  CHECK(scene.other->hear() == large);
  CHECK(scene.other->hear() == small);
}

TEST_CASE("what is no frame ends the lane once, and what came before it counts") {
  LaneScene scene(1'000);
  const std::string good = frame_of("good");
  std::string bad = good;
  SECTION("garbage") { bad = std::string(100, 'g'); }
  SECTION("a frame that announces more than any may have") { bad.replace(8, 4, "\xff\xff\xff\x7f"); }
  SECTION("a frame that announces more than this lane takes") { bad.replace(8, 4, std::string("\xe8\x03\0\0", 4)); }
  REQUIRE(scene.other->say(good + bad + good));
  CHECK(scene.next() == good);
  CHECK_FALSE(scene.end().empty());
  CHECK(scene.other->closes());
  CHECK_FALSE(scene.put(good));
  CHECK(scene.frames.size() == 0);
  CHECK(scene.ends.size() == 0);
}

TEST_CASE("an end of the stream, also within a frame, ends the lane behind what came whole") {
  LaneScene scene;
  const std::string frame = frame_of("last words");
  REQUIRE(scene.other->say(frame + frame.substr(0, GENERATE(0, 3, 30))));
  scene.other->close();
  CHECK(scene.next() == frame);
  CHECK(scene.end() == "the other side closed it");
  CHECK(scene.ended());
  CHECK_FALSE(scene.put(frame));
}

TEST_CASE("last words are heard, even where writing is what tells that the other side is gone") {
  LaneScene scene;
  const std::string frame = frame_of("last words");
  scene.station.call([&] {
    if (!scene.other->say(frame + frame)) return;
    scene.other->close();
    scene.lane->put(as_frame(frame_of("are you there?")));  // written before the loop looks at the descriptor
  });
  CHECK(scene.next() == frame);
  CHECK(scene.next() == frame);
  CHECK_FALSE(scene.end().empty());
  CHECK(scene.ended());
}

TEST_CASE("who does not read costs a bounded amount, and gets all in order when it reads again") {
  LaneScene scene;
  const std::size_t bytes = GENERATE(std::size_t{10}, std::size_t{1} << 20);
  const std::size_t most =
      bytes < 1'000 ? static_cast<std::size_t>(limits::kSocketQueueMax) : limits::kLinkWindowBytesMax / bytes;
  const auto nth = [bytes](std::size_t n) { return frame_of(std::to_string(n) + std::string(bytes, '.')); };
  std::size_t put = 0;
  const auto fill = [&] {
    scene.station.call([&] {
      while (put < 100'000 && scene.lane->put(as_frame(nth(put)))) ++put;
    });
  };
  fill();
  CHECK(put <= most);
  CHECK(put >= most - 1);
  std::size_t before = 0;
  for (int calls = 0; put != before && calls < 1'000; ++calls) {  // until the system's own buffer is full as well
    before = put;
    fill();
  }
  CHECK(put == before);
  CHECK(put < most + 20'000);
  std::size_t right = 0;
  while (right < put && scene.other->hear() == nth(right)) ++right;
  CHECK(right == put);
  REQUIRE(scene.put(nth(put)));
  CHECK(scene.other->hear() == nth(put));
}

TEST_CASE("a callback may destroy its lane") {
  LaneScene scene;
  const std::string frame = frame_of("one");
  const auto destroy = [&scene] { scene.lane.reset(); };
  SECTION("with more frames at hand") {
    scene.station.call([&] { scene.on_frame = destroy; });
    REQUIRE(scene.other->say(frame + frame + frame));
    CHECK(scene.next() == frame);
    CHECK(scene.other->closes());
    CHECK(scene.ends.size() == 0);
    CHECK(scene.frames.size() == 0);
  }
  SECTION("at the end of the stream") {
    scene.station.call([&] { scene.on_ended = destroy; });
    scene.other->close();
    CHECK_FALSE(scene.end().empty());
    CHECK(scene.ended());
  }
  SECTION("where garbage came") {
    scene.station.call([&] { scene.on_ended = destroy; });
    REQUIRE(scene.other->say(frame + std::string(50, 'g')));
    CHECK_FALSE(scene.end().empty());
    CHECK(scene.other->closes());
  }
  SECTION("where writing failed") {
    scene.station.call([&] {
      scene.on_ended = destroy;
      scene.other->close();
      scene.lane->put(as_frame(frame));
    });
    CHECK_FALSE(scene.end().empty());
    CHECK(scene.ended());
  }
  SECTION("by a frame that is read because writing failed") {
    scene.station.call([&] {
      scene.on_frame = destroy;
      (void)scene.other->say(frame + frame);
      scene.other->close();
      scene.lane->put(as_frame(frame));
    });
    CHECK(scene.next() == frame);
    CHECK(scene.ended());
    CHECK(scene.ends.size() == 0);
  }
}

TEST_CASE("a lane that is destroyed or finished writes what the system takes, and says whether that was all") {
  LaneScene scene;
  const std::string frame = frame_of("bye");
  SECTION("destroyed") {
    scene.station.call([&] {
      scene.lane->put(as_frame(frame));
      scene.lane.reset();
    });
    CHECK(scene.other->hear() == frame);
    CHECK(scene.other->closes());
  }
  SECTION("finished") {
    CHECK(scene.station.call([&] { return scene.lane->put(as_frame(frame)) && scene.lane->finish(); }));
    CHECK(scene.other->hear() == frame);
    CHECK(scene.other->closes());
  }
  SECTION("finished, but full") {
    CHECK_FALSE(scene.station.call([&] {
      while (scene.lane->put(as_frame(frame_of(std::string(1u << 20, 'x'))))) {
      }
      return scene.lane->finish();
    }));
    CHECK(scene.other->closes());
  }
  CHECK(scene.ends.size() == 0);
}

}  // namespace
}  // namespace callboard::actors
