#include "config/reader.h"

#include <utility>

#include "config/scalars.h"

namespace callboard::config {
namespace {

using Kind = DocumentNode::Kind;

constexpr const char* kSmallest = "the smallest cluster file is: devices: [{kind: cpu}]";

std::string kind_name(const DocumentNode& node) {
  switch (node.kind) {
    case Kind::kNull:
      return "nothing";
    case Kind::kSequence:
      return "a list";
    case Kind::kMap:
      return "a map";
    default:
      return node.quoted ? "the text \"" + shown(node.text) + "\"" : "'" + shown(node.text) + "'";
  }
}

template <class T>
Scalar<Value> as_value(Scalar<T> scalar) {
  if (!scalar) return tl::unexpected<ScalarProblem>(scalar.error());
  if constexpr (std::is_same_v<T, std::uint64_t>) {
    return Value(ByteSize{*scalar});
  } else {
    return Value(*scalar);
  }
}

tl::unexpected<ScalarProblem> out_of_range(const Field& field, std::string_view written) {
  const std::string range = range_of(field);
  const bool single = field.min == field.max;
  return tl::unexpected<ScalarProblem>(
      {ErrorCode::kConfigOutOfRange, "is " + shown(written) + "; allowed is " + (single ? "only " : "") + range, ""});
}

class Reader {
 public:
  Reader(std::uint64_t memory_bytes, Findings& findings) : memory_bytes_(memory_bytes), findings_(findings) {}

  ClusterRead read(const DocumentNode& root) {
    ClusterRead out;
    if (root.kind == Kind::kNull) {
      findings_.error(ErrorCode::kConfigMissing, root.at, 1, "the file is empty", kSmallest);
    } else if (root.kind != Kind::kMap) {
      findings_.error(ErrorCode::kConfigWrongType, root.at, root.width(),
                      "the file holds " + kind_name(root) + " where it should hold keys", kSmallest);
    } else {
      Draft draft;
      read_map(root, "", "", draft, out.given, &out);
      out.config = std::move(draft.config);
      if (!devices_seen_)
        findings_.error(ErrorCode::kConfigMissing, root.at, 1, "the key 'devices' is missing", kSmallest);
    }
    return out;
  }

 private:
  static std::string join(std::string_view label, std::string_view key) {
    return label.empty() ? std::string(key) : std::string(label) + "." + std::string(key);
  }

  void read_map(const DocumentNode& map, std::string_view section, const std::string& label, Draft& draft,
                Places& given, ClusterRead* lists) {
    const auto section_fields = fields_of(section);
    const auto subsections = sections_of(section);
    for (const DocumentEntry& entry : map.entries) {
      const std::string entry_label = join(label, entry.key);
      bool known = false;
      for (const Section* sub : subsections) {
        if (sub->key() != entry.key) continue;
        known = true;
        read_section(entry, *sub, entry_label, draft, given, lists);
      }
      for (const Field* field : section_fields) {
        if (field->key() != entry.key) continue;
        known = true;
        read_field(entry, *field, entry_label, draft, given);
      }
      if (!known) unknown_key(entry, label, section_fields, subsections);
    }
  }

  void read_section(const DocumentEntry& entry, const Section& section, const std::string& label, Draft& draft,
                    Places& given, ClusterRead* lists) {
    const bool devices = section.path == "devices[]";
    if (devices) devices_seen_ = true;
    if (entry.value.kind == Kind::kRefused) return;
    const Kind wanted = section.is_list() ? Kind::kSequence : Kind::kMap;
    if (entry.value.kind == Kind::kNull) {
      no_value(entry, label, "give it keys, or remove it: without the key its defaults hold");
    } else if (entry.value.kind != wanted) {
      findings_.error(
          ErrorCode::kConfigWrongType, entry.value.at, entry.value.width(),
          label + " wants " + (section.is_list() ? "a list of maps" : "keys") + ", not " + kind_name(entry.value),
          section.is_list() ? "as in: " + example_of(section) : "");
    } else if (section.is_list()) {
      given.emplace(label, Place{entry.at, entry.width()});
      if (devices) {
        read_devices(entry, section, lists->devices);
      } else if (section.path == "python.kernels[]") {
        read_items(entry, section, lists->kernels, &KernelRead::kernel, &Draft::kernel);
      } else {
        read_items(entry, section, lists->libraries, &LibraryRead::library, &Draft::library);
      }
    } else {
      read_map(entry.value, section.path, label, draft, given, lists);
    }
  }

