// The Python interpreter of this process: one, from its start to the process's end.
#pragma once

#include <string>
#include <vector>

#include "messages/base/error.h"

namespace callboard::kernels {

struct InterpreterReport {
  std::string executable;  ///< sys.executable: what torch.compile and multiprocessing start
  std::string prefix;      ///< sys.prefix: the virtual environment
  std::string python;      ///< "3.11.2"
  std::string torch;       ///< "2.11.0+cu130"
};

/// Starts it: isolated (no PYTHON… variable, no user site, no current folder on sys.path), sys.argv
/// ["callboard-device"], no signal handlers; imports torch. Everything comes from `executable` (empty: the Python that
/// Callboard was built with); the environment and the working directory count for nothing. From the main thread, which
/// then does not hold the GIL; again with the same executable it answers the same. kEnvironment, naming both versions
/// and the path: no such file, another minor version of Python than the one linked, no torch there or another version
/// of it. kUnsupported: a second one with another executable.
Result<InterpreterReport> start_interpreter(const std::string& executable);

/// Puts folders in front of sys.path, in their order; what is there already moves to the front. kPythonFailed.
Status prepend_path(const std::vector<std::string>& folders);

}  // namespace callboard::kernels
