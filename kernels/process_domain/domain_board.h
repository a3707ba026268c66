// A page that a device and a GIL domain's child both map.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/gil_ledger.h"
#include "messages/base/error.h"
#include "messages/base/fd.h"

namespace callboard::kernels {

/// A short text for whoever looks when its writer is gone or hangs. Zeros are an empty one. One thread writes; what is
/// read meanwhile may be of both texts.
class BoardText {
 public:
  void set(std::string_view text);
  std::string get() const;

 private:
  std::array<std::atomic<char>, 256> text_{};  // ends at the first zero
};

/// Zeros are what a fresh one is.
struct DomainBoard {
  GilBoard gil;                             ///< the child's
  std::atomic<std::uint64_t> begun{0};      ///< the last call that the child has begun
  std::atomic<std::uint64_t> stop_call{0};  ///< the call that is to be interrupted, said by the device
  BoardText step;                           ///< what the child does until it is ready; then empty
};

/// The mapping; unmaps at its end. Moves.
class MappedBoard {
 public:
  /// kResourceExhausted.
  static Result<std::pair<MappedBoard, UniqueFd>> create();
  static Result<MappedBoard> open(int fd);
  MappedBoard(MappedBoard&& other) noexcept : board_(std::exchange(other.board_, nullptr)) {}
  MappedBoard& operator=(MappedBoard&& other) noexcept {
    std::swap(board_, other.board_);
    return *this;
  }
  ~MappedBoard();
  DomainBoard& operator*() const { return *board_; }
  DomainBoard* operator->() const { return board_; }

 private:
  explicit MappedBoard(DomainBoard* board) : board_(board) {}
  DomainBoard* board_;
};

/// An unsealed memfd that both sides write to as to a file: the child's last words.
Result<UniqueFd> create_words();

}  // namespace callboard::kernels
