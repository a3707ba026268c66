// Whole frames as they come from a socket. Few pass the checksum: fuzz_packet goes deeper.
#include "messages/codec.h"
#include "tests/fuzz/fuzz.h"

FUZZ_TARGET {
  const std::string_view frame = callboard::fuzz::view(data, size);
  const auto view = callboard::read_frame(frame);
  const auto packet = callboard::decode_packet(frame);
  CALLBOARD_CHECK(view.has_value() || !packet.has_value(), "a packet comes from a sound frame only");
  (void)callboard::decode_foreign_hello(frame);
  return 0;
}
