// Random values of every type of the schema, and random valid programs, from a seed. Header only.
#pragma once

#include <complex>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>

#include "messages/codec_values.h"
#include "messages/graph.h"
#include "messages/protocol.h"

namespace callboard::test {

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}

  std::uint64_t bits() { return engine_(); }
  /// 0 … end - 1. Not std::uniform_int_distribution: its numbers differ between standard libraries.
  std::size_t below(std::size_t end) { return static_cast<std::size_t>(engine_() % end); }
  bool chance(unsigned percent) { return below(100) < percent; }
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(below(static_cast<std::size_t>(high - low) + 1));
  }

  /// Of all magnitudes, and the ends of the range.
  std::uint64_t natural() {
    if (chance(5)) return std::numeric_limits<std::uint64_t>::max();
    return engine_() >> below(64);
  }
  /// Any bit pattern, with the special values more often. NaNs too, which are equal to nothing.
  double real() {
    constexpr double kSpecial[] = {0.0,
                                   -0.0,
                                   1.0,
                                   0.1,
                                   std::numeric_limits<double>::infinity(),
                                   -std::numeric_limits<double>::infinity(),
                                   std::numeric_limits<double>::quiet_NaN(),
                                   std::numeric_limits<double>::denorm_min(),
                                   9007199254740993.0};
    if (chance(50)) return kSpecial[below(std::size(kSpecial))];
    const std::uint64_t pattern = engine_();
    double value = 0;
    std::memcpy(&value, &pattern, sizeof(value));
    return value;
  }
  std::string text(std::size_t most = 24) {
    constexpr std::string_view kPieces[] = {"a", "Z", "_", "0", ".", " ", "\n", "é", "…", "𝛼", "\"", "::"};
    std::string made;
    for (std::size_t i = below(most + 1); i > 0; --i) made += kPieces[below(std::size(kPieces))];
    return chance(3) ? made + std::string(300, 'x') : made;
  }
  std::string bytes(std::size_t count) {
    std::string made(count, '\0');
    for (char& byte : made) byte = static_cast<char>(engine_());
    return made;
  }

 private:
  std::mt19937_64 engine_;
};

// -- any value that the codec can carry ----------------------------------------------------------------------------

template <class T>
void fill(Random& random, T& value);

inline void fill(Random& random, ContentHash& hash) {
  hash = *ContentHash::from_bytes(random.chance(80) ? random.bytes(32) : "");
}

inline void fill(Random& random, Expr& expr) {
  constexpr ExprOp kBinary[] = {ExprOp::kAdd, ExprOp::kSub, ExprOp::kMul, ExprOp::kFloorDiv, ExprOp::kMod,
                                ExprOp::kMin, ExprOp::kMax, ExprOp::kPow, ExprOp::kEq,       ExprOp::kAnd};
  expr.terms.clear();
  for (std::size_t depth = 0; depth < 1 || random.chance(40);) {
    if (depth >= 2 && random.chance(60)) {
      expr.terms.push_back({kBinary[random.below(std::size(kBinary))], 0});
      --depth;
    } else if (depth >= 1 && random.chance(10)) {
      expr.terms.push_back({ExprOp::kNot, 0});
    } else {
      expr.terms.push_back({static_cast<ExprOp>(random.below(3)), static_cast<std::int64_t>(random.natural())});
      ++depth;
    }
    if (expr.terms.size() > 100) break;
  }
}

inline void fill_error(Random& random, Error& error, int depth) {
  error.code = static_cast<ErrorCode>(random.below(1000));
  for (std::string* text : {&error.message, &error.hint, &error.actor, &error.op, &error.detail}) *text = random.text();
  error.node = static_cast<std::int64_t>(random.natural());
  error.causes.clear();
  if (depth >= 4) return;
  for (std::size_t i = random.chance(30) ? random.below(3) : 0; i > 0; --i) {
    fill_error(random, error.causes.emplace_back(), depth + 1);
  }
}
inline void fill(Random& random, Error& error) { fill_error(random, error, 0); }

inline TensorMeta random_meta(Random& random) {
  TensorMeta meta;
  meta.dtype = static_cast<DType>(1 + random.below(kDTypeCount - 1));
  std::vector<std::int64_t> sizes;
  for (std::size_t i = random.below(5); i > 0; --i) sizes.push_back(random.between(0, 4));
  meta.strides = TensorMeta::contiguous_strides(sizes);
  meta.sizes = std::move(sizes);
  if (random.chance(30)) meta.storage_offset = random.between(0, 9);
  if (random.chance(30)) {
    for (std::int64_t& stride : meta.strides) stride = random.between(0, 9);
  }
  return meta;
}

inline void fill(Random& random, TensorHandle& handle) {
  handle.meta = random_meta(random);
  const std::uint64_t extent = handle.meta.extent_bytes().value();
  const std::uint64_t bytes = extent + random.below(100);
  const ActorId owner{"cpu" + std::to_string(random.below(4)), random.natural()};
  switch (random.below(3)) {
    case 0:
      handle.data = InlineBytes{random.bytes(static_cast<std::size_t>(bytes))};
      break;
    case 1:
      handle.data = ArenaBlock{owner, random.natural(), random.natural() >> 8, bytes, random.natural()};
      break;
    default:
      handle.data = CudaIpcBlock{
          owner, random.natural(), random.natural() >> 8, bytes, random.natural(), random.natural(), random.bytes(144)};
  }
}