  static std::string example_of(const Section& section) {
    if (section.path == "devices[]") return "devices: [{kind: cpu}]";
    if (section.path == "operators[]") return "operators: [{path: /srv/libmyops.so}]";
    return "kernels: [{target: \"my_module:my_function\"}]";
  }

  void read_devices(const DocumentEntry& entry, const Section& section, std::vector<EntryRead>& devices) {
    if (entry.value.items.empty()) {
      findings_.error(ErrorCode::kConfigMissing, entry.value.at, 1,
                      "devices is empty: a cluster has at least one device", kSmallest);
    }
    for (std::size_t i = 0; i < entry.value.items.size(); ++i) {
      EntryRead device;
      device.place = {entry.value.items[i].at, entry.value.items[i].width()};
      Draft draft;
      device.broken = !read_item(entry, i, section, draft, device.label, device.given);
      device.entry = std::move(draft.device);
      devices.push_back(std::move(device));
    }
  }

  /// A list of maps whose items each stand for themselves.
  template <class Read, class Item>
  void read_items(const DocumentEntry& entry, const Section& section, std::vector<Read>& items, Item Read::*into,
                  Item Draft::*from) {
    const std::size_t count = entry.value.items.size();
    if (count > static_cast<std::size_t>(section.items_max)) {
      findings_.error(ErrorCode::kConfigOutOfRange, entry.at, entry.width(),
                      std::string(section.path.substr(0, section.path.size() - 2)) + " has " + std::to_string(count) +
                          " entries; at most " + std::to_string(section.items_max) + " are possible");
      return;
    }
    for (std::size_t i = 0; i < count; ++i) {
      Read item;
      item.place = {entry.value.items[i].at, entry.value.items[i].width()};
      Draft draft;
      const bool good = read_item(entry, i, section, draft, item.label, item.given);
      item.*into = std::move(draft.*from);
      if (good) items.push_back(std::move(item));
    }
  }

  /// An item of a list of maps. False if it has findings.
  bool read_item(const DocumentEntry& list, std::size_t number, const Section& section, Draft& draft,
                 std::string& label, Places& given) {
    const DocumentNode& item = list.value.items[number];
    label = std::string(section.path.substr(0, section.path.size() - 1)) + std::to_string(number) + "]";
    const std::size_t errors_before = findings_.errors();
    if (item.kind == Kind::kMap) {
      read_map(item, section.path, label, draft, given, nullptr);
    } else if (item.kind == Kind::kNull) {
      findings_.error(ErrorCode::kConfigMissing, item.at, 1, label + " has no value",
                      section.path == "devices[]" ? "write {kind: cpu}, or remove it" : "give it keys, or remove it");
    } else if (item.kind != Kind::kRefused) {
      findings_.error(ErrorCode::kConfigWrongType, item.at, item.width(),
                      label + " wants a map, not " + kind_name(item), "as in: " + example_of(section));
    }
    return findings_.errors() == errors_before && item.kind != Kind::kRefused;
  }

  void read_field(const DocumentEntry& entry, const Field& field, const std::string& label, Draft& draft,
                  Places& given) {
    const DocumentNode& node = entry.value;
    if (node.kind == Kind::kRefused) return;
    if (node.kind == Kind::kNull) {
      return no_value(entry, label, "give it one, or remove the key: the default is " + default_of(field));
    }
    auto value = read_value(field, node);
    if (!value) {
      const ScalarProblem& problem = value.error();
      findings_.error(problem.code, node.at, node.width(), label + " " + problem.problem, problem.hint);
      return;
    }
    field.set(draft, *value);
    // Within an entry of devices its keys are looked up without the entry's number.
    const bool in_entry = field.path.find("[]") != std::string_view::npos;
    given.emplace(in_entry ? std::string(field.key()) : label, Place{node.at, node.width()});
  }

