#include "actors/client/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "actors/core/output_file.h"
#include "messages/base/fd.h"
#include "messages/limits.h"

namespace callboard::actors {
namespace {

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kDataAlignment = 64;
constexpr std::string_view kMetadataKey = "__metadata__";

struct DTypeName {
  DType dtype;
  std::string_view name;
};
constexpr std::array kDTypeNames = {
    DTypeName{DType::kBool, "BOOL"},
    DTypeName{DType::kUInt8, "U8"},
    DTypeName{DType::kInt8, "I8"},
    DTypeName{DType::kInt16, "I16"},
    DTypeName{DType::kUInt16, "U16"},
    DTypeName{DType::kInt32, "I32"},
    DTypeName{DType::kUInt32, "U32"},
    DTypeName{DType::kInt64, "I64"},
    DTypeName{DType::kUInt64, "U64"},
    DTypeName{DType::kFloat16, "F16"},
    DTypeName{DType::kBFloat16, "BF16"},
    DTypeName{DType::kFloat32, "F32"},
    DTypeName{DType::kFloat64, "F64"},
    DTypeName{DType::kComplex64, "C64"},
    DTypeName{DType::kFloat8E4M3FN, "F8_E4M3"},
    DTypeName{DType::kFloat8E5M2, "F8_E5M2"},
    DTypeName{DType::kFloat8E8M0FNU, "F8_E8M0"},
};

std::string reason_of(int error) { return std::strerror(error); }

Error malformed(const std::string& path, const std::string& what) {
  return Error(ErrorCode::kMalformed, path + " is not a valid safetensors file: " + what,
               "the file is damaged or of another format; write it again");
}

// -- header
// ---------------------------------------------------------------------------------------------------------------

/// Takes the header apart while it is parsed. It has a fixed shape, so depth is bounded by construction, and a key that
/// comes twice is seen (a document tree would keep the last one in silence).
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<SafetensorsEntry> entries;
  std::map<std::string, std::string> metadata;
  std::string fault;

