#include "tools/callboard/tensor_files.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>

#include <unistd.h>

#include "tests/support/test.h"

using namespace callboard;
using namespace callboard::cli;
using callboard::actors::TensorRef;

namespace {

class Folder {
 public:
  Folder() {
    const char* base = std::getenv("TMPDIR");
    std::string pattern = std::string(base == nullptr ? "/tmp" : base) + "/callboard-test-XXXXXX";
    REQUIRE(mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  std::string write(const std::string& content) const {
    std::ofstream(file("x.npy"), std::ios::binary) << content;
    return file("x.npy");
  }

 private:
  std::string path_;
};

std::string npy(const std::string& header, const std::string& data, int version = 1) {
  std::string out("\x93NUMPY", 6);
  out += static_cast<char>(version);
  out += '\0';
  for (int i = 0; i < (version == 1 ? 2 : 4); ++i) out += static_cast<char>(header.size() >> (8 * i) & 0xff);
  return out + header + data;
}

std::string dictionary(const std::string& descr, const std::string& order, const std::string& shape) {
  return "{'descr': '" + descr + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }          \n";
}

TensorRef floats(std::vector<std::int64_t> sizes, const std::vector<float>& values) {
  auto memory = std::make_shared<std::vector<float>>(values);
  return {TensorMeta::contiguous(DType::kFloat32, std::move(sizes)), reinterpret_cast<std::byte*>(memory->data()),
          memory->size() * 4, memory};
}

}  // namespace

TEST_CASE("what write_npy writes read_npy reads, for every dtype that NumPy has") {
  const Folder folder;
  const std::string path = folder.file("x.npy");
  for (int number = 1; number < kDTypeCount; ++number) {
    const auto dtype = static_cast<DType>(number);
    auto memory = std::make_shared<std::vector<std::byte>>(6 * dtype_size(dtype));
    for (std::size_t i = 0; i < memory->size(); ++i)
      (*memory)[i] = static_cast<std::byte>(dtype == DType::kBool ? i % 2 : i * 7);
    for (const auto& sizes : std::vector<std::vector<std::int64_t>>{{6}, {2, 3}, {1, 6, 1}, {0, 5}, {}}) {
      const TensorRef tensor{TensorMeta::contiguous(dtype, sizes), memory->data(), memory->size(), memory};
      INFO(tensor.meta.to_string());
      const Status written = write_npy(path, tensor);
      if (!written) {
        CHECK(written.error().code == ErrorCode::kUnsupported);
        continue;
      }
      const auto back = read_npy(path);
      REQUIRE(back.has_value());
      CHECK(back->meta == tensor.meta);
      CHECK(std::memcmp(back->data, tensor.data, static_cast<std::size_t>(tensor.meta.numel()) * dtype_size(dtype)) ==
            0);
    }
  }
}

TEST_CASE("versions 1 and 2, Fortran order, native order and Python 2 integers are read") {
  const Folder folder;
  const std::string data(24, 'x');
  CHECK(read_npy(folder.write(npy(dictionary("<f4", "False", "(2, 3)"), data))).value().meta ==
        TensorMeta::contiguous(DType::kFloat32, {2, 3}));
  CHECK(read_npy(folder.write(npy(dictionary("=f4", "False", "(2L, 3L)"), data, 2))).value().meta.sizes ==
        std::vector<std::int64_t>{2, 3});
  const auto fortran = read_npy(folder.write(npy(dictionary("<f4", "True", "(2, 3)"), data)));
  REQUIRE(fortran.has_value());
  CHECK(fortran->meta.strides == std::vector<std::int64_t>{1, 2});
  CHECK(read_npy(folder.write(npy(dictionary("|u1", "False", "(24,)"), data))).value().meta.dtype == DType::kUInt8);
  CHECK(read_npy(folder.write(npy(dictionary("|b1", "False", "()"), "\x01"))).value().meta.sizes.empty());
  CHECK(is_npy(folder.file("x.npy")));
  CHECK_FALSE(is_npy(folder.file("missing")));
}

TEST_CASE("hostile .npy files are errors that name the file") {
  const Folder folder;
  const std::string data(24, 'x');
  const auto code = [&](const std::string& content) {
    const auto tensor = read_npy(folder.write(content));
    if (tensor) return ErrorCode::kOk;
    CHECK(tensor.error().message.find("x.npy") != std::string::npos);
    return tensor.error().code;
  };
  CHECK(code("") == ErrorCode::kTruncated);
  CHECK(code("PK\x03\x04") == ErrorCode::kMalformed);
  CHECK(code(std::string("\x93NUMPY\x01", 7)) == ErrorCode::kTruncated);
  CHECK(code(npy(dictionary("<f4", "False", "(6,)"), data, 3)) == ErrorCode::kVersionMismatch);
  CHECK(code(npy(dictionary("<f4", "False", "(7,)"), data)) == ErrorCode::kTruncated);
  CHECK(code(npy(dictionary("<f4", "False", "(5,)"), data)) == ErrorCode::kMalformed);
  CHECK(code(npy(dictionary(">f4", "False", "(6,)"), data)) == ErrorCode::kUnsupported);
  CHECK(code(npy(dictionary("|O", "False", "(6,)"), data)) == ErrorCode::kUnsupported);
  CHECK(code(npy(dictionary("<U4", "False", "(6,)"), data)) == ErrorCode::kUnsupported);
  CHECK(code(npy(dictionary("<f4", "False", "(-6,)"), data)) == ErrorCode::kMalformed);
  CHECK(code(npy(dictionary("<f4", "False", "(4294967296, 4294967296, 2)"), data)) == ErrorCode::kMalformed);
  CHECK(code(npy(dictionary("<f4", "True", "(0, 4294967296, 4294967296, 4294967296)"), "")) == ErrorCode::kMalformed);
  CHECK(code(npy(dictionary("<f4", "False", "(4611686018427387904,)"), data)) != ErrorCode::kOk);
  CHECK(code(npy(dictionary("<f4", "False", "(99999999999999999999,)"), data)) == ErrorCode::kMalformed);
  CHECK(code(npy(dictionary("<f4", "__import__('os')", "(6,)"), data)) == ErrorCode::kMalformed);
  CHECK(code(npy("{'descr': '<f4', 'descr': '<f8', 'fortran_order': False, 'shape': (3,)}", data)) ==
        ErrorCode::kMalformed);
  CHECK(code(npy("{'descr': '<f4', 'shape': (6,)}", data)) == ErrorCode::kMalformed);
  CHECK(code(npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (6,)}", data)) == ErrorCode::kMalformed);
  CHECK(code(npy(std::string(70'000, ' '), data, 2)) == ErrorCode::kTooLarge);
  std::string ones = "(";
  for (int i = 0; i < 100; ++i) ones += "1, ";
  CHECK(code(npy(dictionary("<f4", "False", ones + ")"), "xxxx")) == ErrorCode::kMalformed);
  std::string long_header = npy("{}", "");
  long_header[8] = '\xff';
  long_header[9] = '\x7f';
  CHECK(code(long_header) == ErrorCode::kTruncated);
  CHECK(read_npy(folder.file("missing")).error().code == ErrorCode::kFileNotFound);
  CHECK(read_npy("/").error().code == ErrorCode::kFileUnreadable);
}

TEST_CASE("whatever is done to a .npy file, reading it ends in a tensor inside the file or an error") {
  const Folder folder;
  std::mt19937 random(7);
  const std::string seed = npy(dictionary("<f4", "False", "(2, 3)"), std::string(24, 'x'));
  for (int round = 0; round < 3'000; ++round) {
    std::string content = seed;
    for (int edits = 1 + static_cast<int>(random() % 4); edits > 0 && !content.empty(); --edits) {
      const std::size_t at = random() % content.size();
      switch (random() % 3) {
        case 0:
          content[at] = static_cast<char>(random());
          break;
        case 1:
          content.erase(at, random() % 5);
          break;
        default:
          content.insert(at, 1, "0123456789(){}',:L"[random() % 18]);
          break;
      }
    }
    const auto tensor = read_npy(folder.write(content));
    if (!tensor) continue;
    CHECK(tensor->meta.extent_bytes().value() <= tensor->bytes);
    CHECK(tensor->bytes <= content.size());
    CHECK_FALSE(first_elements(*tensor, 100).find('\n') != std::string::npos);
  }
}

TEST_CASE("strided tensors are written in row-major order") {
  const Folder folder;
  TensorRef tensor = floats({2, 3}, {0, 1, 2, 3, 4, 5});
  tensor.meta.sizes = {3, 2};
  tensor.meta.strides = {1, 3};
  const TensorRef plain = contiguous(tensor).value();
  CHECK(first_elements(plain, 10) == "0, 3, 1, 4, 2, 5");
  CHECK(first_elements(tensor, 10) == "0, 3, 1, 4, 2, 5");
  REQUIRE(write_npy(folder.file("t.npy"), tensor).has_value());
  CHECK(first_elements(read_npy(folder.file("t.npy")).value(), 10) == "0, 3, 1, 4, 2, 5");
  tensor.meta.storage_offset = 1;
  CHECK(contiguous(tensor).error().code == ErrorCode::kInternal);  // reaches past its memory
  tensor.meta.sizes = {2, 2};
  CHECK(first_elements(contiguous(tensor).value(), 10) == "1, 4, 2, 5");
}

TEST_CASE("a device is not replaced by a file") {
  const TensorRef tensor = floats({1}, {0});
  CHECK(write_npy("/dev/full", tensor).error().code == ErrorCode::kBadInput);
  CHECK(write_safetensors("/dev/full", {{"x", tensor}}).error().code == ErrorCode::kBadInput);
}

TEST_CASE("safetensors are read and written, many tensors and dtypes that NumPy lacks") {
  const Folder folder;
  TensorRef bfloat = floats({2}, {0});
  bfloat.meta.dtype = DType::kBFloat16;
  const NamedTensors tensors{{"b", floats({2, 2}, {1, 2, 3, 4})},
                             {"a", bfloat},
                             {"n", scalar_tensor(std::int64_t{5})},
                             {"f", scalar_tensor(true)}};
  REQUIRE(write_safetensors(folder.file("x.safetensors"), tensors).has_value());
  const auto back = read_safetensors(folder.file("x.safetensors"));
  REQUIRE(back.has_value());
  REQUIRE(back->size() == 4);
  for (const auto& [name, tensor] : tensors) {
    bool found = false;
    for (const auto& [other, read] : *back) {
      if (other != name) continue;
      found = true;
      CHECK(read.meta == tensor.meta);
      CHECK(first_elements(read, 10) == first_elements(tensor, 10));
    }
    CHECK(found);
  }
}

TEST_CASE("first elements show every dtype") {
  CHECK(first_elements(floats({3}, {1, 2.5f, -0.25f}), 2) == "1, 2.5, …");
  CHECK(first_elements(scalar_tensor(2.5), 8) == "2.5");
  CHECK(first_elements(scalar_tensor(false), 8) == "false");
  const auto of_bits = [](DType dtype, std::vector<std::uint16_t> bits) {
    auto memory = std::make_shared<std::vector<std::uint16_t>>(std::move(bits));
    return first_elements({TensorMeta::contiguous(dtype, {static_cast<std::int64_t>(memory->size())}),
                           reinterpret_cast<std::byte*>(memory->data()), memory->size() * 2, memory},
                          10);
  };
  CHECK(of_bits(DType::kFloat16, {0x3c00, 0xc000, 0x0001, 0x7c00, 0x7e00}) == "1, -2, 5.96046e-08, inf, nan");
  CHECK(of_bits(DType::kBFloat16, {0x3f80, 0xc000}) == "1, -2");
  CHECK(first_elements({TensorMeta::contiguous(DType::kFloat32, {0}), nullptr, 0, nullptr}, 8).empty());
}