  Scalar<Value> read_value(const Field& field, const DocumentNode& node) {
    switch (field.type) {
      case FieldType::kBool:
        return as_value(read_bool(node));
      case FieldType::kInt:
        return read_ranged_int(field, node);
      case FieldType::kIndexes:
        return read_indexes(field, node);
      case FieldType::kDuration: {
        auto value = read_duration(node);
        if (value && (value->count() < field.min || value->count() > field.max)) return out_of_range(field, node.text);
        return as_value(std::move(value));
      }
      case FieldType::kSize: {
        auto value = read_size(node, memory_bytes_);
        const auto min = static_cast<std::uint64_t>(field.min);
        if (value && (*value < min || *value > static_cast<std::uint64_t>(field.max)))
          return out_of_range(field, node.text);
        return as_value(std::move(value));
      }
      case FieldType::kEnum:
        return read_enum(field, node);
      case FieldType::kName:
        return read_text(node, "a name");
      case FieldType::kText:
        return read_short_text(node);
      case FieldType::kPath:
        return read_path(node);
      case FieldType::kPaths:
        return read_paths(node);
    }
    return tl::unexpected<ScalarProblem>({ErrorCode::kInternal, "has no reader", ""});
  }

  Scalar<Value> read_ranged_int(const Field& field, const DocumentNode& node) {
    auto value = read_int(node);
    if (value && (*value < field.min || *value > field.max)) return out_of_range(field, node.text);
    return as_value(std::move(value));
  }

  Scalar<Value> read_indexes(const Field& field, const DocumentNode& node) {
    std::vector<std::uint32_t> out;
    const std::vector<DocumentNode> one{node};
    const auto& items = node.kind == Kind::kSequence ? node.items : one;
    if (items.empty())
      return tl::unexpected<ScalarProblem>(
          {ErrorCode::kConfigMissing, "is an empty list", "name at least one GPU, or remove the key"});
    for (const DocumentNode& item : items) {
      if (item.kind == Kind::kNull)
        return tl::unexpected<ScalarProblem>({ErrorCode::kConfigMissing, "holds an empty item", ""});
      auto value = read_ranged_int(field, item);
      if (!value) return value;
      out.push_back(static_cast<std::uint32_t>(std::get<std::int64_t>(*value)));
    }
    return Value(std::move(out));
  }

  Scalar<Value> read_enum(const Field& field, const DocumentNode& node) {
    const std::string allowed = "allowed is " + list_names(field.choices);
    if (node.kind != Kind::kScalar)
      return tl::unexpected<ScalarProblem>(
          {ErrorCode::kConfigWrongType, "wants one word, not " + kind_name(node), allowed});
    for (std::string_view name : field.choices) {
      if (name == node.text) return Value(node.text);
    }
    std::string_view near = nearest_name(node.text, field.choices);
    for (const auto& [written, meant] : field.meant) {
      if (written == node.text) near = meant;
    }
    return tl::unexpected<ScalarProblem>({ErrorCode::kConfigOutOfRange, "is '" + shown(node.text) + "'; " + allowed,
                                          near.empty() ? "" : "did you mean '" + std::string(near) + "'?"});
  }

  static Scalar<Value> read_text(const DocumentNode& node, std::string_view wanted) {
    if (node.kind != Kind::kScalar) {
      return tl::unexpected<ScalarProblem>(
          {ErrorCode::kConfigWrongType, "wants " + std::string(wanted) + ", not " + kind_name(node), ""});
    }
    return Value(node.text);
  }