  bool null() override { return refuse("null"); }
  bool boolean(bool) override { return refuse("a boolean"); }
  bool number_integer(number_integer_t) override { return refuse("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return refuse("a number that is not an integer"); }
  bool binary(binary_t&) override { return refuse("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      return refuse("a number above 2^63");
    if (place_ == Place::kShape) {
      if (entries.back().sizes.size() >= limits::kTensorRankMax) return refuse("a shape of too many dimensions");
      entries.back().sizes.push_back(static_cast<std::int64_t>(value));
      return true;
    }
    if (place_ == Place::kOffsets && offsets_.size() < 2) {
      offsets_.push_back(value);
      return true;
    }
    return refuse("a number");
  }

  bool string(string_t& value) override {
    if (place_ == Place::kEntry && field_ == "dtype") {
      entries.back().dtype = value;
      return true;
    }
    if (place_ == Place::kMetadata) {
      metadata[field_] = value;
      return true;
    }
    return refuse("a text");
  }

  bool key(string_t& value) override {
    if (place_ == Place::kTop) {
      top_key_ = value;
      return names_.insert(value).second || fail("the key '" + shown(value) + "' comes twice");
    }
    field_ = value;
    if (!fields_.insert(value).second) return fail("'" + shown(value) + "' comes twice in '" + shown(top_key_) + "'");
    const bool known = value == "dtype" || value == "shape" || value == "data_offsets";
    return place_ == Place::kMetadata || known ||
           fail("unknown key '" + shown(value) + "' in '" + shown(top_key_) + "'");
  }

  bool start_object(std::size_t) override {
    if (place_ == Place::kStart) {
      place_ = Place::kTop;
      return true;
    }
    if (place_ != Place::kTop) return refuse("an object");
    fields_.clear();
    field_.clear();
    if (top_key_ == kMetadataKey) {
      place_ = Place::kMetadata;
      return true;
    }
    place_ = Place::kEntry;
    offsets_.clear();
    entries.push_back({});
    entries.back().name = top_key_;
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kTop) {
      place_ = Place::kEnd;
      return true;
    }
    if (place_ == Place::kEntry && !end_entry()) return false;
    place_ = Place::kTop;
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ == Place::kEntry && field_ == "shape") {
      place_ = Place::kShape;
    } else if (place_ == Place::kEntry && field_ == "data_offsets") {
      place_ = Place::kOffsets;
    } else {
      return refuse("a list");
    }
    return true;
  }

  bool end_array() override {
    place_ = Place::kEntry;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return fail("the header is not JSON at byte " + std::to_string(position));
  }

 private:
  enum class Place { kStart, kTop, kMetadata, kEntry, kShape, kOffsets, kEnd };

  static std::string shown(const std::string& text) { return text.size() <= 80 ? text : text.substr(0, 77) + "..."; }

  bool fail(std::string what) {
    fault = std::move(what);
    return false;
  }
  bool refuse(const char* what) {
    return fail(std::string("the header has ") + what + " where none can be" +
                (top_key_.empty() ? "" : " (in '" + shown(top_key_) + "')"));
  }

  bool end_entry() {
    if (fields_.size() != 3) return fail("'" + shown(top_key_) + "' lacks dtype, shape or data_offsets");
    if (offsets_.size() != 2 || offsets_[0] > offsets_[1])
      return fail("'" + shown(top_key_) + "' has bad data_offsets");
    entries.back().offset = offsets_[0];
    entries.back().bytes = offsets_[1] - offsets_[0];
    return true;
  }

  Place place_ = Place::kStart;
  std::string top_key_;
  std::string field_;
  std::set<std::string> names_;
  std::set<std::string> fields_;
  std::vector<std::uint64_t> offsets_;
};

/// Size against shape and dtype, without overflow.
Status check_entry(const std::string& path, const SafetensorsEntry& entry) {
  auto dtype = safetensors_dtype(entry.dtype);
  if (!dtype) {
    return fail(ErrorCode::kUnsupported,
                path + ": tensor '" + entry.name + "' has the dtype '" + entry.dtype + "', which is not supported",
                dtype.error().hint);
  }
  const auto extent = TensorMeta::contiguous(*dtype, entry.sizes).extent_bytes();
  if (!extent) return fail(malformed(path, "tensor '" + entry.name + "': " + extent.error().message));
  if (*extent != entry.bytes) {
    return fail(malformed(path, "tensor '" + entry.name + "' has " + std::to_string(entry.bytes) +
                                    " bytes, its shape needs " + std::to_string(*extent)));
  }
  return {};
}

/// Entries must tile the data exactly; then each lies inside the file and none overlaps another.
Status check_layout(const std::string& path, const std::vector<SafetensorsEntry>& entries, std::uint64_t data_bytes) {
  std::vector<const SafetensorsEntry*> order;
  for (const auto& entry : entries) order.push_back(&entry);
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return std::pair(a->offset, a->bytes) < std::pair(b->offset, b->bytes);
  });
  std::uint64_t end = 0;
  for (const auto* entry : order) {
    if (entry->offset != end) {
      return fail(malformed(path, "tensor '" + entry->name + "' starts at byte " + std::to_string(entry->offset) +
                                      " of the data, the one before ends at " + std::to_string(end)));
    }
    end = entry->offset + entry->bytes;  // data_offsets[1], no overflow
  }
  if (end > data_bytes) {
    return fail(ErrorCode::kTruncated,
                path + " is truncated: its header describes " + std::to_string(end) + " bytes of data, the file has " +
                    std::to_string(data_bytes),
                "fetch or write the file again");
  }
  if (end != data_bytes) {
    return fail(malformed(path, std::to_string(data_bytes - end) + " bytes at the end belong to no tensor"));
  }
  return {};
}

struct Mapping {
  void* data = nullptr;
  std::size_t bytes = 0;
  Mapping() = default;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (data != nullptr) ::munmap(data, bytes);
  }
};

