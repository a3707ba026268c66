#include "actors/client/safetensors.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "actors/client/client.h"
#include "actors/client/fragment_builder.h"
#include "tests/actors/client/temporary_folder.h"
#include "tests/support/test.h"

using namespace callboard;
using namespace callboard::actors;

namespace {

std::string with_header(const std::string& header, const std::string& data, std::uint64_t length) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(length >> (8 * i));
  return file + header + data;
}
std::string with_header(const std::string& header, const std::string& data = {}) {
  return with_header(header, data, header.size());
}

struct Fixture {
  TemporaryFolder folder;
  std::string path = folder.path + "/x.safetensors";

  void write(const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }
  ErrorCode refusal(const std::string& bytes) {
    write(bytes);
    auto file = SafetensorsFile::open(path);
    if (file) return ErrorCode::kOk;
    INFO(file.error().to_string());
    CHECK(file.error().message.find(path) != std::string::npos);
    return file.error().code;
  }
};

}  // namespace

TEST_CASE_METHOD(Fixture, "what is written is read back, for every dtype that the format has", "[safetensors]") {
  std::string bytes(64, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7);
  std::vector<SafetensorsItem> items;
  for (int i = 1; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (safetensors_dtype_name(dtype)) items.push_back({std::string(dtype_name(dtype)), dtype, {2, 3}, bytes.data()});
  }
  CHECK(items.size() == 17);
  items.push_back({"nothing", DType::kFloat32, {0, 5}, nullptr});
  items.push_back({"one", DType::kFloat64, {}, bytes.data()});
  REQUIRE(write_safetensors(path, items, {{"a", "b"}, {"ü", "\"quoted\"\n"}}));
  auto file = SafetensorsFile::open(path);
  REQUIRE(file);
  CHECK(file->metadata == std::map<std::string, std::string>{{"a", "b"}, {"ü", "\"quoted\"\n"}});
  REQUIRE(file->entries.size() == items.size());
  for (const auto& item : items) {
    const auto* entry = file->find(item.name);
    REQUIRE(entry != nullptr);
    CHECK(entry->sizes == item.sizes);
    CHECK(safetensors_dtype(entry->dtype).value() == item.dtype);
    if (entry->bytes > 0) CHECK(std::memcmp(file->data(*entry), item.data, entry->bytes) == 0);
  }
  CHECK(file->find("absent") == nullptr);
  CHECK(file->entries[0].offset % 64 == 0);
  for (const auto& each : std::filesystem::directory_iterator(folder.path)) CHECK(each.path() == path);
}

TEST_CASE_METHOD(Fixture, "writing refuses what the format cannot say", "[safetensors]") {
  const char bytes[16] = {};
  const auto code = [&](std::vector<SafetensorsItem> items) {
    auto status = write_safetensors(path, items, {});
    return status ? ErrorCode::kOk : status.error().code;
  };
  CHECK(code({{"x", DType::kComplex128, {1}, bytes}}) == ErrorCode::kUnsupported);
  CHECK(code({{"x", DType::kUInt8, {1}, bytes}, {"x", DType::kUInt8, {1}, bytes}}) == ErrorCode::kBadArgument);
  CHECK(code({{"__metadata__", DType::kUInt8, {1}, bytes}}) == ErrorCode::kBadArgument);
  CHECK(code({{"\xff", DType::kUInt8, {1}, bytes}}) == ErrorCode::kBadArgument);
  CHECK(code({{"x", DType::kUInt8, {-1}, bytes}}) != ErrorCode::kOk);
  CHECK_FALSE(std::filesystem::exists(path));
  CHECK_FALSE(write_safetensors(folder.path + "/absent/x", {}, {}));
}

