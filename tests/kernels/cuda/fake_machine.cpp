#include "tests/kernels/cuda/fake_machine.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "messages/base/check.h"

namespace callboard::kernels::cuda::testing {

namespace {

constexpr unsigned char kFreedByte = 0xdd;
constexpr std::size_t kHeaderPage = 4096;
constexpr std::size_t kHeaderBytes = (sizeof(SharedMachine) + kHeaderPage - 1) / kHeaderPage * kHeaderPage;

}  // namespace

void overwrite(std::byte* memory, std::uint64_t bytes) {
  constexpr std::uint64_t kPart = 64u << 10;
  for (std::uint64_t at = 0; at < bytes; at += kPart) {
    std::memset(memory + at, kFreedByte, std::min<std::uint64_t>(bytes - at, 512));
  }
}

FakeMachine::FakeMachine(UniqueFd fd, SharedMachine* shared, std::byte* data, std::size_t mapped)
    : fd_(std::move(fd)), shared_(shared), data_(data), mapped_(mapped) {}

FakeMachine::~FakeMachine() { ::munmap(shared_, mapped_); }

std::shared_ptr<FakeMachine> FakeMachine::create(int devices, std::uint64_t device_bytes) {
  CALLBOARD_CHECK(devices <= kDevicesMax, "a fake machine has few devices");
  UniqueFd fd(::memfd_create("fake-gpu", MFD_CLOEXEC));
  const std::size_t bytes = kHeaderBytes + static_cast<std::size_t>(devices) * device_bytes;
  CALLBOARD_CHECK(fd && ::ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0, "the fake machine needs memory");
  void* mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  CALLBOARD_CHECK(mapped != MAP_FAILED, "the fake machine needs memory");
  auto* shared = new (mapped) SharedMachine;
  pthread_mutexattr_t attributes;
  ::pthread_mutexattr_init(&attributes);
  ::pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  ::pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  ::pthread_mutex_init(&shared->mutex, &attributes);
  ::pthread_mutexattr_destroy(&attributes);
  shared->devices = devices;
  shared->device_bytes = device_bytes;
  for (int i = 0; i < devices; ++i) {
    SharedDevice& device = shared->device[i];
    device.uuid.bytes.fill(static_cast<char>('A' + i));
    device.bytes = device_bytes;
    for (bool& peer : device.peers) peer = true;
  }
  return std::shared_ptr<FakeMachine>(
      new FakeMachine(std::move(fd), shared, static_cast<std::byte*>(mapped) + kHeaderBytes, bytes));
}

std::shared_ptr<FakeMachine> FakeMachine::attach(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  CALLBOARD_CHECK(fd, "the fake machine of another process must be there");
  const off_t bytes = ::lseek(fd.get(), 0, SEEK_END);
  void* mapped = ::mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  CALLBOARD_CHECK(mapped != MAP_FAILED, "the fake machine must be mapped");
  return std::shared_ptr<FakeMachine>(new FakeMachine(std::move(fd), static_cast<SharedMachine*>(mapped),
                                                      static_cast<std::byte*>(mapped) + kHeaderBytes,
                                                      static_cast<std::size_t>(bytes)));
}

std::string FakeMachine::path() const {
  return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(fd_.get());
}
void FakeMachine::set_peer_access(int device, int peer, bool can) {
  const MachineLock lock(*shared_);
  shared_->device[device].peers[peer] = can;
}
void FakeMachine::set_ipc_events(int device, bool can) {
  const MachineLock lock(*shared_);
  shared_->device[device].ipc_events = can;
}
DeviceUuid FakeMachine::uuid(int device) const { return shared_->device[device].uuid; }
std::uint64_t FakeMachine::used_bytes(int device) const {
  const MachineLock lock(*shared_);
  std::uint64_t bytes = 0;
  for (const SharedAllocation& one : shared_->allocations) bytes += one.used && one.device == device ? one.bytes : 0;
  return bytes;
}
std::size_t FakeMachine::allocations() const {
  const MachineLock lock(*shared_);
  return static_cast<std::size_t>(std::count_if(std::begin(shared_->allocations), std::end(shared_->allocations),
                                                [](const SharedAllocation& one) { return one.used; }));
}
std::size_t FakeMachine::violations() const {
  const MachineLock lock(*shared_);
  return shared_->violations;
}

void FakeMachine::end_process(std::size_t process) {
  const MachineLock lock(*shared_);
  shared_->alive[process] = false;
  for (SharedAllocation& one : shared_->allocations) {
    if (!one.used || one.process != process) continue;
    overwrite(at(one.device, one.offset), one.bytes);
    one.used = false;
  }
  for (SharedEvent& one : shared_->events) {
    if (one.used && one.process == process) one.completed = one.recorded;
  }
}

std::optional<std::uint64_t> find_place(const SharedMachine& machine, int device, std::uint64_t bytes) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> taken;
  for (const SharedAllocation& one : machine.allocations) {
    if (one.used && one.device == device) taken.emplace_back(one.offset, one.offset + one.bytes);
  }
  std::sort(taken.begin(), taken.end());
  std::uint64_t at = 0;
  for (const auto& [first, end] : taken) {
    if (first - at >= bytes) return at;
    at = end;
  }
  if (machine.device[device].bytes - at >= bytes) return at;
  return std::nullopt;
}

}  // namespace callboard::kernels::cuda::testing
