// save_program and load_program_file.
#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <system_error>
#include <utility>

#include "actors/client/client.h"
#include "actors/client/constant_provision.h"
#include "actors/client/safetensors.h"
#include "kernels/memory/file_identity.h"
#include "messages/codec.h"
#include "messages/graph_check.h"
#include "messages/limits.h"

namespace callboard::actors {
namespace {

/// Holds program and placement as one frame of the wire format, with its version, checksum and bounds.
constexpr char kProgramEntry[] = "__callboard_program__";
constexpr char kFormat[] = "callboard-program";
constexpr std::array<std::byte, limits::kAlignment> kPadding = {};

Error not_a_program(const std::string& path, const std::string& why) {
  return Error(ErrorCode::kMalformed, path + " does not hold a program: " + why,
               "a program file is made by save_program(), or in Python by program.save()");
}

/// Where the bytes of a storage are, as the file tells it.
Result<ConstantBytes> find_storage(const std::shared_ptr<const WeightsFile>& weights, const SafetensorsFile& file,
                                   const Constant& constant) {
  const std::string& path = weights->path;
  const SafetensorsEntry* entry = file.find(constant.storage.hex());
  if (entry == nullptr) {
    return fail(ErrorCode::kConstantMissing,
                path + " lacks the bytes of constant '" + constant.name + "' (" + constant.storage.hex() + ")",
                "save the program again");
  }
  if (entry->bytes != constant.storage_bytes) {
    return fail(ErrorCode::kCorrupted,
                path + ": constant '" + constant.name + "' has " + std::to_string(entry->bytes) +
                    " bytes, its program says " + std::to_string(constant.storage_bytes),
                "save the program again");
  }
  return ConstantBytes{constant.storage, file.data(*entry), entry->bytes, weights, entry->offset};
}

Result<SavedProgram> read_program(const std::shared_ptr<const WeightsFile>& weights) {
  const std::string& path = weights->path;
  CALLBOARD_ASSIGN(const SafetensorsFile file,
                   SafetensorsFile::open(std::shared_ptr<const UniqueFd>(weights, &weights->fd), path));
  const auto format = file.metadata.find("format");
  const SafetensorsEntry* entry = file.find(kProgramEntry);
  if (entry == nullptr || format == file.metadata.end() || format->second != kFormat) {
    return fail(not_a_program(path, "it is another kind of safetensors file"));
  }
  auto packet = decode_packet({reinterpret_cast<const char*>(file.data(*entry)), entry->bytes});
  if (!packet) {
    Error error = std::move(packet).error();
    error.message = path + ": " + error.message;
    if (error.code == ErrorCode::kVersionMismatch)
      error.hint = "export the program again with this version of callboard";
    return fail(std::move(error));
  }
  auto* content = std::get_if<LoadProgram>(&packet->message);
  if (content == nullptr) return fail(not_a_program(path, "it holds another message"));
  CALLBOARD_TRY(check_program(content->program));
  SavedProgram saved;
  std::set<ContentHash> known;
  for (const auto& constant : content->program.constants) {
    if (!known.insert(constant.storage).second) continue;
    CALLBOARD_ASSIGN(ConstantBytes bytes, find_storage(weights, file, constant));
    saved.constants.push_back(std::move(bytes));
  }
  saved.graph = std::move(content->program);
  saved.placement = std::move(content->placement);
  saved.keep = file.keep;
  saved.file = weights;
  return saved;
}

}  // namespace

Status save_program(const std::string& path, const ProgramGraph& graph, const Placement& placement,
                    std::span<const ConstantBytes> constants) {
  CALLBOARD_TRY(check_program(graph));
  LoadProgram content;
  content.program = graph;
  content.placement = placement;
  CALLBOARD_ASSIGN(const std::string program, encode_packet(Envelope{}, content));
  std::map<ContentHash, const ConstantBytes*> given;
  for (const auto& constant : constants) given[constant.hash] = &constant;

  std::vector<SafetensorsItem> items;
  std::set<std::string> written;
  std::size_t paddings = 0;
  for (const auto& constant : graph.constants) {
    const auto found = given.find(constant.storage);
    if (found == given.end() || found->second->bytes != constant.storage_bytes) {
      return fail(ErrorCode::kConstantMissing, "program '" + graph.name + "' cannot be saved: the " +
                                                   std::to_string(constant.storage_bytes) + " bytes of constant '" +
                                                   constant.name + "' were not given");
    }
    const std::string name = constant.storage.hex();
    if (!written.insert(name).second) continue;
    items.push_back({name, DType::kUInt8, {static_cast<std::int64_t>(constant.storage_bytes)}, found->second->data});
    const std::size_t over = constant.storage_bytes % limits::kAlignment;
    if (over == 0) continue;
    items.push_back({"__callboard_padding_" + std::to_string(paddings++) + "__",
                     DType::kUInt8,
                     {static_cast<std::int64_t>(limits::kAlignment - over)},
                     kPadding.data()});
  }
  // Last, since nothing follows that would have to be aligned.
  items.push_back({kProgramEntry, DType::kUInt8, {static_cast<std::int64_t>(program.size())}, program.data()});
  const std::map<std::string, std::string> metadata = {
      {"format", kFormat},
      {"program", graph.name},
      {"callboard_version", CALLBOARD_VERSION},
      {"graph_schema", std::to_string(kGraphSchemaVersion)},
      {"protocol", std::to_string(kProtocolVersion)},
  };
  return write_safetensors(path, items, metadata);
}

Result<SavedProgram> load_program_file(const std::string& path) {
  CALLBOARD_ASSIGN(UniqueFd fd, open_for_reading(path));
  std::error_code none;
  const std::filesystem::path absolute = std::filesystem::absolute(path, none);  // other processes will name it
  return read_program(std::make_shared<const WeightsFile>(
      WeightsFile{std::move(fd), none ? path : absolute.lexically_normal().string()}));
}

Result<SavedProgram> load_program_file(std::shared_ptr<const WeightsFile> file) { return read_program(file); }

Status verify_constants(const SavedProgram& saved) {
  for (const auto& constant : saved.constants) {
    CALLBOARD_ASSIGN(const ContentHash hash, kernels::hash_file_range(constant.file->fd.get(), constant.offset,
                                                                      constant.bytes, constant.file->path));
    if (hash == constant.hash) continue;
    const auto named = std::ranges::find(saved.graph.constants, constant.hash, &Constant::storage);
    return fail(wrong_bytes(constant.file->path, named == saved.graph.constants.end() ? hash.hex() : named->name));
  }
  return {};
}

}  // namespace callboard::actors
