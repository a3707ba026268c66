// A handle as one line of words, for the pipe between a test and its peer: no codec is linked here.
#pragma once

#include <sstream>
#include <string>
#include <string_view>

#include "messages/tensor_handle.h"

namespace callboard::testing {

inline std::string to_hex(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}
inline std::string from_hex(const std::string& hex) {
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(digit(hex[i]) * 16 + digit(hex[i + 1]));
  }
  return bytes;
}

inline std::string to_line(const TensorHandle& handle) {
  const auto& block = std::get<CudaIpcBlock>(handle.data);
  std::ostringstream line;
  line << static_cast<int>(handle.meta.dtype) << ' ' << handle.meta.sizes.size();
  for (const auto size : handle.meta.sizes) line << ' ' << size;
  for (const auto stride : handle.meta.strides) line << ' ' << stride;
  line << ' ' << handle.meta.storage_offset << ' ' << block.owner.to_string() << ' ' << block.slab << ' '
       << block.offset << ' ' << block.bytes << ' ' << block.lease << ' ' << block.mapping << ' '
       << to_hex(block.handles);
  return line.str();
}

inline TensorHandle from_line(const std::string& text) {
  std::istringstream line(text);
  TensorHandle handle;
  CudaIpcBlock block;
  int dtype = 0;
  std::size_t rank = 0;
  std::string owner;
  std::string hex;
  line >> dtype >> rank;
  handle.meta.dtype = static_cast<DType>(dtype);
  handle.meta.sizes.resize(rank);
  handle.meta.strides.resize(rank);
  for (auto& size : handle.meta.sizes) line >> size;
  for (auto& stride : handle.meta.strides) line >> stride;
  line >> handle.meta.storage_offset >> owner >> block.slab >> block.offset >> block.bytes >> block.lease >>
      block.mapping >> hex;
  block.owner = ActorId::parse(owner).value();
  block.handles = from_hex(hex);
  handle.data = std::move(block);
  return handle;
}

}  // namespace callboard::testing
