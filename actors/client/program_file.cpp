// save_program and load_program_file.
#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "actors/client/client.h"
#include "actors/client/safetensors.h"
#include "messages/codec.h"
#include "messages/graph_check.h"

namespace callboard::actors {
namespace {

/// Holds program and placement as one frame of the wire format, with its version, checksum and bounds.
constexpr char kProgramEntry[] = "__callboard_program__";
constexpr char kFormat[] = "callboard-program";

Error not_a_program(const std::string& path, const std::string& why) {
  return Error(ErrorCode::kMalformed, path + " does not hold a program: " + why,
               "a program file is made by save_program(), or in Python by program.save()");
}

/// The bytes of a storage as the file's own name and data tell them.
Result<ConstantBytes> read_storage(const std::string& path, const SafetensorsFile& file, const Constant& constant) {
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
  const std::byte* data = file.data(*entry);
  if (ContentHash::of(data, entry->bytes) != constant.storage) {
    return fail(ErrorCode::kCorrupted,
                path + ": the bytes of constant '" + constant.name + "' do not match their checksum",
                "the file is damaged: copy or save it again");
  }
  return ConstantBytes{constant.storage, data, entry->bytes};
}

Result<SavedProgram> read_program(const std::string& path, const SafetensorsFile& file) {
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
  std::map<ContentHash, bool> known;
  for (const auto& constant : content->program.constants) {
    if (!known.emplace(constant.storage, true).second) continue;
    CALLBOARD_ASSIGN(const ConstantBytes bytes, read_storage(path, file, constant));
    saved.constants.push_back(bytes);
  }
  saved.graph = std::move(content->program);
  saved.placement = std::move(content->placement);
  saved.keep = file.keep;
  saved.file = file.fd;
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
  std::map<std::string, bool> written;
  for (const auto& constant : graph.constants) {
    const auto found = given.find(constant.storage);
    if (found == given.end() || found->second->bytes != constant.storage_bytes) {
      return fail(ErrorCode::kConstantMissing, "program '" + graph.name + "' cannot be saved: the " +
                                                   std::to_string(constant.storage_bytes) + " bytes of constant '" +
                                                   constant.name + "' were not given");
    }
    const std::string name = constant.storage.hex();
    if (!written.emplace(name, true).second) continue;
    items.push_back({name, DType::kUInt8, {static_cast<std::int64_t>(constant.storage_bytes)}, found->second->data});
  }
  // Last, since its length would spoil the alignment of what follows.
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
  CALLBOARD_ASSIGN(const SafetensorsFile file, SafetensorsFile::open(path));
  return read_program(path, file);
}

Result<SavedProgram> load_program_file(std::shared_ptr<const UniqueFd> file, const std::string& path) {
  CALLBOARD_ASSIGN(const SafetensorsFile mapped, SafetensorsFile::open(std::move(file), path));
  return read_program(path, mapped);
}

}  // namespace callboard::actors