TEST_CASE_METHOD(Fixture, "R47, R60: a hostile file is refused with its name and nothing is reserved for it",
                 "[safetensors]") {
  const std::string one = R"({"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})";
  CHECK(refusal(with_header(one, "abcd")) == ErrorCode::kOk);
  CHECK(refusal(with_header("{}")) == ErrorCode::kOk);
  CHECK(refusal(with_header(one + "   ", "abcd")) == ErrorCode::kOk);

  CHECK(refusal("") == ErrorCode::kTruncated);
  CHECK(refusal("1234567") == ErrorCode::kTruncated);
  CHECK(refusal(with_header("{}", "", 3)) == ErrorCode::kTruncated);
  CHECK(refusal(with_header("{}", "", 16u << 20)) == ErrorCode::kTruncated);
  CHECK(refusal(with_header("{}", "", (16u << 20) + 1)) == ErrorCode::kTooLarge);
  CHECK(refusal(with_header("{}", "", UINT64_MAX)) == ErrorCode::kTooLarge);
  CHECK(refusal(with_header("")) == ErrorCode::kMalformed);
  CHECK(refusal(with_header("{")) == ErrorCode::kMalformed);
  CHECK(refusal(with_header("[]")) == ErrorCode::kMalformed);
  CHECK(refusal(with_header("{} {}")) == ErrorCode::kMalformed);
  CHECK(refusal(with_header("\xff\xfe")) == ErrorCode::kMalformed);
  CHECK(refusal(with_header(one, "abc")) == ErrorCode::kTruncated);
  CHECK(refusal(with_header(one, "abcde")) == ErrorCode::kMalformed);
  CHECK(refusal(with_header("{}", "x")) == ErrorCode::kMalformed);
}

TEST_CASE_METHOD(Fixture, "R47: an entry that the file does not hold, or that lies, is refused", "[safetensors]") {
  const auto entry = [](const std::string& fields) { return with_header("{\"x\":{" + fields + "}}", "abcd"); };
  CHECK(refusal(entry(R"("dtype":"U8","shape":[5],"data_offsets":[0,4])")) == ErrorCode::kMalformed);
  CHECK(refusal(entry(R"("dtype":"U8","shape":[4],"data_offsets":[1,5])")) == ErrorCode::kMalformed);
  CHECK(refusal(entry(R"("dtype":"U8","shape":[4],"data_offsets":[4,0])")) == ErrorCode::kMalformed);
  CHECK(refusal(entry(R"("dtype":"U8","shape":[4],"data_offsets":[0])")) == ErrorCode::kMalformed);
  CHECK(refusal(entry(R"("dtype":"U8","shape":[4],"data_offsets":[0,4,4])")) == ErrorCode::kMalformed);
  CHECK(refusal(entry(R"("dtype":"U8","shape":[4],"data_offsets":[0,18446744073709551615])")) == ErrorCode::kMalformed);
  CHECK(refusal(entry(R"("dtype":"U8","shape":[4],"data_offsets":[0,1e1])")) == ErrorCode::kMalformed);
  CHECK(refusal(entry(R"("dtype":"U8","shape":[-4],"data_offsets":[0,4])")) == ErrorCode::kMalformed);
  CHECK(refusal(entry(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4])")) ==
        ErrorCode::kMalformed);
  CHECK(refusal(entry(R"("dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0])")) ==
        ErrorCode::kMalformed);
  CHECK(refusal(entry(R"("dtype":"F4","shape":[4],"data_offsets":[0,4])")) == ErrorCode::kUnsupported);
  CHECK(refusal(entry(R"("dtype":4,"shape":[4],"data_offsets":[0,4])")) == ErrorCode::kMalformed);
  CHECK(refusal(entry(R"("dtype":"U8","shape":[4])")) == ErrorCode::kMalformed);
  CHECK(refusal(entry(R"("dtype":"U8","shape":[4],"data_offsets":[0,4],"more":1)")) == ErrorCode::kMalformed);
  CHECK(refusal(entry(R"("dtype":"U8","dtype":"I8","shape":[4],"data_offsets":[0,4])")) == ErrorCode::kMalformed);
  CHECK(refusal(entry(R"("dtype":null,"shape":[4],"data_offsets":[0,4])")) == ErrorCode::kMalformed);
  CHECK(refusal(entry(R"("dtype":{"dtype":1},"shape":[4],"data_offsets":[0,4])")) == ErrorCode::kMalformed);
  CHECK(refusal(entry(R"("dtype":"U8","shape":[[4]],"data_offsets":[0,4])")) == ErrorCode::kMalformed);
  std::string ranks = "1";
  for (int i = 0; i < 64; ++i) ranks += ",1";
  CHECK(refusal(with_header(R"({"x":{"dtype":"U8","shape":[)" + ranks + R"(],"data_offsets":[0,1]}})", "a")) ==
        ErrorCode::kMalformed);

  const std::string x = R"("x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  CHECK(refusal(with_header("{" + x + "," + x + "}", "abcd")) == ErrorCode::kMalformed);
  CHECK(refusal(with_header("{" + x + R"(,"y":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})", "abcdef")) ==
        ErrorCode::kMalformed);
  CHECK(refusal(with_header("{" + x + R"(,"y":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", "abcd")) ==
        ErrorCode::kMalformed);
  CHECK(refusal(with_header("{" + x + R"(,"y":{"dtype":"U8","shape":[1],"data_offsets":[5,6]}})", "abcdef")) ==
        ErrorCode::kMalformed);
  CHECK(refusal(with_header(R"({"__metadata__":{"a":1}})")) == ErrorCode::kMalformed);
  CHECK(refusal(with_header(R"({"__metadata__":{"a":{}}})")) == ErrorCode::kMalformed);
  CHECK(refusal(with_header(R"({"__metadata__":{"a":"1","a":"2"}})")) == ErrorCode::kMalformed);
  CHECK(refusal(with_header(R"({"__metadata__":[]})")) == ErrorCode::kMalformed);
  CHECK(refusal(with_header(std::string(1u << 20, '['))) == ErrorCode::kMalformed);
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "{\"a\":";
  CHECK(refusal(with_header(deep)) == ErrorCode::kMalformed);
}

