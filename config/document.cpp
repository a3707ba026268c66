#include "config/document.h"

#include <algorithm>
#include <cstring>
#include <sstream>
#include <unordered_map>
#include <utility>

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

namespace callboard::config {
namespace {

/// Ends the parse from inside a yaml-cpp callback; the reason is among the findings already. Caught in read_document().
struct Refusal {};
/// The same where a list or a map begins in a key's place, for which there are two reasons.
struct BracketForKey {
  Position at;
};

/// Put behind the text. Where a file ends with a line break, yaml-cpp takes the end for a closing quote; with a comment
/// there it says that the quote is open.
constexpr std::string_view kEndMarker = "\n#";

/// Turns yaml-cpp's marks (lines and bytes from 0) into positions.
class Lines {
 public:
  explicit Lines(std::string_view text) : text_(text) {
    starts_.push_back(0);
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '\n') starts_.push_back(i + 1);
    }
  }
  Position position(const YAML::Mark& mark) const {
    if (mark.is_null() || mark.line < 0) return {};
    const auto line = std::min(static_cast<std::size_t>(mark.line), starts_.size() - 1);
    const std::size_t start = starts_[line];
    const std::size_t end = line + 1 < starts_.size() ? starts_[line + 1] : text_.size();
    // Behind the last line there is only the marker.
    const std::size_t column =
        line < static_cast<std::size_t>(mark.line) ? end - start : static_cast<std::size_t>(std::max(mark.column, 0));
    const std::size_t stop = std::min(end, start + column);
    return {static_cast<int>(line) + 1, characters(text_.substr(start, stop - start)) + 1};
  }
  Position position_at(std::size_t offset) const {
    const auto next = std::upper_bound(starts_.begin(), starts_.end(), offset);
    const auto line = static_cast<int>(next - starts_.begin());  // from 1
    const std::size_t start = *(next - 1);
    // The end of a text that ends with a line break is in its last line.
    if (start == text_.size() && line > 1) return {line - 1, characters(this->line(line - 1))};
    return {line, characters(text_.substr(start, offset - start)) + 1};
  }
  /// yaml-cpp marks an empty item of a block list with the token that follows it. Its dash is in the last line before
  /// that is neither blank nor a comment.
  Position position_of_empty_item(const YAML::Mark& mark) const {
    const Position at = position(mark);
    const std::string_view rest =
        line(at.line).substr(std::min(line(at.line).size(), static_cast<std::size_t>(std::max(mark.column, 0))));
    if (!rest.empty() && (rest[0] == '~' || rest[0] == 'n' || rest[0] == 'N')) return at;  // written out
    for (int number = at.line; number >= 1; --number) {
      const std::string_view before = line(number);
      const std::size_t first = before.find_first_not_of(" \r\n");
      if (first == std::string_view::npos || before[first] == '#' ||
          Position{number, static_cast<int>(first) + 1} >= at)
        continue;
      return before[first] == '-' ? Position{number, static_cast<int>(first) + 1} : at;
    }
    return at;
  }
  std::string_view line(int number) const {
    const auto index = static_cast<std::size_t>(number - 1);
    if (index >= starts_.size()) return {};
    const std::size_t end = index + 1 < starts_.size() ? starts_[index + 1] : text_.size();
    return text_.substr(starts_[index], end - starts_[index]);
  }

 private:
  std::string_view text_;
  std::vector<std::size_t> starts_;
};

class TreeBuilder final : public YAML::EventHandler {
 public:
  TreeBuilder(const Lines& lines, Findings& findings) : lines_(lines), findings_(findings) {}

  std::optional<DocumentNode> take() && { return std::move(root_); }

