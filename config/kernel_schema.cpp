#include "config/kernel_schema.h"

#include <algorithm>
#include <array>
#include <vector>

#include "config/scalars.h"
#include "messages/operator_name.h"

namespace callboard::config {

namespace {

constexpr std::string_view kExample = "as in \"my::scale(Tensor x, float factor=1.0) -> Tensor\"";
constexpr std::string_view kTypesHint =
    "tensors, numbers, texts, dtypes, layouts, devices and lists of tensors, numbers or texts travel";

/// Types that travel to a Python kernel; `listed`: also in a list; `returned`: also as a result.
struct KernelType {
  std::string_view name;
  bool listed = true;
  bool returned = false;
};
constexpr std::array kTypes{
    KernelType{"Tensor", true, true},   KernelType{"int", true, true},
    KernelType{"SymInt", true, true},   KernelType{"float", true, true},
    KernelType{"bool", true, true},     KernelType{"Scalar", true, false},
    KernelType{"complex", true, false}, KernelType{"str", true, false},
    KernelType{"Device", true, false},  KernelType{"ScalarType", false, false},
    KernelType{"Layout", false, false}, KernelType{"MemoryFormat", false, false},
};

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

/// One pass over the text; the first fault ends it.
class SchemaReader {
 public:
  explicit SchemaReader(std::string_view text) : text_(text) {}

  std::optional<SchemaProblem> run() {
    if (!name() || !arguments()) return problem_;
    if (!at_end() && !(takes("->") && results())) {
      if (!problem_) fails("has " + rest() + " where '->' and the results are expected");
      return problem_;
    }
    if (!at_end()) fails("goes on with " + rest() + " behind its results");
    return problem_;
  }

  std::string operator_name() { return name() ? name_ : std::string(); }

 private:
  void skip_spaces() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n')) ++at_;
  }
  bool at_end() {
    skip_spaces();
    return at_ == text_.size();
  }
  bool sees(std::string_view what) {
    skip_spaces();
    return text_.substr(at_).starts_with(what);
  }
  bool takes(std::string_view what) {
    if (!sees(what)) return false;
    at_ += what.size();
    return true;
  }
  std::string_view word() {
    skip_spaces();
    const std::size_t begin = at_;
    while (at_ < text_.size() && (is_letter(text_[at_]) || (at_ > begin && is_digit(text_[at_])))) ++at_;
    return text_.substr(begin, at_ - begin);
  }
  std::string rest() {
    return at_end() ? "nothing" : "'" + shown(text_.substr(at_, 20)) + (text_.size() - at_ > 20 ? "…'" : "'");
  }
  bool fails(std::string problem, std::string_view hint = kExample) {
    if (!problem_) problem_ = SchemaProblem{std::move(problem), std::string(hint)};
    return false;
  }

  bool name() {
    const std::string_view space = word();
    if (space.empty()) return fails("does not begin with an operator's name");
    if (!takes("::")) return fails("names no operator with a namespace");
    const std::string_view base = word();
    if (base.empty()) return fails("names no operator behind '" + std::string(space) + "::'");
    name_ = std::string(space) + "::" + std::string(base);
    if (takes(".")) {
      const std::string_view overload = word();
      if (overload.empty()) return fails("names no overload behind the '.'");
      if (overload == "default" || overload.starts_with("__")) {
        return fails("names the overload '" + shown(overload) + "', which none can be called",
                     "leave it out: what has no overload is what PyTorch shows as .default");
      }
      name_ += "." + std::string(overload);
    }
    if (is_reserved_namespace(space)) {
      return fails("takes the namespace '" + std::string(space) + "', which is not free",
                   "use your project's name there");
    }
    return true;
  }

  bool arguments() {
    if (!takes("(")) return fails("has " + rest() + " where '(' and the arguments are expected");
    if (takes(")")) return true;
    bool keywords = false;
    bool defaults = false;
    do {
      if (takes("*")) {
        keywords = true;
        continue;
      }
      if (sees("...")) return fails("has '...' among its arguments", "name each argument");
      Type type;
      if (!this->type(type)) return false;
      const std::string_view name = word();
      if (name.empty()) return fails("has " + rest() + " where the name of an argument is expected");
      if (takes("=")) {
        if (!value()) return fails("has no default value behind '" + shown(name) + "='");
        defaults = true;
      } else if (defaults && !keywords && !type.list) {
        return fails("has the argument '" + shown(name) + "' without a default behind one that has a default");
      }
    } while (takes(","));
    return takes(")") || fails("has " + rest() + " where ',' or ')' is expected");
  }

