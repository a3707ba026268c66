// Rules for the files behind "ipc://" endpoints. ZeroMQ itself takes a live socket over without a word.
#pragma once

#include <string>

#include "messages/base/error.h"

namespace callboard::actors {

/// The path of "ipc://<path>", or empty for another kind of endpoint.
std::string ipc_path_of(const std::string& endpoint);

/// To be called right before a bind. Checks the path's length and its directory (ours, closed to others: kPermission),
/// removes a socket that nobody serves any more, refuses one that somebody does (kAddressInUse). Between this and the
/// bind the lock of the run directory keeps others away.
Status prepare_ipc_path(const std::string& path);
/// To be called right after it: only our user may connect (the directory says so already).
Status protect_ipc_path(const std::string& path);

}  // namespace callboard::actors
