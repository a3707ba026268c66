#include "tools/callboard/tensor_files.h"

#include <array>
#include <cerrno>
#include <cmath>
#include <complex>
#include <cstdio>
#include <cstring>
#include <limits>
#include <optional>
#include <string_view>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "actors/client/safetensors.h"
#include "actors/core/output_file.h"
#include "messages/base/fd.h"

namespace callboard::cli {
namespace {

using actors::TensorRef;

constexpr std::string_view kMagic("\x93NUMPY", 6);
constexpr std::size_t kNpyHeaderMax = 64u << 10;  // of version 1; a longer one describes no plain array
constexpr std::size_t kDataAlignment = 64;

struct NpyType {
  std::string_view descr;  // without the byte order
  DType dtype;
};
constexpr std::array<NpyType, 14> kNpyTypes{{{"b1", DType::kBool},
                                             {"u1", DType::kUInt8},
                                             {"i1", DType::kInt8},
                                             {"i2", DType::kInt16},
                                             {"i4", DType::kInt32},
                                             {"i8", DType::kInt64},
                                             {"u2", DType::kUInt16},
                                             {"u4", DType::kUInt32},
                                             {"u8", DType::kUInt64},
                                             {"f2", DType::kFloat16},
                                             {"f4", DType::kFloat32},
                                             {"f8", DType::kFloat64},
                                             {"c8", DType::kComplex64},
                                             {"c16", DType::kComplex128}}};

tl::unexpected<Error> system_error(const std::string& path, const char* what) {
  const int why = errno;
  return fail(why == ENOENT ? ErrorCode::kFileNotFound : ErrorCode::kFileUnreadable,
              "'" + path + "' cannot be " + what + ": " + std::strerror(why));
}

struct Mapping {
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  std::shared_ptr<void> keep;
};

Result<Mapping> map_file(const std::string& path) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // a FIFO must not make us wait
  struct stat info;
  if (!file || fstat(file.get(), &info) != 0) return system_error(path, "read");
  if (!S_ISREG(info.st_mode)) return fail(ErrorCode::kFileUnreadable, "'" + path + "' is not a regular file");
  if (info.st_size == 0) return fail(ErrorCode::kTruncated, "'" + path + "' is empty");
  const auto bytes = static_cast<std::size_t>(info.st_size);
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, file.get(), 0);
  if (data == MAP_FAILED) return system_error(path, "mapped");
  return Mapping{static_cast<std::byte*>(data), bytes,
                 std::shared_ptr<void>(data, [bytes](void* p) { munmap(p, bytes); })};
}

// -- the .npy header: the text of a Python dictionary with three keys
// --------------------------------------------------------

struct NpyHeader {
  std::string descr;
  bool fortran = false;
  std::vector<std::int64_t> shape;
};

/// Reads just the literals that NumPy writes: quoted keys, True, False, tuples of integers. No Python, no recursion.
class NpyHeaderReader {
 public:
  explicit NpyHeaderReader(std::string_view text) : rest_(text) {}

  std::optional<NpyHeader> read() {
    NpyHeader header;
    bool descr = false, order = false, shape = false;
    if (!take('{')) return std::nullopt;
    while (!take('}')) {
      const auto key = quoted();
      if (!key || !take(':')) return std::nullopt;
      bool good = false;
      if (*key == "descr" && !std::exchange(descr, true)) {
        const auto text = quoted();
        good = text.has_value();
        if (good) header.descr = *text;
      } else if (*key == "fortran_order" && !std::exchange(order, true)) {
        good = take_word("True") || take_word("False");
        header.fortran = last_word_ == "True";
      } else if (*key == "shape" && !std::exchange(shape, true)) {
        good = tuple(header.shape);
      }
      if (!good) return std::nullopt;
      if (!take(',') && peek() != '}') return std::nullopt;
    }
    skip_space();
    if (!rest_.empty() || !descr || !order || !shape) return std::nullopt;
    return header;
  }

 private:
  void skip_space() {
    while (!rest_.empty() && (rest_[0] == ' ' || rest_[0] == '\n')) rest_.remove_prefix(1);
  }
  char peek() {
    skip_space();
    return rest_.empty() ? '\0' : rest_[0];
  }
  bool take(char c) {
    if (peek() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }
  bool take_word(std::string_view word) {
    skip_space();
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    last_word_ = word;
    return true;
  }
  std::optional<std::string> quoted() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') return std::nullopt;
    const std::size_t end = rest_.find(quote, 1);
    if (end == std::string_view::npos) return std::nullopt;
    const std::string text(rest_.substr(1, end - 1));
    rest_.remove_prefix(end + 1);
    return text;
  }
  bool tuple(std::vector<std::int64_t>& out) {
    if (!take('(')) return false;
    while (!take(')')) {
      std::int64_t value = 0;
      std::size_t digits = 0;
      for (char c = peek(); c >= '0' && c <= '9'; c = rest_.empty() ? '\0' : rest_[0]) {
        if (++digits > 18) return false;  // what fits without a check for overflow is beyond every file
        value = value * 10 + (c - '0');
        rest_.remove_prefix(1);
      }
      if (digits == 0 || out.size() >= 64) return false;
      static_cast<void>(take('L'));  // written by Python 2
      out.push_back(value);
      if (!take(',') && peek() != ')') return false;
    }
    return true;
  }

