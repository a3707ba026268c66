#include "tools/callboard/log_lines.h"

#include <charconv>
#include <optional>

namespace callboard::cli {
namespace {

/// A line of ours begins "TIME LEVEL NAME#START ": messages/base/log.cpp.
std::optional<Incarnation> start_of(std::string_view line, std::string_view name) {
  for (int field = 0; field < 2; ++field) {
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos) return std::nullopt;
    line.remove_prefix(space + 1);
  }
  if (!line.starts_with(name)) return std::nullopt;
  line.remove_prefix(name.size());
  if (!line.starts_with('#')) return std::nullopt;
  line.remove_prefix(1);
  Incarnation number = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), number);
  const bool whole = end == line.data() + line.size() || *end == ' ';
  return error == std::errc() && whole ? std::optional(number) : std::nullopt;
}

}  // namespace

std::string printable_line(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  std::string out(line);
  for (char& c : out) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\t') || byte == 0x7f) c = ' ';
  }
  return out;
}

std::vector<std::string> take_lines(std::string& text) {
  std::vector<std::string> lines;
  std::size_t begin = 0;
  for (std::size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', begin)) {
    lines.push_back(printable_line(std::string_view(text).substr(begin, end - begin)));
    begin = end + 1;
  }
  text.erase(0, begin);
  return lines;
}

std::vector<std::string> of_start(std::vector<std::string> lines, std::string_view name, Incarnation start,
                                  Incarnation& at) {
  if (start == 0) return lines;
  std::vector<std::string> out;
  for (std::string& line : lines) {
    at = start_of(line, name).value_or(at);
    if (at == start) out.push_back(std::move(line));
  }
  return out;
}

}  // namespace callboard::cli