Result<std::shared_ptr<Mapping>> map_file(int fd, const std::string& path) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) {
    return fail(ErrorCode::kFileUnreadable, "cannot read the size of " + path + ": " + reason_of(errno));
  }
  if (!S_ISREG(info.st_mode)) return fail(ErrorCode::kFileUnreadable, path + " is not a regular file");
  if (static_cast<std::uint64_t>(info.st_size) < kLengthBytes) {
    return fail(ErrorCode::kTruncated,
                path + " has " + std::to_string(info.st_size) + " bytes, too few for a safetensors file",
                "fetch or write the file again");
  }
  auto mapping = std::make_shared<Mapping>();
  mapping->bytes = static_cast<std::size_t>(info.st_size);
  void* data = ::mmap(nullptr, mapping->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
  if (data == MAP_FAILED) return fail(ErrorCode::kFileUnreadable, "cannot map " + path + ": " + reason_of(errno));
  mapping->data = data;
  return mapping;
}

Result<std::uint64_t> read_header_length(const std::string& path, const Mapping& mapping) {
  const auto* bytes = static_cast<const unsigned char*>(mapping.data);
  std::uint64_t length = 0;
  for (std::size_t i = kLengthBytes; i > 0; --i) length = (length << 8) | bytes[i - 1];
  if (length > kSafetensorsHeaderBytesMax) {
    return fail(ErrorCode::kTooLarge,
                path + " declares a header of " + std::to_string(length) + " bytes; the limit is " +
                    std::to_string(kSafetensorsHeaderBytesMax),
                "the file is damaged or not a safetensors file");
  }
  if (length > mapping.bytes - kLengthBytes) {
    return fail(ErrorCode::kTruncated,
                path + " is truncated: its header has " + std::to_string(length) + " bytes, the file " +
                    std::to_string(mapping.bytes),
                "fetch or write the file again");
  }
  return length;
}

Status parse_header(const std::string& path, std::string_view header, SafetensorsFile& file) {
  HeaderReader reader;
  bool parsed = false;
  try {
    parsed = nlohmann::json::sax_parse(header.begin(), header.end(), &reader);
  } catch (const std::exception& exception) {
    reader.fault = exception.what();
  }
  if (!parsed) return fail(malformed(path, reader.fault.empty() ? "its header is not JSON" : reader.fault));
  file.entries = std::move(reader.entries);
  file.metadata = std::move(reader.metadata);
  return {};
}

// -- writing
// --------------------------------------------------------------------------------------------------------------

Result<std::string> make_header(std::span<const SafetensorsItem> items,
                                const std::map<std::string, std::string>& metadata, std::vector<std::uint64_t>& sizes) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[std::string(kMetadataKey)] = metadata;
  std::uint64_t offset = 0;
  for (const auto& item : items) {
    if (item.name == kMetadataKey || header.contains(item.name)) {
      return fail(ErrorCode::kBadArgument,
                  "a safetensors file cannot have two tensors, or metadata, named '" + item.name + "'");
    }
    CALLBOARD_ASSIGN(const std::string_view name, safetensors_dtype_name(item.dtype));
    CALLBOARD_ASSIGN(const std::uint64_t bytes, TensorMeta::contiguous(item.dtype, item.sizes).extent_bytes());
    if (bytes > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) - offset) {
      return fail(ErrorCode::kTooLarge, "the tensors up to '" + item.name + "' have more than 2^63 bytes together");
    }
    header[item.name] = {{"dtype", name}, {"shape", item.sizes}, {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
    sizes.push_back(bytes);
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const std::exception&) {
    return fail(ErrorCode::kBadArgument, "names and metadata of a safetensors file must be UTF-8");
  }
  const std::uint64_t unaligned = (kLengthBytes + text.size()) % kDataAlignment;
  if (unaligned != 0) text.append(kDataAlignment - unaligned, ' ');
  if (text.size() > kSafetensorsHeaderBytesMax) {
    return fail(ErrorCode::kTooLarge, "the header of the safetensors file would have " + std::to_string(text.size()) +
                                          " bytes; the limit is " + std::to_string(kSafetensorsHeaderBytesMax));
  }
  return text;
}

