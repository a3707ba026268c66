// A device and one helper of a GIL domain of it, two simulated processes on one fake machine, with what their
// conversation does between them.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/helper_guest.h"
#include "kernels/cuda/helper_room.h"
#include "tests/kernels/cuda/pair.h"

namespace callboard::kernels::cuda::testing {

inline const ActorId kHelper{"cuda0.py", 1};
inline const ActorId kNextHelper{"cuda0.py", 2};

inline Result<std::unique_ptr<HelperRoom>> make_room(Exporter& device, const ActorId& helper = kHelper) {
  HelperRoomOptions options;
  options.helper = helper;
  options.grants_max = 8;
  return HelperRoom::create(*device.runtime, device.health, device.pool, device.stream, options);
}

/// The helper's process.
struct Helper : Side {
  Helper(const std::shared_ptr<FakeMachine>& machine, HelperRoom& room, HelperGuestOptions options = {})
      : Side(machine) {
    made = HelperGuest::create(
        *runtime, health, stream,
        [this, &room](std::uint64_t bytes) -> Result<CudaIpcBlock> {
          if (!listens) return fail(ErrorCode::kNotReady, "the device listens during calls only");
          return room.grant(bytes);
        },
        options);
    if (made) guest = *made;
  }
  /// Queued on its stream.
  void fill(void* pointer, const std::string& bytes) {
    texts.push_back(std::make_unique<std::string>(bytes));
    REQUIRE(runtime->memcpy_async(pointer, texts.back()->data(), bytes.size(), stream) == kSuccess);
  }
  std::byte* allocate(std::uint64_t bytes) { return static_cast<std::byte*>(guest->allocate(bytes, stream).value()); }
  /// A result of a call: held by the helper, to be handed to the device.
  SlabPlace give(void* pointer, std::uint64_t bytes) {
    const auto place = guest->place_of(pointer, bytes);
    REQUIRE(place);
    guest->give(*place, std::make_shared<int>(0));
    return *place;
  }
  std::vector<std::unique_ptr<std::string>> texts;  ///< copies read it when they run
  bool listens = true;
  Result<std::shared_ptr<HelperGuest>> made = fail(Error());
  std::shared_ptr<HelperGuest> guest;
};

struct Together {
  explicit Together(HelperGuestOptions options = {}) : device(machine) {
    auto of_device = make_room(device);
    REQUIRE(of_device);
    room = std::move(*of_device);
    helper = std::make_unique<Helper>(machine, *room, options);
    REQUIRE(helper->guest);
  }

  void begin() {
    const auto order = room->begin_call();
    REQUIRE(order);
    helper->guest->let_go(room->take_let_go());
    REQUIRE(helper->guest->begin_call(*order));
  }
  /// The helper's answer, taken by the device.
  void end() {
    const auto answer = helper->guest->end_call();
    REQUIRE(answer);
    REQUIRE(room->end_call(answer->done, answer->released));
  }
  /// A block of the device's with these bytes, once the device's stream comes to it.
  std::byte* tensor(const std::string& bytes, std::uint64_t size = 2 * kMiB) {
    std::byte* const made = device.allocate(size);
    device.fill(made, bytes);
    return made;
  }
  /// A call without arguments that gives one result of these bytes.
  std::shared_ptr<std::byte> result(const std::string& bytes, std::uint64_t size = 2 * kMiB) {
    begin();
    std::byte* const made = helper->allocate(size);
    helper->fill(made, bytes);
    const SlabPlace place = helper->give(made, bytes.size());
    end();
    auto taken = room->take(place);
    REQUIRE(taken);
    return *taken;
  }
  std::string read(const void* pointer, std::size_t bytes) {
    std::string seen(bytes, '?');
    REQUIRE(device.runtime->memcpy_async(seen.data(), pointer, bytes, device.stream) == kSuccess);
    REQUIRE(device.runtime->stream_synchronize(device.stream) == kSuccess);
    return seen;
  }
  /// The helper is killed, and the device has seen it.
  void kill() {
    helper->runtime->die();
    room->gone();
  }
  /// What is left of the helper on the machine, once all is given back.
  void check_nothing_left() {
    REQUIRE(device.pool->release_cached());
    const SlabPoolStats stats = device.pool->stats();
    CHECK(stats.leases == 0);
    CHECK(stats.mappings == 0);
    CHECK(stats.in_use_bytes == 0);
    CHECK(stats.slabs == 0);
    CHECK(machine->used_bytes(0) == 0);
    CHECK(machine->violations() == 0);
  }

  std::shared_ptr<FakeMachine> machine = FakeMachine::create(1, 64 * kMiB);
  Exporter device;
  std::unique_ptr<HelperRoom> room;
  std::unique_ptr<Helper> helper;
};

}  // namespace callboard::kernels::cuda::testing