  bool results() {
    if (sees("...")) return fails("has '...' as its results", "name each result");
    if (!takes("(")) return result();
    if (takes(")")) return true;
    do {
      if (!result()) return false;
    } while (takes(","));
    return takes(")") || fails("has " + rest() + " where ',' or ')' is expected");
  }

  bool result() {
    Type type;
    if (!this->type(type)) return false;
    const auto* known = std::ranges::find(kTypes, type.name, &KernelType::name);
    if (!known->returned || (type.list && type.name != "Tensor")) {
      return fails("returns " + std::string(type.name) + (type.list ? "[]" : "") + ", which no value of a program is",
                   "tensors, lists of tensors, int, float and bool are");
    }
    word();  // a result may have a name
    return true;
  }

  struct Type {
    std::string_view name;
    bool list = false;
  };

  /// "Tensor(a!)?", "int[2]", "Tensor?[]", "Tensor(a)[]".
  bool type(Type& type) {
    skip_spaces();
    type.name = word();
    if (type.name.empty()) return fails("has " + rest() + " where a type is expected");
    const auto* known = std::ranges::find(kTypes, type.name, &KernelType::name);
    if (known == kTypes.end()) {
      std::vector<std::string_view> names;
      for (const KernelType& one : kTypes) names.push_back(one.name);
      const std::string_view near = nearest_name(type.name, names);
      return fails("has the type '" + shown(type.name) + "', which a Python kernel cannot have",
                   near.empty() ? std::string(kTypesHint) : "did you mean '" + std::string(near) + "'?");
    }
    if (!alias()) return false;
    while (true) {
      if (takes("?")) continue;
      if (!takes("[")) break;
      if (type.list && type.name == "Tensor") {
        return fails("has a list of lists of tensors, which a Python kernel cannot have", kTypesHint);
      }
      type.list = true;
      while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
      if (!takes("]")) return fails("has " + rest() + " where ']' is expected");
      if (!alias()) return false;
    }
    if (type.list && !known->listed) {
      return fails("has a list of " + std::string(type.name) + ", which a Python kernel cannot have", kTypesHint);
    }
    return true;
  }

  /// "(a)", "(a!)", "(a|b)", "(a -> *)", or nothing.
  bool alias() {
    if (!sees("(")) return true;
    takes("(");
    const auto sets = [this] {
      do {
        if (!takes("*") && word().empty()) return false;
      } while (takes("|"));
      return true;
    };
    bool good = sets();
    takes("!");  // or not
    good = good && (!takes("->") || sets()) && takes(")");
    return good || fails("has " + rest() + " where an alias as in (a!) is expected",
                         "Tensor(a!) for an argument that the function writes to");
  }

  /// Up to the ',' or ')' behind it. False where there is none.
  bool value() {
    skip_spaces();
    const std::size_t begin = at_;
    int depth = 0;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '"' || c == '\'') {
        ++at_;
        while (at_ < text_.size() && text_[at_] != c) at_ += text_[at_] == '\\' ? 2 : 1;
        at_ = std::min(at_ + 1, text_.size());
        continue;
      }
      if (depth == 0 && (c == ',' || c == ')')) break;
      if (c == '[' || c == '(') ++depth;
      if (c == ']' || c == ')') --depth;
      ++at_;
    }
    return at_ > begin;
  }

  const std::string_view text_;
  std::size_t at_ = 0;
  std::string name_;
  std::optional<SchemaProblem> problem_;
};

}  // namespace

std::optional<SchemaProblem> find_schema_problem(std::string_view schema) { return SchemaReader(schema).run(); }

std::string schema_operator(std::string_view schema) { return SchemaReader(schema).operator_name(); }

}  // namespace callboard::config
