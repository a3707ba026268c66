// Programs and fragments on the wire, in files and for hashing.
#include "messages/codec.h"
#include "messages/codec_values.h"
#include "messages/limits.h"

namespace callboard {
namespace codec {
namespace {

bool has_number(ExprOp op) { return op == ExprOp::kConst || op == ExprOp::kSymbol || op == ExprOp::kValue; }

bool is_expr_op(std::uint64_t number) {
  const auto within = [number](ExprOp first, ExprOp last) {
    return number >= static_cast<std::uint64_t>(first) && number <= static_cast<std::uint64_t>(last);
  };
  return within(ExprOp::kConst, ExprOp::kValue) || within(ExprOp::kAdd, ExprOp::kPow) ||
         within(ExprOp::kEq, ExprOp::kNot);
}

// Before the other fields: another version may have other ones, and the answer must name both numbers.
template <class Graph>
bool read_graph(Reader& reader, Graph& graph, const char* what) {
  Reader ahead = reader;
  std::size_t count = 0;
  if (ahead.open_array(count) && count > 0 && read(ahead, graph.schema_version) &&
      graph.schema_version != kGraphSchemaVersion) {
    return reader.refuse(Error(ErrorCode::kVersionMismatch,
                               std::string(what) + " has graph schema " + std::to_string(graph.schema_version) +
                                   ", this program reads " + std::to_string(kGraphSchemaVersion),
                               "export it again with the version that runs it"));
  }
  return read_fields(reader, graph);
}

}  // namespace

void write(Writer& writer, const Expr& expr) {
  if (expr.is_constant()) return writer.integer(expr.terms[0].value);
  std::size_t count = expr.terms.size();
  for (const Expr::Term& term : expr.terms) count += has_number(term.op) ? 1 : 0;
  writer.array(count);
  for (const Expr::Term& term : expr.terms) {
    writer.natural(static_cast<std::uint64_t>(term.op));
    if (has_number(term.op)) writer.integer(term.value);
  }
}

bool read(Reader& reader, Expr& expr) {
  expr.terms.clear();
  if (!reader.at_array()) {
    std::int64_t value = 0;
    if (!reader.integer(value)) return false;
    expr = Expr::constant(value);
    return true;
  }
  std::size_t left = 0;
  if (!reader.open_array(left)) return false;
  reader.reserve(expr.terms, std::min(left, limits::kExprTermsMax));
  while (left > 0) {
    if (expr.terms.size() == limits::kExprTermsMax) {
      return reader.refuse(ErrorCode::kTooLarge, "an expression has too many terms");
    }
    std::uint64_t op = 0;
    if (!reader.natural(op)) return false;
    if (!is_expr_op(op)) return reader.refuse(ErrorCode::kMalformed, "an expression has an unknown operation");
    Expr::Term& term = expr.terms.emplace_back();
    term.op = static_cast<ExprOp>(op);
    --left;
    if (!has_number(term.op)) continue;
    if (left == 0) return reader.refuse(ErrorCode::kMalformed, "an expression ends within a term");
    if (!reader.integer(term.value)) return false;
    --left;
  }
  reader.close();
  return true;
}

void write(Writer& writer, const ProgramGraph& program) { write_fields(writer, program); }
bool read(Reader& reader, ProgramGraph& program) { return read_graph(reader, program, "the program"); }

void write(Writer& writer, const Placement& placement) { write_fields(writer, placement); }
bool read(Reader& reader, Placement& placement) { return read_fields(reader, placement); }

void write(Writer& writer, const Fragment& fragment) { write_fields(writer, fragment); }
bool read(Reader& reader, Fragment& fragment) { return read_graph(reader, fragment, "the fragment"); }

}  // namespace codec

namespace {

template <class T>
std::string encode(const T& value) {
  codec::Writer writer;
  codec::write(writer, value);
  return writer.take();
}

template <class T>
Result<T> decode(std::string_view bytes, std::string_view what) {
  if (bytes.size() > limits::kMessageBytesMax) {
    return fail(ErrorCode::kTooLarge, std::string(what) + " of " + std::to_string(bytes.size()) +
                                          " bytes is above the limit of " + std::to_string(limits::kMessageBytesMax));
  }
  codec::Reader reader(bytes, what);
  Result<T> value{tl::in_place};
  if (!codec::read(reader, *value) || !reader.finish()) return fail(reader.error());
  return value;
}

}  // namespace

std::string encode_program(const ProgramGraph& program) { return encode(program); }
Result<ProgramGraph> decode_program(std::string_view bytes) { return decode<ProgramGraph>(bytes, "a program"); }
std::string encode_fragment(const Fragment& fragment) { return encode(fragment); }
Result<Fragment> decode_fragment(std::string_view bytes) { return decode<Fragment>(bytes, "a fragment"); }

ContentHash program_hash(const ProgramGraph& program, const Placement& placement) {
  codec::Writer writer;
  codec::write(writer, program);
  codec::write(writer, placement);  // each is self-delimiting, so no two pairs give the same bytes
  const std::string bytes = writer.take();
  return ContentHash::of(bytes.data(), bytes.size());
}

}  // namespace callboard
