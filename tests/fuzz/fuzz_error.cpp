#include "messages/codec.h"
#include "tests/fuzz/fuzz.h"

FUZZ_TARGET {
  const auto error = callboard::decode_error(callboard::fuzz::view(data, size));
  if (!error) return 0;
  (void)error->to_string();
  callboard::fuzz::check_stable(*error, callboard::encode_error, callboard::decode_error);
  return 0;
}