  static Scalar<Value> read_short_text(const DocumentNode& node) {
    auto value = read_text(node, "a text");
    if (value && (node.text.empty() || node.text.size() > kTextMax)) {
      return tl::unexpected<ScalarProblem>({ErrorCode::kConfigOutOfRange,
                                            "has " + std::to_string(node.text.size()) + " characters; 1 to " +
                                                std::to_string(kTextMax) + " are possible",
                                            ""});
    }
    return value;
  }

  static Scalar<Value> read_paths(const DocumentNode& node) {
    if (node.kind != Kind::kSequence) {
      return tl::unexpected<ScalarProblem>(
          {ErrorCode::kConfigWrongType, "wants a list of paths, not " + kind_name(node), "as in [/srv/kernels]"});
    }
    if (node.items.size() > kPathsMax) {
      return tl::unexpected<ScalarProblem>({ErrorCode::kConfigOutOfRange,
                                            "has " + std::to_string(node.items.size()) + " paths; at most " +
                                                std::to_string(kPathsMax) + " are possible",
                                            ""});
    }
    std::vector<std::string> paths;
    for (const DocumentNode& item : node.items) {
      auto path = read_path(item);
      if (!path) return path;
      paths.push_back(std::get<std::string>(*path));
    }
    return Value(std::move(paths));
  }

  static Scalar<Value> read_path(const DocumentNode& node) {
    auto value = read_text(node, "a path");
    if (!value) return value;
    // Relative to what, and expanded by whom? So neither is accepted: it would mean something else to each reader.
    if (node.text.empty() || node.text[0] != '/') {
      return tl::unexpected<ScalarProblem>({ErrorCode::kConfigOutOfRange,
                                            "is '" + shown(node.text) + "', which is not an absolute path",
                                            "start it with '/'; '~' is not expanded"});
    }
    if (node.text.find('$') != std::string::npos) {
      return tl::unexpected<ScalarProblem>({ErrorCode::kConfigOutOfRange,
                                            "holds a '$': variables are not expanded in the cluster file",
                                            "write the path out"});
    }
    if (node.text.size() > 4000 || node.text.find('\n') != std::string::npos) {
      return tl::unexpected<ScalarProblem>(
          {ErrorCode::kConfigOutOfRange, "is not a path that the system takes", "one line of at most 4000 bytes"});
    }
    return value;
  }

  void no_value(const DocumentEntry& entry, const std::string& label, std::string hint) {
    findings_.error(ErrorCode::kConfigMissing, entry.at, entry.width(), label + " has no value", std::move(hint));
  }

  void unknown_key(const DocumentEntry& entry, const std::string& label,
                   const std::vector<const Field*>& section_fields, const std::vector<const Section*>& subsections) {
    std::vector<std::string_view> names;
    for (const Field* field : section_fields) names.push_back(field->key());
    for (const Section* sub : subsections) names.push_back(sub->key());
    std::string hint = "allowed keys are " + list_names(names);
    if (const std::string_view near = nearest_name(entry.key, names); !near.empty()) {
      hint = "did you mean '" + std::string(near) + "'?";
    } else if (entry.key == "<<") {
      hint = "merge keys are not supported: write the keys out";
    } else {
      for (const Field& field : fields()) {
        if (field.key() != entry.key || field.section().empty()) continue;
        hint = "the key '" + entry.key + "' belongs in " + std::string(field.section()) + "; " + hint;
        break;
      }
    }
    findings_.error(ErrorCode::kConfigUnknownKey, entry.at, entry.width(),
                    "unknown key '" + shown(entry.key) + "'" + (label.empty() ? " at the top level" : " in " + label),
                    std::move(hint));
  }

  std::uint64_t memory_bytes_;
  Findings& findings_;
  bool devices_seen_ = false;
};

}  // namespace

ClusterRead read_cluster(const DocumentNode& root, std::uint64_t memory_bytes, Findings& findings) {
  return Reader(memory_bytes, findings).read(root);
}

}  // namespace callboard::config
