// Python exceptions as plain data. A Python object that outlives the GIL scope would need the GIL to die.
#pragma once

#include <string>

#include "messages/base/error.h"

namespace callboard::kernels {

// What an exception says goes through plain_text(): a library may colour its texts, or put a whole tensor into them.
constexpr std::size_t kTracebackBytesMax = 4u << 10;
constexpr std::size_t kPythonTextBytesMax = 2u << 10;  ///< of an exception's own text, and of its hint
constexpr std::size_t kPythonNameBytesMax = 256;       ///< of its type's name

/// Takes the exception that is set on this thread, whatever it derives from (SystemExit, KeyboardInterrupt):
/// kPythonFailed with `what`, type and text, the traceback as detail; kOutOfMemory where it says that memory is out;
/// for an error of the package `callboard` its own code and hint. The frames of its traceback are cleared: what they
/// held goes. The GIL is held.
Error take_python_error(const std::string& what);

}  // namespace callboard::kernels
