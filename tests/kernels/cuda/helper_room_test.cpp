#include <algorithm>
#include <set>

#include "tests/kernels/cuda/helper.h"

namespace callboard::kernels::cuda {
namespace {

using namespace testing;

const std::string kEarly(64, 'e');
const std::string kLate(64, 'l');

TEST_CASE("HR-3, HR-4, HG-1: a helper reads behind the device and the device behind the helper") {
  Together both;
  Exporter& device = both.device;
  std::byte* const argument = both.tensor(kEarly);
  REQUIRE(device.runtime->stream_synchronize(device.stream) == kSuccess);
  device.runtime->hold(device.stream);
  device.fill(argument, kLate);  // the device is not so far when the helper begins
  const auto handle = both.room->lend(argument, kLate.size(), {});
  REQUIRE(handle);
  both.begin();
  const auto seen = both.helper->guest->open(*handle);
  REQUIRE(seen);
  std::byte* const result = both.helper->allocate(2 * kMiB);
  REQUIRE(both.helper->runtime->memcpy_async(result, seen->get(), kLate.size(), both.helper->stream) == kSuccess);
  const SlabPlace place = both.helper->give(result, kLate.size());
  CHECK(both.helper->runtime->queued(both.helper->stream) > 0);  // it waits
  device.runtime->run(device.stream);
  both.end();
  const auto taken = both.room->take(place);
  REQUIRE(taken);
  CHECK(both.read(taken->get(), kLate.size()) == kLate);
}

TEST_CASE("HG-1: what a helper writes to in a granted segment is behind what the device's stream did there") {
  Together both;
  Exporter& device = both.device;
  std::byte* const block = device.allocate(8 * kMiB);
  device.runtime->hold(device.stream);
  device.fill(block, kEarly);
  device.pool->deallocate(block, device.stream);  // the stream's own: given out again at once
  both.begin();
  std::byte* const segment = both.helper->allocate(8 * kMiB);
  both.helper->fill(segment, kLate);
  const SlabPlace place = both.helper->give(segment, kLate.size());
  CHECK(both.room->stats().granted_bytes == 8 * kMiB);
  CHECK(device.pool->stats().slabs == 1);  // the same memory
  device.runtime->run(device.stream);
  both.end();
  const auto taken = both.room->take(place);
  REQUIRE(taken);
  CHECK(both.read(taken->get(), kLate.size()) == kLate);
}

TEST_CASE("HG-4, HR-3: a result's memory is used again behind the device's last read of it") {
  Together both;
  Exporter& device = both.device;
  both.begin();
  std::byte* const memory = both.helper->allocate(2 * kMiB);
  both.helper->fill(memory, kEarly);
  const SlabPlace place = both.helper->give(memory, kEarly.size());
  both.end();
  auto taken = both.room->take(place);
  REQUIRE(taken);
  CHECK(both.helper->guest->stats().results == 1);
  device.runtime->hold(device.stream);
  std::string seen(kEarly.size(), '?');
  REQUIRE(device.runtime->memcpy_async(seen.data(), taken->get(), seen.size(), device.stream) == kSuccess);
  taken->reset();  // the read is queued still
  both.begin();
  CHECK(both.helper->guest->stats().results == 0);
  CHECK(both.room->take_let_go().empty());  // told once
  both.helper->fill(memory, kLate);         // its allocator has cut another tensor out of the same place
  device.runtime->run(device.stream);
  both.end();
  REQUIRE(device.runtime->stream_synchronize(device.stream) == kSuccess);
  CHECK(seen == kEarly);
}

TEST_CASE("HR-1: a granted segment goes back once, whichever of its uses ends last") {
  Together both;
  both.begin();
  std::byte* const segment = both.helper->allocate(4 * kMiB);
  const SlabPlace first = both.helper->give(segment, 64);
  const SlabPlace second = both.helper->give(segment + kMiB, 64);
  both.end();
  auto one = both.room->take(first);
  auto two = both.room->take(second);
  REQUIRE(one);
  REQUIRE(two);
  CHECK(both.room->stats().results == 2);
  SECTION("the results, then the helper's allocator") {
    one->reset();
    two->reset();
    CHECK(both.room->stats().grants == 1);
    both.begin();
    both.helper->guest->deallocate(segment, both.helper->stream);
    both.end();
  }
  SECTION("the allocator, then the results") {
    both.begin();
    both.helper->guest->let_go({first, second});
    both.helper->guest->deallocate(segment, both.helper->stream);
    both.end();
    CHECK(both.room->stats().grants == 1);
    CHECK_FALSE(both.room->take({first.slab, first.offset + 2 * kMiB, 64}));  // it has been given up
    one->reset();
    CHECK(both.room->stats().grants == 1);
    two->reset();
    CHECK(both.room->take_let_go().empty());  // there is nobody to tell
  }
  SECTION("the helper's end, then the results") {
    both.kill();
    CHECK(both.room->stats().grants == 1);
    CHECK(both.device.pool->stats().leases == 0);
    one->reset();
    two->reset();
  }
  SECTION("the results, then the helper's end") {
    one->reset();
    two->reset();
    both.kill();
  }
  CHECK(both.room->stats().grants == 0);
  both.kill();
  both.check_nothing_left();
}

TEST_CASE("HR-2: results lie in what was granted, beside one another") {
  Together both;
  both.begin();
  std::byte* const segment = both.helper->allocate(4 * kMiB);
  const SlabPlace place = both.helper->give(segment + kMiB, 64);
  both.end();
  const auto refused = [&](const SlabPlace& wrong) {
    const auto taken = both.room->take(wrong);
    REQUIRE_FALSE(taken);
    CHECK(taken.error().code == ErrorCode::kMalformed);
  };
  const std::byte* own = both.device.allocate(2 * kMiB);  // of the same slab
  const auto where = both.device.pool->find(own);
  REQUIRE(where);
  refused({where->slab, where->offset, 64});
  refused({place.slab + 7, place.offset, 64});
  refused({place.slab, place.offset, 4 * kMiB});
  refused({place.slab, place.offset, 0});
  refused({place.slab, ~std::uint64_t{0}, 64});
  refused({place.slab, place.offset, ~std::uint64_t{0}});
  const auto taken = both.room->take(place);
  REQUIRE(taken);
  refused(place);
  refused({place.slab, place.offset + 63, 64});
  refused({place.slab, place.offset - 1, 2});
  CHECK(both.room->take({place.slab, place.offset + 64, 64}));
  CHECK(both.room->stats().results == 1);
}

TEST_CASE("HR-5: a helper's answer ends leases of its own only") {
  Together both;
  std::byte* const tensor = both.tensor(kEarly);
  const CudaIpcBlock others = both.device.lease(tensor, 64);  // a client's
  const auto handle = both.room->lend(tensor, 64, {});
  REQUIRE(handle);
  both.begin();
  std::byte* const segment = both.helper->allocate(2 * kMiB);
  static_cast<void>(segment);
  auto seen = both.helper->guest->open(*handle);
  REQUIRE(seen);
  seen->reset();
  auto answer = both.helper->guest->end_call();
  REQUIRE(answer);
  REQUIRE(answer->released.size() == 1);
  const auto refused = [&](std::vector<LeaseId> released) {
    const Status ended = both.room->end_call(answer->done, released);
    REQUIRE_FALSE(ended);
    CHECK(ended.error().code == ErrorCode::kMalformed);
    CHECK(both.device.pool->stats().leases == 3);
  };
  refused({answer->released[0], others.lease});
  refused({answer->released[0], answer->released[0]});
  refused({others.mapping});
  refused({4711});
  REQUIRE(both.room->end_call(answer->done, answer->released));
  CHECK(both.device.pool->stats().leases == 2);
}

TEST_CASE("HG-2: an argument that is kept keeps its lease, which a later answer gives back") {
  Together both;
  const auto keep = std::make_shared<int>(0);
  std::byte* const tensor = both.tensor(kEarly);
  const auto handle = both.room->lend(tensor, 64, keep);
  REQUIRE(handle);
  both.begin();
  auto kept = both.helper->guest->open(*handle);
  REQUIRE(kept);
  both.end();
  CHECK(keep.use_count() == 2);
  CHECK(both.room->stats().arguments == 1);
  kept->reset();  // between two calls
  CHECK(keep.use_count() == 2);
  both.begin();
  both.end();
  CHECK(keep.use_count() == 1);
  CHECK(both.room->stats().arguments == 0);
}

TEST_CASE("HG-3: slabs that a helper does not use any more go back to the device") {
  HelperGuestOptions options;
  options.idle_slabs_max = 1;
  options.idle_calls = 2;
  Together both(options);
  std::vector<std::byte*> tensors;
  for (int i = 0; i < 3; ++i) tensors.push_back(both.tensor(kEarly, 8 * kMiB));  // a slab each
  const auto call_with_all = [&] {
    std::vector<CudaIpcBlock> handles;
    for (std::byte* tensor : tensors) handles.push_back(both.room->lend(tensor, 64, {}).value());
    both.begin();
    for (const CudaIpcBlock& handle : handles) REQUIRE(both.helper->guest->open(handle));
    CHECK(both.helper->guest->stats().open_slabs == 3);
    both.end();
  };
  call_with_all();
  CHECK(both.helper->guest->stats().open_slabs == 1);  // the others are closed with the answer
  CHECK(both.device.pool->stats().mappings == 1);
  call_with_all();  // opened anew
  for (std::byte* tensor : tensors) both.device.pool->deallocate(tensor, both.device.stream);
  for (int i = 0; i < 2; ++i) {
    both.begin();
    both.end();
  }
  CHECK(both.helper->runtime->open_mappings() == 0);
  both.check_nothing_left();
}

TEST_CASE("while the device does not listen a helper allocates memory of its own") {
  Together both;
  both.helper->listens = false;
  std::byte* const own = both.helper->allocate(2 * kMiB);
  REQUIRE(own != nullptr);
  CHECK_FALSE(both.helper->guest->place_of(own, 64));
  CHECK(both.helper->guest->stats().ordinary == 1);
  both.helper->listens = true;
  both.begin();
  both.end();
  std::byte* const late = both.helper->allocate(2 * kMiB);  // between an answer and the next call
  CHECK_FALSE(both.helper->guest->place_of(late, 64));
  both.helper->guest->deallocate(own, both.helper->stream);
  both.helper->guest->deallocate(late, both.helper->stream);
  CHECK(both.helper->guest->stats().ordinary == 0);
  CHECK(both.machine->used_bytes(0) == 0);
}

TEST_CASE("a device without memory for a segment says so, and a segment that was let go in the call serves again") {
  SlabPoolOptions options = small_slabs();
  options.memory_limit = 8 * kMiB;
  const auto machine = FakeMachine::create(1, 64 * kMiB);
  Exporter device(machine, options);
  auto room = make_room(device);
  REQUIRE(room);
  Helper helper(machine, **room);
  const auto order = (*room)->begin_call();
  REQUIRE(order);
  REQUIRE(helper.guest->begin_call(*order));
  std::byte* const all = helper.allocate(8 * kMiB);
  const auto more = helper.guest->allocate(2 * kMiB, helper.stream);
  REQUIRE_FALSE(more);
  CHECK(more.error().code == ErrorCode::kOutOfMemory);
  helper.guest->deallocate(all, helper.stream);
  CHECK(helper.allocate(8 * kMiB) == all);
  Stream other = nullptr;
  REQUIRE(helper.runtime->stream_create(&other) == kSuccess);
  helper.guest->deallocate(all, helper.stream);
  CHECK_FALSE(helper.guest->allocate(8 * kMiB, other));  // its work is not ordered behind the first one's
}

TEST_CASE("segments of one helper are bounded") {
  Together both;
  both.begin();
  for (int i = 0; i < 8; ++i) both.helper->allocate(2 * kMiB);
  const auto more = both.helper->guest->allocate(2 * kMiB, both.helper->stream);
  REQUIRE_FALSE(more);
  CHECK(more.error().code == ErrorCode::kOverloaded);
}

// -- the helper's end ------------------------------------------------------------------------------------------------

TEST_CASE("HR-6: a helper that dies before its answer leaves nothing, wherever it stands") {
  Together both;
  const auto keep = std::make_shared<int>(0);
  std::byte* const tensor = both.tensor(kEarly);
  SECTION("nothing was sent") {}
  SECTION("an argument is on its way") { REQUIRE(both.room->lend(tensor, 64, keep)); }
  SECTION("it reads and writes") {
    const auto handle = both.room->lend(tensor, 64, keep);
    REQUIRE(handle);
    both.begin();
    const auto seen = both.helper->guest->open(*handle);
    REQUIRE(seen);
    both.helper->runtime->hold(both.helper->stream);
    both.helper->fill(both.helper->allocate(2 * kMiB), kLate);
  }
  both.kill();
  CHECK(keep.use_count() == 1);
  CHECK(both.read(tensor, 64) == kEarly);
  CHECK(both.room->stats().arguments + both.room->stats().grants == 0);
  // Nor does it get anything any more.
  const auto late = both.room->lend(tensor, 64, keep);
  REQUIRE_FALSE(late);
  CHECK(late.error().code == ErrorCode::kActorUnavailable);
  CHECK(keep.use_count() == 1);
  CHECK_FALSE(both.room->grant(64));
  both.device.pool->deallocate(tensor, both.device.stream);
  both.check_nothing_left();
}

TEST_CASE("HR-4: a helper that dies between its answer and its event costs the call and not the device's stream") {
  Together both;
  both.begin();
  std::byte* const segment = both.helper->allocate(2 * kMiB);
  both.helper->fill(segment, kLate);
  both.helper->give(segment, 64);
  const auto answer = both.helper->guest->end_call();
  REQUIRE(answer);
  both.helper->runtime->die();  // the answer has been sent
  const Status ended = both.room->end_call(answer->done, answer->released);
  REQUIRE_FALSE(ended);
  INFO(ended.error().to_string());
  CHECK(ended.error().code == ErrorCode::kPythonFailed);
  CHECK(both.device.runtime->queued(both.device.stream) == 0);  // nothing waits for what may never come
  both.room->gone();
  CHECK_FALSE(both.device.health->failed());
  both.check_nothing_left();
  // The device goes on with another one.
  auto next_room = make_room(both.device, kNextHelper);
  REQUIRE(next_room);
  both.room = std::move(*next_room);
  both.helper = std::make_unique<Helper>(both.machine, *both.room);
  CHECK(both.read(both.result(kEarly).get(), 64) == kEarly);
}

TEST_CASE("HR-1: results outlive their maker, and its room") {
  Together both;
  auto taken = both.result(kLate);
  both.kill();
  both.room.reset();
  CHECK(both.read(taken.get(), 64) == kLate);
  // Another process reads it where it lies.
  const CudaIpcBlock lent = both.device.lease(taken.get(), 64, taken);
  taken.reset();
  CHECK(both.device.pool->release(lent.lease));
  both.check_nothing_left();
}

TEST_CASE("HR-1: a result that outlives the device's stream goes back without it") {
  Together both;
  auto taken = both.result(kLate);
  bool lives = true;
  HelperRoomOptions options;
  options.helper = kNextHelper;
  options.stream_lives = [&] { return lives; };
  auto next =
      HelperRoom::create(*both.device.runtime, both.device.health, both.device.pool, both.device.stream, options);
  REQUIRE(next);
  taken.reset();
  both.kill();
  both.room = std::move(*next);
  both.helper = std::make_unique<Helper>(both.machine, *both.room);
  taken = both.result(kLate);
  both.kill();
  lives = false;
  REQUIRE(both.device.runtime->stream_destroy(both.device.stream) == kSuccess);
  taken.reset();
  CHECK_FALSE(both.device.health->failed());
  both.check_nothing_left();
}

TEST_CASE("a helper that dies with arguments that it kept leaves nothing") {
  Together both;
  const auto keep = std::make_shared<int>(0);
  std::byte* const tensor = both.tensor(kEarly);
  const auto handle = both.room->lend(tensor, 64, keep);
  REQUIRE(handle);
  both.begin();
  const auto kept = both.helper->guest->open(*handle);
  REQUIRE(kept);
  both.end();
  CHECK(keep.use_count() == 2);
  both.kill();
  CHECK(keep.use_count() == 1);
  both.device.pool->deallocate(tensor, both.device.stream);
  both.check_nothing_left();
}

TEST_CASE("HG-5: a fault of a helper's kernel is the helper's: the device is told nothing, and goes on") {
  Together both;
  std::byte* const tensor = both.tensor(kEarly);
  const auto handle = both.room->lend(tensor, 64, {});
  REQUIRE(handle);
  both.begin();
  REQUIRE(both.helper->guest->open(*handle));
  both.helper->runtime->fail_device(700);
  const auto answer = both.helper->guest->end_call();
  REQUIRE_FALSE(answer);
  CHECK(answer.error().code == ErrorCode::kDeviceFailed);
  CHECK_FALSE(both.helper->guest->allocate(64, both.helper->stream));
  both.kill();
  CHECK_FALSE(both.device.health->failed());
  CHECK(both.read(tensor, 64) == kEarly);
}

TEST_CASE("a thousand calls leave as many events, slabs and leases as ten") {
  Together both;
  std::byte* const tensor = both.tensor(kEarly);
  const auto call = [&](int round) {
    const auto handle = both.room->lend(tensor, 64, {});
    REQUIRE(handle);
    both.begin();
    const auto seen = both.helper->guest->open(*handle);
    REQUIRE(seen);
    std::byte* const segment = both.helper->allocate(2 * kMiB);
    const std::string bytes(64, static_cast<char>('a' + round % 26));
    both.helper->fill(segment, bytes);
    const SlabPlace place = both.helper->give(segment, 64);
    both.end();
    const auto taken = both.room->take(place);
    REQUIRE(taken);
    CHECK(both.read(taken->get(), 64) == bytes);
    both.helper->guest->let_go({place});
    both.helper->guest->deallocate(segment, both.helper->stream);
  };
  for (int i = 0; i < 10; ++i) call(i);
  const auto figures = [&] {
    const SlabPoolStats pool = both.device.pool->stats();
    return std::vector<std::size_t>{pool.events,
                                    pool.slabs,
                                    pool.leases,
                                    pool.mappings,
                                    both.device.runtime->live_events(),
                                    both.helper->runtime->live_events(),
                                    both.helper->runtime->open_mappings(),
                                    both.room->stats().grants};
  };
  const auto before = figures();
  for (int i = 0; i < 1'000; ++i) call(i);
  CHECK(figures() == before);
  both.kill();
  both.device.pool->deallocate(tensor, both.device.stream);
  both.check_nothing_left();
}

// -- every code ------------------------------------------------------------------------------------------------------

struct CallOutcome {
  std::vector<Error> errors;
  bool believed = false;  ///< the device has a result
  std::string seen;
};

/// One call with an argument, which it copies into its result; as a domain makes it.
CallOutcome one_call(Exporter& device, HelperRoom& room, Helper& helper, std::byte* tensor) {
  CallOutcome outcome;
  const auto good = [&](const auto& result) {
    if (!result) outcome.errors.push_back(result.error());
    return result.has_value();
  };
  const auto handle = room.lend(tensor, 64, {});
  if (!good(handle)) return outcome;
  const auto order = room.begin_call();
  if (!good(order) || !good(helper.guest->begin_call(*order))) return outcome;
  std::optional<SlabPlace> place;
  {
    const auto argument = helper.guest->open(*handle);
    const auto segment = helper.guest->allocate(2 * kMiB, helper.stream);
    if (good(argument) && good(segment) &&
        good(helper.health->note(helper.runtime->memcpy_async(*segment, argument->get(), 64, helper.stream), "copy"))) {
      place = helper.guest->place_of(*segment, 64);
    }
    if (place) helper.guest->give(*place, std::make_shared<int>(0));
  }
  const auto answer = helper.guest->end_call();
  if (!good(answer) || !good(room.end_call(answer->done, answer->released)) || !place) return outcome;
  const auto result = room.take(*place);
  if (!good(result)) return outcome;
  std::string seen(64, '?');
  outcome.believed =
      good(device.health->note(device.runtime->memcpy_async(seen.data(), result->get(), 64, device.stream), "copy")) &&
      good(device.health->note(device.runtime->stream_synchronize(device.stream), "wait"));
  outcome.seen = seen;
  return outcome;
}

TEST_CASE("whatever code a call of either side gives: a typed error or a result, and nothing stays behind") {
  std::vector<Code> codes;
  for (Code code = 1; code < 1'000; ++code) {
    if (code_info(code).name != "unknown CUDA error") codes.push_back(code);
  }
#ifdef CALLBOARD_SANITIZED
  constexpr std::size_t kStep = 23;
#else
  constexpr std::size_t kStep = 3;
#endif
  std::size_t errors = 0;
  for (int number = 0; number < kCallCount; ++number) {
    const Call call = static_cast<Call>(number);
    for (std::size_t i = static_cast<std::size_t>(number) % kStep; i < codes.size(); i += kStep) {
      const bool sticky = code_info(codes[i]).failure == Failure::kDevice;
      for (const bool at_helper : {false, true}) {
        const auto machine = FakeMachine::create(1, 24 * kMiB);
        Exporter device(machine);
        auto* const tensor = device.allocate(2 * kMiB);
        device.runtime->write(tensor, kEarly);
        const auto skip = static_cast<int>((i + static_cast<std::size_t>(number)) % 4);
        if (!at_helper) device.runtime->inject(call, codes[i], skip);
        auto room = make_room(device);
        if (!room) {
          ++errors;
          continue;
        }
        CallOutcome outcome;
        {
          Helper helper(machine, **room);
          REQUIRE(helper.guest);
          if (at_helper) helper.runtime->inject(call, codes[i], skip);
          for (int round = 0; round < 2; ++round) {
            outcome = one_call(device, **room, helper, tensor);
            errors += outcome.errors.size();
            INFO(call_name(call) + " gave " + std::to_string(codes[i]) + (at_helper ? " to the helper" : ""));
            REQUIRE((outcome.believed || !outcome.errors.empty()));
            if (outcome.believed) REQUIRE(outcome.seen == kEarly);
            if (at_helper) REQUIRE_FALSE(device.health->failed());
            for (const Error& error : outcome.errors) {
              if (sticky && error.code != ErrorCode::kDeviceFailed) {
                REQUIRE(error.code == ErrorCode::kPythonFailed);  // no call of ours gives this by itself
              }
            }
            if (!outcome.errors.empty()) break;  // the domain ends such a helper
          }
          helper.runtime->die();
        }
        (*room)->gone();
        if (device.health->failed()) continue;
        REQUIRE(device.pool->stats().leases == 0);
        REQUIRE(device.pool->stats().mappings == 0);
        static_cast<void>(device.pool->release_cached());
        REQUIRE((sticky || device.health->status()));  // the code may have come as late as that
        REQUIRE(machine->violations() == 0);
        REQUIRE((*room)->stats().grants == 0);
      }
    }
  }
  CHECK(errors > 30);
}

}  // namespace
}  // namespace callboard::kernels::cuda