TEST_CASE_METHOD(Fixture, "every cut and every flipped bit of a file gives a file or an error, never a fault",
                 "[safetensors]") {
  const char data[24] = "some bytes of a tensor";
  const SafetensorsItem items[] = {{"a", DType::kUInt8, {3, 4}, data}, {"b", DType::kInt16, {6}, data}};
  REQUIRE(write_safetensors(path, items, {{"key", "value"}}));
  std::ifstream in(path, std::ios::binary);
  const std::string good{std::istreambuf_iterator<char>(in), {}};
  for (std::size_t length = 0; length < good.size(); ++length) CHECK(refusal(good.substr(0, length)) != ErrorCode::kOk);
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    write(bad);
    auto file = SafetensorsFile::open(path);
    if (!file) continue;
    for (const auto& entry : file->entries) CHECK(entry.offset + entry.bytes <= bad.size());
  }
}

TEST_CASE_METHOD(Fixture, "what is no readable regular file is refused without waiting", "[safetensors]") {
  const auto code = [](const std::string& where) { return SafetensorsFile::open(where).error().code; };
  CHECK(code(folder.path + "/absent") == ErrorCode::kFileNotFound);
  CHECK(code(folder.path) == ErrorCode::kFileUnreadable);
  const std::string pipe = folder.path + "/pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(code(pipe) == ErrorCode::kFileUnreadable);
}

TEST_CASE_METHOD(Fixture, "a written mapping stays this process's own", "[safetensors]") {
  const char data[4] = {1, 2, 3, 4};
  const SafetensorsItem items[] = {{"a", DType::kUInt8, {4}, data}};
  REQUIRE(write_safetensors(path, items, {}));
  auto file = SafetensorsFile::open(path);
  REQUIRE(file);
  const_cast<std::byte*>(file->data(file->entries[0]))[0] = std::byte{9};
  auto again = SafetensorsFile::open(path);
  REQUIRE(again);
  CHECK(again->data(again->entries[0])[0] == std::byte{1});
}
