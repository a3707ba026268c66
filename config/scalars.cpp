#include "config/scalars.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

#include "messages/base/names.h"

namespace callboard::config {
namespace {

struct Unit {
  std::string_view name;
  std::uint64_t factor;
};
constexpr std::array<Unit, 4> kDurationUnits{{{"ms", 1}, {"s", 1'000}, {"min", 60'000}, {"h", 3'600'000}}};
constexpr std::array<Unit, 5> kSizeUnits{
    {{"B", 1}, {"KiB", 1ull << 10}, {"MiB", 1ull << 20}, {"GiB", 1ull << 30}, {"TiB", 1ull << 40}}};

tl::unexpected<ScalarProblem> problem(ErrorCode code, std::string text, std::string hint = {}) {
  return tl::unexpected<ScalarProblem>({code, std::move(text), std::move(hint)});
}

std::optional<ScalarProblem> not_one_value(const DocumentNode& node, std::string_view wanted) {
  if (node.kind == DocumentNode::Kind::kScalar) return std::nullopt;
  const char* found = node.kind == DocumentNode::Kind::kSequence ? "a list" : "a map";
  return ScalarProblem{ErrorCode::kConfigWrongType, "wants " + std::string(wanted) + ", not " + found, {}};
}

/// Digits without sign; kOutOfRange where 64 bits do not hold them.
Scalar<std::uint64_t> read_digits(std::string_view digits) {
  if (digits.size() > 1 && digits[0] == '0') {
    const std::size_t first = digits.find_first_not_of('0');
    const std::string plain(first == std::string_view::npos ? "0" : digits.substr(first));
    return problem(ErrorCode::kConfigWrongType, "has a leading zero: " + shown(digits),
                   "write " + plain + " (elsewhere a leading zero means octal, so it is refused)");
  }
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size()) {
    return problem(ErrorCode::kConfigOutOfRange, "is too large: " + shown(digits));
  }
  return value;
}

std::string int_hint(std::string_view text) {
  if (text.find('_') != std::string_view::npos) return "write the digits without '_'";
  if (text.empty()) return {};
  if (text[0] == '0' && text.find_first_of("xXoObB") == 1) return "write it in decimal";
  if (text[0] == '+') return "write it without '+'";
  if (is_digit(text[0]) && text.find_first_of(".eE") != std::string_view::npos)
    return "a whole number has no '.' and no exponent";
  return {};
}

template <std::size_t N>
Scalar<std::uint64_t> read_with_unit(std::string_view text, const std::array<Unit, N>& units, std::string_view wanted,
                                     std::string_view example) {
  std::size_t end = 0;
  while (end < text.size() && is_digit(text[end])) ++end;
  const std::string units_text = [&] {
    std::vector<std::string_view> names;
    for (const Unit& unit : units) names.push_back(unit.name);
    return list_names(names);
  }();
  if (end == 0) {
    return problem(ErrorCode::kConfigWrongType,
                   "wants " + std::string(wanted) + " such as " + std::string(example) + ", not '" + shown(text) + "'");
  }
  const std::string_view digits = text.substr(0, end);
  std::string_view name = text.substr(end);
  if (name.empty()) {
    return problem(ErrorCode::kConfigBadUnit, "needs a unit: '" + shown(text) + "'",
                   "units are " + units_text + ", as in " + std::string(example));
  }
  if (name[0] == '.') {
    return problem(ErrorCode::kConfigWrongType, "wants a whole number with a unit, not '" + shown(text) + "'",
                   "take the next smaller unit, as in " + std::string(example));
  }
  const auto unit = std::find_if(units.begin(), units.end(), [&](const Unit& u) { return u.name == name; });
  if (unit == units.end()) {
    std::string hint = "units are " + units_text;
    const std::size_t start = name.find_first_not_of(' ');
    if (start != 0 && start != std::string_view::npos) hint = "no space before the unit";
    for (const Unit& u : units) {
      if (u.factor >= 1024 && u.factor % 1024 == 0 && std::tolower(u.name[0]) == std::tolower(name[0])) {
        hint = "did you mean " + std::string(digits) + std::string(u.name) + " (powers of 1024)?";
      }
    }
    return problem(ErrorCode::kConfigBadUnit, "has an unknown unit '" + shown(name) + "'", hint);
  }
  auto value = read_digits(digits);
  if (!value) return value;
  // Signed 64 bits, because durations are.
  if (*value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) / unit->factor) {
    return problem(ErrorCode::kConfigOutOfRange, "is too large: " + shown(text));
  }
  return *value * unit->factor;
}

std::string write_in(std::uint64_t value, std::string_view zero, const Unit* units, std::size_t count) {
  if (value == 0) return std::string(zero);
  const Unit* best = units;
  for (const Unit* unit = units; unit != units + count; ++unit) {
    if (value % unit->factor == 0) best = unit;
  }
  return std::to_string(value / best->factor) + std::string(best->name);
}

}  // namespace

