#include "messages/domain_messages.h"

#include <random>

#include "tests/support/test.h"

namespace callboard {
namespace {

DomainCall example_call() {
  DomainCall call;
  call.call = 7;
  call.op = 2;
  call.arguments = {DomainTensorIndex{0},
                    DomainTensorList{{1, -1, 0}},
                    std::int64_t{-3},
                    0.5,
                    true,
                    std::string("mode"),
                    std::complex<double>(1, -2),
                    DomainDevice{"cpu"},
                    std::vector<std::int64_t>{1, 2},
                    std::vector<double>{},
                    std::vector<bool>{true, false},
                    std::vector<std::string>{"a"},
                    std::vector<std::complex<double>>{{0, 1}},
                    std::monostate()};
  call.storages = {InlineBytes{std::string(16, 'x')}, DomainPlace{{"cpu0", 3}, 9, 4096, 65536, true},
                   CudaIpcBlock{{"cuda0", 3}, 2, 4096, 64, 11, 12, std::string(144, 'h')}};
  call.tensors = {{0, TensorMeta::contiguous(DType::kFloat32, {2, 2}), false, true, true},
                  {1, TensorMeta{DType::kComplex64, {100, 2}, {1, 100}, 8}, true, false, false}};
  call.time_left_ns = 12'345;
  call.order = std::string(64, 'o');
  call.let_go = {{{"cuda0", 3}, 2, 8192, 64, false, true}};
  return call;
}

DomainResult example_result() {
  DomainResult result;
  result.call = 7;
  result.results = {DomainTensorIndex{0}};
  result.storages = {DomainGiven{4}};
  result.tensors = {{0, TensorMeta::contiguous(DType::kInt64, {1'000'000}), false, false, false}};
  result.undeclared = {1};
  result.freed = {{{"cpu0", 3}, 9, 8192, 4096, true}};
  result.done = std::string(64, 'd');
  result.released = {11, 12};
  return result;
}

std::vector<DomainMessage> examples() {
  DomainResult failed;
  failed.call = 8;
  failed.error = Error(ErrorCode::kPythonFailed, "it raised", "look");
  failed.error->detail = "Traceback";
  return {DomainStart{{"cpu0", 3},
                      1,
                      2,
                      "/venv/bin/python",
                      {"/srv"},
                      {{"a:f", "a::f(Tensor x) -> Tensor", true, "w"}},
                      "cuda",
                      "GPU-1"},
          example_call(),
          DomainGranted{std::nullopt, {{"cpu0", 3}, 9, 0, 4096, true}},
          DomainGranted{std::nullopt, {}, CudaIpcBlock{{"cuda0", 3}, 2, 0, 4096, 13, 12, std::string(144, 'h')}},
          DomainOpened{Error(ErrorCode::kTensorLost, "gone"), 0, false},
          DomainReady{{{"a::f", "a:f", "a::f(Tensor x) -> Tensor", false}}, {{"a::g", "a:g"}}, "{}"},
          DomainFailed{Error(ErrorCode::kEnvironment, "no torch")},
          example_result(),
          failed,
          DomainAllocate{1 << 20, {{{"cpu0", 3}, 9, 8192, 4096, true}}},
          DomainAllocate{2 << 20, {}, true},
          DomainOpen{{"constants", 0}, 5, false}};
}

std::string encoded(const DomainMessage& message) {
  auto bytes = encode_domain_message(message);
  REQUIRE(bytes);
  return *bytes;
}

}  // namespace

TEST_CASE("every message between a device and a GIL domain's child comes back as it was") {
  for (const DomainMessage& message : examples()) {
    const std::string bytes = encoded(message);
    const auto decoded = decode_domain_message(bytes);
    INFO(domain_message_name(message));
    REQUIRE(decoded);
    CHECK(decoded->index() == message.index());
    CHECK(encoded(*decoded) == bytes);
  }
  const auto call = decode_domain_message(encoded(example_call()));
  const auto& back = std::get<DomainCall>(*call);
  CHECK(std::get<std::complex<double>>(back.arguments[6]) == std::complex<double>(1, -2));
  CHECK(std::get<DomainPlace>(back.storages[1]).segment == 9);
  CHECK(back.tensors[1].meta.strides == std::vector<std::int64_t>{1, 100});
}

TEST_CASE("a tensor that reaches beyond its storage, and numbers of nothing, are refused") {
  const auto refused = [](const DomainMessage& message, const char* part) {
    const auto decoded = decode_domain_message(encoded(message));
    REQUIRE_FALSE(decoded);
    CHECK(decoded.error().code == ErrorCode::kMalformed);
    CHECK(decoded.error().message.find(part) != std::string::npos);
  };
  DomainCall call = example_call();
  call.tensors[0].meta.sizes = {2, 3};
  call.tensors[0].meta.strides = {3, 1};
  refused(call, "reaches beyond its storage of 16 bytes");
  call = example_call();
  call.tensors[0].storage = 3;
  refused(call, "a storage that is not there");
  call = example_call();
  call.arguments[0] = DomainTensorIndex{2};
  refused(call, "a tensor that is not there");
  call = example_call();
  call.arguments[1] = DomainTensorList{{0, 5}};
  refused(call, "a tensor that is not there");
  call = example_call();
  call.storages[0] = DomainGiven{0};
  refused(call, "given nothing yet");
  call = example_call();
  call.tensors[1].storage = 2;  // 100 × 2 complex numbers
  refused(call, "reaches beyond its storage of 64 bytes");
  DomainResult result = example_result();
  result.storages = {example_call().storages[2]};
  result.tensors[0].meta.sizes = {1};
  refused(result, "lends nothing");
  call = example_call();
  call.tensors[0].meta.sizes = {-1, 2};
  CHECK_FALSE(decode_domain_message(encoded(call)));
}

TEST_CASE("whatever the bytes: an error, or a message whose encoding is stable") {
  std::mt19937_64 random(20'261'130);
  for (const DomainMessage& message : examples()) {
    const std::string bytes = encoded(message);
    for (std::size_t length = 0; length < bytes.size(); ++length)
      CHECK_FALSE(decode_domain_message(bytes.substr(0, length)));
    CHECK_FALSE(decode_domain_message(bytes + '\0'));
    for (int i = 0; i < 300; ++i) {
      std::string damaged = bytes;
      for (std::uint64_t k = 0; k <= random() % 3; ++k) {
        damaged[random() % damaged.size()] = static_cast<char>(random());
      }
      const auto decoded = decode_domain_message(damaged);
      if (decoded) CHECK(decode_domain_message(encoded(*decoded)));
    }
  }
}

}  // namespace callboard
