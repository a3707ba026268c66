// The paged KV cache's two operators. A cache holds the tokens of all sequences in blocks of a fixed size; a sequence's
// row of the block table says which blocks are its own, in order (callboard.kvpool.BlockPool gives their numbers).
//
// callboard::paged_append(Tensor(a!) cache, Tensor tokens, Tensor block_table, Tensor positions) -> ()
//   writes each sequence's new tokens behind those that it has
// callboard::paged_gather(Tensor cache, Tensor block_table, Tensor lengths, SymInt max_length) -> Tensor
//   each sequence's first tokens as one dense tensor, zeros behind its end
//
//   cache        (blocks, block_size, …), contiguous, any dtype
//   tokens       (sequences, new_tokens, …) of the cache's dtype and last dimensions, apart from the cache
//   block_table  (sequences, blocks_max), int32 or int64; entries that no token lies in are not looked at
//   positions    (sequences), int32 or int64: where the first new token goes
//   lengths      (sequences), int32 or int64: from 0 to max_length tokens
//   result       (sequences, max_length, …), contiguous
//
// No gradient goes through either: of paged_append's tokens it ends there, a backward pass through paged_gather is an
// error. On CPU a block or position out of range is a c10::Error that says which, and nothing
// is written; on CUDA, where nobody waits for the numbers, it fails an assertion in the kernel, as indices of PyTorch's
// own operators do. Two sequences must not own one block that both write to.
#pragma once

#include <ATen/core/Tensor.h>

namespace callboard::ops {

/// Throw c10::Error for device, dtype and shape. Sizes may be symbolic.
void check_paged_append(const at::Tensor& cache, const at::Tensor& tokens, const at::Tensor& block_table,
                        const at::Tensor& positions);
void check_paged_gather(const at::Tensor& cache, const at::Tensor& block_table, const at::Tensor& lengths,
                        const c10::SymInt& max_length);

/// (sequences, max_length, …), not filled.
at::Tensor empty_gathered(const at::Tensor& cache, const at::Tensor& block_table, const c10::SymInt& max_length);

}  // namespace callboard::ops