  /// Where the list or map begins that is being read; none between documents.
  std::optional<Position> open_collection() const {
    return stack_.empty() ? std::nullopt : std::optional(stack_.back().node.at);
  }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ < 2) return;
    refuse(lines_.position(mark), "the file holds a second document",
           "a cluster file is one document: remove the '---' between them");
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override {
    if (wants_key()) refuse(lines_.position(mark), "a key is empty", "write 'key: value'");
    DocumentNode node;
    // For "key:" yaml-cpp marks the token that follows, which may be lines away.
    node.at = stack_.empty() || !stack_.back().key ? lines_.position_of_empty_item(mark) : stack_.back().key->at;
    place(std::move(node));
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    const Position at = lines_.position(mark);
    if (wants_key()) refuse(at, "a key is an alias ('*')", kAliasHint);
    findings_.error(ErrorCode::kConfigSyntax, at, 1, "aliases ('*') are not allowed", kAliasHint);
    place(refused(at));
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t, const std::string& value) override {
    const Position at = lines_.position(mark);
    if (wants_key()) return take_key(at, value);
    check_tag(at, tag);
    DocumentNode node;
    node.kind = DocumentNode::Kind::kScalar;
    node.at = at;
    node.text = value;
    node.quoted = tag == "!";
    place(std::move(node));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    open(DocumentNode::Kind::kSequence, mark, tag);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t, YAML::EmitterStyle::value) override {
    open(DocumentNode::Kind::kMap, mark, tag);
  }
  void OnMapEnd() override { close(); }
  void OnAnchor(const YAML::Mark& mark, const std::string& name) override {
    findings_.error(ErrorCode::kConfigSyntax, lines_.position(mark), characters(name) + 1,
                    "anchors ('&') are not allowed", kAliasHint);
  }

 private:
  static constexpr const char* kAliasHint = "write the value out where it is used";

  struct Frame {
    DocumentNode node;
    std::optional<DocumentEntry> key;  ///< of a map: read, its value is awaited
    bool keep = true;                  ///< of that key: false for a duplicate
    std::unordered_map<std::string, Position> seen;
  };

  static DocumentNode refused(Position at) {
    DocumentNode node;
    node.kind = DocumentNode::Kind::kRefused;
    node.at = at;
    return node;
  }
  [[noreturn]] void refuse(Position at, std::string message, std::string hint) {
    findings_.error(ErrorCode::kConfigSyntax, at, 1, std::move(message), std::move(hint));
    throw Refusal{};
  }
  bool wants_key() const {
    return !stack_.empty() && stack_.back().node.kind == DocumentNode::Kind::kMap && !stack_.back().key;
  }
  void count(Position at) {
    if (++nodes_ > kDocumentNodesMax) {
      refuse(at, "more than " + std::to_string(kDocumentNodesMax) + " keys and values",
             "use 'count' for devices that are alike");
    }
  }
  void check_tag(Position at, const std::string& tag) {
    if (tag.empty() || tag == "?" || tag == "!") return;
    findings_.error(ErrorCode::kConfigSyntax, at, 1, "tags are not allowed ('" + tag + "')",
                    "remove it: the key says what its value is");
  }
  void take_key(Position at, const std::string& key) {
    count(at);
    Frame& frame = stack_.back();
    frame.key = DocumentEntry{key, at, {}};
    const auto [first, fresh] = frame.seen.try_emplace(key, at);
    frame.keep = fresh;
    if (fresh) return;
    findings_.error(ErrorCode::kConfigDuplicateKey, at, characters(key),
                    "key '" + key + "' is there twice: first in line " + std::to_string(first->second.line) +
                        ", again in line " + std::to_string(at.line),
                    "keep one of them");
  }
  void open(DocumentNode::Kind kind, const YAML::Mark& mark, const std::string& tag) {
    const Position at = lines_.position(mark);
    if (wants_key()) throw BracketForKey{at};
    if (stack_.size() >= kDocumentDepthMax) {
      refuse(at, "nested deeper than " + std::to_string(kDocumentDepthMax) + " levels", "the cluster file needs 4");
    }
    check_tag(at, tag);
    count(at);
    Frame frame;
    frame.node.kind = kind;
    frame.node.at = at;
    stack_.push_back(std::move(frame));
  }
  void close() {
    DocumentNode node = std::move(stack_.back().node);
    stack_.pop_back();
    attach(std::move(node));
  }
  void place(DocumentNode node) {
    count(node.at);
    attach(std::move(node));
  }
  void attach(DocumentNode node) {
    if (stack_.empty()) {
      root_ = std::move(node);
      return;
    }
    Frame& frame = stack_.back();
    if (frame.node.kind == DocumentNode::Kind::kSequence) {
      frame.node.items.push_back(std::move(node));
      return;
    }
    frame.key->value = std::move(node);
    if (frame.keep) frame.node.entries.push_back(std::move(*frame.key));
    frame.key.reset();
  }

  const Lines& lines_;
  Findings& findings_;
  std::optional<DocumentNode> root_;
  std::vector<Frame> stack_;
  std::size_t nodes_ = 0;
  int documents_ = 0;
};

/// yaml-cpp takes byte 0x04 for the end of the file and guesses UTF-16 from zero bytes, in silence: so the text is
/// checked before it sees it.
bool check_characters(std::string_view text, const Lines& lines, Findings& findings) {
  int line = 0;
  std::size_t line_start = 0;
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const std::size_t length = utf8_length(text, i);
    const bool control = (byte < 0x20 && byte != '\n' && byte != '\r' && byte != '\t') || byte == 0x7f;
    if (length == 0 || control) {
      YAML::Mark mark;
      mark.line = line;
      mark.column = static_cast<int>(i - line_start);
      const bool binary = text.find('\0') != std::string_view::npos;
      findings.error(
          ErrorCode::kConfigSyntax, lines.position(mark), 1,
          length == 0 ? "the file is not UTF-8 here" : "a control character (code " + std::to_string(byte) + ")",
          length == 0 ? "save it as UTF-8"
          : binary    ? "is it the right file? It is not text"
                      : "remove it");
      return false;
    }
    if (byte == '\n') {
      ++line;
      line_start = i + 1;
    }
    i += length;
  }
  return true;
}

