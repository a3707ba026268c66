// A YAML (or JSON) text as an owned tree with positions. Built from yaml-cpp's event stream, not from its nodes: those
// drop duplicate keys, follow aliases and change when they are read.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/findings.h"

namespace callboard::config {

constexpr std::size_t kFileBytesMax = 1u << 20;  // a cluster file of 200 devices has about 20 KiB
constexpr std::size_t kDocumentDepthMax = 32;    // the schema needs 4
constexpr std::size_t kDocumentNodesMax = 10'000;

/// Of UTF-8 text, as a reader counts columns.
int characters(std::string_view text);
/// Bytes of the UTF-8 sequence at `text[at]`, 0 if it is not one (overlong forms and surrogates included).
std::size_t utf8_length(std::string_view text, std::size_t at);

struct DocumentEntry;

struct DocumentNode {
  enum class Kind { kNull, kScalar, kSequence, kMap, kRefused };  ///< kRefused: reported already, to be passed over
  Kind kind = Kind::kNull;
  Position at;
  std::string text;     ///< of a scalar, as written (quotes and escapes resolved)
  bool quoted = false;  ///< quotes mean text: never a number, never a boolean
  std::vector<DocumentNode> items;
  std::vector<DocumentEntry> entries;  ///< in the order of the file; keys are unique

  /// Characters to underline.
  int width() const;
};

struct DocumentEntry {
  std::string key;
  Position at;
  DocumentNode value;

  int width() const;  ///< of the key, without quotes that it may have
};

/// Reads the one document of `text`. Syntax errors, duplicate keys, anchors, aliases, tags, further documents and every
/// bound above become findings. No value: nothing in it can be used (the findings say why).
std::optional<DocumentNode> read_document(std::string_view text, Findings& findings);

}  // namespace callboard::config
