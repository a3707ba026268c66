// The devices of a fake machine and what lies in the mapping that all processes on it share.
#pragma once

#include <pthread.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include "kernels/cuda/runtime_table.h"
#include "messages/base/fd.h"

namespace callboard::kernels::cuda::testing {

constexpr std::size_t kAllocationsMax = 256;
constexpr std::size_t kEventsMax = 1'024;
constexpr std::size_t kProcessesMax = 64;
constexpr int kDevicesMax = 4;

struct SharedDevice {
  DeviceUuid uuid;
  std::uint64_t bytes = 0;
  bool ipc_events = true;
  bool peers[kDevicesMax] = {};
};
struct SharedAllocation {
  bool used = false;
  std::uint64_t serial = 0;
  int device = 0;
  std::uint64_t offset = 0;  ///< in the device
  std::uint64_t bytes = 0;
  std::size_t process = 0;
  std::size_t opens = 0;
};
struct SharedEvent {
  bool used = false;
  std::uint64_t serial = 0;
  std::size_t process = 0;
  std::uint64_t recorded = 0;   ///< number of the last record that was queued
  std::uint64_t completed = 0;  ///< number of the last one that was done
};

struct SharedMachine {
  pthread_mutex_t mutex;
  int devices = 0;
  std::uint64_t device_bytes = 0;
  SharedDevice device[kDevicesMax];
  SharedAllocation allocations[kAllocationsMax];
  SharedEvent events[kEventsMax];
  bool alive[kProcessesMax] = {};  ///< by number, which begins at 1 and never comes again
  std::size_t processes = 0;
  std::uint64_t serial = 0;
  std::size_t violations = 0;
};

/// The machine's lock; a process that dies with it leaves consistent enough state for its tests.
class MachineLock {
 public:
  explicit MachineLock(SharedMachine& machine) : machine_(machine) {
    if (::pthread_mutex_lock(&machine_.mutex) == EOWNERDEAD) ::pthread_mutex_consistent(&machine_.mutex);
  }
  ~MachineLock() { ::pthread_mutex_unlock(&machine_.mutex); }
  MachineLock(const MachineLock&) = delete;
  MachineLock& operator=(const MachineLock&) = delete;

 private:
  SharedMachine& machine_;
};

/// The devices of one machine and what all processes on it share.
class FakeMachine {
 public:
  /// `device_bytes` each (whole MiB); all devices reach one another.
  static std::shared_ptr<FakeMachine> create(int devices, std::uint64_t device_bytes);
  /// The same machine in another process, by "/proc/<pid>/fd/<fd>".
  static std::shared_ptr<FakeMachine> attach(const std::string& path);
  ~FakeMachine();
  FakeMachine(const FakeMachine&) = delete;
  FakeMachine& operator=(const FakeMachine&) = delete;

  SharedMachine& shared() const { return *shared_; }
  /// Of the device's memory; with the machine's lock.
  std::byte* at(int device, std::uint64_t offset) const {
    return data_ + static_cast<std::size_t>(device) * shared_->device_bytes + offset;
  }
  std::string path() const;
  void set_peer_access(int device, int peer, bool can);
  void set_ipc_events(int device, bool can);
  DeviceUuid uuid(int device) const;
  std::uint64_t used_bytes(int device) const;
  std::size_t allocations() const;
  /// What CUDA calls undefined behaviour and lets pass: how often memory was freed while another process had it open.
  std::size_t violations() const;
  /// What the driver does when a process was killed: its memory is overwritten and free, its events count as done.
  void end_process(std::size_t process);

 private:
  FakeMachine(UniqueFd fd, SharedMachine* shared, std::byte* data, std::size_t mapped);

  const UniqueFd fd_;
  SharedMachine* const shared_;
  std::byte* const data_;
  const std::size_t mapped_;
};

/// The lowest place on the device that is long enough; with the machine's lock.
std::optional<std::uint64_t> find_place(const SharedMachine& machine, int device, std::uint64_t bytes);
/// What freed memory looks like: the start of each part of 64 KiB, where tests keep their bytes.
void overwrite(std::byte* memory, std::uint64_t bytes);

/// What handles hold; the rest of their 64 bytes is zero.
struct HandleBytes {
  std::uint64_t magic = 0;
  std::uint64_t slot = 0;
  std::uint64_t serial = 0;
  std::uint64_t process = 0;
};
constexpr std::uint64_t kMemoryMagic = 0x4d454d4f52593031;
constexpr std::uint64_t kEventMagic = 0x4556454e54303031;

template <class Handle>
void put(Handle& handle, const HandleBytes& bytes) {
  handle.bytes.fill(0);
  std::memcpy(handle.bytes.data(), &bytes, sizeof bytes);
}
template <class Handle>
HandleBytes get(const Handle& handle) {
  HandleBytes bytes;
  std::memcpy(&bytes, handle.bytes.data(), sizeof bytes);
  return bytes;
}

}  // namespace callboard::kernels::cuda::testing
