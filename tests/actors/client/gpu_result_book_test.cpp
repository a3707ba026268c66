#include "actors/client/gpu_result_book.h"

#include <vector>

#include "tests/support/test.h"

using namespace callboard;
using namespace callboard::actors;

namespace {

/// Remembers which streams were to read it.
class Watched final : public DeviceMemory {
 public:
  explicit Watched(Status answer = {}) : answer_(std::move(answer)) {}
  int ordinal() const override { return 0; }
  Status use_on(void* stream) override {
    streams.push_back(stream);
    return answer_;
  }
  Status check() const override { return {}; }

  std::vector<void*> streams;

 private:
  const Status answer_;
};

TensorRef result_at(std::byte* data, std::size_t bytes, std::shared_ptr<DeviceMemory> memory) {
  TensorRef made;
  made.data = data;
  made.bytes = bytes;
  made.device = std::move(memory);
  return made;
}

}  // namespace

TEST_CASE("a result on a GPU is found by every address in its memory, and by no other", "[gpu_result_book]") {
  std::byte memory[96];
  int stream = 0;
  GpuResultBook book;
  const auto first = std::make_shared<Watched>();
  const auto second = std::make_shared<Watched>();
  book.add(result_at(memory, 32, first));
  book.add(result_at(memory + 32, 32, second));
  CHECK(book.use_on(memory, &stream));
  CHECK(book.use_on(memory + 31, &stream));
  CHECK(first->streams == std::vector<void*>{&stream, &stream});
  CHECK(second->streams.empty());
  CHECK(book.use_on(memory + 32, &stream));
  CHECK(second->streams.size() == 1);
  const Status beyond = book.use_on(memory + 64, &stream);
  REQUIRE_FALSE(beyond);
  CHECK(beyond.error().code == ErrorCode::kBadInput);
  CHECK(beyond.error().hint.find("record_stream") != std::string::npos);
}

TEST_CASE("a block that is open twice is told twice, and the error of one hides from nobody", "[gpu_result_book]") {
  std::byte memory[32];
  GpuResultBook book;
  const auto lost = std::make_shared<Watched>(fail(ErrorCode::kTensorLost, "gone"));
  const auto well = std::make_shared<Watched>();
  book.add(result_at(memory, 32, lost));
  book.add(result_at(memory, 32, well));
  const Status told = book.use_on(memory + 8, nullptr);
  REQUIRE_FALSE(told);
  CHECK(told.error().code == ErrorCode::kTensorLost);
  CHECK(lost->streams.size() == 1);
  CHECK(well->streams.size() == 1);
}

TEST_CASE("results that ended are forgotten, and their addresses are nobody's", "[gpu_result_book]") {
  std::vector<std::byte> memory(1'000);
  GpuResultBook book;
  for (std::byte& byte : memory) book.add(result_at(&byte, 1, std::make_shared<Watched>()));
  CHECK(book.size() < 200);
  CHECK_FALSE(book.use_on(memory.data(), nullptr));
}
