// A page that a device and a GIL domain's child both map.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include "kernels/gil_ledger.h"
#include "messages/base/error.h"
#include "messages/base/fd.h"

namespace callboard::kernels {

/// Zeros are what a fresh one is.
struct DomainBoard {
  GilBoard gil;                             ///< the child's
  std::atomic<std::uint64_t> begun{0};      ///< the last call that the child has begun
  std::atomic<std::uint64_t> stop_call{0};  ///< the call that is to be interrupted, said by the device
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
