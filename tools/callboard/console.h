// What the command line prints: tables, errors, JSON. Results go to stdout, everything else to stderr.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "messages/base/error.h"

namespace callboard::cli {

enum class Style { kPlain, kBold, kGood, kWarn, kBad, kDim };

/// How this invocation prints. Colour only on a terminal, and never if NO_COLOR is set.
struct Console {
  bool json = false;
  bool colour_out = false;
  bool colour_err = false;

  static Console detect();
  std::string out(Style style, std::string_view text) const;  ///< for stdout
  std::string err(Style style, std::string_view text) const;  ///< for stderr
};

/// Aligned columns, two spaces between them. Control characters of cells are replaced: they may come from outside.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : header_(std::move(header)) {}
  void add(std::vector<std::string> cells, Style first = Style::kPlain);
  /// The styled column is that of `styled_column`; the header is bold.
  std::string text(const Console& console, std::size_t styled_column) const;

 private:
  struct Row {
    std::vector<std::string> cells;
    Style style = Style::kPlain;
  };
  std::vector<std::string> header_;
  std::vector<Row> rows_;
};

/// stdout in one write; a closed pipe (`| head`) is no error.
void print(std::string_view text);
void print_line(std::string_view text);
/// At a command's end: its exit status, or "failed" where it said something on stdout that could not be written (a disk
/// that is full; a reader that went is none of it).
int checked_output(int code);
/// stderr, as a line.
void note(std::string_view text);

/// Prints the error (stderr; with -o json also as {"ok": false, "error": …} on stdout) and returns its exit code.
int report(const Error& error, const Console& console);

nlohmann::json error_json(const Error& error);
/// JSON whose texts need not be UTF-8.
std::string dump(const nlohmann::json& value);

/// "512 MiB", "1.5 GiB".
std::string size_text(std::uint64_t bytes);
/// "0.4 s", "2 min 3 s".
std::string time_text(std::chrono::milliseconds time);
/// kUsage unless it is a number with a unit ("30s").
Result<std::chrono::milliseconds> parse_duration(const std::string& option, const std::string& text);

}  // namespace callboard::cli