struct OpenBracket {
  std::size_t at = 0;    // where it stands
  std::size_t seen = 0;  // where it should have been closed at the latest
};

/// For messages: the innermost bracket that is still open at the end of the text, or where another one is closed.
std::optional<OpenBracket> open_bracket(std::string_view text) {
  std::vector<std::size_t> open;
  char before = '\n';  // the last character that is no blank: brackets inside of plain text are text
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool starts = std::string_view("\n:-,[{?").find(before) != std::string_view::npos;
    if ((c == '"' || c == '\'') && starts) {
      for (++i; i < text.size() && text[i] != c; ++i) i += c == '"' && text[i] == '\\' ? 1 : 0;
    } else if (c == '#' && (i == 0 || std::string_view(" \t\n").find(text[i - 1]) != std::string_view::npos)) {
      i = std::min(text.find('\n', i), text.size());
    } else if ((c == '[' || c == '{') && starts) {
      open.push_back(i);
    } else if ((c == ']' || c == '}') && !open.empty()) {
      if (text[open.back()] != (c == ']' ? '[' : '{')) return OpenBracket{open.back(), i};
      open.pop_back();
    }
    if (c != ' ' && c != '\t' && c != '\r') before = c;
  }
  if (open.empty()) return std::nullopt;
  return OpenBracket{open.back(), text.size()};
}

void report_open_bracket(const OpenBracket& bracket, std::string_view text, const Lines& lines, Findings& findings) {
  const std::string line = std::to_string(lines.position_at(bracket.seen).line);
  findings.error(ErrorCode::kConfigSyntax, lines.position_at(bracket.at), 1,
                 std::string("'") + text[bracket.at] + "' is not closed: at line " + line + " it still stands open",
                 "close it, or look for a comma that is missing before line " + line);
}

std::string syntax_hint(std::string_view problem, std::string_view line) {
  if (problem.find("EOF in scalar") != std::string_view::npos) return "a quote is opened further up and not closed";
  const std::size_t indent = line.find_first_not_of(" \t");
  if (line.substr(0, indent).find('\t') != std::string_view::npos)
    return "indent with spaces: YAML does not allow tabs there";
  return "look at the indentation, and for a ':' or a bracket that is missing or too much";
}

}  // namespace

std::size_t utf8_length(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || at + length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const bool overlong = (first == 0xe0 && byte(1) < 0xa0) || (first == 0xf0 && byte(1) < 0x90);
  const bool outside = (first == 0xed && byte(1) > 0x9f) || (first == 0xf4 && byte(1) > 0x8f);
  return overlong || outside ? 0 : length;
}

int characters(std::string_view text) {
  return static_cast<int>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

int DocumentNode::width() const { return kind == Kind::kScalar ? std::max(1, characters(text) + (quoted ? 2 : 0)) : 1; }

int DocumentEntry::width() const { return std::max(1, characters(key)); }

std::optional<DocumentNode> read_document(std::string_view text, Findings& findings) {
  if (text.size() > kFileBytesMax) {
    findings.error(ErrorCode::kConfigSyntax, {}, 1,
                   "the file has " + std::to_string(text.size()) + " bytes; at most " + std::to_string(kFileBytesMax) +
                       " are read");
    return std::nullopt;
  }
  if (text.substr(0, 3) == "\xef\xbb\xbf") text.remove_prefix(3);
  const Lines lines(text);
  if (!check_characters(text, lines, findings)) return std::nullopt;
  TreeBuilder builder(lines, findings);
  try {
    std::istringstream stream(std::string(text) + std::string(kEndMarker));
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const Refusal&) {
    return std::nullopt;
  } catch (const BracketForKey& found) {
    if (const auto bracket = open_bracket(text)) {
      report_open_bracket(*bracket, text, lines, findings);
    } else {
      findings.error(ErrorCode::kConfigSyntax, found.at, 1, "a key is a list or a map",
                     "a key is plain text, as in 'key: value'");
    }
    return std::nullopt;
  } catch (const YAML::Exception& e) {
    const Position at = lines.position(e.mark);
    const auto opened = builder.open_collection();
    if (opened && e.msg.find("flow not found") != std::string::npos) {
      const std::string bracket = e.msg.find("map") != std::string::npos ? "'{'" : "'['";
      findings.error(ErrorCode::kConfigSyntax, *opened, 1,
                     bracket + " is not closed: at line " + std::to_string(at.line) + " it still stands open",
                     "close it, or look for a comma that is missing before line " + std::to_string(at.line));
      return std::nullopt;
    }
    if (const auto bracket = open_bracket(text); bracket && e.msg.find("EOF in scalar") == std::string::npos) {
      report_open_bracket(*bracket, text, lines, findings);
      return std::nullopt;
    }
    findings.error(ErrorCode::kConfigSyntax, at, 1, "this is not YAML: " + e.msg,
                   syntax_hint(e.msg, lines.line(at.line)));
    return std::nullopt;
  }
  return std::move(builder).take();
}

}  // namespace callboard::config
