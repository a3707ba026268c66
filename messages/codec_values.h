// Internal to what speaks msgpack (codec*.cpp, domain_messages.cpp): write() and read() for every type of the schema,
// derived from the field tables.
//
//   struct            array of its fields, exactly as many        bool, integers, double   their msgpack form
//   variant           [index, payload]                            enumeration              integer in range
//   vector, pair      array                                       dtype                    its name
//   map               map, keys strictly ascending                hash                     bin of 0 or 32 bytes
//   optional          nil or the value                            complex                  [re, im]
//   Expr              an integer if constant, else a flat array: operations, each followed by its number if it has one
#pragma once

#include <array>
#include <complex>
#include <concepts>
#include <limits>
#include <map>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

#include "messages/codec_fields.h"
#include "messages/codec_wire.h"

namespace callboard::codec {

template <class T>
concept HasFields = !std::same_as<std::remove_cvref_t<decltype(kFields<T>)>, NoFields>;

// -- the table lists every field -----------------------------------------------------------------------------------

/// Does not compile where a struct has another number of fields than `Count`.
template <std::size_t Count, class T>
constexpr void count_fields([[maybe_unused]] T& value) {
  static_assert(Count <= 13, "add a line below");
#define CALLBOARD_COUNT(n, ...)                   \
  if constexpr (Count == n) {                     \
    [[maybe_unused]] auto& [__VA_ARGS__] = value; \
  }
  CALLBOARD_COUNT(1, a)
  CALLBOARD_COUNT(2, a, b)
  CALLBOARD_COUNT(3, a, b, c)
  CALLBOARD_COUNT(4, a, b, c, d)
  CALLBOARD_COUNT(5, a, b, c, d, e)
  CALLBOARD_COUNT(6, a, b, c, d, e, f)
  CALLBOARD_COUNT(7, a, b, c, d, e, f, g)
  CALLBOARD_COUNT(8, a, b, c, d, e, f, g, h)
  CALLBOARD_COUNT(9, a, b, c, d, e, f, g, h, i)
  CALLBOARD_COUNT(10, a, b, c, d, e, f, g, h, i, j)
  CALLBOARD_COUNT(11, a, b, c, d, e, f, g, h, i, j, k)
  CALLBOARD_COUNT(12, a, b, c, d, e, f, g, h, i, j, k, l)
  CALLBOARD_COUNT(13, a, b, c, d, e, f, g, h, i, j, k, l, m)
#undef CALLBOARD_COUNT
}

template <class T>
inline constexpr std::size_t kFieldCount = std::tuple_size_v<std::remove_cvref_t<decltype(kFields<T>)>>;

// -- what has a form of its own (codec.cpp, codec_graph.cpp) -------------------------------------------------------

void write(Writer& writer, const Error& error);
bool read(Reader& reader, Error& error);
void write(Writer& writer, const ContentHash& hash);
bool read(Reader& reader, ContentHash& hash);
void write(Writer& writer, const TensorHandle& handle);
bool read(Reader& reader, TensorHandle& handle);
void write(Writer& writer, const Expr& expr);
bool read(Reader& reader, Expr& expr);
void write(Writer& writer, const ProgramGraph& program);
bool read(Reader& reader, ProgramGraph& program);
void write(Writer& writer, const Placement& placement);
bool read(Reader& reader, Placement& placement);
void write(Writer& writer, const Fragment& fragment);
bool read(Reader& reader, Fragment& fragment);

// Declared before any is defined: they call each other for members that argument-dependent lookup does not find.
template <class T>
void write(Writer& writer, const T& value);
template <class T>
bool read(Reader& reader, T& value);
template <class T>
void write(Writer& writer, const std::vector<T>& items);
template <class T>
bool read(Reader& reader, std::vector<T>& items);
template <class T>
void write(Writer& writer, const std::optional<T>& value);
template <class T>
bool read(Reader& reader, std::optional<T>& value);
template <class A, class B>
void write(Writer& writer, const std::pair<A, B>& pair);
template <class A, class B>
bool read(Reader& reader, std::pair<A, B>& pair);
template <class K, class V>
void write(Writer& writer, const std::map<K, V>& items);
template <class K, class V>
bool read(Reader& reader, std::map<K, V>& items);
template <class... T>
void write(Writer& writer, const std::variant<T...>& value);
template <class... T>
bool read(Reader& reader, std::variant<T...>& value);

// -- structs -------------------------------------------------------------------------------------------------------

template <class T, auto Member>
void write_field(Writer& writer, const T& value, Binary<Member>) {
  writer.bytes(value.*Member);
}
template <class T, class M>
void write_field(Writer& writer, const T& value, M T::*member) {
  write(writer, value.*member);
}
template <class T, auto Member>
bool read_field(Reader& reader, T& value, Binary<Member>) {
  return reader.bytes(value.*Member);
}
template <class T, class M>
bool read_field(Reader& reader, T& value, M T::*member) {
  return read(reader, value.*member);
}

template <HasFields T>
void write_fields(Writer& writer, const T& value) {
  count_fields<kFieldCount<T>>(value);
  writer.array(kFieldCount<T>);
  std::apply([&](auto... field) { (write_field(writer, value, field), ...); }, kFields<T>);
}

template <HasFields T>
bool read_fields(Reader& reader, T& value) {
  if (!reader.open_array_of(kFieldCount<T>)) return false;
  const bool done = std::apply([&](auto... field) { return (read_field(reader, value, field) && ...); }, kFields<T>);
  reader.close();
  return done;
}

// -- plain values --------------------------------------------------------------------------------------------------

template <class T>
void write(Writer& writer, const T& value) {
  if constexpr (std::same_as<T, bool>) {
    writer.boolean(value);
  } else if constexpr (std::same_as<T, DType>) {
    writer.text(dtype_name(value));
  } else if constexpr (std::is_enum_v<T>) {
    static_assert(kEnumEnd<T> > 0, "an enumeration that travels has its range in codec_fields.h");
    writer.natural(static_cast<std::uint64_t>(value));
  } else if constexpr (std::unsigned_integral<T>) {
    writer.natural(value);
  } else if constexpr (std::signed_integral<T>) {
    writer.integer(value);
  } else if constexpr (std::same_as<T, double>) {
    writer.real(value);
  } else if constexpr (std::same_as<T, std::complex<double>>) {
    writer.array(2);
    writer.real(value.real());
    writer.real(value.imag());
  } else if constexpr (std::same_as<T, std::string>) {
    writer.text(value);
  } else if constexpr (std::same_as<T, std::monostate>) {
    writer.nil();
  } else {
    write_fields(writer, value);
  }
}

template <class T>
bool read_enum(Reader& reader, T& value) {
  std::uint64_t number = 0;
  if (!reader.natural(number)) return false;
  if (number >= kEnumEnd<T>) return reader.refuse(ErrorCode::kMalformed, "an enumerator is out of range");
  value = static_cast<T>(number);
  return true;
}

template <class T>
bool read_integer(Reader& reader, T& value) {
  std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t> number = 0;
  if constexpr (std::is_signed_v<T>) {
    if (!reader.integer(number)) return false;
  } else {
    if (!reader.natural(number)) return false;
  }
  if (number > std::numeric_limits<T>::max() || number < std::numeric_limits<T>::min()) {
    return reader.refuse(ErrorCode::kMalformed, "an integer does not fit its field");
  }
  value = static_cast<T>(number);
  return true;
}

bool read_dtype(Reader& reader, DType& dtype);
bool read_complex(Reader& reader, std::complex<double>& value);

template <class T>
bool read(Reader& reader, T& value) {
  if constexpr (std::same_as<T, bool>) {
    return reader.boolean(value);
  } else if constexpr (std::same_as<T, DType>) {
    return read_dtype(reader, value);
  } else if constexpr (std::is_enum_v<T>) {
    return read_enum(reader, value);
  } else if constexpr (std::integral<T>) {
    return read_integer(reader, value);
  } else if constexpr (std::same_as<T, double>) {
    return reader.real(value);
  } else if constexpr (std::same_as<T, std::complex<double>>) {
    return read_complex(reader, value);
  } else if constexpr (std::same_as<T, std::string>) {
    return reader.text(value);
  } else if constexpr (std::same_as<T, std::monostate>) {
    return reader.nil();
  } else {
    return read_fields(reader, value);
  }
}

// -- containers ----------------------------------------------------------------------------------------------------

template <class T>
void write(Writer& writer, const std::vector<T>& items) {
  writer.array(items.size());
  if constexpr (std::same_as<T, bool>) {
    for (const bool item : items) writer.boolean(item);
  } else {
    for (const T& item : items) write(writer, item);
  }
}

template <class T>
bool read(Reader& reader, std::vector<T>& items) {
  std::size_t count = 0;
  if (!reader.open_array(count)) return false;
  items.clear();
  reader.reserve(items, count);
  for (std::size_t i = 0; i < count; ++i) {
    if constexpr (std::same_as<T, bool>) {
      bool item = false;
      if (!reader.boolean(item)) return false;
      items.push_back(item);
    } else {
      if (!read(reader, items.emplace_back())) return false;
    }
  }
  reader.close();
  return true;
}

template <class T>
void write(Writer& writer, const std::optional<T>& value) {
  value ? write(writer, *value) : writer.nil();
}

template <class T>
bool read(Reader& reader, std::optional<T>& value) {
  if (!reader.at_nil()) return read(reader, value.emplace());
  value.reset();
  return reader.nil();
}

template <class A, class B>
void write(Writer& writer, const std::pair<A, B>& pair) {
  writer.array(2);
  write(writer, pair.first);
  write(writer, pair.second);
}

template <class A, class B>
bool read(Reader& reader, std::pair<A, B>& pair) {
  if (!reader.open_array_of(2) || !read(reader, pair.first) || !read(reader, pair.second)) return false;
  reader.close();
  return true;
}

template <class K, class V>
void write(Writer& writer, const std::map<K, V>& items) {
  writer.map(items.size());
  for (const auto& [key, value] : items) {
    write(writer, key);
    write(writer, value);
  }
}

template <class K, class V>
bool read(Reader& reader, std::map<K, V>& items) {
  std::size_t count = 0;
  if (!reader.open_map(count)) return false;
  items.clear();
  for (std::size_t i = 0; i < count; ++i) {
    K key{};
    if (!read(reader, key)) return false;
    if (!items.empty() && !(items.rbegin()->first < key)) {
      return reader.refuse(ErrorCode::kMalformed, "the keys of a map are not in ascending order, each once");
    }
    if (!read(reader, items.emplace_hint(items.end(), std::move(key), V{})->second)) return false;
  }
  reader.close();
  return true;
}

// -- variants ------------------------------------------------------------------------------------------------------

template <class Variant, std::size_t Index>
bool read_alternative(Reader& reader, Variant& value) {
  return read(reader, value.template emplace<Index>());
}

/// Reads the payload of the alternative `index`, which the caller has checked.
template <class Variant>
bool read_payload(Reader& reader, std::size_t index, Variant& value) {
  using Read = bool (*)(Reader&, Variant&);
  static constexpr auto kReaders = []<std::size_t... I>(std::index_sequence<I...>) {
    return std::array<Read, sizeof...(I)>{&read_alternative<Variant, I>...};
  }
  (std::make_index_sequence<std::variant_size_v<Variant>>());
  return kReaders[index](reader, value);
}

template <class... T>
void write(Writer& writer, const std::variant<T...>& value) {
  writer.array(2);
  writer.natural(value.index());
  std::visit([&writer](const auto& payload) { write(writer, payload); }, value);
}

template <class... T>
bool read(Reader& reader, std::variant<T...>& value) {
  std::uint64_t index = 0;
  if (!reader.open_array_of(2) || !reader.natural(index)) return false;
  if (index >= sizeof...(T)) return reader.refuse(ErrorCode::kMalformed, "the kind of a value is out of range");
  if (!read_payload(reader, static_cast<std::size_t>(index), value)) return false;
  reader.close();
  return true;
}

// Argument derives from its variant; as itself it would meet the template for structs.
inline void write(Writer& writer, const Argument& value) { write(writer, static_cast<const ArgumentVariant&>(value)); }
inline bool read(Reader& reader, Argument& value) { return read(reader, static_cast<ArgumentVariant&>(value)); }

}  // namespace callboard::codec