template <class T>
void fill(Random& random, std::vector<T>& items) {
  items.clear();
  for (std::size_t i = random.below(4); i > 0; --i) {
    T item{};
    fill(random, item);
    items.push_back(std::move(item));
  }
}
template <class T>
void fill(Random& random, std::optional<T>& value) {
  value.reset();
  if (random.chance(50)) fill(random, value.emplace());
}
template <class A, class B>
void fill(Random& random, std::pair<A, B>& pair) {
  fill(random, pair.first);
  fill(random, pair.second);
}
template <class K, class V>
void fill(Random& random, std::map<K, V>& items) {
  items.clear();
  for (std::size_t i = random.below(4); i > 0; --i) {
    K key{};
    fill(random, key);
    fill(random, items[key]);
  }
}
template <class Variant, std::size_t... I>
void fill_alternative(Random& random, Variant& value, std::size_t index, std::index_sequence<I...>) {
  ((index == I ? fill(random, value.template emplace<I>()) : void()), ...);
}
template <class... T>
void fill(Random& random, std::variant<T...>& value) {
  fill_alternative(random, value, random.below(sizeof...(T)), std::index_sequence_for<T...>());
}

/// Derives from its variant; as itself it would meet the template for structs.
inline void fill(Random& random, Argument& argument) { fill(random, static_cast<ArgumentVariant&>(argument)); }

template <class T, auto Member>
void fill_field(Random& random, T& value, codec::Binary<Member>) {
  value.*Member = random.bytes(random.below(40));
}
template <class T, class M>
void fill_field(Random& random, T& value, M T::*member) {
  fill(random, value.*member);
}

template <class T>
void fill(Random& random, T& value) {
  if constexpr (std::same_as<T, bool>) {
    value = random.chance(50);
  } else if constexpr (std::same_as<T, DType>) {
    value = static_cast<DType>(random.below(kDTypeCount));
  } else if constexpr (std::is_enum_v<T>) {
    value = static_cast<T>(random.below(codec::kEnumEnd<T>));
  } else if constexpr (std::integral<T>) {
    value = static_cast<T>(random.natural());
  } else if constexpr (std::same_as<T, double>) {
    value = random.real();
  } else if constexpr (std::same_as<T, std::complex<double>>) {
    value = {random.real(), random.real()};
  } else if constexpr (std::same_as<T, std::string>) {
    value = random.text();
  } else if constexpr (!std::same_as<T, std::monostate>) {
    std::apply([&](auto... field) { (fill_field(random, value, field), ...); }, codec::kFields<T>);
    if constexpr (std::same_as<T, ProgramGraph> || std::same_as<T, Fragment>)
      value.schema_version = kGraphSchemaVersion;
  }
}

/// A random message of the alternative `index`.
inline Message random_message(Random& random, std::size_t index) {
  Message message;
  fill_alternative(random, message, index, std::make_index_sequence<std::variant_size_v<Message>>());
  return message;
}

// -- programs that check_program accepts ---------------------------------------------------------------------------

/// `node_count` elementwise and list operators over one symbolic input and some constants; module paths "layer.0" … in
/// order, so that placements by prefix cut it. Every node's first output is read by a later one or is an output.
inline ProgramGraph random_program(Random& random, std::size_t node_count) {
  ProgramGraph program;
  program.name = "random";
  program.symbols = {{"s0", 1, 512}};
  const std::vector<Expr> sizes{Expr::symbol(0), Expr::constant(4)};
  const auto add_value = [&](const std::string& name, ValueKind kind) {
    ValueSpec spec{name, kind, kind == ValueKind::kTensor ? DType::kFloat32 : DType::kUndefined, std::nullopt};
    if (kind == ValueKind::kTensor) spec.sizes = sizes;
    program.values.push_back(std::move(spec));
    return static_cast<ValueId>(program.values.size() - 1);
  };
  std::vector<ValueId> tensors{add_value("x", ValueKind::kTensor)};
  program.inputs = {{"x", tensors[0]}};
  for (std::size_t i = 0; i < 1 + random.below(3); ++i) {
    const ValueId id = add_value("weight" + std::to_string(i), ValueKind::kTensor);
    program.values[id].sizes = std::vector<Expr>{Expr::constant(4)};
    program.constants.push_back({"weight" + std::to_string(i), id, *ContentHash::from_bytes(random.bytes(32)), 16,
                                 TensorMeta::contiguous(DType::kFloat32, {4})});
    tensors.push_back(id);
  }
  ValueId last = tensors[0];
  for (std::size_t i = 0; i < node_count; ++i) {
    Node node;
    node.name = "node_" + std::to_string(i);
    node.module_path = "layer." + std::to_string(i * 4 / std::max<std::size_t>(node_count, 1));
    node.cost = static_cast<double>(1 + random.below(1000));
    const ValueId other = tensors[random.below(tensors.size())];
    const ValueId out = add_value(node.name, ValueKind::kTensor);
    switch (random.below(4)) {
      case 0:
        node.op = "aten::add.Tensor";
        node.args = {ArgValue{last}, ArgValue{other}};
        node.kwargs = {{"alpha", ArgScalar{std::int64_t{1}}}};
        node.outputs = {{false, {out}}};
        break;
      case 1:
        node.op = "aten::relu";
        node.args = {ArgValue{last}};
        node.outputs = {{false, {out}}};
        break;
      case 2:
        node.op = "aten::split.Tensor";
        node.args = {ArgValue{last}, ArgSymbol{Expr::symbol(0)}, std::int64_t{0}};
        node.outputs = {{true, {out, kNoValue}}};
        break;
      default:
        node.op = "aten::mul.Tensor";
        node.args = {ArgValue{other}, ArgValue{last}};
        node.outputs = {{false, {out}}};
    }
    program.nodes.push_back(std::move(node));
    tensors.push_back(out);
    last = out;
  }
  program.outputs = {{"y", ArgValue{last}}};
  return program;
}

}  // namespace callboard::test
