// The schemas of Callboard's operators. Their kernels are registered beside their code: CPU and Meta in the .cpp files,
// CUDA in the .cu files.
#include <torch/library.h>

TORCH_LIBRARY(callboard, m) {
  m.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor");
  m.def("paged_append(Tensor(a!) cache, Tensor tokens, Tensor block_table, Tensor positions) -> ()");
  m.def("paged_gather(Tensor cache, Tensor block_table, Tensor lengths, SymInt max_length) -> Tensor");
}
