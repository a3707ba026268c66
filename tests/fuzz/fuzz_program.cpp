#include "messages/codec.h"
#include "messages/graph_check.h"
#include "tests/fuzz/fuzz.h"

FUZZ_TARGET {
  const auto program = callboard::decode_program(callboard::fuzz::view(data, size));
  if (!program) return 0;
  const auto checked = callboard::check_program(*program);
  if (!checked) (void)checked.error().to_string();
  callboard::fuzz::check_stable(*program, callboard::encode_program, callboard::decode_program);
  return 0;
}
