#pragma once

#include <array>
#include <cstddef>

namespace callboard {

/// SHA-256 (FIPS 180-4) in plain C++: a fifth of what OpenSSL does in a second.
std::array<char, 32> sha256(const void* data, std::size_t size);

}  // namespace callboard