Status write_parts(OutputFile& file, const std::string& header, std::span<const SafetensorsItem> items,
                   const std::vector<std::uint64_t>& sizes) {
  std::array<unsigned char, kLengthBytes> length{};
  for (std::size_t i = 0; i < kLengthBytes; ++i) length[i] = static_cast<unsigned char>(header.size() >> (8 * i));
  CALLBOARD_TRY(file.write(length.data(), length.size()));
  CALLBOARD_TRY(file.write(header));
  for (std::size_t i = 0; i < items.size(); ++i) CALLBOARD_TRY(file.write(items[i].data, sizes[i]));
  return {};
}

}  // namespace

Result<UniqueFd> open_for_reading(const std::string& path) {
  if (path.find('\0') != std::string::npos) {
    return fail(ErrorCode::kBadInput,
                "the path of the file has a NUL byte in it, behind '" + path.substr(0, path.find('\0')) + "'",
                "no file can be named so");
  }
  // Non-blocking, since opening a pipe would wait for its writer.
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd) return fd;
  const int error = errno;
  const ErrorCode code = error == ENOENT ? ErrorCode::kFileNotFound : ErrorCode::kFileUnreadable;
  return fail(code, "cannot open " + path + ": " + reason_of(error));
}

Result<std::string_view> safetensors_dtype_name(DType dtype) {
  for (const auto& entry : kDTypeNames) {
    if (entry.dtype == dtype) return entry.name;
  }
  return fail(ErrorCode::kUnsupported, "safetensors has no dtype for " + std::string(dtype_name(dtype)),
              "convert the tensor, or view it as uint8");
}

Result<DType> safetensors_dtype(std::string_view name) {
  std::string known;
  for (const auto& entry : kDTypeNames) {
    if (entry.name == name) return entry.dtype;
    known += (known.empty() ? "" : ", ") + std::string(entry.name);
  }
  return fail(ErrorCode::kUnsupported, "the safetensors dtype '" + std::string(name) + "' is not supported",
              "supported are " + known);
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  CALLBOARD_ASSIGN(UniqueFd fd, open_for_reading(path));
  return open(std::make_shared<const UniqueFd>(std::move(fd)), path);
}

Result<SafetensorsFile> SafetensorsFile::open(std::shared_ptr<const UniqueFd> fd, const std::string& path) {
  CALLBOARD_ASSIGN(const std::shared_ptr<Mapping> mapping, map_file(fd->get(), path));
  CALLBOARD_ASSIGN(const std::uint64_t length, read_header_length(path, *mapping));
  SafetensorsFile file;
  const std::string_view header(static_cast<const char*>(mapping->data) + kLengthBytes, length);
  CALLBOARD_TRY(parse_header(path, header, file));
  for (const auto& entry : file.entries) CALLBOARD_TRY(check_entry(path, entry));
  const std::uint64_t data_start = kLengthBytes + length;
  CALLBOARD_TRY(check_layout(path, file.entries, mapping->bytes - data_start));
  for (auto& entry : file.entries) entry.offset += data_start;
  // The mapping's address is found through `keep`, so the pointer that is kept is the data's.
  file.keep = std::shared_ptr<void>(mapping, mapping->data);
  file.fd = std::move(fd);
  return file;
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  for (const auto& entry : entries) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

const std::byte* SafetensorsFile::data(const SafetensorsEntry& entry) const {
  return static_cast<const std::byte*>(keep.get()) + entry.offset;
}

Status write_safetensors(const std::string& path, std::span<const SafetensorsItem> items,
                         const std::map<std::string, std::string>& metadata) {
  std::vector<std::uint64_t> sizes;
  CALLBOARD_ASSIGN(const std::string header, make_header(items, metadata, sizes));
  CALLBOARD_ASSIGN(OutputFile file, OutputFile::create(path));
  CALLBOARD_TRY(write_parts(file, header, items, sizes));
  return file.finish();
}

}  // namespace callboard::actors
