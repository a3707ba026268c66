// Handles as one word group of a line, for the two processes of the suite for CUDA memory.
#pragma once

#include <sstream>
#include <string>
#include <string_view>

#include "messages/tensor_handle.h"

namespace callboard::kernels::cuda::conformance {

inline const ActorId kExporter{"cuda0", 1};
inline const ActorId kReader{"client", 1};
inline const ActorId kSecondReader{"second", 1};

inline std::string to_hex(std::string_view bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char byte : bytes) {
    text += kDigits[static_cast<unsigned char>(byte) >> 4];
    text += kDigits[static_cast<unsigned char>(byte) & 15];
  }
  return text;
}
inline std::string from_hex(const std::string& text) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

inline std::string to_text(const CudaIpcBlock& block) {
  std::ostringstream out;
  out << "block " << block.slab << ' ' << block.offset << ' ' << block.bytes << ' ' << block.lease << ' '
      << block.mapping << ' ' << to_hex(block.handles);
  return out.str();
}
inline CudaIpcBlock from_text(const std::string& text) {
  std::istringstream in(text);
  std::string word;
  CudaIpcBlock block;
  block.owner = kExporter;
  in >> word >> block.slab >> block.offset >> block.bytes >> block.lease >> block.mapping >> word;
  block.handles = from_hex(word);
  return block;
}

}  // namespace callboard::kernels::cuda::conformance
