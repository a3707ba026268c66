// The GIL domain in this process: its interpreter, which the KernelStreams' threads enter one at a time.
#pragma once

#include <memory>

#include "kernels/gil_domain.h"

namespace callboard::kernels {

/// Starts the interpreter (interpreter.h), imports each module of options.kernels once, finds the functions and reads
/// their schemas. The main thread. What it imports stays for the process's life; a reload is a new process. Errors say
/// which entry: kEnvironment (interpreter.h), kPythonFailed with the traceback (an import failed), kBadArgument (no
/// such module or function, not decorated and without a schema, a schema that cannot be read or does not fit the
/// function, one operator twice), kUnsupported (types that Python kernels cannot have).
Result<std::unique_ptr<GilDomain>> make_inline_domain(const PythonOptions& options, c10::Device device);

}  // namespace callboard::kernels