  std::string_view rest_;
  std::string_view last_word_;
};

Result<DType> npy_dtype(const std::string& path, const std::string& descr) {
  const char order = descr.empty() ? '\0' : descr[0];
  const std::string_view type = std::string_view(descr).substr(descr.empty() ? 0 : 1);
  if (order == '>' && type != "b1" && type != "u1" && type != "i1") {
    return fail(ErrorCode::kUnsupported, "'" + path + "' is big endian (" + descr + ")",
                "save it with array.astype(array.dtype.newbyteorder('<'))");
  }
  if (order == '<' || order == '|' || order == '=' || order == '>') {
    for (const NpyType& known : kNpyTypes) {
      if (known.descr == type) return known.dtype;
    }
  }
  return fail(ErrorCode::kUnsupported,
              "'" + path + "' holds elements of NumPy type '" + descr.substr(0, 40) + "', which no tensor has",
              "numbers and booleans of 1 to 8 bytes and complex numbers are possible");
}

std::vector<std::int64_t> fortran_strides(const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> strides(shape.size());
  std::int64_t step = 1;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    strides[i] = step;
    // Overflow is excluded: extent_bytes() has accepted the sizes in contiguous order.
    step *= std::max<std::int64_t>(shape[i], 1);
  }
  return strides;
}

tl::unexpected<Error> bad_npy(const std::string& path, const std::string& why) {
  return fail(ErrorCode::kMalformed, "'" + path + "' is not a valid .npy file: " + why, "write it with numpy.save");
}

// -- strided copies
// ----------------------------------------------------------------------------------------------------------

/// Calls visit(pointer to element) in row-major order, for at most `count` elements. `tensor` has passed
/// extent_bytes().
template <class Visit>
void for_each_element(const TensorRef& tensor, std::uint64_t count, Visit visit) {
  const TensorMeta& meta = tensor.meta;
  const auto size = static_cast<std::int64_t>(dtype_size(meta.dtype));
  const auto total = std::min<std::uint64_t>(count, static_cast<std::uint64_t>(meta.numel()));
  std::vector<std::int64_t> index(meta.sizes.size(), 0);
  std::int64_t offset = meta.storage_offset;
  for (std::uint64_t n = 0; n < total; ++n) {
    visit(tensor.data + offset * size);
    for (std::size_t i = index.size(); i-- > 0;) {
      offset += meta.strides[i];
      if (++index[i] < meta.sizes[i]) break;
      offset -= meta.strides[i] * meta.sizes[i];
      index[i] = 0;
    }
  }
}

Status check_extent(const TensorRef& tensor) {
  CALLBOARD_ASSIGN(const std::uint64_t extent, tensor.meta.extent_bytes());
  if (extent <= tensor.bytes) return {};
  return fail(ErrorCode::kInternal, "a tensor " + tensor.meta.to_string() + " has " + std::to_string(tensor.bytes) +
                                        " bytes of memory, but needs " + std::to_string(extent));
}

TensorRef owned_tensor(TensorMeta meta, std::uint64_t bytes) {
  auto memory = std::make_shared<std::vector<std::byte>>(bytes);
  return TensorRef{std::move(meta), memory->data(), bytes, memory};
}

template <class T>
TensorRef scalar_of(DType dtype, T value) {
  TensorRef tensor = owned_tensor(TensorMeta::contiguous(dtype, {}), sizeof value);
  std::memcpy(tensor.data, &value, sizeof value);
  return tensor;
}

template <class T>
T value_at(const std::byte* data) {
  T value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

std::string number(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

double half_value(std::uint16_t bits) {
  const int exponent = bits >> 10 & 0x1f;
  const double fraction = bits & 0x3ff;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 0x1f)
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25));
}

