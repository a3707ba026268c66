// One packet of each message, with every kind of argument, value and handle among them; the files of this folder are
// their frames. Changing one changes the protocol: raise kProtocolVersion and run make_golden.
#pragma once

#include <string>
#include <vector>

#include "messages/protocol.h"

namespace callboard::golden {

struct GoldenPacket {
  std::string name;  ///< the file is <name>.bin
  Envelope envelope;
  Message message;
};

ProgramGraph golden_program();
Fragment golden_fragment();
Error golden_error();
std::vector<GoldenPacket> golden_packets();

}  // namespace callboard::golden
