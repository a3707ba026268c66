// What else the table of schema.h gives: JSON Schema, reference page, and the effective file.
#include <algorithm>
#include <string>

#include <nlohmann/json.hpp>

#include "config/cluster_config.h"
#include "config/scalars.h"
#include "config/schema.h"

namespace callboard::config {
namespace {

// Keys in the table's order, so that the text is the same on every run and reads like the reference.
using Json = nlohmann::ordered_json;

Json range_schema(const Field& field) { return {{"type", "integer"}, {"minimum", field.min}, {"maximum", field.max}}; }

Json path_schema() { return {{"type", "string"}, {"pattern", "^/[^$]*$"}}; }

Json field_schema(const Field& field) {
  Json out;
  switch (field.type) {
    case FieldType::kBool:
      out["type"] = "boolean";
      break;
    case FieldType::kInt:
      out = range_schema(field);
      break;
    case FieldType::kEnum:
      out["type"] = "string";
      out["enum"] = field.choices;
      break;
    case FieldType::kName:
      out["type"] = "string";
      out["pattern"] = field.pattern;
      break;
    case FieldType::kText:
      out["type"] = "string";
      out["minLength"] = 1;
      out["maxLength"] = kTextMax;
      break;
    case FieldType::kPath:
      out = path_schema();
      break;
    case FieldType::kPaths:
      out = {{"type", "array"}, {"items", path_schema()}, {"maxItems", kPathsMax}};
      break;
    case FieldType::kDuration:
      out["type"] = "string";
      out["pattern"] = "^(0|[1-9][0-9]*)(ms|s|min|h)$";
      break;
    case FieldType::kSize:
      out["type"] = "string";
      out["pattern"] = "^((0|[1-9][0-9]*)(B|KiB|MiB|GiB|TiB)|(100|[1-9][0-9]?)%)$";
      break;
    case FieldType::kIndexes:
      out["oneOf"] =
          Json::array({range_schema(field), {{"type", "array"}, {"items", range_schema(field)}, {"minItems", 1}}});
      break;
  }
  std::string description(field.doc);
  if (field.type == FieldType::kDuration || field.type == FieldType::kSize)
    description += " Allowed: " + range_of(field) + ".";
  out["description"] = description;
  if (field.default_text.empty()) {
    const Value value = field.get(Draft{});
    if (const auto* flag = std::get_if<bool>(&value)) {
      out["default"] = *flag;
    } else if (const auto* number = std::get_if<std::int64_t>(&value)) {
      out["default"] = *number;
    } else {
      out["default"] = default_of(field);
    }
  }
  return out;
}

Json section_schema(const Section& section) {
  Json object;
  object["type"] = "object";
  if (!section.is_list()) object["description"] = section.doc;
  object["additionalProperties"] = false;
  Json& properties = object["properties"];
  for (const Field* field : fields_of(section.path)) properties[std::string(field->key())] = field_schema(*field);
  for (const Section* sub : sections_of(section.path)) properties[std::string(sub->key())] = section_schema(*sub);
  if (!section.is_list()) return object;
  Json list;
  list["type"] = "array";
  list["description"] = section.doc;
  if (section.items_min > 0) list["minItems"] = section.items_min;
  list["maxItems"] = section.items_max;
  list["items"] = std::move(object);
  return list;
}

std::string type_of(const Field& field) {
  switch (field.type) {
    case FieldType::kBool:
      return "`true` or `false`";
    case FieldType::kInt:
      return "whole number, " + range_of(field);
    case FieldType::kEnum: {
      std::string out;
      for (std::string_view name : field.choices) out += (out.empty() ? "`" : ", `") + std::string(name) + "`";
      return "one of " + out;
    }
    case FieldType::kName:
      return "name";
    case FieldType::kText:
      return "text";
    case FieldType::kPath:
      return "absolute path";
    case FieldType::kPaths:
      return "list of absolute paths";
    case FieldType::kDuration:
      return "duration, " + range_of(field);
    case FieldType::kSize:
      return "size, " + range_of(field) + ", or percentage";
    case FieldType::kIndexes:
      return "whole number or list of them, " + range_of(field);
  }
  return {};
}

std::string cell(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

void write_reference(const Section& section, std::string& out) {
  const auto list = fields_of(section.path);
  if (!section.path.empty()) {
    out += "\n## " + std::string(section.path) + "\n\n" + std::string(section.doc) + "\n";
  }
  if (list.empty()) return;
  out += "\n| key | value | default | meaning |\n|---|---|---|---|\n";
  for (const Field* field : list) {
    const std::string fallback = default_of(*field);
    out += "| `" + std::string(field->key()) + "` | " + cell(type_of(*field)) + " | " +
           (field->default_text.empty() || field->type == FieldType::kName || field->type == FieldType::kPath
                ? "`" + cell(fallback) + "`"
                : cell(fallback)) +
           " | " + cell(field->doc) + " |\n";
  }
}

void write_device(const DeviceConfig& device, std::string& out) {
  Draft draft;
  draft.device.name = device.name;
  draft.device.kind = device.kind;
  draft.device.threads = device.threads;
  draft.device.memory_limit = device.memory_limit;
  draft.device.uuid = device.uuid;
  draft.device.output_device = device.output_device;
  draft.device.cuda_graph = device.cuda_graph;
  draft.device.python = device.python;
  const bool cuda = device.kind == "cuda";
  if (cuda && device.uuid.empty()) draft.device.index = {device.index};
  std::string entry;
  for (const Field* field : fields_of("devices[]")) {
    const bool is_count = field->key() == "count";
    const bool no_index = field->key() == "index" && draft.device.index.empty();
    const bool no_limit = field->key() == "memory_limit" && device.memory_limit == 0;
    const bool no_uuid = field->key() == "uuid" && device.uuid.empty();
    const bool not_cuda = !cuda && (field->key() == "output_device" || field->key() == "cuda_graph");
    if (is_count || no_index || no_limit || no_uuid || not_cuda) continue;
    entry += (entry.empty() ? "" : ", ") + std::string(field->key()) + ": " + write_value(*field, field->get(draft));
  }
  out += "  - {" + entry + "}\n";
}

void write_kernel(const PythonKernelConfig& kernel, const std::string& margin, std::string& out) {
  Draft draft;
  draft.kernel = kernel;
  std::string entry;
  for (const Field* field : fields_of("python.kernels[]")) {
    const Value value = field->get(draft);
    const auto* text = std::get_if<std::string>(&value);
    if (text != nullptr && text->empty()) continue;
    if (field->key() == "random" && kernel.schema.empty()) continue;
    entry += (entry.empty() ? "" : ", ") + std::string(field->key()) + ": " + write_value(*field, value);
  }
  out += margin + "- {" + entry + "}\n";
}

void write_library(const OperatorLibraryConfig& library, const std::string& margin, std::string& out) {
  Draft draft;
  draft.library = library;
  std::string entry;
  for (const Field* field : fields_of("operators[]")) {
    const Value value = field->get(draft);
    if (std::get<std::string>(value).empty()) continue;
    entry += (entry.empty() ? "" : ", ") + std::string(field->key()) + ": " + write_value(*field, value);
  }
  out += margin + "- {" + entry + "}\n";
}

void write_yaml(const Section& section, const Draft& draft, std::size_t indent, std::string& out) {
  const std::string margin(indent, ' ');
  for (const Field* field : fields_of(section.path)) {
    const Value value = field->get(draft);
    const auto* text = std::get_if<std::string>(&value);
    if (field->type == FieldType::kPath && text != nullptr && text->empty()) continue;  // "the default place"
    const auto* size = std::get_if<ByteSize>(&value);
    if (size != nullptr && size->bytes == 0) continue;  // "by the device's memory"
    out += margin + std::string(field->key()) + ": " + write_value(*field, value) + "\n";
  }
  for (const Section* sub : sections_of(section.path)) {
    if (sub->path == "python.kernels[]") {
      out += margin + "kernels:" + (draft.config.python.kernels.empty() ? " []\n" : "\n");
      for (const PythonKernelConfig& kernel : draft.config.python.kernels) write_kernel(kernel, margin + "  ", out);
      continue;
    }
    if (sub->path == "operators[]") {
      out += margin + "operators:" + (draft.config.operators.empty() ? " []\n" : "\n");
      for (const OperatorLibraryConfig& library : draft.config.operators) write_library(library, margin + "  ", out);
      continue;
    }
    out += margin + std::string(sub->key()) + ":\n";
    if (sub->is_list()) {
      for (const DeviceConfig& device : draft.config.devices) write_device(device, out);
    } else {
      write_yaml(*sub, draft, indent + 2, out);
    }
  }
}

constexpr const char* kReferenceHead = R"(# The cluster file

<!-- Made by `callboard config reference`; a test compares the two. Change config/schema.cpp instead. -->

A cluster file is one YAML document (JSON will do too) of at most 1 MiB. It says which devices a cluster has and how it
behaves; every key but `devices` has a default:

```yaml
devices: [{kind: cpu, count: 2}]
```

`callboard validate FILE` checks it, `callboard config show FILE` prints what it means with all defaults filled in, and
`callboard config schema` gives the JSON Schema for editors.

What is written is what is meant, or it is refused with line and column:

- An unknown key, a key given twice, and a key without a value are errors.
- Booleans are `true` and `false` only. Whole numbers are decimal, without leading zeros, `_`, `.` or exponent.
- Quotes make text: `"2"` is not a number.
- Durations have a unit: `ms`, `s`, `min`, `h` (`500ms`). Sizes have one too: `B`, `KiB`, `MiB`, `GiB`, `TiB`, in powers
  of 1024.
- Paths are absolute. Neither `~` nor `$` is expanded.
- Anchors, aliases, tags, merge keys and a second document are not allowed.

## Top level
)";

}  // namespace

std::string cluster_schema_json() {
  Json out;
  out["$schema"] = "https://json-schema.org/draft/2020-12/schema";
  out["title"] = "Callboard cluster file";
  const Json root = section_schema(sections().front());
  for (const auto& [key, value] : root.items()) out[key] = value;
  out["required"] = Json::array({"devices"});
  return out.dump(2) + "\n";
}

std::string cluster_reference_markdown() {
  std::string out = kReferenceHead;
  for (const Section& section : sections()) write_reference(section, out);
  return out;
}

std::string to_yaml(const ClusterConfig& config) {
  Draft draft;
  draft.config = config;
  std::string out;
  write_yaml(sections().front(), draft, 0, out);
  return out;
}

}  // namespace callboard::config
