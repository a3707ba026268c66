// What every DeviceBackend must hold to. A backend's test file is: include this, name the backend, done.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <c10/core/InferenceMode.h>

#include "kernels/device_backend.h"
#include "kernels/host_event.h"
#include "kernels/kernel_stream.h"
#include "tests/support/test.h"

namespace callboard::kernels::conformance {

inline TimePoint soon() { return Clock::now() + std::chrono::seconds(20); }

inline std::unique_ptr<DeviceBackend> open(const char* kind) {
  auto made = make_backend(kind);
  REQUIRE(made);
  return std::move(*made);
}
inline std::unique_ptr<StreamContext> stream_of(DeviceBackend& backend, StreamKind kind = StreamKind::kCompute) {
  auto made = backend.make_stream(kind);
  REQUIRE(made);
  return std::move(*made);
}

inline void check_identity(DeviceBackend& backend, const char* kind) {
  CHECK(backend.kind() == kind);
  CHECK(backend.device().str().rfind(std::string(kind) == "cpu" ? "cpu" : kind, 0) == 0);
  const auto memory = backend.memory();
  REQUIRE(memory);
  CHECK(memory->total_bytes > 0);
  CHECK(memory->available_bytes <= memory->total_bytes);
  CHECK(backend.can_run("aten::add", "Tensor"));
  CHECK_FALSE(backend.can_run("aten::no_such_operator", ""));
}

inline void check_current_stream(DeviceBackend& backend) {
  const auto first = stream_of(backend);
  const auto second = stream_of(backend, StreamKind::kCommunicate);
  CHECK_FALSE(first->is_current());
  {
    const CurrentStreamGuard outer(*first);
    CHECK(first->is_current());
    CHECK_FALSE(second->is_current());
    {
      const CurrentStreamGuard inner(*second);
      CHECK(second->is_current());
      CHECK_FALSE(first->is_current());
    }
    CHECK(first->is_current());
    bool elsewhere = true;
    std::thread([&] { elsewhere = first->is_current(); }).join();
    CHECK_FALSE(elsewhere);  // current is a thread's, not the process's
  }
  CHECK_FALSE(first->is_current());
}

inline void check_events_and_copies(DeviceBackend& backend) {
  const auto producer = stream_of(backend);
  const auto consumer = stream_of(backend, StreamKind::kCommunicate);
  at::Tensor from;
  std::shared_ptr<DeviceEvent> made;
  {
    const CurrentStreamGuard guard(*producer);
    from = at::arange(100'000, at::TensorOptions().device(backend.device()));
    made = producer->record();
  }
  const CurrentStreamGuard guard(*consumer);
  const at::Tensor to = at::empty_like(from);
  REQUIRE(consumer->wait(*made, soon()));
  REQUIRE(consumer->copy(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes()));
  const auto copied = consumer->record();
  REQUIRE(consumer->wait(*copied, soon()));
  CHECK(at::equal(from, to));
  const TimePoint deadline = soon();
  while (!copied->ready() && Clock::now() < deadline) std::this_thread::yield();
  CHECK(copied->ready());
}

inline void check_read_back(DeviceBackend& backend) {
  const auto stream = stream_of(backend);
  const CurrentStreamGuard guard(*stream);
  for (const std::int64_t count : {std::int64_t{0}, std::int64_t{1}, std::int64_t{100'000}, std::int64_t{6'000'011}}) {
    const at::Tensor from = at::arange(count, at::TensorOptions().dtype(at::kLong).device(backend.device()));
    std::vector<std::int64_t> to(static_cast<std::size_t>(count), -1);
    REQUIRE(stream->read_back(to.data(), from.const_data_ptr(), to.size() * sizeof(std::int64_t), soon()));
    bool right = true;
    for (std::size_t i = 0; i < to.size(); ++i) right = right && to[i] == static_cast<std::int64_t>(i);
    CHECK(right);
  }
  CHECK(stream->synchronize(soon()));
  CHECK(backend.health());
}

inline void check_copy_in(DeviceBackend& backend) {
  const auto stream = stream_of(backend);
  const CurrentStreamGuard guard(*stream);
  constexpr std::size_t kCount = 3'000'000;
  const at::Tensor to =
      at::empty({static_cast<std::int64_t>(kCount)}, at::TensorOptions().dtype(at::kInt).device(backend.device()));
  std::vector<std::int32_t> from(kCount);
  for (std::size_t i = 0; i < kCount; ++i) from[i] = static_cast<std::int32_t>(i * 7);
  REQUIRE(stream->copy(to.mutable_data_ptr(), from.data(), kCount * sizeof(std::int32_t)));
  const std::vector<std::int32_t> kept = from;
  std::fill(from.begin(), from.end(), -1);
  std::vector<std::int32_t> back(kCount);
  REQUIRE(stream->read_back(back.data(), to.const_data_ptr(), kCount * sizeof(std::int32_t), soon()));
  CHECK(back == kept);
}

inline void check_kernel_streams(DeviceBackend& backend) {
  auto compute = KernelStream::create(backend, StreamKind::kCompute, 1);
  auto communicate = KernelStream::create(backend, StreamKind::kCommunicate, 1);
  REQUIRE(compute);
  REQUIRE(communicate);
  for (KernelStream* stream : {compute->get(), communicate->get()}) {
    bool current = false;
    bool inference = false;
    const auto ran = std::make_shared<HostEvent>();
    REQUIRE(stream->post([&] {
      current = stream->context().is_current();
      inference = c10::InferenceMode::is_enabled();
    }) == PushResult::kPushed);
    REQUIRE(stream->thread().fence(ran) == PushResult::kPushed);
    REQUIRE(ran->wait_until(soon()));
    CHECK(current);
    CHECK(inference);
    CHECK(stream->thread().name() == "stream/" + std::string(stream_kind_name(stream->kind())));
  }
  CHECK((*compute)->kind() == StreamKind::kCompute);
}

}  // namespace callboard::kernels::conformance

/// `tags` of the tests; `skip` returns from a test where the kind's devices are not here.
#define CALLBOARD_DEVICE_BACKEND_SUITE(kind, tags, skip)                                                    \
  TEST_CASE(kind " backend: names itself, its memory and what it can run", tags) {                          \
    skip;                                                                                                   \
    callboard::kernels::conformance::check_identity(*callboard::kernels::conformance::open(kind), kind);    \
  }                                                                                                         \
  TEST_CASE(kind " backend: the current stream is a thread's own and is put back", tags) {                  \
    skip;                                                                                                   \
    callboard::kernels::conformance::check_current_stream(*callboard::kernels::conformance::open(kind));    \
  }                                                                                                         \
  TEST_CASE(kind " backend: events order a copy behind its producer", tags) {                               \
    skip;                                                                                                   \
    callboard::kernels::conformance::check_events_and_copies(*callboard::kernels::conformance::open(kind)); \
  }                                                                                                         \
  TEST_CASE(kind " backend: what is read back is there when the call returns", tags) {                      \
    skip;                                                                                                   \
    callboard::kernels::conformance::check_read_back(*callboard::kernels::conformance::open(kind));         \
  }                                                                                                         \
  TEST_CASE(kind " backend: host memory has been read when a copy from it returns", tags) {                 \
    skip;                                                                                                   \
    callboard::kernels::conformance::check_copy_in(*callboard::kernels::conformance::open(kind));           \
  }                                                                                                         \
  TEST_CASE(kind " backend: KernelStreams run with their stream current and in InferenceMode", tags) {      \
    skip;                                                                                                   \
    callboard::kernels::conformance::check_kernel_streams(*callboard::kernels::conformance::open(kind));    \
  }
