#include "tools/callboard/console.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "config/scalars.h"
#include "tools/callboard/exit_codes.h"

namespace callboard::cli {
namespace {

std::string_view escape_of(Style style) {
  switch (style) {
    case Style::kPlain:
      return "";
    case Style::kBold:
      return "\x1b[1m";
    case Style::kGood:
      return "\x1b[32m";
    case Style::kWarn:
      return "\x1b[33m";
    case Style::kBad:
      return "\x1b[31;1m";
    case Style::kDim:
      return "\x1b[2m";
  }
  return "";
}

std::string styled(bool colour, Style style, std::string_view text) {
  if (!colour || style == Style::kPlain) return std::string(text);
  return std::string(escape_of(style)) + std::string(text) + "\x1b[0m";
}

std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

std::string harmless(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return text;
}

std::atomic<int> stdout_problem{0};  // errno of the first write that failed, but for a reader that went

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && fd == STDOUT_FILENO && errno != EPIPE) {
      int none = 0;
      stdout_problem.compare_exchange_strong(none, errno);
    }
    if (written <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace

int exit_code_of(const Error& error) {
  switch (error.code) {
    case ErrorCode::kOk:
      return kExitOk;
    case ErrorCode::kNotReady:
      return kExitNotReady;
    case ErrorCode::kStartFailed:
    case ErrorCode::kClusterNotFound:
      return kExitFailed;
    default:
      break;
  }
  switch (error_class(error.code)) {
    case ErrorClass::kConfig:
      return kExitUsage;
    case ErrorClass::kEnvironment:
      return kExitEnvironment;
    default:
      return kExitFailed;
  }
}

Console Console::detect() {
  const char* no_color = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  const bool wanted = (no_color == nullptr || *no_color == '\0') && term != nullptr && std::string_view(term) != "dumb";
  Console console;
  console.colour_out = wanted && isatty(STDOUT_FILENO) == 1;
  console.colour_err = wanted && isatty(STDERR_FILENO) == 1;
  return console;
}

std::string Console::out(Style style, std::string_view text) const { return styled(colour_out, style, text); }
std::string Console::err(Style style, std::string_view text) const { return styled(colour_err, style, text); }

void Table::add(std::vector<std::string> cells, Style style) {
  cells.resize(header_.size());
  for (std::string& cell : cells) cell = harmless(std::move(cell));
  rows_.push_back({std::move(cells), style});
}

std::string Table::text(const Console& console, std::size_t styled_column) const {
  std::vector<std::size_t> widths;
  for (const std::string& cell : header_) widths.push_back(width_of(cell));
  for (const Row& row : rows_) {
    for (std::size_t i = 0; i < widths.size(); ++i) widths[i] = std::max(widths[i], width_of(row.cells[i]));
  }
  std::string out;
  const auto add_row = [&](const std::vector<std::string>& cells, auto style_of) {
    for (std::size_t i = 0; i < cells.size(); ++i) {
      out += console.out(style_of(i), cells[i]);
      if (i + 1 < cells.size()) out += std::string(widths[i] - width_of(cells[i]) + 2, ' ');
    }
    out += "\n";
  };
  add_row(header_, [](std::size_t) { return Style::kBold; });
  for (const Row& row : rows_) {
    add_row(row.cells, [&](std::size_t i) { return i == styled_column ? row.style : Style::kPlain; });
  }
  return out;
}

void print(std::string_view text) { write_all(STDOUT_FILENO, text); }
int checked_output(int code) {
  const int problem = stdout_problem.load();
  if (problem == 0) return code;
  note(std::string("callboard: the output could not be written: ") + std::strerror(problem));
  return code == kExitOk ? kExitFailed : code;
}
void print_line(std::string_view text) { print(std::string(text) + "\n"); }
void note(std::string_view text) { write_all(STDERR_FILENO, std::string(text) + (text.ends_with('\n') ? "" : "\n")); }

nlohmann::json error_json(const Error& error) {
  nlohmann::json out{
      {"code", static_cast<int>(error.code)}, {"name", error_name(error.code)}, {"message", error.message}};
  if (!error.hint.empty()) out["hint"] = error.hint;
  if (!error.actor.empty()) out["actor"] = error.actor;
  if (!error.op.empty()) out["op"] = error.op;
  if (error.node >= 0) out["node"] = error.node;
  if (!error.detail.empty()) out["detail"] = error.detail;
  for (const Error& cause : error.causes) out["causes"].push_back(error_json(cause));
  return out;
}

std::string dump(const nlohmann::json& value) {
  return value.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

int report(const Error& error, const Console& console) {
  note(console.err(Style::kBad, "callboard: ") + error.to_string());
  if (console.json) print_line(dump({{"ok", false}, {"error", error_json(error)}}));
  return exit_code_of(error);
}

std::string size_text(std::uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  std::size_t unit = 0;
  double value = static_cast<double>(bytes);
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 || value >= 100 ? "%.0f %s" : "%.3g %s", value, kUnits[unit]);
  return text;
}

std::string time_text(std::chrono::milliseconds time) {
  const auto ms = time.count();
  char text[48];
  if (ms < 1'000) {
    std::snprintf(text, sizeof text, "%lld ms", static_cast<long long>(ms));
  } else if (ms < 60'000) {
    std::snprintf(text, sizeof text, "%.1f s", static_cast<double>(ms) / 1000);
  } else {
    std::snprintf(text, sizeof text, "%lld min %lld s", static_cast<long long>(ms / 60'000),
                  static_cast<long long>(ms / 1000 % 60));
  }
  return text;
}

Result<std::chrono::milliseconds> parse_duration(const std::string& option, const std::string& text) {
  config::DocumentNode node;
  node.kind = config::DocumentNode::Kind::kScalar;
  node.text = text;
  auto value = config::read_duration(node);
  if (!value) return fail(ErrorCode::kUsage, option + " " + value.error().problem, value.error().hint);
  return *value;
}

}  // namespace callboard::cli