float bfloat_value(std::uint16_t bits) {
  const std::uint32_t wide = std::uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

std::string complex_text(double real, double imaginary) {
  return number(real) + (imaginary < 0 ? "" : "+") + number(imaginary) + "j";
}

std::string element_text(DType dtype, const std::byte* at) {
  switch (dtype) {
    case DType::kBool:
      return value_at<std::uint8_t>(at) != 0 ? "true" : "false";
    case DType::kUInt8:
      return std::to_string(value_at<std::uint8_t>(at));
    case DType::kInt8:
      return std::to_string(value_at<std::int8_t>(at));
    case DType::kInt16:
      return std::to_string(value_at<std::int16_t>(at));
    case DType::kInt32:
      return std::to_string(value_at<std::int32_t>(at));
    case DType::kInt64:
      return std::to_string(value_at<std::int64_t>(at));
    case DType::kUInt16:
      return std::to_string(value_at<std::uint16_t>(at));
    case DType::kUInt32:
      return std::to_string(value_at<std::uint32_t>(at));
    case DType::kUInt64:
      return std::to_string(value_at<std::uint64_t>(at));
    case DType::kFloat16:
      return number(half_value(value_at<std::uint16_t>(at)));
    case DType::kBFloat16:
      return number(bfloat_value(value_at<std::uint16_t>(at)));
    case DType::kFloat32:
      return number(value_at<float>(at));
    case DType::kFloat64:
      return number(value_at<double>(at));
    case DType::kComplex64:
      return complex_text(value_at<float>(at), value_at<float>(at + 4));
    case DType::kComplex128:
      return complex_text(value_at<double>(at), value_at<double>(at + 8));
    default:
      break;  // 8-bit floats and 32-bit complex numbers: their bits
  }
  std::string text = "0x";
  for (std::size_t i = dtype_size(dtype); i-- > 0;) {
    char digits[4];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned>(at[i]));
    text += digits;
  }
  return text;
}

Status write_beside(const std::string& path, std::string_view head, const std::byte* data, std::uint64_t bytes) {
  CALLBOARD_ASSIGN(actors::OutputFile file, actors::OutputFile::create(path));
  CALLBOARD_TRY(file.write(head));
  CALLBOARD_TRY(file.write(data, bytes));
  return file.finish();
}

}  // namespace

bool is_npy(const std::string& path) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  char magic[6] = {};
  return file && read(file.get(), magic, sizeof magic) == sizeof magic &&
         std::string_view(magic, sizeof magic) == kMagic;
}

Result<TensorRef> read_npy(const std::string& path) {
  CALLBOARD_ASSIGN(const Mapping file, map_file(path));
  const std::string_view bytes(reinterpret_cast<const char*>(file.data), file.bytes);
  if (!bytes.starts_with(kMagic)) return bad_npy(path, "it does not begin with \\x93NUMPY");
  if (bytes.size() < 10) return fail(ErrorCode::kTruncated, "'" + path + "' ends inside the .npy header");
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const int version = byte(6);
  if (version != 1 && version != 2)
    return fail(ErrorCode::kVersionMismatch,
                "'" + path + "' has .npy version " + std::to_string(version) + "; 1 and 2 are read");
  const std::size_t length_bytes = version == 1 ? 2 : 4;
  const std::size_t start = 8 + length_bytes;
  if (bytes.size() < start) return fail(ErrorCode::kTruncated, "'" + path + "' ends inside the .npy header");
  std::size_t length = 0;
  for (std::size_t i = 0; i < length_bytes; ++i) length |= std::size_t{byte(8 + i)} << (8 * i);
  if (length > kNpyHeaderMax)
    return fail(ErrorCode::kTooLarge, "'" + path + "' has a .npy header of " + std::to_string(length) + " bytes");
  if (length > bytes.size() - start) return fail(ErrorCode::kTruncated, "'" + path + "' ends inside the .npy header");
  const auto header = NpyHeaderReader(bytes.substr(start, length)).read();
  if (!header) return bad_npy(path, "its header is not a dictionary of descr, fortran_order and shape");
  CALLBOARD_ASSIGN(const DType dtype, npy_dtype(path, header->descr));
  // Products are only formed by extent_bytes(), which refuses what overflows; so strides come after it.
  TensorMeta probe;
  probe.dtype = dtype;
  probe.sizes = header->shape;
  std::int64_t elements = 1;
  for (std::int64_t size : header->shape) {
    if (__builtin_mul_overflow(elements, std::max<std::int64_t>(size, 1), &elements))
      return bad_npy(path, "its shape overflows");
  }
  probe.strides = header->fortran ? fortran_strides(header->shape) : TensorMeta::contiguous_strides(header->shape);
  CALLBOARD_ASSIGN(const std::uint64_t need, probe.extent_bytes());
  const std::uint64_t have = bytes.size() - start - length;
  if (need > have) {
    return fail(ErrorCode::kTruncated, "'" + path + "' holds " + std::to_string(have) + " bytes of data; " +
                                           probe.to_string() + " needs " + std::to_string(need));
  }
  if (need < have) return bad_npy(path, std::to_string(have - need) + " bytes follow the data");
  return TensorRef{std::move(probe), file.data + start + length, need, file.keep};
}

