// safetensors files: read by mapping, written whole. Bounded and checked, so that a hostile file costs an Error and
// nothing else. The format: u64 (little endian) header length, a JSON object {name: {dtype, shape, data_offsets}}, the
// data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "messages/base/error.h"
#include "messages/base/fd.h"
#include "messages/tensor_meta.h"

namespace callboard::actors {

constexpr std::uint64_t kSafetensorsHeaderBytesMax = 16u << 20;

struct SafetensorsEntry {
  std::string name;
  std::string dtype;                ///< the format's own name, "F32"
  std::vector<std::int64_t> sizes;  ///< contiguous
  std::uint64_t offset = 0;         ///< from the start of the file
  std::uint64_t bytes = 0;          ///< equals product of sizes times size of dtype (checked)
};

/// A mapped file. Entries are in the file's order; each lies inside the file, none overlaps another, no byte of the
/// data is without an owner.
struct SafetensorsFile {
  std::vector<SafetensorsEntry> entries;
  std::map<std::string, std::string> metadata;
  std::shared_ptr<void>
      keep;  ///< the mapping: private, writing changes this process's view only. Outlives the struct if copied

  /// Open as long as somebody keeps it: the same file whatever comes to lie at its path.
  std::shared_ptr<const UniqueFd> fd;

  /// kFileNotFound, kFileUnreadable (with the reason of the system), kTooLarge, kTruncated, kMalformed; names the file,
  /// and the entry where one is at fault.
  static Result<SafetensorsFile> open(const std::string& path);
  /// A file that is open already; the path is for messages.
  static Result<SafetensorsFile> open(std::shared_ptr<const UniqueFd> fd, const std::string& path);

  const SafetensorsEntry* find(std::string_view name) const;
  /// Not aligned to more than the writer cared for.
  const std::byte* data(const SafetensorsEntry& entry) const;
};

struct SafetensorsItem {
  std::string name;
  DType dtype = DType::kUndefined;
  std::vector<std::int64_t> sizes;
  const void* data = nullptr;  ///< contiguous; product of sizes times dtype_size long
};

/// Writes beside `path` and renames, so that a reader never sees half a file. Data start 64-byte aligned where sizes
/// allow it (the header is padded; items are ordered as given). kUnsupported for dtypes that the format lacks; else as
/// OutputFile.
Status write_safetensors(const std::string& path, std::span<const SafetensorsItem> items,
                         const std::map<std::string, std::string>& metadata);

/// Opens a file so that a pipe at its path does not make it wait. kBadInput, kFileNotFound, kFileUnreadable.
Result<UniqueFd> open_for_reading(const std::string& path);

/// "F32" for kFloat32, …; kUnsupported where the format has no name.
Result<std::string_view> safetensors_dtype_name(DType dtype);
/// The inverse; kUnsupported names the dtype.
Result<DType> safetensors_dtype(std::string_view name);

}  // namespace callboard::actors
