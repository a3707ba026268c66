#include "tests/conformance/device_backend_suite.h"
#include "tests/kernels/support/gpu.h"

CALLBOARD_DEVICE_BACKEND_SUITE("cuda", "[gpu]", CALLBOARD_NEEDS_GPU())

using namespace callboard;
using namespace callboard::kernels;

TEST_CASE("cuda backend: without a GPU of that number it says how many there are", "[gpu]") {
  CALLBOARD_NEEDS_GPU();
  BackendOptions options;
  options.index = 999;
  const auto refused = make_backend("cuda", options);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::kEnvironment);
  CHECK(refused.error().message.find("there is no GPU 999") != std::string::npos);
  options.uuid = "GPU-00000000-0000-0000-0000-000000000000";
  const auto unknown = make_backend("cuda", options);
  REQUIRE_FALSE(unknown);
  CHECK(unknown.error().message.find(options.uuid) != std::string::npos);
}

TEST_CASE("cuda backend: where no GPU is, the error says whether it is the driver that is missing") {
  const auto made = [] {
    return callboard::testing::why_no_gpu().empty() ? Result<std::unique_ptr<DeviceBackend>>(fail(ErrorCode::kOk, ""))
                                                    : make_backend("cuda");
  }();
  if (made.error().code == ErrorCode::kOk) return;  // a GPU is here: the suite above runs on it
  CHECK(made.error().code == ErrorCode::kEnvironment);
  CHECK(made.error().message == callboard::testing::why_no_gpu());
  CHECK_FALSE(made.error().hint.empty());
}
