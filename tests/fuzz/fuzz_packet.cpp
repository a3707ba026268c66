// Two bytes of type, then a body; the checksum is made to fit, so that the decoder is reached.
#include "messages/codec.h"
#include "tests/fuzz/fuzz.h"

FUZZ_TARGET {
  if (size < 2) return 0;
  const auto type = static_cast<std::uint16_t>(data[0] | data[1] << 8);
  const std::string_view body = callboard::fuzz::view(data + 2, size - 2);
  const auto foreign = callboard::make_frame(1, body, callboard::kProtocolVersion + 1);
  if (foreign) (void)callboard::decode_foreign_hello(*foreign);
  const auto frame = callboard::make_frame(type, body);
  if (!frame) return 0;
  const auto packet = callboard::decode_packet(*frame);
  if (!packet) return 0;
  callboard::fuzz::check_stable(
      *packet, [](const callboard::Packet& p) { return callboard::encode_packet(p.envelope, p.message).value(); },
      [](const std::string& bytes) { return callboard::decode_packet(bytes); });
  return 0;
}
