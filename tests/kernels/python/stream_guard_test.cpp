// The order of events around Python code, over a runtime that only writes down what it is asked.
#include "kernels/python/stream_guard.h"

#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include <c10/util/Exception.h>

#include "tests/kernels/python/support/python_fixture.h"
#include "tests/support/test.h"

using namespace callboard;
using namespace callboard::kernels;
using namespace callboard::testing;

namespace {

using Guard = PythonCodeCudaStreamGuard;
static_assert(!std::is_copy_constructible_v<Guard> && !std::is_copy_assignable_v<Guard>);
static_assert(!std::is_move_constructible_v<Guard> && !std::is_move_assignable_v<Guard>);
static_assert(!std::is_constructible_v<Guard, c10::Device>, "not without the GIL");
static_assert(std::is_nothrow_destructible_v<Guard>);

const c10::Device kGpu0(c10::DeviceType::CUDA, 0);
const c10::Device kGpu1(c10::DeviceType::CUDA, 1);

c10::Stream stream_number(int number) { return c10::Stream(c10::Stream::UNSAFE, kGpu0, number); }

/// Current device and stream of one thread, and the calls that ask for order.
class FakeStreams final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::DeviceType::CUDA; }
  c10::Device exchangeDevice(c10::Device device) const override { return std::exchange(device_, device); }
  c10::Device getDevice() const override { return device_; }
  void setDevice(c10::Device device) const override {
    tell("device " + std::to_string(device.index()));
    device_ = device;
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override { device_ = device; }
  c10::Stream getStream(c10::Device) const override { return stream_; }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    tell("current " + std::to_string(stream.id()));
    return std::exchange(stream_, stream);
  }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    if (refuses) TORCH_CHECK(false, "the runtime refuses");
    *event = &event_;
    tell("record " + std::to_string(stream.id()));
  }
  void block(void* event, const c10::Stream& stream) const override {
    tell((event == &event_ ? "wait " : "wait for nothing ") + std::to_string(stream.id()));
  }
  void destroyEvent(void*, c10::DeviceIndex) const noexcept override { tell("event gone"); }
  c10::DeviceIndex deviceCount() const noexcept override { return 2; }

  bool refuses = false;
  mutable std::vector<std::string> told;

 private:
  void tell(std::string what) const { told.push_back(std::move(what)); }
  mutable c10::Device device_ = kGpu0;
  mutable c10::Stream stream_ = stream_number(7);
  mutable int event_ = 0;
};

}  // namespace

TEST_CASE("Python code that leaves the stream alone costs no event") {
  const auto domain = make_domain({});
  const GilScopedAcquire gil(GilSite::kCall);
  const FakeStreams streams;
  { const Guard guard(gil, kGpu0, &streams); }
  CHECK(streams.told.empty());
}

TEST_CASE("after code that set another stream, the KernelStream waits for that one and is current again") {
  const auto domain = make_domain({});
  const GilScopedAcquire gil(GilSite::kCall);
  const FakeStreams streams;
  {
    Guard guard(gil, kGpu0, &streams);
    streams.exchangeStream(stream_number(9));  // torch.cuda.set_stream
    streams.told.clear();
    CHECK(guard.restore());
    CHECK(streams.told == std::vector<std::string>{"record 9", "wait 7", "event gone", "current 7"});
    streams.told.clear();
  }
  CHECK(streams.told.empty());  // once
  CHECK(streams.getStream(kGpu0) == stream_number(7));
}

TEST_CASE("the current device is the KernelStream's inside, and what it was outside") {
  const auto domain = make_domain({});
  const GilScopedAcquire gil(GilSite::kCall);
  const FakeStreams streams;
  streams.exchangeDevice(kGpu1);
  {
    const Guard guard(gil, kGpu0, &streams);
    CHECK(streams.getDevice() == kGpu0);
  }
  CHECK(streams.getDevice() == kGpu1);
  streams.exchangeDevice(kGpu0);
  {
    const Guard guard(gil, kGpu0, &streams);
    streams.setDevice(kGpu1);  // torch.cuda.set_device
  }
  CHECK(streams.getDevice() == kGpu0);
}

TEST_CASE("a runtime that refuses is an error where it is asked, and silence in the destructor") {
  const auto domain = make_domain({});
  const GilScopedAcquire gil(GilSite::kCall);
  FakeStreams streams;
  {
    Guard guard(gil, kGpu0, &streams);
    streams.exchangeStream(stream_number(9));
    streams.refuses = true;
    const Status restored = guard.restore();
    REQUIRE_FALSE(restored);
    CHECK(restored.error().code == ErrorCode::kDeviceFailed);
    CHECK(restored.error().message.find("the runtime refuses") != std::string::npos);
  }
  try {
    const Guard guard(gil, kGpu0, &streams);
    streams.exchangeStream(stream_number(11));
    throw std::runtime_error("on its way");
  } catch (const std::runtime_error& thrown) {
    CHECK(std::string(thrown.what()) == "on its way");
  }
}

TEST_CASE("on a CPU device the guard does nothing") {
  const auto domain = make_domain({});
  const GilScopedAcquire gil(GilSite::kCall);
  Guard guard(gil, c10::Device(c10::DeviceType::CPU));
  CHECK(guard.restore());
  Guard without(gil, kGpu0, nullptr);
  CHECK(without.restore());
}
