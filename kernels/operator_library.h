// Users' shared libraries of operators (TORCH_LIBRARY), loaded into a device's process.
#pragma once

#include <string>
#include <vector>

#include "messages/base/error.h"
#include "messages/base/ids.h"

namespace callboard::kernels {

struct OperatorLibrary {
  std::string path;  ///< absolute
  ContentHash hash;  ///< SHA-256 of the file; none: not asked for
};

struct LoadedLibrary {
  std::string path;
  ContentHash hash;                    ///< of what was loaded
  std::vector<std::string> operators;  ///< that it has brought, "my::scale" or "my::scale.out", sorted
};

/// Opens it for good, which registers its operators with LibTorch's dispatcher. The code in it runs: only what the
/// cluster file names is loaded. Libraries that link libtorch_python (torch.utils.cpp_extension does unless it is told
/// otherwise) get the Python plug-in's libraries beside them; no interpreter is started. Before any kernel runs; one
/// thread. kFileNotFound, kFileChanged (another hash than wanted), kEnvironment with what the loader says: a library or
/// a symbol that is missing. Where the library itself throws (an operator that is registered already) the process ends
/// with status 1 and says so in its log.
Result<LoadedLibrary> load_operator_library(const OperatorLibrary& library);

/// All of them, in order. The first error, with the library's path.
Result<std::vector<LoadedLibrary>> load_operator_libraries(const std::vector<OperatorLibrary>& libraries);

/// [{"path", "sha256", "operators": [...]}]
std::string to_json(const std::vector<LoadedLibrary>& libraries);

}  // namespace callboard::kernels