Status write_npy(const std::string& path, const TensorRef& tensor) {
  const NpyType* type = nullptr;
  for (const NpyType& known : kNpyTypes) {
    if (known.dtype == tensor.meta.dtype) type = &known;
  }
  if (type == nullptr) {
    return fail(
        ErrorCode::kUnsupported,
        "NumPy has no dtype " + std::string(dtype_name(tensor.meta.dtype)) + ", so '" + path + "' cannot hold it",
        "write a .safetensors file");
  }
  CALLBOARD_ASSIGN(const TensorRef plain, contiguous(tensor));
  std::string shape;
  for (std::int64_t size : plain.meta.sizes) shape += std::to_string(size) + ", ";
  if (plain.meta.sizes.size() != 1 && !shape.empty()) shape.resize(shape.size() - 2);
  if (plain.meta.sizes.size() == 1) shape.resize(shape.size() - 1);
  const char order = dtype_size(type->dtype) == 1 ? '|' : '<';
  std::string header = std::string("{'descr': '") + order + std::string(type->descr) +
                       "', 'fortran_order': False, 'shape': (" + shape + "), }";
  header.append(kDataAlignment - (10 + header.size() + 1) % kDataAlignment, ' ');
  header += '\n';
  std::string head(kMagic);
  head += {'\x01', '\x00', static_cast<char>(header.size() & 0xff), static_cast<char>(header.size() >> 8)};
  return write_beside(path, head + header, plain.data,
                      static_cast<std::uint64_t>(plain.meta.numel()) * dtype_size(type->dtype));
}

Result<NamedTensors> read_safetensors(const std::string& path) {
  CALLBOARD_ASSIGN(const actors::SafetensorsFile file, actors::SafetensorsFile::open(path));
  NamedTensors out;
  for (const actors::SafetensorsEntry& entry : file.entries) {
    CALLBOARD_ASSIGN(const DType dtype, actors::safetensors_dtype(entry.dtype));
    auto* data = const_cast<std::byte*>(file.data(entry));  // the mapping is private and writable
    out.emplace_back(entry.name, TensorRef{TensorMeta::contiguous(dtype, entry.sizes), data, entry.bytes, file.keep});
  }
  return out;
}

Status write_safetensors(const std::string& path, const NamedTensors& tensors) {
  std::vector<TensorRef> plain;
  std::vector<actors::SafetensorsItem> items;
  for (const auto& [name, tensor] : tensors) {
    CALLBOARD_ASSIGN(TensorRef copy, contiguous(tensor));
    items.push_back({name, copy.meta.dtype, copy.meta.sizes, copy.data});
    plain.push_back(std::move(copy));
  }
  return actors::write_safetensors(path, items, {});
}

Result<TensorRef> contiguous(const TensorRef& tensor) {
  CALLBOARD_TRY(check_extent(tensor));
  if (tensor.meta.is_contiguous() && tensor.meta.storage_offset == 0) return tensor;
  TensorMeta meta = TensorMeta::contiguous(tensor.meta.dtype, tensor.meta.sizes);
  CALLBOARD_ASSIGN(const std::uint64_t bytes, meta.extent_bytes());
  TensorRef out = owned_tensor(std::move(meta), bytes);
  const std::size_t size = dtype_size(tensor.meta.dtype);
  std::byte* to = out.data;
  for_each_element(tensor, std::numeric_limits<std::uint64_t>::max(), [&](const std::byte* from) {
    std::memcpy(to, from, size);
    to += size;
  });
  return out;
}

TensorRef scalar_tensor(std::int64_t value) { return scalar_of(DType::kInt64, value); }
TensorRef scalar_tensor(double value) { return scalar_of(DType::kFloat64, value); }
TensorRef scalar_tensor(bool value) { return scalar_of(DType::kBool, static_cast<std::uint8_t>(value)); }

std::string first_elements(const TensorRef& tensor, std::size_t count) {
  if (!check_extent(tensor)) return "?";
  std::string out;
  for_each_element(tensor, count, [&](const std::byte* at) {
    out += (out.empty() ? "" : ", ") + element_text(tensor.meta.dtype, at);
  });
  return static_cast<std::uint64_t>(tensor.meta.numel()) > count ? out + ", …" : out;
}

}  // namespace callboard::cli
