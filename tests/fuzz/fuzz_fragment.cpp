#include "messages/codec.h"
#include "messages/graph_check.h"
#include "tests/fuzz/fuzz.h"

FUZZ_TARGET {
  auto fragment = callboard::decode_fragment(callboard::fuzz::view(data, size));
  if (!fragment) return 0;
  const auto checked = callboard::check_fragment(*fragment);
  if (!checked) (void)checked.error().to_string();
  callboard::fuzz::check_stable(*fragment, callboard::encode_fragment, callboard::decode_fragment);
  fragment->frees = callboard::compute_frees(*fragment);
  if (checked) CALLBOARD_CHECK(callboard::check_fragment(*fragment), "computed frees are sound");
  return 0;
}
