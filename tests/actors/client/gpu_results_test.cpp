// Results that were left on a GPU: what the client tells of itself, and what it makes of them.
#include <stdlib.h>

#include <cstring>
#include <mutex>

#include "actors/client/gpu_plugin.h"
#include "tests/actors/client/client_fixture.h"
#include "tests/support/test.h"

using namespace callboard;
using namespace callboard::actors;

namespace {

/// What a client says of itself to a cluster that leaves results on GPUs.
struct Announced {
  explicit Announced(bool results_on_gpu = true) {
    FakeCluster::Options fake;
    fake.results_on_gpu = results_on_gpu;
    fake.admit = [this](const Hello& hello) -> Status {  // on the cluster's thread
      std::lock_guard lock(mutex);
      description = hello.description;
      return {};
    };
    cluster = std::make_unique<FakeCluster>(fake);
    cluster->on_message(answer_load);
  }
  std::unique_ptr<Client> connect(bool gpu_results, const std::string& folder = CALLBOARD_FAKE_PLUGIN_DIR) {
    Client::Options wanted = options();
    wanted.gpu_results = gpu_results;
    wanted.plugin_folder = folder;
    auto connected = Client::connect(std::move(wanted));
    REQUIRE(connected);
    return std::move(*connected);
  }
  std::string told() {
    std::lock_guard lock(mutex);
    return description;
  }

  std::mutex mutex;
  std::string description;  // guarded by mutex
  std::unique_ptr<FakeCluster> cluster;
};

TensorHandle on_gpu(LeaseId lease) {
  TensorHandle handle;
  handle.meta = TensorMeta::contiguous(DType::kFloat32, {2, 4});
  CudaIpcBlock block;
  block.owner = {"cpu0", 1};
  block.bytes = 64;
  block.lease = lease;
  block.handles = std::string(144, 'h');
  handle.data = std::move(block);
  return handle;
}

}  // namespace

TEST_CASE("a client opens its plug-in and tells its GPUs only where it and the cluster want that", "[client]") {
  Announced both;
  const auto seeing = both.connect(true);
  CHECK(both.told() == R"({"gpus":["GPU-fake"]})");
  Announced cluster_only;
  const auto blind = cluster_only.connect(false);
  CHECK(cluster_only.told() == "{}");
  Announced client_only(false);
  const auto alone = client_only.connect(true);
  CHECK(client_only.told() == "{}");
}

TEST_CASE("a client without a plug-in, or without a GPU, connects all the same and says why it has none", "[client]") {
  Announced no_plugin;
  const auto first = no_plugin.connect(true, "/nonexistent");
  INFO(no_plugin.told());
  CHECK(no_plugin.told().find("why_no_gpu") != std::string::npos);
  CHECK(no_plugin.told().find("/nonexistent/callboard_cuda_client.so") != std::string::npos);
  Announced no_gpu;
  ::setenv("CALLBOARD_TEST_NO_GPU", "1", 1);
  const auto second = no_gpu.connect(true);
  ::unsetenv("CALLBOARD_TEST_NO_GPU");
  CHECK(no_gpu.told().find("the driver is on holiday") != std::string::npos);
}

TEST_CASE("a result on a GPU is its memory there, one lease for all that name it, and no argument", "[client]") {
  Announced announced;
  FakeDevice device(*announced.cluster);
  auto client = announced.connect(true);
  auto program = client->load(example_graph(), {}, {});
  REQUIRE(program);
  std::vector<float> values(8, 1.5f);
  const ClientValue inputs[] = {tensor(values, {2, 4}), std::int64_t{1}};
  auto future = (*program)->submit(inputs);
  REQUIRE(future);
  const Submit sent = announced.cluster->await<Submit>();
  announced.cluster->send(announced.cluster->client(), ok(sent.request, on_gpu(77)));
  std::optional<TensorRef> tensor_ref;
  {
    const auto result = (*future)->get();
    REQUIRE(result);
    tensor_ref = std::get<TensorRef>((*result)->outputs[0]);
  }
  REQUIRE(tensor_ref->device);
  CHECK(tensor_ref->device->ordinal() == 3);
  CHECK(tensor_ref->bytes == 64);
  CHECK(tensor_ref->meta == TensorMeta::contiguous(DType::kFloat32, {2, 4}));
  CHECK(*tensor_ref->data == std::byte{'g'});  // of the fake, whose GPU is the heap

  {
    const ClientValue again[] = {*tensor_ref, std::int64_t{1}};
    auto refused = (*program)->submit(again);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == ErrorCode::kBadInput);
    CHECK(refused.error().message.find("GPU 3") != std::string::npos);
  }

  // The memory alone keeps the lease.
  std::shared_ptr<DeviceMemory> memory = tensor_ref->device;
  tensor_ref.reset();
  future->reset();
  REQUIRE(memory->check());
  memory.reset();
  CHECK(device.await_released(77));
}

TEST_CASE("a result on a GPU that nobody waits for any more is given back unopened", "[client]") {
  Announced announced;
  FakeDevice device(*announced.cluster);
  auto client = announced.connect(true);
  auto program = client->load(example_graph(), {}, {});
  REQUIRE(program);
  std::vector<float> values(8, 1.5f);
  const ClientValue inputs[] = {tensor(values, {2, 4}), std::int64_t{1}};
  REQUIRE((*program)->submit(inputs));  // its future is dropped
  const Submit sent = announced.cluster->await<Submit>();
  announced.cluster->send(announced.cluster->client(), ok(sent.request, on_gpu(78)));
  CHECK(device.await_released(78));
}

#ifdef CALLBOARD_CUDA_CLIENT_DIR
TEST_CASE("the plug-in that ships can be opened without LibTorch, and says which GPUs there are or why none",
          "[client]") {
  const auto plugin = load_gpu_plugin(CALLBOARD_CUDA_CLIENT_DIR);
  REQUIRE(plugin);
  CHECK(load_gpu_plugin(CALLBOARD_CUDA_CLIENT_DIR).value() == *plugin);
  const auto gpus = (*plugin)->gpus();
  if (gpus) {
    REQUIRE_FALSE(gpus->empty());
    CHECK(gpus->front().find('-') != std::string::npos);
  } else {
    CHECK(gpus.error().code == ErrorCode::kEnvironment);
    CHECK_FALSE(gpus.error().message.empty());
  }
}
#endif
