// The child of a GIL domain: `callboard-device --gil-domain`.
#pragma once

namespace callboard::kernels {

/// The descriptors that a child finds, see HelperProcess.
constexpr int kDomainSocketFd = 3;
constexpr int kDomainBoardFd = 4;
constexpr int kDomainWordsFd = 5;

/// Serves one device until it is gone; the process's exit status. First thing in main, on the main thread, which then
/// runs the Python code: it installs ATen's allocator, starts the interpreter, imports and warms up, and answers calls.
int serve_gil_domain();

}  // namespace callboard::kernels