std::string shown(std::string_view text) {
  constexpr std::size_t kBytesMax = 60;
  std::string out(text.substr(0, kBytesMax));
  // Never end inside a character.
  if (text.size() > kBytesMax) {
    while (!out.empty() && (static_cast<unsigned char>(out.back()) & 0xc0) == 0x80) out.pop_back();
    if (!out.empty() && static_cast<unsigned char>(out.back()) >= 0x80) out.pop_back();
    out += "…";
  }
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return out;
}

Scalar<bool> read_bool(const DocumentNode& node) {
  if (auto wrong = not_one_value(node, "true or false")) return tl::unexpected<ScalarProblem>(*wrong);
  if (!node.quoted && node.text == "true") return true;
  if (!node.quoted && node.text == "false") return false;
  std::string lower = node.text;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](char c) { return static_cast<char>(std::tolower(c)); });
  std::string hint = "write true or false";
  if (lower == "yes" || lower == "on" || lower == "y" || lower == "true") hint = "write true";
  if (lower == "no" || lower == "off" || lower == "n" || lower == "false") hint = "write false";
  if (node.quoted) hint += ", without quotes";
  return problem(ErrorCode::kConfigWrongType,
                 "wants true or false, not " +
                     (node.quoted ? "the text \"" + shown(node.text) + "\"" : "'" + shown(node.text) + "'"),
                 hint);
}

Scalar<std::int64_t> read_int(const DocumentNode& node) {
  if (auto wrong = not_one_value(node, "a whole number")) return tl::unexpected<ScalarProblem>(*wrong);
  const bool negative = !node.text.empty() && node.text[0] == '-';
  const std::string_view digits = std::string_view(node.text).substr(negative ? 1 : 0);
  const bool number = !digits.empty() && std::all_of(digits.begin(), digits.end(), is_digit);
  if (node.quoted) {
    return problem(ErrorCode::kConfigWrongType,
                   "wants a whole number, but \"" + shown(node.text) + "\" is text because of its quotes",
                   number ? "remove the quotes" : "");
  }
  if (!number)
    return problem(ErrorCode::kConfigWrongType, "wants a whole number, not '" + shown(node.text) + "'",
                   int_hint(node.text));
  auto value = read_digits(digits);
  if (!value) return tl::unexpected<ScalarProblem>(value.error());
  if (*value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    return problem(ErrorCode::kConfigOutOfRange, "is too large: " + shown(node.text));
  }
  return negative ? -static_cast<std::int64_t>(*value) : static_cast<std::int64_t>(*value);
}

Scalar<std::chrono::milliseconds> read_duration(const DocumentNode& node) {
  if (auto wrong = not_one_value(node, "a duration such as 500ms or 3s")) return tl::unexpected<ScalarProblem>(*wrong);
  auto value = read_with_unit(node.text, kDurationUnits, "a duration", "500ms or 3s");
  if (!value) return tl::unexpected<ScalarProblem>(value.error());
  return std::chrono::milliseconds(static_cast<std::int64_t>(*value));
}

Scalar<std::uint64_t> read_size(const DocumentNode& node, std::uint64_t whole) {
  if (auto wrong = not_one_value(node, "a size such as 512MiB")) return tl::unexpected<ScalarProblem>(*wrong);
  const std::string_view text = node.text;
  if (whole == 0 || text.empty() || text.back() != '%')
    return read_with_unit(text, kSizeUnits, "a size", "512MiB or 4GiB");
  const std::string_view digits = text.substr(0, text.size() - 1);
  if (digits.empty() || !std::all_of(digits.begin(), digits.end(), is_digit)) {
    return problem(ErrorCode::kConfigWrongType, "wants a whole percentage such as 50%, not '" + shown(text) + "'");
  }
  auto percent = read_digits(digits);
  if (!percent) return percent;
  if (*percent < 1 || *percent > 100) {
    return problem(ErrorCode::kConfigOutOfRange,
                   "is " + shown(text) + "; allowed is 1% to 100% of the machine's memory");
  }
  return whole / 100 * *percent;
}

std::string write_duration(std::chrono::milliseconds duration) {
  return write_in(static_cast<std::uint64_t>(duration.count()), "0s", kDurationUnits.data(), kDurationUnits.size());
}
std::string write_size(std::uint64_t bytes) { return write_in(bytes, "0B", kSizeUnits.data(), kSizeUnits.size()); }

std::string_view nearest_name(std::string_view word, const std::vector<std::string_view>& names) {
  std::string_view best;
  std::size_t best_distance = 3;
  for (std::string_view name : names) {
    // Of two very short words any is near any: those must share all but one character.
    const std::size_t allowed = std::min<std::size_t>(2, (std::min(name.size(), word.size()) + 1) / 3);
    if (word.size() > name.size() + 2 || name.size() > word.size() + 2) continue;
    const std::size_t distance = edit_distance(word, name);
    if (distance <= allowed && distance < best_distance) {
      best = name;
      best_distance = distance;
    }
  }
  return best;
}

std::string list_names(const std::vector<std::string_view>& names) {
  std::string out;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i > 0) out += i + 1 == names.size() ? " and " : ", ";
    out += names[i];
  }
  return out;
}

}  // namespace callboard::config
