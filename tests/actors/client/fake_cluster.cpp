#include "tests/actors/client/fake_cluster.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <future>

#include "tests/support/test.h"

namespace callboard::actors {

FakeCluster::FakeCluster(Options options) {
  ::setenv("CALLBOARD_RUN_DIR", folder_.path.c_str(), 1);
  auto claimed = claim_run_dir("fake");
  REQUIRE(claimed);
  dir_ = std::move(*claimed);
  record.name = "fake";
  record.run_dir = dir_.path;
  record.node_pid = ::getpid();
  record.coordinator_pid = options.coordinator_pid != 0 ? options.coordinator_pid : ::getpid();
  record.epoch = 1;
  record.coordinator_endpoint = ipc_endpoint(dir_.path + "/coordinator.sock").value();
  record.memory_socket = dir_.path + "/memory.sock";
  record.version = "0.0.0-test";
  record.requests_per_client = options.requests_per_client;
  record.results_on_gpu = options.results_on_gpu;
  REQUIRE(write_record(record));
  loop_ = Loop::create();
  messenger_ = Messenger::create();
  auto broker = MemoryBroker::create(record.memory_socket);
  REQUIRE(broker);
  broker_ = std::move(*broker);
  bool bound = false;
  std::mutex starting;
  std::condition_variable started;
  bool done = false;
  thread_ = std::thread([&, options] {
    if (options.listens) {
      Hub::Events events;
      events.hello = options.admit;
      events.message = [this](const ActorId& from, Message message) {
        if (handler_ && handler_(*this, from, message)) return;
        {
          std::lock_guard lock(mutex_);
          kept_.emplace_back(from, std::move(message));
        }
        came_.notify_all();
      };
      events.lost = [](const ActorId&, const Error&) {};
      Hub::Options hub;
      hub.self = {"coordinator", 1};
      hub.endpoint = record.coordinator_endpoint;
      hub.cluster = record.name;
      auto made = Hub::bind(*loop_, *messenger_, std::move(hub), std::move(events));
      if (made) hub_ = std::move(*made);
    }
    bound = hub_ != nullptr || !options.listens;
    watch_broker();
    {
      std::lock_guard lock(starting);
      done = true;
      started.notify_all();
    }
    loop_->run();
  });
  std::unique_lock lock(starting);
  started.wait(lock, [&] { return done; });
  REQUIRE(bound);
}

FakeCluster::~FakeCluster() {
  loop_->post([this] {
    hub_.reset();
    for (const int fd : broker_fds_) loop_->unwatch(fd);
    if (broker_timer_ != 0) loop_->cancel(broker_timer_);
    broker_.reset();
    loop_->stop();
  });
  thread_.join();
  remove_run_dir(dir_);
}

void FakeCluster::on_message(Handler handler) {
  // Waits: a loop takes what lies in its sockets before what was posted meanwhile, and the next message is for
  // `handler`.
  std::promise<void> set;
  loop_->post([this, &set, handler = std::move(handler)] {
    handler_ = handler;
    set.set_value();
  });
  set.get_future().wait();
}

void FakeCluster::send(const ActorId& to, Message message) {
  auto shared = std::make_shared<Message>(std::move(message));
  const auto send_it = [this, to, shared] {
    if (hub_) static_cast<void>(hub_->send(to, *shared));
  };
  if (loop_->on_loop_thread()) {
    send_it();
  } else {
    loop_->post(send_it);
  }
}

void FakeCluster::watch_broker() {
  const std::vector<int> listed = broker_->fds();
  const std::set<int> wanted(listed.begin(), listed.end());
  for (const int fd : broker_fds_) {
    if (!wanted.contains(fd)) loop_->unwatch(fd);
  }
  for (const int fd : wanted) {
    if (broker_fds_.contains(fd)) continue;
    loop_->watch(fd, [this, fd] {
      broker_->on_readable(fd, Clock::now());
      watch_broker();
    });
  }
  broker_fds_ = wanted;
  if (broker_timer_ != 0) loop_->cancel(broker_timer_);
  broker_timer_ = 0;
  if (broker_->next_tick() == kNever) return;
  broker_timer_ = loop_->at(broker_->next_tick(), [this] {
    broker_timer_ = 0;
    broker_->on_tick(Clock::now());
    watch_broker();
  });
}

FakeDevice::FakeDevice(const FakeCluster& cluster) {
  MemoryLane::Events events;
  events.holder_gone = [this](const ActorId& holder) {
    if (arena_ != nullptr) arena_->holder_gone(holder);
    released_.notify_all();
  };
  events.lease_released = [this](LeaseId lease) {
    if (arena_ != nullptr) arena_->release(lease);
    std::lock_guard lock(mutex_);
    given_back_.insert(lease);
    released_.notify_all();
  };
  events.owner_gone = [](const ActorId&) {};
  events.node_gone = [] {};
  auto lane = MemoryLane::connect(cluster.record.memory_socket, Role::kDevice, self_, std::move(events));
  REQUIRE(lane);
  lane_ = std::move(*lane);
  const std::weak_ptr<MemoryLane> weak = lane_;
  kernels::SegmentObserver observer;
  observer.added = [weak](SegmentId segment, UniqueFd fd, std::uint64_t bytes) -> Status {
    const auto held = weak.lock();
    return held ? held->add_segment(segment, std::move(fd), bytes) : Status();
  };
  observer.dropped = [weak](SegmentId segment) {
    if (const auto held = weak.lock()) held->drop_segment(segment);
  };
  kernels::ArenaOptions options;
  options.owner = self_;
  auto arena = kernels::Arena::create(options, std::move(observer));
  REQUIRE(arena);
  arena_ = *arena;
}

TensorHandle FakeDevice::result(const ActorId& holder, std::int64_t count, float fill) {
  TensorHandle handle;
  handle.meta = TensorMeta::contiguous(DType::kFloat32, {count});
  void* memory = arena_->allocate(static_cast<std::size_t>(count) * sizeof(float)).value();
  std::fill_n(static_cast<float*>(memory), count, fill);
  handle.data = arena_->lease(memory, holder).value();
  arena_->deallocate(memory);
  return handle;
}

std::string FakeDevice::read(const TensorHandle& handle) {
  const auto& block = std::get<ArenaBlock>(handle.data);
  auto segment = lane_->open_segment(block.owner, block.segment);
  if (!segment) return segment.error().to_string();
  void* data = ::mmap(nullptr, segment->bytes, PROT_READ, MAP_PRIVATE, segment->fd.get(), 0);
  REQUIRE(data != MAP_FAILED);
  std::string bytes(static_cast<const char*>(data) + block.offset, block.bytes);
  ::munmap(data, segment->bytes);
  return bytes;
}

bool FakeDevice::await_released(LeaseId lease) {
  std::unique_lock lock(mutex_);
  return released_.wait_for(lock, kPatience, [&] { return given_back_.count(lease) != 0; });
}

bool FakeDevice::await_leases(std::uint64_t count) {
  std::unique_lock lock(mutex_);
  return released_.wait_for(lock, kPatience, [&] { return arena_->stats().leases == count; });
}

}  // namespace callboard::actors
