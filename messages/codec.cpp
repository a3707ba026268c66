#include "messages/codec.h"

#include "messages/codec_values.h"
#include "messages/limits.h"

namespace callboard {
namespace codec {
namespace {

constexpr std::size_t kErrorFields = 8;

// Cuts what a reader would refuse, so that an error always arrives: causes below kErrorDepthMax and above
// kErrorCausesMax, and longer texts.
void write_error(Writer& writer, const Error& error, std::size_t depth) {
  writer.array(kErrorFields);
  writer.natural(static_cast<std::uint16_t>(error.code));
  for (const std::string* text : {&error.message, &error.hint, &error.actor, &error.op}) {
    writer.text_cut(*text, limits::kErrorTextBytesMax);
  }
  writer.integer(error.node);
  writer.text_cut(error.detail, limits::kErrorTextBytesMax);
  const std::size_t causes =
      depth >= limits::kErrorDepthMax ? 0 : std::min(error.causes.size(), limits::kErrorCausesMax);
  writer.array(causes);
  for (std::size_t i = 0; i < causes; ++i) write_error(writer, error.causes[i], depth + 1);
}

bool read_error(Reader& reader, Error& error, std::size_t depth) {
  std::uint16_t code = 0;
  std::size_t causes = 0;
  if (!reader.open_array_of(kErrorFields) || !read(reader, code) || !read(reader, error.message) ||
      !read(reader, error.hint) || !read(reader, error.actor) || !read(reader, error.op) || !read(reader, error.node) ||
      !read(reader, error.detail) || !reader.open_array(causes)) {
    return false;
  }
  error.code = static_cast<ErrorCode>(code);  // an unknown one is kept: error_name() has an answer for it
  if (causes > limits::kErrorCausesMax) return reader.refuse(ErrorCode::kTooLarge, "an error has too many causes");
  if (causes > 0 && depth >= limits::kErrorDepthMax) {
    return reader.refuse(ErrorCode::kTooDeep, "the causes of an error are nested too deeply");
  }
  reader.reserve(error.causes, causes);
  for (std::size_t i = 0; i < causes; ++i) {
    if (!read_error(reader, error.causes.emplace_back(), depth + 1)) return false;
  }
  reader.close();
  reader.close();
  return true;
}

}  // namespace

void write(Writer& writer, const Error& error) { write_error(writer, error, 0); }
bool read(Reader& reader, Error& error) { return read_error(reader, error, 0); }

void write(Writer& writer, const ContentHash& hash) { writer.bytes(hash.bytes()); }
bool read(Reader& reader, ContentHash& hash) {
  std::string_view bytes;
  if (!reader.bytes_in_place(bytes)) return false;
  Result<ContentHash> read = ContentHash::from_bytes(bytes);
  if (!read) return reader.refuse(read.error());
  hash = *read;
  return true;
}

void write(Writer& writer, const TensorHandle& handle) { write_fields(writer, handle); }
bool read(Reader& reader, TensorHandle& handle) {
  if (!read_fields(reader, handle)) return false;
  const Status inside = handle.check();
  return inside.has_value() || reader.refuse(inside.error());
}

bool read_dtype(Reader& reader, DType& dtype) {
  std::string name;
  if (!reader.text(name)) return false;
  const Result<DType> found = dtype_from_name(name);
  if (!found) return reader.refuse(found.error());
  dtype = *found;
  return true;
}

bool read_complex(Reader& reader, std::complex<double>& value) {
  double real = 0;
  double imaginary = 0;
  if (!reader.open_array_of(2) || !reader.real(real) || !reader.real(imaginary)) return false;
  reader.close();
  value = {real, imaginary};
  return true;
}

}  // namespace codec

namespace {

Error version_mismatch(std::uint16_t version) {
  return Error(ErrorCode::kVersionMismatch,
               "the peer speaks protocol " + std::to_string(version) + ", this program speaks " +
                   std::to_string(kProtocolVersion),
               "install the same version of Callboard on both sides");
}

std::size_t message_index(std::uint16_t type) { return static_cast<std::size_t>(type) - 1; }

constexpr std::uint16_t kHelloType = 1;  // in every version

}  // namespace

Result<std::string> encode_packet(const Envelope& envelope, const Message& message) {
  codec::Writer writer(kFrameHeaderBytes);
  writer.array(2);
  codec::write(writer, envelope);
  std::visit([&writer](const auto& payload) { codec::write(writer, payload); }, message);
  CALLBOARD_TRY(writer.check_limits());
  std::string frame = writer.take();
  CALLBOARD_TRY(seal_frame(frame, static_cast<std::uint16_t>(message.index() + 1)));
  return frame;
}

Result<Packet> decode_packet(std::string_view frame) {
  CALLBOARD_ASSIGN(const FrameView view, read_frame(frame));
  if (view.version != kProtocolVersion) return fail(version_mismatch(view.version));
  const std::size_t index = message_index(view.type);
  if (view.type == 0 || index >= std::variant_size_v<Message>) {
    return fail(ErrorCode::kUnexpectedMessage, "there is no message of type " + std::to_string(view.type));
  }
  codec::Reader reader(view.body, message_name(index));
  Result<Packet> packet{tl::in_place};
  if (reader.open_array_of(2) && codec::read(reader, packet->envelope) &&
      codec::read_payload(reader, index, packet->message)) {
    reader.close();
  }
  if (!reader.finish()) return fail(reader.error());
  return packet;
}

// Frozen over all versions, so that an old and a new program can tell each other apart: the frame header, type 1 for
// Hello, and the beginnings of the body's arrays. The body is [envelope, hello, …], the envelope [epoch, sender, …],
// the hello [role, who, cluster, build, …] and an identity [name, incarnation]. What follows may change.
Result<Packet> decode_foreign_hello(std::string_view frame) {
  CALLBOARD_ASSIGN(const FrameView view, read_frame(frame));
  if (view.type != kHelloType) {
    return fail(ErrorCode::kUnexpectedMessage, "a peer of protocol " + std::to_string(view.version) +
                                                   " begins with a message of type " + std::to_string(view.type));
  }
  codec::Reader reader(view.body, "the hello of another version");
  Result<Packet> packet{tl::in_place};
  Hello hello;
  const auto open_at_least = [&reader](std::size_t wanted, std::size_t& more) {
    std::size_t count = 0;
    if (!reader.open_array(count)) return false;
    if (count < wanted) return reader.refuse(ErrorCode::kMalformed, "an array is shorter than its frozen part");
    more = count - wanted;
    return true;
  };
  const auto skip_rest = [&reader](std::size_t more) {
    for (std::size_t i = 0; i < more; ++i) {
      if (!reader.skip()) return false;
    }
    reader.close();
    return true;
  };
  std::size_t more_body = 0;
  std::size_t more_envelope = 0;
  std::size_t more_hello = 0;
  const bool done = open_at_least(2, more_body) && open_at_least(2, more_envelope) &&
                    codec::read(reader, packet->envelope.epoch) && codec::read(reader, packet->envelope.sender) &&
                    skip_rest(more_envelope) && open_at_least(4, more_hello) && codec::read(reader, hello.role) &&
                    codec::read(reader, hello.who) && codec::read(reader, hello.cluster) &&
                    codec::read(reader, hello.build) && skip_rest(more_hello) && skip_rest(more_body);
  if (!done || !reader.finish()) return fail(reader.error());
  packet->message = std::move(hello);
  return packet;
}

std::string encode_error(const Error& error) {
  codec::Writer writer;
  codec::write(writer, error);
  return writer.take();
}

Result<Error> decode_error(std::string_view bytes) {
  codec::Reader reader(bytes, "an error");
  Error error;
  if (!codec::read(reader, error) || !reader.finish()) return fail(reader.error());
  return error;
}

}  // namespace callboard
